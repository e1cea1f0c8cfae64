//! `run`: hold a key while a command runs.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use leasehold::schedule::{LostTick, Tick, TickClaim};
use leasehold::store::{Fencing, HolderInfo, Scope, Tie};
use leasehold::{Close, ErrorKind, Lock, LockGuard, LockManager, Wait};
use rustix::process::Signal;
use serde_json::json;

use self::owner::OwnerFile;
pub(super) use self::record::{End, Outcome, Record};
pub(super) use self::report::Renewals;
pub(super) use self::request::Request;
pub(super) use self::request::on_lost;
pub(crate) use self::status::Status;
use super::busy;
use super::grace;
use super::owner::{Asked, Keeper, Owner};
use crate::child::{Broken, Cause, Ending, Environment, Job, Limits, Notice, OnLost, Refusal};
use crate::cli::{Global, Reach, Run};
use crate::config::{self, Settings};
use crate::exit::{self, Failure};
use crate::output;
use crate::signals::Signals;

mod nested;
mod owner;
mod record;
mod report;
mod request;
mod status;
#[cfg(feature = "otel")]
mod trace;

/// Waits for the key, or takes on the lease that was handed over by `from`, runs the command under it, gives it back, and
/// tells how that went.
pub(crate) async fn run(
    global: &Global,
    arguments: &Run,
    status: &Status,
    from: Option<&Owner>,
) -> Result<u8, Failure> {
    output::tell_aside();
    let mut record = Record::new(arguments)?;
    let renewals = Renewals::new(status);
    let result = take_part(global, arguments, status, from, &renewals, &mut record).await;
    record.conclude(result, &renewals, status)
}

async fn take_part(
    global: &Global,
    arguments: &Run,
    status: &Status,
    from: Option<&Owner>,
    renewals: &Renewals,
    record: &mut Record<'_>,
) -> Result<End, Failure> {
    let mut signals = Signals::install()
        .map_err(|error| Failure::new(exit::OS, format!("cannot install signal handlers: {error}")))?;
    let flags = config::flags(arguments.nonblock, arguments.wait.as_deref(), arguments.ttl.as_deref())?;
    let settings = &Settings::new(global, flags)?;
    let request = Request::new(settings, arguments)?;
    let mut prepared = None;
    // The store is opened by another thread while this one starts the command's process. If that fails it is tried again.
    let prepare = async { prepared = Job::prepare(&request.command).ok() };
    let manager = tokio::select! {
        biased;
        signal = signals.next_ending() => return Err(interrupted(signal, &while_waiting(&request))),
        (manager, ()) = async { tokio::join!(open(settings, &request, renewals.clone()), prepare) } => manager?,
    };
    record.namespace = Some(manager.namespace().to_owned());
    let context =
        Context { settings, request: &request, manager: &manager, renewals, status, from, tick: None, lost: None };
    let outcome = hold(&context, record, prepared, &mut signals).await;
    close(settings, &manager, &mut signals).await;
    outcome
}

/// What was begun in the store is undone before this process is gone; whoever is in a hurry leaves it to the ttl.
pub(super) async fn close(settings: &Settings, manager: &LockManager, signals: &mut Signals) {
    tokio::select! {
        biased;
        _ = signals.next_ending() => {}
        closed = manager.close(Close::Release) => {
            if let Err(error) = closed && settings.verbose {
                output::tell(&settings.failure(&error).message);
            }
        }
    }
}

pub(super) async fn open(
    settings: &Settings,
    request: &Request<'_>,
    renewals: Renewals,
) -> Result<LockManager, Failure> {
    let arguments = request.arguments;
    let builder = settings.open().await.map_err(not_started)?.renew(request.renew).observer(renewals);
    let mut builder = builder.margin(grace::margin(settings.ttl()));
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
        builder.holder_info(holder_info(request))
    };
    settings.build(builder)
}

/// What whoever finds the key busy may read: this host and process, which is the one to signal, and the command's
/// base name without its arguments.
fn holder_info(request: &Request<'_>) -> HolderInfo {
    let mut info = HolderInfo::default();
    info.host = Some(rustix::system::uname().nodename().to_string_lossy().into_owned());
    info.pid = Some(std::process::id());
    info.label = request.label.clone();
    info.command = request
        .command
        .first()
        .and_then(|program| Path::new(program).file_name())
        .map(|name| name.to_string_lossy().into_owned());
    info
}

