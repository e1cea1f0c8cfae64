//! `run`: hold a key while a command runs.

use std::ffi::{OsStr, OsString};
use std::future::pending;
use std::io;
use std::path::Path;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::store::{Fencing, HolderInfo, Scope, Tie};
use leasehold::{Close, ErrorKind, Lock, LockGuard, LockManager, Wait};
use rustix::process::Signal;

use self::report::Renewals;
use self::request::Request;
use crate::child::{Cause, Ending, Environment, Job};
use crate::cli::{Reach, Run};
use crate::config::Settings;
use crate::exit::{self, Failure};
use crate::output;
use crate::signals::Signals;

mod report;
mod request;

/// A key that is not had after this long is not free: the command's process is started when it is.
const SHORT_WAIT: Duration = Duration::from_millis(100);

/// After this long in line people are told for whom they wait.
const SILENT_WAIT: Duration = Duration::from_secs(2);

/// Waits for the key, runs the command under it, and gives it back.
pub(crate) async fn run(settings: &Settings, arguments: &Run) -> Result<u8, Failure> {
    let mut signals = Signals::install()
        .map_err(|error| Failure::new(exit::OS, format!("cannot install signal handlers: {error}")))?;
    let request = Request::new(settings, arguments)?;
    let renewals = Renewals::default();
    let mut prepared = None;
    // The store is opened by another thread while this one starts the command's process. If that fails it is tried again.
    let prepare = async { prepared = Job::prepare(request.command).ok() };
    let manager = tokio::select! {
        biased;
        signal = signals.next_ending() => return Err(interrupted(signal, &while_waiting(&request))),
        (manager, ()) = async { tokio::join!(open(settings, &request, renewals.clone()), prepare) } => manager?,
    };
    let outcome = hold(settings, &request, &manager, &renewals, &mut signals, prepared).await;
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
    mut prepared: Option<Job>,
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
        signal = signals.next_ending() => return Err(interrupted(signal, &while_waiting(request))),
        granted = acquire(&lock, request.wait) => granted,
        () = announce(&lock, request.name, settings.quiet, &mut prepared) => {
            return Err(Failure::new(exit::BUG, "the wait was lost"));
        }
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
    let environment = environment(settings, request, manager, &guard, waited);
    let mut job = match start(settings, request, manager, &guard, signals, prepared, &environment).await {
        Ok(job) => job,
        Err(failure) => {
            tell_release(settings, guard.release().await);
            return Err(failure);
        }
    };
    if let Err(error) = job.execute(&environment).await {
        job.dismiss();
        tell_release(settings, guard.release().await);
        return Err(cannot_run(&request.command[0], &error));
    }
    let watched = job.watch(&guard, signals, limits).await;
    if watched.is_err() {
        job.abandon(&guard).await;
    }
    job.dismiss();
    // Before anything is said: a reader that stands still must not keep the key.
    let released = guard.release().await;
    let code = watched
        .map(|ending| judge(settings, request, renewals, &ending))
        .map_err(|error| Failure::new(exit::OS, format!("cannot wait for the command: {error}; it was killed")));
    tell_release(settings, released);
    code
}

/// Starts the command's process, which waits, and has the lease name its group, so that no crash can leave a command
/// that the lease does not know.
async fn start(
    settings: &Settings,
    request: &Request<'_>,
    manager: &LockManager,
    guard: &LockGuard,
    signals: &mut Signals,
    prepared: Option<Job>,
    environment: &Environment,
) -> Result<Job, Failure> {
    let mut job = prepared.map_or_else(|| Job::prepare(request.command), Ok).map_err(|error| match error.kind() {
        // Of this program, which the command is started with.
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
            not_started(Failure::new(exit::OS, format!("cannot start this program again: {error}: mount /proc")))
        }
        _ => cannot_run(&request.command[0], &error),
    })?;
    let group = job.group();
    let tie = async {
        // Other stores would take it for a renewal.
        if manager.capabilities().liveness { guard.tie_to(Tie::Group(group)).await } else { Ok(()) }
    };
    let guarded = async {
        if let Err(error) = job.set_guardian(environment, Clock::system().now() + guard.remaining()) {
            output::tell(&format!(
                "warning: no process watches over this one: {error}; \
                 if this one is killed, what the command has started may live on"
            ));
        }
    };
    // The store is at work while this thread starts the guardian.
    let tied = tokio::select! {
        biased;
        signal = signals.next_ending() => return Err(interrupted(signal, "before the command was started")),
        (tied, ()) = async { tokio::join!(tie, guarded) } => tied,
    };
    // This process may have stood still since the grant.
    tied.and_then(|()| guard.check()).map_err(|error| not_started(settings.failure(&error)))?;
    Ok(job)
}

async fn acquire(lock: &Lock, wait: Wait) -> leasehold::Result<Option<LockGuard>> {
    match wait {
        Wait::No => lock.try_acquire().await,
        Wait::UpTo(wait) => lock.acquire_within(wait).await,
        _ => lock.acquire().await.map(Some),
    }
}

/// Says once for whom this waits, and keeps no process at hand meanwhile; never ends.
async fn announce(lock: &Lock, name: &str, quiet: bool, prepared: &mut Option<Job>) {
    tokio::time::sleep(SHORT_WAIT).await;
    *prepared = None;
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

/// What the command finds in its environment, after what it inherits.
fn environment(
    settings: &Settings,
    request: &Request<'_>,
    manager: &LockManager,
    guard: &LockGuard,
    waited: Duration,
) -> Environment {
    let mut environment = Environment::default();
    environment.set("LEASEHOLD_KEY", request.name);
    environment.set("LEASEHOLD_NAMESPACE", manager.namespace());
    environment.set("LEASEHOLD_LEASE_STORE", settings.place());
    environment.set("LEASEHOLD_TTL_MS", manager.ttl().as_millis().to_string());
    environment.set("LEASEHOLD_WAITED_MS", waited.as_millis().to_string());
    // What an outer lease has left there would be taken for ours.
    for name in ["LEASEHOLD_FENCING_TOKEN", "LEASEHOLD_ACQUIRED_AT", "LEASEHOLD_OWNER"] {
        environment.remove(name);
    }
    if let Some(token) = guard.fencing_token() {
        environment.set("LEASEHOLD_FENCING_TOKEN", token.to_string());
    }
    if let Some(time) = output::rfc3339(guard.acquired_at()) {
        environment.set("LEASEHOLD_ACQUIRED_AT", time);
    }
    environment
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
        _ if exit::is_shortage(error) => "raise ulimit -n (files) or -u (processes)",
        _ => "the lease was given back",
    };
    let program = output::clean(&program.to_string_lossy());
    Failure::new(exit::of_spawn_error(error), format!("cannot run \"{program}\": {error}: {hint}"))
}

fn not_started(failure: Failure) -> Failure {
    failure.note("the command was not started")
}

fn while_waiting(request: &Request<'_>) -> String {
    format!("while waiting for \"{}\"", request.name)
}

fn interrupted(signal: Signal, when: &str) -> Failure {
    let name = match signal {
        Signal::TERM => "TERM",
        Signal::INT => "INT",
        Signal::HUP => "HUP",
        Signal::QUIT => "QUIT",
        _ => "a signal",
    };
    let code = u8::try_from(signal.as_raw()).unwrap_or_default().saturating_add(exit::SIGNAL);
    not_started(Failure::new(code, format!("stopped by {name} {when}")))
}
