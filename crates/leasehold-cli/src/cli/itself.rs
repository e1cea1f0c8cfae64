//! What can be asked of the command about itself.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

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

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  . <(leasehold completions bash)                        in ~/.bashrc
  leasehold completions zsh > ~/.zfunc/_leasehold        in a directory of fpath
  leasehold completions fish > ~/.config/fish/completions/leasehold.fish";

#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct Completions {
    /// Which shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

/// The shells that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// Bash
    Bash,
    /// Zsh
    Zsh,
    /// Fish
    Fish,
}

const MAN_EXAMPLES: &str = "\
Examples:
  leasehold man run | man -l -
  leasehold man --write /usr/local/share/man/man1";

#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct Manual {
    /// The subcommand that the page is about; without one it is about all of it
    #[arg(value_name = "SUBCOMMAND")]
    pub(crate) page: Vec<String>,
    /// Write every page to this directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "page")]
    pub(crate) write: Option<PathBuf>,
}