/// What everything that follows needs to know.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) settings: &'a Settings,
    pub(super) request: &'a Request<'a>,
    pub(super) manager: &'a LockManager,
    pub(super) renewals: &'a Renewals,
    pub(super) status: &'a Status,
    pub(super) from: Option<&'a Owner>,
    /// The tick for which the command runs.
    pub(super) tick: Option<Tick>,
    /// Which ticks are told to it; `None` = those that this process was told.
    pub(super) lost: Option<&'a [LostTick]>,
}

/// A lease that was acquired for the command.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) guard: LockGuard,
    /// From the call to the grant.
    pub(super) waited: Duration,
    /// The claim on the tick, which is told when the run has ended.
    pub(super) claim: Option<TickClaim>,
    /// The command's process, if the grant has named its group.
    pub(super) prepared: Option<Job>,
}

async fn hold(
    context: &Context<'_>,
    record: &mut Record<'_>,
    mut prepared: Option<Job>,
    signals: &mut Signals,
) -> Result<End, Failure> {
    let Context { settings, request, manager, .. } = *context;
    let limits = request.limits(manager.ttl())?;
    let lock = described(request, manager.lock(request.name));
    let clock = Clock::system();
    let asked = clock.now();
    let granted = tokio::select! {
        biased;
        signal = signals.next_ending() => return Err(interrupted(signal, &while_waiting(request))),
        granted = acquire(context, &lock, &mut prepared) => granted?,
        () = busy::announce(&lock, request.name, settings.quiet) => {
            return Err(Failure::new(exit::BUG, "the wait was lost"));
        }
    };
    let waited = clock.now().since(asked);
    record.waited = Some(waited);
    let Some(guard) = granted else {
        if !settings.quiet {
            let holder = lock.holder().await.ok().flatten();
            let code = request.busy_code;
            output::tell_block(&busy::block(settings, manager, request.name, request.wait, code, holder.as_ref()));
        }
        return Ok(End::by_lock(Outcome::Busy, request.busy_code));
    };
    carry(context, record, Held { guard, waited, claim: None, prepared }, limits, signals).await
}

/// The lock with what was said about its holder.
pub(super) fn described(request: &Request<'_>, mut lock: Lock) -> Lock {
    if let Some(reason) = &request.arguments.reason {
        lock = lock.reason(reason);
    }
    if let Some(label) = &request.label {
        lock = lock.label(label);
    }
    lock
}

/// Runs the command under a lease, and gives it back.
pub(super) async fn carry(
    context: &Context<'_>,
    record: &mut Record<'_>,
    held: Held,
    limits: Limits,
    signals: &mut Signals,
) -> Result<End, Failure> {
    let Context { settings, request, manager, status, .. } = *context;
    let Held { guard, waited, claim, prepared } = held;
    let (clock, acquired) = (Clock::system(), Clock::system().now());
    record.fencing = guard.fencing_token();
    if settings.verbose {
        output::tell(&report::acquired(settings, manager, &guard, waited, limits));
    }
    status.tell("acquired", report::acquired_as_json(manager, &guard, waited));
    let (ran, job) = under(context, &guard, waited, limits, prepared, signals).await;
    let end = ran.map(|ending| judge(settings, request, context.renewals, &ending));
    // A run that was cut off has not ended, and is told as lost.
    if let (Some(claim), Ok(End { outcome: Outcome::Ran | Outcome::Timeout, .. })) = (claim, &end) {
        claim.done().await;
    }
    let released = guard.release().await;
    record.held = Some(clock.now().since(acquired));
    drop(job);
    tell_release(settings, released);
    end
}

