//! Waiting for ticks, and starting a process for each.
//!
//! Each run is a process of its own, this program again, with all that a `run` has: it claims the tick, holds the lease
//! and looks after the command. So one that is stopped or killed takes no other with it.

use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::process::{Child, Stdio};
use std::task::Poll;
use std::time::Duration;

use leasehold::config::Config;
use leasehold::schedule::{Due, LostTick, Scheduler, Tick, Ticks, WallClock};
use leasehold::{Close, LockManager};
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use super::plan::Plan;
use crate::child;
use crate::cli::{Global, LogFormat, LostTicks, Overlap, Reach};
use crate::config::Settings;
use crate::exit::{self, Failure};
use crate::output;
use crate::signals::{Signals, asks_to_end};

/// How often ticks that were lost are looked for while none is due: claims of tasks that are rarely due do not stand until
/// the next one.
const LOOK: Duration = Duration::from_secs(30);

/// How long a tick waits for that look before it is started without; what the look finds later is told to the next. While the
/// store is so slow the others do not wait at all.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// Starts every run at its time, until this is told to end; then passes that on, and waits for those that run.
pub(super) async fn stand(global: &Global, plans: Vec<Plan>) -> Result<u8, Failure> {
    output::tell_aside();
    let mut signals = Signals::install()
        .map_err(|error| Failure::new(exit::OS, format!("cannot install signal handlers: {error}")))?;
    let settings = Settings::new(global, Config::default())?;
    let manager = tokio::select! {
        biased;
        signal = signals.next_ending() => return Ok(code(signal)),
        manager = async { settings.build(settings.open().await?) } => manager?,
    };
    let scheduler = scheduler(&settings, &manager, &plans)?;
    if let Some(plan) = plans.first() {
        settings.warn_of_this_host(plan.arguments.running.require_scope, super::ELSEWHERE);
    }
    let (lost, again) = (vec![Vec::new(); plans.len()], vec![Vec::new(); plans.len()]);
    let looks = plans.iter().map(|_| None).collect();
    let mut fleet =
        Fleet { global, plans, scheduler, running: Vec::new(), looks, is_slow: false, lost, again, asked: None };
    let signal = fleet.work(&mut signals).await;
    fleet.end(signal, &mut signals).await;
    manager.close(Close::Release).await.ok();
    Ok(code(signal))
}

fn code(signal: Signal) -> u8 {
    u8::try_from(signal.as_raw()).unwrap_or_default().saturating_add(exit::SIGNAL)
}

/// The tasks, checked together: names that are there twice, a store that will not do.
fn scheduler(settings: &Settings, manager: &LockManager, plans: &[Plan]) -> Result<Scheduler, Failure> {
    let mut builder = Scheduler::builder(manager);
    for plan in plans {
        let ttl = match plan.arguments.running.ttl.as_deref() {
            Some(text) => leasehold::config::parse_duration(text)
                .map_err(|error| Failure::new(exit::DATA, format!("invalid --ttl: {}", error.message())))?,
            None => manager.ttl(),
        };
        builder = builder.task(super::task(&plan.arguments, &plan.name, ttl, Some(&plan.timetable))?);
    }
    builder.build().map_err(|error| settings.failure(&error))
}

/// A process that was started for a tick.
#[derive(Debug)]
struct Turn {
    child: Child,
    /// Of which plan it is.
    index: usize,
    tick: Tick,
    /// What it was told.
    lost: Vec<Tick>,
    /// Whether it runs for a tick that was lost.
    again: bool,
}

/// A look for lost ticks, and how long it took.
type Look = JoinHandle<(Vec<LostTick>, Duration)>;

struct Fleet<'a> {
    global: &'a Global,
    plans: Vec<Plan>,
    scheduler: Scheduler,
    running: Vec<Turn>,
    /// Of each plan, the look that is under way. It is never given up: what it has found nobody else would be told.
    looks: Vec<Option<Look>>,
    /// Whether the latest look took longer than ticks wait for one.
    is_slow: bool,
    /// Of each plan, the ticks that were lost and of which no run has been told.
    lost: Vec<Vec<Tick>>,
    /// Of each plan, the ticks that were lost and are to run again.
    again: Vec<Vec<Tick>>,
    /// What asked for the end while something else was waited for.
    asked: Option<Signal>,
}

