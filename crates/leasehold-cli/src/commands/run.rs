//! `run`: hold a key while a command runs.

use std::ffi::{OsStr, OsString};
use std::future::pending;
use std::io;
use std::path::Path;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::store::{Fencing, HolderInfo, Scope};
use leasehold::{Close, ErrorKind, Lock, LockGuard, LockManager, Wait};
use rustix::io::Errno;
use rustix::process::Signal;
use tokio::process::Command;

use self::report::Renewals;
use self::request::Request;
use crate::child::{Cause, Ending, Job};
use crate::cli::{Reach, Run};
use crate::config::Settings;
use crate::exit::{self, Failure};
use crate::output;
use crate::signals::Signals;

mod report;
mod request;

/// After this long in line people are told for whom they wait.
const SILENT_WAIT: Duration = Duration::from_secs(2);

/// Waits for the key, runs the command under it, and gives it back.
pub(crate) async fn run(settings: &Settings, arguments: &Run) -> Result<u8, Failure> {
    let mut signals = Signals::install()
        .map_err(|error| Failure::new(exit::OS, format!("cannot install signal handlers: {error}")))?;
    let request = Request::new(settings, arguments)?;
    let renewals = Renewals::default();
    let manager = tokio::select! {
        biased;
        signal = signals.next_ending() => return Err(interrupted(signal, &request)),
        manager = open(settings, &request, renewals.clone()) => manager?,
    };
    let outcome = hold(settings, &request, &manager, &renewals, &mut signals).await;
    // What was begun in the store is undone before this process is gone; whoever is in a hurry leaves it to the ttl.
    tokio::select! {
        biased;
        _ = signals.next_ending() => {}
        closed = manager.close(Close::Release) => {
            if let Err(error) = closed && settings.verbose {
                output::tell(&settings.failure(&error).message);
            }
        }
    }
    outcome
}

async fn open(settings: &Settings, request: &Request<'_>, renewals: Renewals) -> Result<LockManager, Failure> {
    let arguments = request.arguments;
    let mut builder = settings.open().await.map_err(not_started)?.renew(request.renew).observer(renewals);
    if let Some(ttl) = request.ttl {
        builder = builder.ttl(ttl);
    }
    builder = match arguments.require_scope {
        Some(Reach::Host) => builder.require_scope(Scope::Host),
        Some(Reach::Network) => builder.require_scope(Scope::Network),
        None => builder,
    };
    if arguments.require_fencing {
        builder = builder.require_fencing(Fencing::Monotonic);
    }
    builder = if arguments.no_holder_info {
        builder.without_holder_info()
    } else {
        builder.holder_info(holder_info(request.command))
    };
    settings.build(builder)
}

/// What whoever finds the key busy may read: this host and process, which is the one to signal, and the command's
/// base name without its arguments.
fn holder_info(command: &[OsString]) -> HolderInfo {
    let mut info = HolderInfo::default();
    info.host = Some(rustix::system::uname().nodename().to_string_lossy().into_owned());
    info.pid = Some(std::process::id());
    info.command = command
        .first()
        .and_then(|program| Path::new(program).file_name())
        .map(|name| name.to_string_lossy().into_owned());
    info
}

async fn hold(
    settings: &Settings,
    request: &Request<'_>,
    manager: &LockManager,
    renewals: &Renewals,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let limits = request.limits(manager.ttl())?;
    let mut lock = manager.lock(request.name);
    if let Some(reason) = &request.arguments.reason {
        lock = lock.reason(reason);
    }
    if let Some(label) = &request.label {
        lock = lock.label(label);
    }
    let clock = Clock::system();
    let asked = clock.now();
    let granted = tokio::select! {
        biased;
        signal = signals.next_ending() => return Err(interrupted(signal, request)),
        granted = acquire(&lock, request.wait) => granted,
        () = announce(&lock, request.name, settings.quiet) => return Err(Failure::new(exit::BUG, "the wait was lost")),
    };
    let waited = clock.now().since(asked);
    let Some(guard) = granted.map_err(|error| not_started(settings.failure(&error)))? else {
        if !settings.quiet {
            let holder = lock.holder().await.ok().flatten();
            output::tell_raw(&report::busy(settings, manager, request.name, request.wait, request.busy_code, holder));
        }
        return Ok(request.busy_code);
    };
    if settings.verbose {
        output::tell(&report::acquired(settings, manager, &guard, waited, limits));
    }
    // This process may have stood still since the grant.
    guard.check().map_err(|error| not_started(settings.failure(&error)))?;
    let mut command = command(settings, request, manager, &guard, waited);
    let mut job = match Job::start(&mut command) {
        Ok(job) => job,
        Err(error) => {
            tell_release(settings, guard.release().await);
            return Err(cannot_run(&request.command[0], &error));
        }
    };
    let watched = job.watch(&guard, signals, limits).await;
    if watched.is_err() {
        job.abandon(&guard).await;
    }
    // Before anything is said: a reader that stands still must not keep the key.
    let released = guard.release().await;
    let code = watched
        .map(|ending| judge(settings, request, renewals, &ending))
        .map_err(|error| Failure::new(exit::OS, format!("cannot wait for the command: {error}; it was killed")));
    tell_release(settings, released);
    code
}