/// Runs the command under the lease that is held. Nothing is left of the job that comes with the answer but a guardian
/// on its way out.
async fn under(
    context: &Context<'_>,
    guard: &LockGuard,
    waited: Duration,
    limits: Limits,
    prepared: Option<Job>,
    signals: &mut Signals,
) -> (Result<Ending, Failure>, Option<Job>) {
    let Context { request, renewals, status, .. } = *context;
    let owner_file = match owner_file(request, guard) {
        Ok(file) => file,
        Err(failure) => return (Err(failure), None),
    };
    let environment = environment(context, guard, waited, owner_file.as_ref());
    let mut job = match start(context, guard, limits, prepared, &environment, signals).await {
        Ok(job) => job,
        Err(failure) => return (Err(failure), None),
    };
    if let Err(error) = job.execute(request.arguments.stdin, &environment, lease_end(guard, limits)) {
        job.dismiss();
        return (Err(cannot_run(&request.command[0], &error)), Some(job));
    }
    let notice = |notice: Notice| match notice {
        Notice::Stopping(Cause::Ending) => status.tell("lost", json!({"reason": "not_renewed"})),
        Notice::Stopping(Cause::Lost(reason)) => status.tell("lost", json!({"reason": report::word(reason)})),
        Notice::Stopping(_) => {}
        Notice::GoingOn(reason) => {
            output::tell(&report::going_on(request.name, reason));
            status.tell("lost", json!({"reason": report::word(reason)}));
        }
    };
    let watched = job.watch(guard, renewals.confirmed(), signals, limits, notice).await;
    if let Err(Broken::Unseen(_)) = watched {
        job.abandon(guard).await;
    }
    job.dismiss();
    drop(owner_file);
    let ran = watched.map_err(|broken| match broken {
        Broken::NotRun(refusal) => refused(request, refusal),
        Broken::Unseen(error) => Failure::new(exit::OS, format!("cannot wait for the command: {error}; it was killed")),
    });
    (ran, Some(job))
}

/// From when on the command may not be executed any more.
fn lease_end(guard: &LockGuard, limits: Limits) -> Moment {
    match limits.on_lost {
        OnLost::Continue => Moment::FAR,
        OnLost::Signal(_) => Clock::system().now() + guard.remaining(),
    }
}

