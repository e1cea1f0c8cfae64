//! The command line: what can be said, and how it is explained.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum, ValueHint};

pub(crate) use self::across::{Acquire, Extend, Format, Hold, Release, Resume, Until, WaitFor};
pub(crate) use self::itself::{Completions, Manual, Shell, Stores, Version};
pub(crate) use self::operator::{Bench, Doctor, ForceRelease};
pub(crate) use self::standing::{Cron, Elect, LostTicks, Overlap};
use crate::exit;
use crate::output;

mod across;
mod itself;
mod mistake;
mod operator;
mod standing;

/// Only one of many processes does it: leases with a holder, an end and a fencing token.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(infer_subcommands = false)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  leasehold run nightly -- ./x.sh               after whoever runs it now
  leasehold run nightly -n --skip-ok -- ./x.sh  not if it runs already (cron)
  leasehold acquire deploy --ttl 10m            over several commands
  leasehold show nightly                        who holds it, for how long still
  leasehold list                                everything that is held
  leasehold doctor                              is the store fit for leases
  leasehold run k -s redis://host -- ./x.sh     between machines: name a store

Exit codes: the command's own; 75 busy, 79 lease lost, 69 store unreachable,
64 usage, 78 configuration; all of them: leasehold man | man -l -";

/// Options that every subcommand takes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options of every subcommand")]
pub(crate) struct Global {
    /// Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them
    /// [env: LEASEHOLD_STORE] [default: a file of this user]
    #[arg(short, long, global = true, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Prefix of every key, so that two systems can share a store; empty = the exact key
    /// [env: LEASEHOLD_NAMESPACE] [default: leasehold]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Say nothing about waiting and busy keys: the exit code tells
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say which store, which lease and what happens to it
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
    /// How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text", hide_default_value = true)]
    pub(crate) log_format: LogFormat,
}

/// How messages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One object per line
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Hold KEY while CMD runs: renew the lease, stop CMD before it ends, give it back afterwards
    Run(Box<Run>),
    /// Take KEY and leave it held when this command ends, for a script of several commands
    Acquire(Box<Acquire>),
    /// Give back what acquire, hold or run took
    Release(Release),
    /// Let a lease stand longer
    Extend(Extend),
    /// Take on what acquire or hold took, and hold it while CMD runs; the owner token is worth nothing then
    Resume(Box<Resume>),
    /// Hold KEY by hand for some time: a freeze
    Hold(Hold),
    /// Wait until nobody holds KEY, without taking it
    Wait(WaitFor),
    /// Stand by, and run CMD while this is the leader; campaign again after a loss
    Elect(Box<Elect>),
    /// Run CMD at its times, once per tick in the fleet, and not while its last run lasts
    Cron(Box<Cron>),
    /// Tell who holds KEY; exit code 1 if nobody does
    Show(Show),
    /// List what is held
    List(List),
    /// Remove somebody's lease, after asking
    ForceRelease(ForceRelease),
    /// Ask the live store whether it does what leases need
    Doctor(Doctor),
    /// Measure what a lease costs on the store, from here
    Bench(Bench),
    /// Show the settings and where each was said
    #[command(subcommand)]
    Config(Configuration),
    /// List the stores that are compiled in
    Stores(Stores),
    /// Print what completes this command's words in a shell
    Completions(Completions),
    /// Print a page of the manual, for man
    Man(Manual),
    /// Print the version
    Version(Version),
}

const RUN_EXAMPLES: &str = "\
Examples:
  leasehold run nightly -- ./import.sh
  leasehold run nightly -w 10m --max-runtime 2h -- ./import.sh --full
  leasehold run report -n --skip-ok -c 'make report | mail -s report ops'

Durations: 500ms, 1.5s, 30s, 2m, 1h30m; a bare number is seconds.
CMD gets its own process group and LEASEHOLD_KEY, LEASEHOLD_FENCING_TOKEN and more in its environment.";

#[derive(Debug, Subcommand)]
#[command(after_help = CONFIG_EXAMPLES)]
pub(crate) enum Configuration {
    /// Print every setting, its value without secrets, and where it was said
    #[command(after_help = CONFIG_EXAMPLES)]
    Show(ConfigShow),
}

const CONFIG_EXAMPLES: &str = "\
Examples:
  leasehold config show
  leasehold config show --json --config ./leasehold.toml";

