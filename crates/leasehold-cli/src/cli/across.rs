//! What can be said about a lease that is held across several commands.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum, ValueHint};

use super::{Reach, Run, exit_code};
use crate::exit::{self, Failure};
use crate::output;

/// How long to wait for a key, and what a busy one comes to.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Waiting {
    /// Do not wait: exit with 75 if somebody else holds KEY
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// Wait at most this long, then exit with 75; 0 = -n [env: LEASEHOLD_WAIT] [default: forever]
    #[arg(short, long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) wait: Option<String>,
    /// Exit with N instead of 75 if KEY is busy
    #[arg(short = 'E', long, value_name = "N", value_parser = exit_code, allow_hyphen_values = true)]
    pub(crate) conflict_exit_code: Option<u8>,
    /// Exit with 0 if KEY is busy (the same as -E 0)
    #[arg(long, conflicts_with = "conflict_exit_code")]
    pub(crate) skip_ok: bool,
}

/// How the answer of `acquire` and `hold` is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// The owner file's name
    #[default]
    Text,
    /// For eval: exports LEASEHOLD_OWNER_FILE, or exits as this command does
    Shell,
    /// One JSON object, schema leasehold.acquire/1
    Json,
}

const ACQUIRE_EXAMPLES: &str = "\
Examples, in a shell script:
  out=$(leasehold acquire deploy --ttl 10m --format shell) || exit; eval \"$out\"
  trap 'leasehold release deploy' EXIT
      ends after 10 minutes, whatever happens; leasehold extend pushes that out

  out=$(leasehold acquire deploy --keeper=$$ --format shell) || exit
  eval \"$out\"
  trap 'leasehold release deploy' EXIT
      a process in the background renews the lease, and gives it back when the
      script ends in whatever way

The secret that owns the lease is in the owner file, for its user only; keep it
out of arguments and logs.";

#[derive(Clone, Debug, Args)]
#[command(after_help = ACQUIRE_EXAMPLES)]
#[command(group(ArgGroup::new("end").args(["ttl", "keeper"]).required(true).multiple(true)))]
pub(crate) struct Acquire {
    /// The name of the lock
    #[arg(value_name = "KEY", value_hint = ValueHint::Other)]
    pub(crate) key: OsString,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    /// How long the lease stands; with --keeper, how long it outlives a crash of the keeper [default then: 30s]
    #[arg(long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) ttl: Option<String>,
    /// Renew the lease in the background until process PID ends, and give it back then [default: the parent process]
    #[arg(long, value_name = "PID", num_args = 0..=1, require_equals = true, value_parser = clap::value_parser!(i32).range(1..))]
    #[allow(clippy::option_option, reason = "an option whose value may be left out")]
    pub(crate) keeper: Option<Option<i32>>,
    /// With --keeper: what PID is told if the lease is lost: term, signal:NAME, continue [default: term]
    #[arg(long, value_name = "WHAT", requires = "keeper")]
    pub(crate) on_lost: Option<String>,
    /// Write the secret that owns the lease to FILE, for its user only [default: a new file of this user]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) owner_file: Option<PathBuf>,
    /// How the answer is written
    #[arg(long, value_name = "FORMAT", default_value = "text", hide_default_value = true)]
    pub(crate) format: Format,
    /// Why the key is held, for whoever finds it busy
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
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
    /// Said as `hold`.
    #[arg(skip)]
    pub(crate) by_hand: bool,
}

const HOLD_EXAMPLES: &str = "\
Examples:
  leasehold hold deploy --for 4h --reason 'freeze for the migration'
  leasehold hold deploy --for 30m --reason 'looking into an incident' -n

It prints the owner file; leasehold release deploy --owner-file FILE ends it earlier.";

#[derive(Clone, Debug, Args)]
#[command(after_help = HOLD_EXAMPLES)]
pub(crate) struct Hold {
    /// The name of the lock
    #[arg(value_name = "KEY", value_hint = ValueHint::Other)]
    pub(crate) key: OsString,
    /// How long, at most 24h
    #[arg(long = "for", value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) length: String,
    /// Why, for whoever finds it busy
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    /// Write the secret that owns the lease to FILE, for its user only [default: a new file of this user]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) owner_file: Option<PathBuf>,
    /// How the answer is written
    #[arg(long, value_name = "FORMAT", default_value = "text", hide_default_value = true)]
    pub(crate) format: Format,
}

impl Hold {
    /// The same, said as `acquire`.
    pub(crate) fn as_acquire(&self) -> Acquire {
        Acquire {
            key: self.key.clone(),
            waiting: self.waiting.clone(),
            ttl: Some(self.length.clone()),
            keeper: None,
            on_lost: None,
            owner_file: self.owner_file.clone(),
            format: self.format,
            reason: Some(self.reason.clone()),
            label: Vec::new(),
            no_holder_info: false,
            require_scope: None,
            require_fencing: false,
            by_hand: true,
        }
    }
}