/// The command's process, which waits and whose group the lease names, so that no crash can leave a command that the lease
/// does not know.
async fn start(
    context: &Context<'_>,
    guard: &LockGuard,
    limits: Limits,
    prepared: Option<Job>,
    environment: &Environment,
    signals: &mut Signals,
) -> Result<Job, Failure> {
    let Context { settings, request, manager, .. } = *context;
    // The grant has named it.
    let is_tied = prepared.is_some();
    let mut job = prepared.map_or_else(|| Job::prepare(&request.command), Ok).map_err(|error| match error.kind() {
        // Of this program, which the command is started with.
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
            not_started(Failure::new(exit::OS, format!("cannot start this program again: {error}: mount /proc")))
        }
        _ => cannot_run(&request.command[0], &error),
    })?;
    let group = job.group();
    let tie = async {
        // Other stores would take it for a renewal.
        if manager.capabilities().liveness && !is_tied { guard.tie_to(Tie::Group(group)).await } else { Ok(()) }
    };
    let guarded = async {
        if let Err(error) = job.set_guardian(environment, lease_end(guard, limits)) {
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
    if manager.capabilities().liveness {
        job.free_with_group();
    }
    Ok(job)
}

fn owner_file(request: &Request<'_>, guard: &LockGuard) -> Result<Option<OwnerFile>, Failure> {
    request.arguments.owner_file.as_deref().map(|path| OwnerFile::write(path, guard)).transpose().map_err(not_started)
}

/// Acquires the lease, tied to the group of the process that is at hand, if there is one. None is kept at hand for a key that
/// is not free: the command's process is started when it is.
async fn acquire(context: &Context<'_>, lock: &Lock, prepared: &mut Option<Job>) -> Result<Option<LockGuard>, Failure> {
    let Context { settings, request, manager, .. } = *context;
    nested::refuse(settings, manager, lock, request.name).await?;
    if let Some(owner) = context.from {
        return resume(settings, lock, prepared.as_ref(), owner).await.map(Some);
    }
    if let Some(job) = prepared {
        let lock = lock.clone().tie(Tie::Group(job.group()));
        let granted = lock.try_acquire().await.map_err(|error| not_started(settings.failure(&error)))?;
        if granted.is_some() || request.wait == Wait::No {
            return Ok(granted);
        }
        *prepared = None;
    }
    let granted = match request.wait {
        Wait::No => lock.try_acquire().await,
        Wait::UpTo(wait) => lock.acquire_within(wait).await,
        _ => lock.acquire().await.map(Some),
    };
    granted.map_err(|error| not_started(settings.failure(&error)))
}

/// Takes on a lease that was handed over; the secret it came with is worth nothing any more.
async fn resume(settings: &Settings, lock: &Lock, prepared: Option<&Job>, owner: &Owner) -> Result<LockGuard, Failure> {
    let lock = prepared.map_or_else(|| lock.clone(), |job| lock.clone().tie(Tie::Group(job.group())));
    let asked = owner.keeper.as_ref().and_then(Keeper::process).map(Asked::to_let_go);
    let guard = lock.resume(&owner.token).await.map_err(|error| not_started(settings.failure(&error)))?;
    if let Some(asked) = asked {
        asked.to_end();
    }
    owner.discard();
    Ok(guard)
}

/// What the command finds in its environment, after what it inherits.
fn environment(
    context: &Context<'_>,
    guard: &LockGuard,
    waited: Duration,
    owner_file: Option<&OwnerFile>,
) -> Environment {
    let Context { settings, request, manager, status, .. } = *context;
    let mut environment = Environment::default();
    environment.set("LEASEHOLD_KEY", guard.key().name());
    environment.set("LEASEHOLD_NAMESPACE", manager.namespace());
    environment.set("LEASEHOLD_LEASE_STORE", settings.place());
    environment.set("LEASEHOLD_TTL_MS", manager.ttl().as_millis().to_string());
    environment.set("LEASEHOLD_WAITED_MS", waited.as_millis().to_string());
    let optional = [
        ("LEASEHOLD_FENCING_TOKEN", guard.fencing_token().map(|token| token.to_string().into())),
        ("LEASEHOLD_ACQUIRED_AT", output::rfc3339(guard.acquired_at()).map(OsString::from)),
        ("LEASEHOLD_OWNER", request.arguments.export_owner.then(|| guard.owner_token().expose().into())),
        ("LEASEHOLD_OWNER_FILE", owner_file.map(|file| file.path().into())),
        ("LEASEHOLD_STATUS_FD", status.number().map(|number| number.to_string().into())),
    ];
    if let Some(tick) = context.tick {
        environment.set("LEASEHOLD_SCHEDULED_AT", tick.to_string());
    }
    match context.lost {
        None => {}
        Some([]) => environment.remove("LEASEHOLD_LOST_TICKS"),
        Some(lost) => {
            let told: Vec<_> = lost.iter().map(|lost| lost.tick.to_string()).collect();
            environment.set("LEASEHOLD_LOST_TICKS", told.join(" "));
        }
    }
    for (name, value) in optional {
        match value {
            Some(value) => environment.set(name, value),
            // What an outer lease has left there would be taken for ours.
            None => environment.remove(name),
        }
    }
    #[cfg(feature = "otel")]
    trace::hand_on(&mut environment);
    environment
}

/// Says what was not as it should be, and decides on the code.
fn judge(settings: &Settings, request: &Request<'_>, renewals: &Renewals, ending: &Ending) -> End {
    let group = ending.group;
    if ending.out_of_reach {
        output::tell(&format!("warning: processes of group {group} could not be stopped and may still run"));
    }
    match ending.cause {
        None => {}
        Some(Cause::LeftBehind) => {
            output::tell(&format!(
                "warning: \"{}\" ended and left processes in its group {group}: {}",
                output::clean(&request.command[0].to_string_lossy()),
                report::stopped(ending, Signal::TERM)
            ));
        }
        Some(Cause::MaxRuntime) => {
            let limit = request.max_runtime.map(output::precise).unwrap_or_default();
            output::tell(&format!(
                "\"{}\": --max-runtime {limit} reached; {} (exit {})",
                request.name,
                report::stopped(ending, Signal::TERM),
                exit::TIMED_OUT
            ));
            return End::by_lock(Outcome::Timeout, exit::TIMED_OUT);
        }
        Some(Cause::Ending | Cause::Lost(_)) => {
            output::tell_block(&report::lost(settings, request, renewals, ending));
            return End::by_lock(Outcome::Lost, exit::LOST);
        }
    }
    let outcome = if ending.given_up.is_some() { Outcome::Lost } else { Outcome::Ran };
    End::by_child(outcome, exit::of_status(ending.status))
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

fn refused(request: &Request<'_>, refusal: Refusal) -> Failure {
    let program = &request.command[0];
    match refusal {
        Refusal::Command(error) => cannot_run(program, &error),
        Refusal::Setup(error) if exit::is_shortage(&error) => cannot_run(program, &error),
        Refusal::Setup(error) => {
            not_started(Failure::new(exit::OS, format!("cannot start a process that ends with this one: {error}")))
        }
        Refusal::TooLate => not_started(Failure::new(
            exit::LOST,
            format!("the lease on \"{}\" ended before the command was executed: raise --ttl", request.name),
        )),
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

pub(super) fn not_started(failure: Failure) -> Failure {
    failure.note("the command was not started")
}

fn while_waiting(request: &Request<'_>) -> String {
    format!("while waiting for \"{}\"", request.name)
}

pub(super) fn interrupted(signal: Signal, when: &str) -> Failure {
    not_started(busy::stopped(signal, when))
}