#[derive(Debug, Args)]
pub(crate) struct ConfigShow {
    /// Print one JSON object, schema leasehold.config/1
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub(crate) struct Run {
    /// The name of the lock
    #[arg(value_name = "KEY", value_hint = ValueHint::Other)]
    pub(crate) key: OsString,
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
    /// How long the lease outlives a crash of this process [env: LEASEHOLD_TTL] [default: 30s]
    #[arg(long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) ttl: Option<String>,
    /// Renew this often, at most half of the ttl [default: a third of the ttl]
    #[arg(long, value_name = "DUR", allow_hyphen_values = true, conflicts_with = "no_renew")]
    pub(crate) renew_every: Option<String>,
    /// Never renew: CMD is stopped before the ttl ends
    #[arg(long)]
    pub(crate) no_renew: bool,
    /// How long before the lease's end CMD gets TERM, so that KILL at the end finds nothing
    /// [default: 10s, or half of what ttl and renewal leave]
    #[arg(short, long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) kill_after: Option<String>,
    /// What happens to CMD if the lease is lost: term; signal:NAME for another signal in place of TERM; continue to
    /// let it run on while somebody else may hold KEY [default: term]
    #[arg(long, value_name = "WHAT")]
    pub(crate) on_lost: Option<String>,
    /// Stop CMD after this long and exit with 124
    #[arg(long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) max_runtime: Option<String>,
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
    /// What CMD reads: the input of this process, or nothing
    #[arg(long, value_name = "FROM", default_value = "inherit", hide_default_value = true)]
    pub(crate) stdin: Input,
    /// Write the secret that owns the lease to FILE, for its user only, while CMD runs
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) owner_file: Option<PathBuf>,
    /// Give CMD the secret that owns the lease in LEASEHOLD_OWNER, where others of the same user can read it
    #[arg(long)]
    pub(crate) export_owner: bool,
    /// Write what happens to this open file descriptor, one JSON object per line, schema leasehold.status/1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..), allow_hyphen_values = true)]
    pub(crate) status_fd: Option<i32>,
    /// Write how it ended to FILE, one JSON object, schema leasehold.run/1
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) report: Option<PathBuf>,
    /// Run this with sh -c in place of CMD
    #[arg(short = 'c', value_name = "STR", allow_hyphen_values = true, conflicts_with = "command")]
    pub(crate) script: Option<OsString>,
    /// What to run
    #[arg(last = true, required_unless_present = "script", value_name = "CMD", value_hint = ValueHint::CommandName)]
    pub(crate) command: Vec<OsString>,
}

/// What the command reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Input {
    /// The input of this process
    Inherit,
    /// Nothing
    Null,
}

/// How far exclusion has to reach.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Reach {
    /// Between the processes of one machine
    Host,
    /// Between machines
    Network,
}

const SHOW_EXAMPLES: &str = "\
Examples:
  leasehold show nightly
  leasehold show nightly --json
  leasehold show nightly --watch";

#[derive(Debug, Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub(crate) struct Show {
    /// The name of the lock
    #[arg(value_name = "KEY", value_hint = ValueHint::Other)]
    pub(crate) key: OsString,
    /// Print one JSON object, schema leasehold.show/1
    #[arg(long)]
    pub(crate) json: bool,
    /// Look again and again, every 2s unless another interval is said, until stopped
    #[arg(long, value_name = "DUR", num_args = 0..=1, require_equals = true, default_missing_value = "2s")]
    pub(crate) watch: Option<String>,
}

const LIST_EXAMPLES: &str = "\
Examples:
  leasehold list
  leasehold list import: --json
  leasehold list --watch=5s
  leasehold list deploy --exit-code -q && echo 'a deployment is under way'";

#[derive(Debug, Args)]
#[command(after_help = LIST_EXAMPLES)]
pub(crate) struct List {
    /// Only keys that start with this
    #[arg(value_name = "PREFIX", value_hint = ValueHint::Other)]
    pub(crate) prefix: Option<OsString>,
    /// Print one JSON object per line, schema leasehold.list/1
    #[arg(long)]
    pub(crate) json: bool,
    /// Exit with 1 if nothing is held
    #[arg(long, conflicts_with = "watch")]
    pub(crate) exit_code: bool,
    /// Look again and again, every 2s unless another interval is said, until stopped
    #[arg(long, value_name = "DUR", num_args = 0..=1, require_equals = true, default_missing_value = "2s")]
    pub(crate) watch: Option<String>,
}

/// Parses the command line; help, the version and mistakes are printed here and answer with the code to leave with.
pub(crate) fn parse() -> Result<Cli, u8> {
    parse_arguments().inspect_err(|code| across::refuse(std::env::args_os().skip(1), *code))
}

fn parse_arguments() -> Result<Cli, u8> {
    let parsed = definition().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => output::print(&error.to_string()).map_or_else(
            |failure| {
                output::tell(&failure.to_string());
                failure.code
            },
            |()| exit::DONE,
        ),
        // `leasehold` alone: the whole help tells more than a complaint.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            output::tell_raw(&error.to_string());
            exit::USAGE
        }
        _ => {
            let arguments: Vec<_> = std::env::args_os().skip(1).collect();
            output::tell(&format!("{} (exit {})", mistake::line(&error, &arguments), exit::USAGE));
            exit::USAGE
        }
    })
}

pub(crate) fn definition() -> clap::Command {
    Cli::command().mut_subcommand("resume", Resume::told)
}

fn exit_code(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| "it is not a number from 0 to 255".to_owned())
}

#[cfg(test)]
mod examples;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        definition().debug_assert();
    }
}