const RELEASE_EXAMPLES: &str = "\
Examples:
  leasehold release deploy                  by LEASEHOLD_OWNER_FILE, or _OWNER
  leasehold release deploy --owner-file /run/deploy.owner
  secret-tool lookup lease deploy | leasehold release deploy --owner-file -

If nobody has the owner token any more: leasehold force-release deploy";

#[derive(Debug, Args)]
#[command(after_help = RELEASE_EXAMPLES)]
pub(crate) struct Release {
    /// The name of the lock
    #[arg(value_name = "KEY", value_hint = ValueHint::Other)]
    pub(crate) key: OsString,
    /// The file that holds the secret; - is standard input [env: LEASEHOLD_OWNER_FILE, or the secret in LEASEHOLD_OWNER]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) owner_file: Option<PathBuf>,
}

const EXTEND_EXAMPLES: &str = "\
Examples:
  leasehold extend deploy --ttl 10m || exit         79 if the lease is lost
  leasehold extend deploy --ttl 10m --owner-file /run/deploy.owner";

#[derive(Debug, Args)]
#[command(after_help = EXTEND_EXAMPLES)]
pub(crate) struct Extend {
    /// The name of the lock
    #[arg(value_name = "KEY", value_hint = ValueHint::Other)]
    pub(crate) key: OsString,
    /// Let the lease stand for this long from now; it is never shortened [env: LEASEHOLD_TTL] [default: 30s]
    #[arg(long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) ttl: Option<String>,
    /// The file that holds the secret; - is standard input [env: LEASEHOLD_OWNER_FILE, or the secret in LEASEHOLD_OWNER]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) owner_file: Option<PathBuf>,
}

const RESUME_EXAMPLES: &str = "\
Examples:
  leasehold resume deploy -- ./publish.sh   by LEASEHOLD_OWNER_FILE, or _OWNER
  leasehold resume deploy --from own --max-runtime 1h -- ./publish.sh";

#[derive(Debug, Args)]
pub(crate) struct Resume {
    /// The file that holds the secret; - is standard input [env: LEASEHOLD_OWNER_FILE, or the secret in LEASEHOLD_OWNER]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) from: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) run: Run,
}

impl Resume {
    /// What is the matter with options that say how to wait: the lease is there, or it is not.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let Run { nonblock, wait, conflict_exit_code, skip_ok, .. } = &self.run;
        if *nonblock || wait.is_some() || conflict_exit_code.is_some() || *skip_ok {
            return Err(Failure::new(
                exit::USAGE,
                "resume does not wait for anybody: leave out -n, -w, -E and --skip-ok",
            ));
        }
        Ok(())
    }

    /// Hides these options, and shows examples of its own.
    pub(super) fn told(command: clap::Command) -> clap::Command {
        let waiting = ["nonblock", "wait", "conflict_exit_code", "skip_ok"];
        let command =
            command.mut_args(|arg| if waiting.contains(&arg.get_id().as_str()) { arg.hide(true) } else { arg });
        command.after_help(RESUME_EXAMPLES)
    }
}

const WAIT_EXAMPLES: &str = "\
Examples:
  leasehold wait migrate && ./start.sh      another may begin meanwhile
  leasehold wait leader --for held -w 1m
  leasehold wait leader --for change";

#[derive(Debug, Args)]
#[command(after_help = WAIT_EXAMPLES)]
pub(crate) struct WaitFor {
    /// The name of the lock
    #[arg(value_name = "KEY", value_hint = ValueHint::Other)]
    pub(crate) key: OsString,
    /// What to wait for
    #[arg(long = "for", value_name = "WHAT", default_value = "free")]
    pub(crate) until: Until,
    /// Wait at most this long, then exit with 75; 0 = look once [env: LEASEHOLD_WAIT] [default: forever]
    #[arg(short, long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) wait: Option<String>,
}

/// What `wait` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Until {
    /// Nobody holds it
    Free,
    /// Somebody holds it
    Held,
    /// Somebody else holds it than at first, or nobody any more, or somebody now
    Change,
}

/// Has a shell that evaluates the output end with this code, although the command line was not understood.
pub(super) fn refuse(arguments: impl Iterator<Item = OsString>, code: u8) {
    let arguments: Vec<_> = arguments.collect();
    let is = |at: usize, words: &[&str]| arguments.get(at).is_some_and(|word| words.iter().any(|known| word == known));
    let acquires = (0..arguments.len()).any(|at| is(at, &["acquire", "hold"]));
    let for_shell =
        (0..arguments.len()).any(|at| is(at, &["--format=shell"]) || is(at, &["--format"]) && is(at + 1, &["shell"]));
    if acquires && for_shell && code != exit::DONE {
        // Without a reader there is nobody to stop.
        output::print(&format!("exit {code}\n")).ok();
    }
}
