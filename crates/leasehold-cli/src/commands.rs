//! The subcommands, one per file, and what they share: a runtime and the way out.

use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use leasehold::config::Config;

pub(crate) use self::acquire::keep;
use self::owner::Owner;
use self::run::Status;
use crate::cli::{Cli, Command, Configuration, LogFormat};
use crate::config::Settings;
use crate::exit::{self, Failure};
use crate::output;

mod acquire;
mod bench;
mod busy;
mod completions;
mod config;
mod cron;
mod doctor;
mod elect;
mod extend;
mod force_release;
mod grace;
mod list;
mod man;
mod owner;
mod release;
mod run;
mod show;
mod stores;
mod version;
mod wait;
mod watch;

/// How long the end waits for a reader of messages that does not read; one that is slow has its time.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// Does what was asked and answers with the exit code.
pub(crate) fn dispatch(cli: Cli) -> u8 {
    if cli.global.log_format == LogFormat::Json {
        output::tell_as_json();
    }
    let code = perform(&cli).unwrap_or_else(|failure| {
        output::tell_failure(&failure);
        failure.code
    });
    output::finish(LAST_PATIENCE);
    code
}

fn perform(cli: &Cli) -> Result<u8, Failure> {
    let settings = || Settings::new(&cli.global, Config::default());
    match &cli.command {
        Command::Run(arguments) => {
            // Before anything else is opened, which could be mistaken for what was passed.
            let status = Status::open(arguments.status_fd)?;
            block_on(run::run(&cli.global, arguments, &status, None))
        }
        Command::Resume(arguments) => {
            arguments.check()?;
            let status = Status::open(arguments.run.status_fd)?;
            let owner = Owner::find(arguments.from.as_deref())?;
            block_on(run::run(&cli.global, &arguments.run, &status, Some(&owner)))
        }
        Command::Elect(arguments) => block_on(elect::elect(&cli.global, arguments)),
        Command::Cron(arguments) => block_on(cron::cron(&cli.global, arguments)),
        Command::Acquire(arguments) => acquire::acquire(&cli.global, arguments),
        Command::Hold(arguments) => acquire::acquire(&cli.global, &arguments.as_acquire()),
        Command::Release(arguments) => block_on(release::release(&settings()?, arguments)),
        Command::Extend(arguments) => block_on(extend::extend(&cli.global, arguments)),
        Command::Wait(arguments) => block_on(wait::wait(&cli.global, arguments)),
        Command::Show(arguments) => block_on(show::show(&settings()?, arguments)),
        Command::List(arguments) => block_on(list::list(&settings()?, arguments)),
        Command::Config(Configuration::Show(arguments)) => config::show(&cli.global, arguments),
        Command::ForceRelease(arguments) => block_on(force_release::force_release(&settings()?, arguments)),
        Command::Doctor(arguments) => block_on(doctor::doctor(&cli.global, arguments)),
        Command::Bench(arguments) => block_on(bench::bench(&settings()?, arguments)),
        Command::Stores(arguments) => stores::stores(arguments),
        Command::Completions(arguments) => completions::completions(arguments),
        Command::Man(arguments) => man::man(arguments),
        Command::Version(arguments) => version::version(arguments),
    }
}

/// Runs on this thread: it is the one that starts the command's process, and there is no other to start.
fn block_on(work: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    exit::descriptors()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(exit::OS, format!("cannot start the runtime: {error}")))?;
    // The panic itself has been told by then.
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(work)))
        .unwrap_or_else(|_| Err(Failure::new(exit::BUG, "stopped by a fault of this program: please report it")));
    // What still runs in the background has been waited for, or must not hold up the exit.
    runtime.shutdown_background();
    outcome
}
