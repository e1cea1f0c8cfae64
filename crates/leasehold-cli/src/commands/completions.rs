//! `completions`: what completes this command's words in a shell.

use clap_complete::{Shell as Known, generate};

use crate::cli::{self, Completions, Shell};
use crate::exit::{self, Failure};
use crate::output;

/// Prints a script for the shell.
pub(crate) fn completions(arguments: &Completions) -> Result<u8, Failure> {
    let shell = match arguments.shell {
        Shell::Bash => Known::Bash,
        Shell::Zsh => Known::Zsh,
        Shell::Fish => Known::Fish,
    };
    // `help` knows every subcommand again, which would double the script.
    let mut definition = cli::definition().disable_help_subcommand(true);
    let mut script = Vec::new();
    generate(shell, &mut definition, "leasehold", &mut script);
    output::print(&String::from_utf8_lossy(&script)).map(|()| exit::DONE)
}