async fn acquire(lock: &Lock, wait: Wait) -> leasehold::Result<Option<LockGuard>> {
    match wait {
        Wait::No => lock.try_acquire().await,
        Wait::UpTo(wait) => lock.acquire_within(wait).await,
        _ => lock.acquire().await.map(Some),
    }
}

/// Says once for whom this waits; never ends.
async fn announce(lock: &Lock, name: &str, quiet: bool) {
    if quiet {
        return pending().await;
    }
    let holder = loop {
        tokio::time::sleep(SILENT_WAIT).await;
        // Free at this moment, or no answer: the wait itself will tell.
        if let Ok(Some(holder)) = lock.holder().await {
            break holder;
        }
    };
    output::tell(&format!("waiting for \"{name}\": held by {}", output::holder_in_a_line(&holder)));
    pending().await
}

/// The command with what it finds in its environment, after what it inherits.
fn command(
    settings: &Settings,
    request: &Request<'_>,
    manager: &LockManager,
    guard: &LockGuard,
    waited: Duration,
) -> Command {
    let program: &OsStr = &request.command[0];
    let mut command = Command::new(program);
    command
        .args(&request.command[1..])
        .env("LEASEHOLD_KEY", request.name)
        .env("LEASEHOLD_NAMESPACE", manager.namespace())
        .env("LEASEHOLD_LEASE_STORE", settings.place())
        .env("LEASEHOLD_TTL_MS", manager.ttl().as_millis().to_string())
        .env("LEASEHOLD_WAITED_MS", waited.as_millis().to_string())
        // What an outer lease has left there would be taken for ours.
        .env_remove("LEASEHOLD_FENCING_TOKEN")
        .env_remove("LEASEHOLD_ACQUIRED_AT")
        .env_remove("LEASEHOLD_OWNER");
    if let Some(token) = guard.fencing_token() {
        command.env("LEASEHOLD_FENCING_TOKEN", token.to_string());
    }
    if let Some(time) = output::rfc3339(guard.acquired_at()) {
        command.env("LEASEHOLD_ACQUIRED_AT", time);
    }
    command
}

/// Says what was not as it should be, and decides on the code.
fn judge(settings: &Settings, request: &Request<'_>, renewals: &Renewals, ending: &Ending) -> u8 {
    let group = ending.group;
    if ending.out_of_reach {
        output::tell(&format!("warning: processes of group {group} could not be stopped and may still run"));
    }
    match ending.cause {
        None => exit::of_status(ending.status),
        Some(Cause::LeftBehind) => {
            output::tell(&format!(
                "warning: \"{}\" ended and left processes in its group {group}: {}",
                output::clean(&request.command[0].to_string_lossy()),
                report::stopped(ending)
            ));
            exit::of_status(ending.status)
        }
        Some(Cause::MaxRuntime) => {
            let limit = request.max_runtime.map(output::precise).unwrap_or_default();
            output::tell(&format!(
                "\"{}\": --max-runtime {limit} reached; {} (exit {})",
                request.name,
                report::stopped(ending),
                exit::TIMED_OUT
            ));
            exit::TIMED_OUT
        }
        Some(Cause::Ending | Cause::Lost(_)) => {
            output::tell_raw(&report::lost(settings, request, renewals, ending));
            exit::LOST
        }
    }
}

/// Says how giving back went. Nothing of the group runs any more, so a lease that is gone already did no harm.
fn tell_release(settings: &Settings, released: leasehold::Result<()>) {
    match released {
        Ok(()) if settings.verbose => output::tell("the lease was given back"),
        Ok(()) => {}
        Err(error) if matches!(error.kind(), ErrorKind::NotHeld | ErrorKind::Lost) => {}
        Err(error) => {
            let failure = settings.failure(&error);
            output::tell(&format!("warning: {failure}; the lease ends by itself after its ttl"));
        }
    }
}

fn cannot_run(program: &OsStr, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::NotFound if program.as_encoded_bytes().contains(&b'/') => {
            "check the path, and the interpreter that its first line names"
        }
        io::ErrorKind::NotFound => "check the name and PATH",
        io::ErrorKind::PermissionDenied => "make it executable",
        io::ErrorKind::ArgumentListTooLong => {
            "pass fewer arguments: a list in a file or on standard input has no limit"
        }
        _ if Errno::from_io_error(error) == Some(Errno::NOEXEC) => {
            "give it a first line such as #!/bin/sh, or run it with sh"
        }
        _ if exit::is_shortage(error) => "raise ulimit -n (files) or -u (processes)",
        _ => "the lease was given back",
    };
    let program = output::clean(&program.to_string_lossy());
    Failure::new(exit::of_spawn_error(error), format!("cannot run \"{program}\": {error}: {hint}"))
}

fn not_started(failure: Failure) -> Failure {
    failure.note("the command was not started")
}

fn interrupted(signal: Signal, request: &Request<'_>) -> Failure {
    let name = match signal {
        Signal::TERM => "TERM",
        Signal::INT => "INT",
        Signal::HUP => "HUP",
        Signal::QUIT => "QUIT",
        _ => "a signal",
    };
    let code = u8::try_from(signal.as_raw()).unwrap_or_default().saturating_add(exit::SIGNAL);
    Failure::new(code, format!("stopped by {name} while waiting for \"{}\"; the command was not started", request.name))
}
