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
    let script = String::from_utf8_lossy(&script);
    let script = match arguments.shell {
        Shell::Bash => script.replacen(BASH_START, &format!("{BASH_START}{BASH_JOB}"), 1),
        Shell::Zsh | Shell::Fish => script.into_owned(),
    };
    output::print(&script).map(|()| exit::DONE)
}

/// How the function for bash begins.
const BASH_START: &str = "_leasehold() {\n";

/// What follows `--` is the job's: its name, and then whatever completes its words. The other shells know by themselves.
const BASH_JOB: &str = r#"    local at
    for ((at = 1; at < COMP_CWORD; at++)); do
        if [[ ${COMP_WORDS[at]} == -- ]]; then
            COMPREPLY=()
            if declare -F _command_offset >/dev/null; then
                _command_offset $((at + 1))
            elif ((at + 1 == COMP_CWORD)); then
                COMPREPLY=($(compgen -c -- "${COMP_WORDS[COMP_CWORD]}"))
            fi
            return 0
        fi
    done
"#;
