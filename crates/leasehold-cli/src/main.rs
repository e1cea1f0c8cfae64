//! `leasehold`: run a command while holding a lease, so that only one of many processes does it.

use std::process::ExitCode;

mod child;
mod cli;
mod commands;
mod config;
mod exit;
mod file;
mod output;
mod process;
mod signals;

fn main() -> ExitCode {
    if let Some(code) = child::help() {
        return code;
    }
    if let Some(code) = commands::keep() {
        return ExitCode::from(code);
    }
    let code = match cli::parse() {
        Ok(cli) => commands::dispatch(cli),
        Err(code) => code,
    };
    ExitCode::from(code)
}
