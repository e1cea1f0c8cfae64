//! One tick of one task: claimed, run under a lease, told as done.

use std::ffi::OsString;

use leasehold::clock::Clock;
use leasehold::schedule::{Occurrence, Scheduler, SkipReason, Skipped, Started, Tick};
use leasehold::store::Tie;
use rustix::process::{Pid, getppid};

use crate::child::Job;
use crate::cli::{Cron, Global};
use crate::commands::run::{self, Context, End, Held, Outcome, Record, Renewals, Request, Status};
use crate::config::{self, Settings};
use crate::exit::{self, Failure};
use crate::output;
use crate::signals::Signals;

/// Runs the tick, or says why not.
pub(super) async fn run(global: &Global, arguments: &Cron, name: &OsString, tick: Tick) -> Result<u8, Failure> {
    output::tell_aside();
    let mut signals = Signals::install()
        .map_err(|error| Failure::new(exit::OS, format!("cannot install signal handlers: {error}")))?;
    die_with(arguments.parent)?;
    let run = arguments.as_run(name);
    let settings = Settings::new(global, config::flags(true, None, run.ttl.as_deref())?)?;
    let request = Request::new(&settings, &run)?;
    let status = Status::open(None)?;
    let renewals = Renewals::new(&status);
    let mut record = Record::new(&run)?;
    let mut prepared = None;
    let prepare = async { prepared = Job::prepare(&request.command).ok() };
    let manager = tokio::select! {
        biased;
        signal = signals.next_ending() => return Err(run::interrupted(signal, "before the tick was claimed")),
        (manager, ()) = async { tokio::join!(run::open(&settings, &request, renewals.clone()), prepare) } => manager?,
    };
    let context = Context {
        settings: &settings,
        request: &request,
        manager: &manager,
        renewals: &renewals,
        status: &status,
        from: None,
        tick: Some(tick),
        lost: None,
    };
    if arguments.parent.is_none() {
        settings.warn_of_this_host(run.require_scope, super::ELSEWHERE);
    }
    let outcome = hold(&context, arguments, tick, &mut record, prepared, &mut signals).await;
    run::close(&settings, &manager, &mut signals).await;
    outcome.map(|end| end.code)
}

async fn hold(
    context: &Context<'_>,
    arguments: &Cron,
    tick: Tick,
    record: &mut Record<'_>,
    prepared: Option<Job>,
    signals: &mut Signals,
) -> Result<End, Failure> {
    let Context { settings, request, manager, .. } = *context;
    let limits = request.limits(manager.ttl())?;
    let tie = prepared.as_ref().map_or(Tie::Process, |job| Tie::Group(job.group()));
    let occurrence = occurrence(context, arguments, tick)?.tie(tie);
    let asked = Clock::system().now();
    let started = tokio::select! {
        biased;
        signal = signals.next_ending() => return Err(run::interrupted(signal, "before the tick had begun")),
        started = occurrence.start() => started.map_err(|error| run::not_started(settings.failure(&error)))?,
    };
    let begun = match started {
        Started::Begun(begun) => begun,
        Started::Skipped(skipped) => {
            tell_skipped(settings, arguments, &skipped);
            // A lost tick that is not lost any more need not be tried again.
            let is_over = arguments.again && skipped.reason != SkipReason::StillRunning;
            return Ok(End::by_lock(Outcome::Busy, if is_over { exit::DONE } else { request.busy_code }));
        }
        _ => return Err(Failure::new(exit::BUG, "the tick neither began nor was skipped")),
    };
    for lost in &begun.lost {
        output::tell(&format!("warning: \"{}\": {}", request.name, output::clean(&lost.to_string())));
    }
    // Whoever started this for a tick has said it in the environment.
    let context = Context { lost: arguments.parent.is_none().then_some(&begun.lost[..]), ..*context };
    let waited = Clock::system().now().since(asked);
    let held = Held { guard: begun.guard, waited, claim: begun.claim, prepared };
    run::carry(&context, record, held, limits, signals).await
}

fn occurrence(context: &Context<'_>, arguments: &Cron, tick: Tick) -> Result<Occurrence, Failure> {
    let Context { settings, request, manager, .. } = *context;
    let expression = arguments.schedule.as_deref();
    let timetable = expression.map(|expression| super::timetable(expression, &arguments.tz)).transpose()?;
    let task = super::task(arguments, request.name, manager.ttl(), timetable.as_ref())?;
    let scheduler = Scheduler::builder(manager).task(task).build();
    let occurrence = scheduler.and_then(|scheduler| scheduler.occurrence(request.name, tick));
    let mut occurrence = occurrence.map_err(|error| run::not_started(settings.failure(&error)))?;
    if arguments.parent.is_some() {
        occurrence = occurrence.without_looking_back();
    }
    Ok(if arguments.again { occurrence.again() } else { occurrence })
}

/// That another server has the tick is how it should be.
fn tell_skipped(settings: &Settings, arguments: &Cron, skipped: &Skipped) {
    let is_usual = skipped.reason == SkipReason::OtherServer && arguments.parent.is_some();
    if settings.verbose || !(settings.quiet || is_usual) {
        output::tell(&output::clean(&skipped.to_string()));
    }
}

/// Ends the command if the process that started this one for its tick is killed.
fn die_with(parent: Option<i32>) -> Result<(), Failure> {
    let Some(parent) = parent.and_then(Pid::from_raw) else { return Ok(()) };
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM)).ok();
    if getppid() == Some(parent) {
        return Ok(());
    }
    Err(Failure::new(exit::UNAVAILABLE, "whoever started this for a tick is gone; nothing was claimed"))
}
