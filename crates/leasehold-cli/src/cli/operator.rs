//! What can be said by whoever looks after the leases of others.

use std::ffi::OsString;

use clap::Args;

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
    #[arg(value_name = "KEY", required_unless_present = "all")]
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

Exit codes: 0 everything is as it should be, 1 warnings, else the code of the worst failure.";

#[derive(Debug, Args)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub(crate) struct Doctor {
    /// Print one JSON object, schema leasehold.doctor/1
    #[arg(long)]
    pub(crate) json: bool,
}

const STORES_EXAMPLES: &str = "\
Examples:
  leasehold stores
  leasehold stores --json";

#[derive(Debug, Args)]
#[command(after_help = STORES_EXAMPLES)]
pub(crate) struct Stores {
    /// Print one JSON object, schema leasehold.stores/1
    #[arg(long)]
    pub(crate) json: bool,
}

const VERSION_EXAMPLES: &str = "\
Examples:
  leasehold version
  leasehold version --json";

#[derive(Debug, Args)]
#[command(after_help = VERSION_EXAMPLES)]
pub(crate) struct Version {
    /// Print one JSON object, schema leasehold.version/1
    #[arg(long)]
    pub(crate) json: bool,
}
