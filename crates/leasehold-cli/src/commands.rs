//! The subcommands, one per file, and what they share: a runtime and the way out.

use std::future::Future;

use crate::cli::{Cli, Command};
use crate::config::Settings;
use crate::exit::{self, Failure};
use crate::output;

mod list;
mod run;
mod show;

/// Does what was asked and answers with the exit code.
pub(crate) fn dispatch(cli: Cli) -> u8 {
    let outcome = Settings::new(&cli.global).and_then(|settings| match &cli.command {
        Command::Run(arguments) => block_on(run::run(&settings, arguments)),
        Command::Show(arguments) => block_on(show::show(&settings, arguments)),
        Command::List(arguments) => block_on(list::list(&settings, arguments)),
        Command::Version => output::print(concat!("leasehold ", env!("CARGO_PKG_VERSION"), "\n")).map(|()| exit::DONE),
    });
    outcome.unwrap_or_else(|failure| {
        output::tell(&format!("{failure} (exit {})", failure.code));
        failure.code
    })
}

/// Runs on this thread: it is the one that starts the command's process, and there is no other to start.
fn block_on(work: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    exit::descriptors()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(exit::OS, format!("cannot start the runtime: {error}")))?;
    let outcome = runtime.block_on(work);
    // What still runs in the background has been waited for, or must not hold up the exit.
    runtime.shutdown_background();
    outcome
}
