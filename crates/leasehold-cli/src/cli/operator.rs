//! What can be said by whoever looks after the leases of others.

use std::ffi::OsString;

use clap::{Args, ValueHint};

const FORCE_EXAMPLES: &str = "\
Examples:
  leasehold force-release deploy                    shows the holder and asks
  leasehold force-release deploy --yes --reason 'host is gone'
  leasehold force-release --all import: --older-than 6h

The holder may still be at work until its next renewal fails. Only who holds KEY when it is shown is removed.";

#[derive(Debug, Args)]
#[command(after_help = FORCE_EXAMPLES)]
pub(crate) struct ForceRelease {
    /// The name of the lock
    #[arg(value_name = "KEY", value_hint = ValueHint::Other, required_unless_present = "all")]
    pub(crate) key: Option<OsString>,
    /// Every held key that starts with PREFIX, in place of one
    #[arg(long, value_name = "PREFIX", conflicts_with = "key", requires = "older_than")]
    pub(crate) all: Option<OsString>,
    /// With --all: only what is held for longer than this; 0 = everything
    #[arg(long, value_name = "DUR", requires = "all", allow_hyphen_values = true)]
    pub(crate) older_than: Option<String>,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Why, for the messages that tell of it
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Print one JSON object per key, schema leasehold.force-release/1
    #[arg(long)]
    pub(crate) json: bool,
}

const DOCTOR_EXAMPLES: &str = "\
Examples:
  leasehold doctor
  leasehold doctor -s sqlite:///srv/app/leases.db --json
  leasehold doctor --ttl 1m -k 20s                  would these do for run

Exit codes: 0 everything is as it should be, 1 warnings, else the code of the worst failure.";

#[derive(Debug, Args)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub(crate) struct Doctor {
    /// How long leases stand [env: LEASEHOLD_TTL] [default: 30s]
    #[arg(long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) ttl: Option<String>,
    /// How often they are renewed [default: a third of the ttl]
    #[arg(long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) renew_every: Option<String>,
    /// The grace between TERM and KILL [default: the smaller of 10s and half of what there is]
    #[arg(short, long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) kill_after: Option<String>,
    /// Print one JSON object, schema leasehold.doctor/1
    #[arg(long)]
    pub(crate) json: bool,
}

const BENCH_EXAMPLES: &str = "\
Examples:
  leasehold bench
  leasehold bench --count 10000 --for 1m -s sqlite:///srv/app/leases.db
  leasehold bench --json >> bench.jsonl

It uses a key of its own, and loads the store as fast as one client can.";

#[derive(Debug, Args)]
#[command(after_help = BENCH_EXAMPLES)]
pub(crate) struct Bench {
    /// How often a lease is acquired and released [default: 1000]
    #[arg(short, long, value_name = "N", value_parser = count)]
    pub(crate) count: Option<usize>,
    /// How long it may take [default: 10s]
    #[arg(long = "for", value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) length: Option<String>,
    /// Print one JSON object, schema leasehold.bench/1, also on a terminal
    #[arg(long)]
    pub(crate) json: bool,
}

fn count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=1_000_000).contains(count));
    count.ok_or_else(|| "it is not a number from 1 to 1000000".to_owned())
}