impl Fleet<'_> {
    /// Works until a signal asks for the end.
    async fn work(&mut self, signals: &mut Signals) -> Signal {
        let wall = WallClock::system();
        let mut clocks: Vec<_> =
            self.plans.iter().map(|plan| Ticks::new(plan.timetable.clone(), wall.clone())).collect();
        let mut idle = interval_at(Instant::now() + LOOK, LOOK);
        idle.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let event = tokio::select! {
                biased;
                signal = signals.next() => Event::Signal(signal),
                (index, due) = first(&mut clocks) => Event::Due(index, due),
                _ = idle.tick() => Event::Idle,
            };
            match event {
                Event::Signal(signal) => self.hear(signal),
                Event::Due(index, due) => self.begin(index, due, signals).await,
                Event::Idle => self.look_at_all(signals).await,
            }
            if let Some(signal) = self.asked {
                return signal;
            }
        }
    }

    fn hear(&mut self, signal: Signal) {
        if asks_to_end(signal) {
            self.asked = Some(signal);
        } else if signal == Signal::CHILD {
            self.reap();
        }
    }

    /// A tick has come.
    async fn begin(&mut self, index: usize, due: Due, signals: &mut Signals) {
        if due.missed > 0 {
            let name = &self.plans[index].name;
            output::tell(&format!(
                "warning: \"{name}\": missed {} ticks before {}: this process or the machine stood still, or its clock \
                 was set; another server may have run them",
                due.missed, due.tick
            ));
        }
        self.look(index, signals).await;
        if self.asked.is_none() {
            self.start(index, due.tick, false, self.lost[index].clone());
        }
    }

    async fn look_at_all(&mut self, signals: &mut Signals) {
        for index in 0..self.plans.len() {
            if self.asked.is_none() {
                self.look(index, signals).await;
            }
        }
        self.reap();
    }

    /// Looks for ticks that were lost.
    async fn look(&mut self, index: usize, signals: &mut Signals) {
        let mut look = self.looks[index].take().unwrap_or_else(|| self.begin_look(index));
        let limit = sleep(if self.is_slow { Duration::ZERO } else { LOOK_LIMIT });
        tokio::pin!(limit);
        let looked = loop {
            tokio::select! {
                biased;
                looked = &mut look => break Some(looked),
                signal = signals.next() => self.hear(signal),
                () = &mut limit => {
                    self.is_slow = true;
                    break None;
                }
            }
            if self.asked.is_some() {
                break None;
            }
        };
        match looked {
            None => self.looks[index] = Some(look),
            Some(looked) => {
                let (lost, took) = looked.unwrap_or_default();
                self.is_slow = took > LOOK_LIMIT;
                self.learn(index, lost);
            }
        }
    }

    fn begin_look(&self, index: usize) -> Look {
        let (scheduler, name) = (self.scheduler.clone(), self.plans[index].name.clone());
        tokio::spawn(async move {
            let began = Instant::now();
            let lost = scheduler.look(&name).await.unwrap_or_default();
            (lost, began.elapsed())
        })
    }

    /// Tells of ticks that were lost, and runs them again if that is asked for.
    fn learn(&mut self, index: usize, lost: Vec<LostTick>) {
        let plan = &self.plans[index];
        for lost in &lost {
            output::tell(&format!("warning: \"{}\": {}", plan.name, output::clean(&lost.to_string())));
        }
        let ticks = lost.into_iter().map(|lost| lost.tick);
        match plan.arguments.lost {
            LostTicks::Report => self.lost[index].extend(ticks),
            LostTicks::Run => self.again[index].extend(ticks),
        }
        self.catch_up(index);
    }

    /// Runs what was lost again; what finds the last run still going on is tried at the next tick, or look.
    fn catch_up(&mut self, index: usize) {
        for tick in std::mem::take(&mut self.again[index]) {
            self.start(index, tick, true, Vec::new());
        }
    }

    fn start(&mut self, index: usize, tick: Tick, again: bool, lost: Vec<Tick>) {
        let plan = &self.plans[index];
        let mut command = child::helper("cron");
        command.args(self.globals()).arg(&plan.name);
        let own = &plan.arguments;
        command.args(["--tick", &tick.to_string(), "--parent", &std::process::id().to_string()]);
        command.args(["--tz", &own.tz, "--claim", &own.claim]);
        command.args(own.schedule.iter().flat_map(|expression| ["--schedule", expression]));
        command.args(if own.overlap == Overlap::Allow { ["--overlap", "allow"] } else { ["--overlap", "forbid"] });
        command.args(again.then_some("--again"));
        let running = &own.running;
        for (option, value) in
            [("--ttl", &running.ttl), ("--kill-after", &running.kill_after), ("--max-runtime", &own.max_runtime)]
        {
            command.args(value.iter().map(|value| format!("{option}={value}")));
        }
        command.args(running.label.iter().map(|label| format!("--label={label}")));
        command.args(running.no_holder_info.then_some("--no-holder-info"));
        command.args(running.require_fencing.then_some("--require-fencing"));
        command.args(running.require_scope.map(|scope| match scope {
            Reach::Host => "--require-scope=host",
            Reach::Network => "--require-scope=network",
        }));
        match &running.script {
            Some(script) => command.arg("-c").arg(script),
            None => command.arg("--").args(&running.command),
        };
        command.envs(plan.environment.iter().map(|(name, value)| (name, value)));
        // Not the terminal, which several could not share.
        command.stdin(Stdio::null()).env_remove("LEASEHOLD_LOST_TICKS");
        if !lost.is_empty() {
            let told: Vec<_> = lost.iter().map(ToString::to_string).collect();
            command.env("LEASEHOLD_LOST_TICKS", told.join(" "));
        }
        match command.spawn() {
            Ok(child) => self.running.push(Turn { child, index, tick, lost, again }),
            Err(error) => {
                output::tell(&format!("warning: \"{}\" at {tick} cannot be started here: {error}", plan.name));
                if again {
                    self.again[index].push(tick);
                }
            }
        }
    }

    /// What was said for every command is said again.
    fn globals(&self) -> Vec<std::ffi::OsString> {
        let Global { store, namespace, config, quiet, verbose, log_format } = self.global;
        let mut options = Vec::new();
        let mut option = |name: &str, value: &std::ffi::OsStr| options.extend([name.into(), value.to_owned()]);
        store.iter().for_each(|store| option("--store", store.as_ref()));
        namespace.iter().for_each(|namespace| option("--namespace", namespace.as_ref()));
        config.iter().for_each(|config| option("--config", config.as_ref()));
        if *log_format == LogFormat::Json {
            option("--log-format", "json".as_ref());
        }
        options.extend(quiet.then(|| "--quiet".into()));
        options.extend(verbose.then(|| "--verbose".into()));
        options
    }

    /// Takes note of those that have ended. What kept them from running they have said themselves.
    fn reap(&mut self) {
        let Self { plans, running, lost, again, .. } = self;
        running.retain_mut(|turn| {
            let status = match turn.child.try_wait() {
                Ok(None) => return true,
                Ok(Some(status)) => status,
                Err(_) => return false,
            };
            let code = exit::of_status(status);
            // A command may end with one of these, too: then the next one is told once more, and a lost tick that has run
            // again is found to be over.
            if exit::is_not_begun(code) {
                again[turn.index].extend(turn.again.then_some(turn.tick));
            } else {
                lost[turn.index].retain(|tick| !turn.lost.contains(tick));
            }
            if ![exit::BUSY, exit::DONE].contains(&code) {
                output::tell(&format!("\"{}\" at {} ended with {code}", plans[turn.index].name, turn.tick));
            }
            false
        });
    }

    /// Passes a signal on, and others that come, until nobody runs any more.
    async fn end(&mut self, signal: Signal, signals: &mut Signals) {
        self.pass_on(signal);
        self.reap();
        while !self.running.is_empty() {
            let signal = tokio::select! {
                signal = signals.next() => signal,
                () = sleep(Duration::from_secs(1)) => Signal::CHILD,
            };
            if signal != Signal::CHILD {
                self.pass_on(signal);
            }
            self.reap();
        }
    }

    fn pass_on(&self, signal: Signal) {
        for turn in &self.running {
            kill_process(Pid::from_child(&turn.child), signal).ok();
        }
    }
}

enum Event {
    Signal(Signal),
    Due(usize, Due),
    Idle,
}

type Coming<'a> = Pin<Box<dyn Future<Output = (usize, Due)> + Send + 'a>>;

/// The first tick of any of these to come. Those whose timetable is over never come.
async fn first(clocks: &mut [Ticks]) -> (usize, Due) {
    let mut waiting: Vec<Coming<'_>> = Vec::new();
    for (index, ticks) in clocks.iter_mut().enumerate() {
        waiting.push(Box::pin(async move {
            match ticks.next().await {
                Some(due) => (index, due),
                None => pending().await,
            }
        }));
    }
    poll_fn(|context| {
        for future in &mut waiting {
            if let Poll::Ready(due) = future.as_mut().poll(context) {
                return Poll::Ready(due);
            }
        }
        Poll::Pending
    })
    .await
}
