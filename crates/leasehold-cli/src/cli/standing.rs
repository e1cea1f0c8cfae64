//! What can be said about commands that stay: on standby, and at their times.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};

use super::{Input, Reach, Run, exit_code};

/// How a command runs under a lease that is renewed.
#[derive(Clone, Debug, Args)]
pub(crate) struct Running {
    /// How long the lease outlives a crash of this process [env: LEASEHOLD_TTL] [default: 30s]
    #[arg(long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) ttl: Option<String>,
    /// How long before the lease's end CMD gets TERM, so that KILL at the end finds nothing
    /// [default: 10s, or half of what ttl and renewal leave]
    #[arg(short, long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) kill_after: Option<String>,
    /// Something else to tell about the holder; may be given several times
    #[arg(long, value_name = "K=V")]
    pub(crate) label: Vec<String>,
    /// Tell nobody the host, the process and the command
    #[arg(long)]
    pub(crate) no_holder_info: bool,
    /// Refuse a store whose exclusion does not reach this far
    #[arg(long, value_name = "SCOPE")]
    pub(crate) require_scope: Option<Reach>,
    /// Refuse a store without fencing tokens that grow over restarts
    #[arg(long)]
    pub(crate) require_fencing: bool,
    /// Run this with sh -c in place of CMD
    #[arg(short = 'c', value_name = "STR", allow_hyphen_values = true, conflicts_with = "command")]
    pub(crate) script: Option<OsString>,
    /// What to run
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl Running {
    /// The same, said as `run` of this key.
    fn as_run(&self, key: &OsString, stdin: Input) -> Run {
        Run {
            key: key.clone(),
            nonblock: false,
            wait: None,
            conflict_exit_code: None,
            skip_ok: false,
            ttl: self.ttl.clone(),
            renew_every: None,
            no_renew: false,
            kill_after: self.kill_after.clone(),
            on_lost: None,
            max_runtime: None,
            reason: None,
            label: self.label.clone(),
            no_holder_info: self.no_holder_info,
            require_scope: self.require_scope,
            require_fencing: self.require_fencing,
            stdin,
            owner_file: None,
            export_owner: false,
            status_fd: None,
            report: None,
            script: self.script.clone(),
            command: self.command.clone(),
        }
    }
}

const ELECT_EXAMPLES: &str = "\
Examples:
  leasehold elect scheduler -s redis://host -- ./scheduler --no-lock
  leasehold elect scheduler --ttl 10s --http 127.0.0.1:8080 -- ./scheduler
      /leader answers 200 while this is the leader, else 503;
      /healthz answers 200 unless this is stuck

When CMD ends by itself so does elect, with its code. On TERM the leadership is given back once CMD has ended.";

#[derive(Debug, Args)]
#[command(after_help = ELECT_EXAMPLES)]
#[command(group(ArgGroup::new("what").args(["script", "command"]).required(true)))]
pub(crate) struct Elect {
    /// The name of the leadership, a key like any other
    #[arg(value_name = "NAME")]
    pub(crate) name: OsString,
    /// Answer GET /leader and GET /healthz here
    #[arg(long, value_name = "ADDR")]
    pub(crate) http: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) running: Running,
}

impl Elect {
    /// What each leadership is, said as `run`.
    pub(crate) fn as_run(&self) -> Run {
        self.running.as_run(&self.name, Input::Inherit)
    }
}

/// What becomes of a tick while the last run lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Overlap {
    /// It is skipped
    Forbid,
    /// It runs as well
    Allow,
}

/// What becomes of a tick whose server crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LostTicks {
    /// It is told, and its time stands in LEASEHOLD_LOST_TICKS of the next run
    Report,
    /// It is told, and CMD runs for it again
    Run,
}

const CRON_EXAMPLES: &str = "\
Examples, the same on every server:
  leasehold cron report -s redis://host --schedule '30 2 * * *' -- ./report.sh
  leasehold cron -s redis://host --crontab /etc/leasehold/crontab
      lines as in a crontab, with the task's name in front of the command:
      30 2 * * *  report  ./report.sh --full
  leasehold cron report --tick 2026-11-30T02:30:00Z --skip-ok -- ./report.sh
      this tick only, for a timer that exists already: one server runs it

CMD finds the tick in LEASEHOLD_SCHEDULED_AT, and a fencing token in LEASEHOLD_FENCING_TOKEN.";

#[derive(Clone, Debug, Args)]
#[command(after_help = CRON_EXAMPLES)]
#[command(group(ArgGroup::new("times").args(["schedule", "crontab", "tick"]).required(true).multiple(true)))]
pub(crate) struct Cron {
    /// The name of the task, the same on every server and at every release
    #[arg(value_name = "NAME", required_unless_present = "crontab", conflicts_with = "crontab")]
    pub(crate) name: Option<OsString>,
    /// When it is due: minute, hour, day of month, month, day of week; with seconds in front if there are six
    #[arg(long, value_name = "EXPR", conflicts_with = "crontab")]
    pub(crate) schedule: Option<String>,
    /// Several tasks, one per line: the five fields, the name, the command
    #[arg(long, value_name = "FILE", conflicts_with_all = ["script", "command"])]
    pub(crate) crontab: Option<PathBuf>,
    /// The time zone of the schedule, as in Europe/Berlin
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub(crate) tz: String,
    /// Run this tick only, and exit with what came of it; 75 if it is skipped
    #[arg(long, value_name = "TIME", conflicts_with = "crontab")]
    pub(crate) tick: Option<String>,
    /// Exit with N instead of 75 if the tick is skipped
    #[arg(short = 'E', long, value_name = "N", value_parser = exit_code, allow_hyphen_values = true, requires = "tick")]
    pub(crate) conflict_exit_code: Option<u8>,
    /// Exit with 0 if the tick is skipped (the same as -E 0)
    #[arg(long, conflicts_with = "conflict_exit_code", requires = "tick")]
    pub(crate) skip_ok: bool,
    /// What becomes of a tick while the last run lasts
    #[arg(long, value_name = "WHAT", default_value = "forbid")]
    pub(crate) overlap: Overlap,
    /// What becomes of a tick whose server crashed
    #[arg(long, value_name = "WHAT", default_value = "report")]
    pub(crate) lost: LostTicks,
    /// How long a tick stays claimed: longer than a run, and twice as long as any clock is off
    #[arg(long, value_name = "DUR", default_value = "1h", allow_hyphen_values = true)]
    pub(crate) claim: String,
    /// Stop CMD after this long
    #[arg(long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) max_runtime: Option<String>,
    /// Started by this process, which looks for lost ticks itself
    #[arg(long, value_name = "PID", hide = true, requires = "tick", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) parent: Option<i32>,
    /// The tick was found lost
    #[arg(long, hide = true, requires = "tick")]
    pub(crate) again: bool,
    #[command(flatten)]
    pub(crate) running: Running,
}

impl Cron {
    /// What each run is, said as `run`.
    pub(crate) fn as_run(&self, name: &OsString) -> Run {
        Run {
            nonblock: true,
            conflict_exit_code: self.conflict_exit_code,
            skip_ok: self.skip_ok,
            max_runtime: self.max_runtime.clone(),
            ..self.running.as_run(name, Input::Null)
        }
    }
}
