//! One task at one tick: skipped, or run under its leases.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::claim::{Stage, TickClaim, claim_key, run_key};
use super::look::Seen;
use super::outcome::{LostTick, Outcome, Run, SkipReason, Skipped};
use super::task::Task;
use super::tick::{Tick, WallClock};
use super::timetable::Timetable;
use super::unshared;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::LockGuard;
use crate::lock::Lock;
use crate::manager::LockManager;
use crate::observe::{self, Event};
use crate::options::Wait;
use crate::scoped::Ran;
use crate::store::{Holder, Tie};

/// One task at one tick, about to be run.
///
/// The order is: conditions; whether the last run still lasts, which is only looked at; the claim on the tick; then the
/// lease under which the work runs. So whoever has claimed a tick decides alone whether it runs, and nobody holds a lease
/// just to look.
#[derive(Debug)]
#[must_use = "nothing happens until `run`"]
pub struct Occurrence {
    pub(super) locks: LockManager,
    pub(super) task: Task,
    pub(super) tick: Option<Tick>,
    pub(super) wall: WallClock,
    pub(super) seen: Arc<Seen>,
    pub(super) allow_unshared: bool,
    pub(super) again: bool,
    looks_back: bool,
    tie: Tie,
}

/// A task at a tick that may run now, or not.
#[non_exhaustive]
#[derive(Debug)]
pub enum Started {
    /// It is ours.
    Begun(Begun),
    /// It does not run here.
    Skipped(Skipped),
}

/// A task at a tick that is ours: its work is to be done now, and stopped when the lease is lost.
#[non_exhaustive]
#[derive(Debug)]
pub struct Begun {
    /// The lease under which the work runs.
    pub guard: LockGuard,
    /// The claim on the tick, for tasks that run on one server: [`TickClaim::done`] is its last word, before the guard is
    /// released.
    pub claim: Option<TickClaim>,
    /// See [`Run::lost`].
    pub lost: Vec<LostTick>,
}

impl Occurrence {
    pub(super) fn new(locks: &LockManager, task: Task, tick: Option<Tick>) -> Self {
        let (wall, seen) = (WallClock::system(), Arc::default());
        Self {
            locks: locks.clone(),
            task,
            tick,
            wall,
            seen,
            allow_unshared: false,
            again: false,
            looks_back: true,
            tie: Tie::Process,
        }
    }

    /// Skips it while its last run lasts; see [`Task::without_overlapping`].
    pub fn without_overlapping(mut self, ttl: Duration) -> Self {
        self.task = self.task.without_overlapping(ttl);
        self
    }

    /// Runs it on one server only; see [`Task::on_one_server`].
    pub fn on_one_server(mut self, tick: Tick) -> Self {
        self.task = self.task.on_one_server();
        self.tick = Some(tick);
        self
    }

    /// Sets how long the claim on the tick stands; see [`Task::claim_for`].
    pub fn claim_for(mut self, length: Duration) -> Self {
        self.task = self.task.claim_for(length);
        self
    }

    /// Skips it unless this is so; see [`Task::when`].
    pub fn when(mut self, name: &str, condition: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.task = self.task.when(name, condition);
        self
    }

    /// Says when the task is due, so that earlier ticks can be looked at; see [`Run::lost`].
    pub fn timetable(mut self, timetable: Timetable) -> Self {
        self.task = self.task.timetable(timetable);
        self
    }

    /// Runs a tick that was found [lost](Run::lost), however late it is; one that is not lost is skipped.
    pub fn again(mut self) -> Self {
        self.again = true;
        self
    }

    /// Sets the clock that says how late it is.
    pub fn wall_clock(mut self, wall: WallClock) -> Self {
        self.wall = wall;
        self
    }

    /// Does not look at earlier ticks; for those who [look](super::Scheduler::look) by themselves.
    pub fn without_looking_back(mut self) -> Self {
        self.looks_back = false;
        self
    }

    /// Sets who has to be alive for the lease of the work to stand; see [`Lock::tie`](crate::Lock::tie).
    pub fn tie(mut self, tie: Tie) -> Self {
        self.tie = tie;
        self
    }

    /// Accepts a store that excludes within this process only.
    pub fn allow_unshared(mut self) -> Self {
        self.allow_unshared = true;
        self
    }

    /// Runs `work`, or says why not.
    ///
    /// The claim on the tick stands from when it is granted, whatever becomes of this process; the lease under which the
    /// work runs is renewed, and the work is dropped if it is lost.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the store excludes within this process only, or cannot keep a claim;
    /// [`ErrorKind::Lost`] if the work was stopped because its lease was lost; else as
    /// [`Lock::try_acquire`](crate::Lock::try_acquire): without an answer from the store nothing runs.
    ///
    /// # Cancel safety
    ///
    /// If dropped before the claim is granted, it is given back in the background. After that the tick counts as lost,
    /// and the next run is told.
    pub async fn run<T>(self, work: impl AsyncFnOnce(Run) -> T) -> Result<Outcome<T>> {
        self.run_future(async move |run| work(run).await).await
    }

    /// Begins it, for work that is not a future: whoever calls has to stop the work when the lease is lost.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), before the work has started.
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn start(self) -> Result<Started> {
        if let Some(skipped) = self.refuse().await? {
            return Ok(Started::Skipped(skipped));
        }
        let (lock, run_key) = self.run_lock(self.tick);
        let mut claim = match self.approach(&lock, &run_key).await? {
            Ok(claim) => claim,
            Err(skipped) => return Ok(Started::Skipped(skipped)),
        };
        let Some(guard) = lock.try_acquire().await? else {
            if let Some(claim) = &mut claim {
                claim.conclude(self.left_at()).await;
            }
            return Ok(Started::Skipped(self.skip(SkipReason::StillRunning, Some(run_key)).await));
        };
        if let Some(claim) = &mut claim
            && !claim.step(Stage::Runs).await?
        {
            return Ok(Started::Skipped(self.skip(SkipReason::GivenUp, None).await));
        }
        let lost = self.look_back().await;
        Ok(Started::Begun(Begun { guard, claim, lost }))
    }

    /// As [`run`](Self::run), for code that spawns it: the future has a type of its own, which can be required to be
    /// `Send`.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn run_future<T, F: Future<Output = T>>(self, work: impl FnOnce(Run) -> F) -> Result<Outcome<T>> {
        if let Some(skipped) = self.refuse().await? {
            return Ok(Outcome::Skipped(skipped));
        }
        let (lock, run_key) = self.run_lock(self.tick);
        let mut claim = match self.approach(&lock, &run_key).await? {
            Ok(claim) => claim,
            Err(skipped) => return Ok(Outcome::Skipped(skipped)),
        };
        let (ours, tick) = (&mut claim, self.tick);
        let ran = lock.run_future(|lease| async {
            if let Some(claim) = &mut *ours
                && !claim.step(Stage::Runs).await?
            {
                return Ok(None);
            }
            let lost = self.look_back().await;
            let value = work(Run { lease, tick, lost }).await;
            // Before the lease is given back: whoever finds neither would take the run for lost.
            if let Some(claim) = ours {
                claim.conclude(Stage::Done).await;
            }
            Result::Ok(Some(value))
        });
        match ran.await? {
            Some(Ran { value: Ok(Some(value)), release }) => Ok(Outcome::Ran(Ran { value, release })),
            Some(Ran { value: Ok(None), .. }) => Ok(Outcome::Skipped(self.skip(SkipReason::GivenUp, None).await)),
            Some(Ran { value: Err(error), .. }) => Err(error),
            None => {
                if let Some(claim) = &mut claim {
                    claim.conclude(self.left_at()).await;
                }
                Ok(Outcome::Skipped(self.skip(SkipReason::StillRunning, Some(run_key)).await))
            }
        }
    }

    /// What can be said before anything is asked of the store.
    async fn refuse(&self) -> Result<Option<Skipped>> {
        unshared::check(&self.locks, std::slice::from_ref(&self.task), self.allow_unshared)?;
        let invalid = |message| Err(Error::new(ErrorKind::InvalidInput, message));
        if !self.task.is_guarded() {
            return invalid("a task that may run anywhere at any time needs no locks");
        }
        if let Some(unmet) = self.task.unmet() {
            return Ok(Some(self.skip(SkipReason::Condition(unmet.to_owned()), None).await));
        }
        match self.tick {
            _ if !self.task.one_server => Ok(None),
            None => invalid("a task that runs on one server needs a tick"),
            Some(tick) => {
                let late = self.too_late(tick);
                Ok(late.map(|reason| self.skipped(reason, None, None)))
            }
        }
    }

    fn too_late(&self, tick: Tick) -> Option<SkipReason> {
        let age = tick.age(self.wall.now());
        (age > self.task.claim / 2 && !self.again).then_some(SkipReason::TooLate(age))
    }

    /// Looks whether the last run still lasts, and claims the tick; nothing of that for tasks that need no claim.
    async fn approach(&self, lock: &Lock, run_key: &str) -> Result<std::result::Result<Option<TickClaim>, Skipped>> {
        let Some(tick) = self.tick.filter(|_| self.task.one_server) else { return Ok(Ok(None)) };
        if self.task.overlap.is_some()
            && let Some(holder) = lock.holder().await?
        {
            let key = Some(run_key.to_owned());
            return Ok(Err(self.skipped(SkipReason::StillRunning, key, Some(holder))));
        }
        match self.claim(tick).await? {
            Some(mut claim) => match self.too_late(tick) {
                None => Ok(Ok(Some(claim))),
                // This process stood still meanwhile: an earlier claim may have ended before this one was granted.
                Some(reason) => {
                    claim.conclude(Stage::Skipped).await;
                    Ok(Err(self.skipped(reason, None, None)))
                }
            },
            None => {
                let key = claim_key(&self.task.name, tick);
                Ok(Err(self.skip(SkipReason::OtherServer, Some(key)).await))
            }
        }
    }

    /// What a claim says whose run finds the last one still going on: what was lost stays so, and may be tried again.
    fn left_at(&self) -> Stage {
        if self.again { Stage::Lost } else { Stage::Skipped }
    }

    async fn look_back(&self) -> Vec<LostTick> {
        match self.tick.filter(|_| self.looks_back && self.task.one_server) {
            Some(tick) => self.look(tick, true).await,
            None => Vec::new(),
        }
    }

    async fn claim(&self, tick: Tick) -> Result<Option<TickClaim>> {
        let (key, ttl) = (claim_key(&self.task.name, tick), self.task.claim_ttl(tick));
        if !self.again {
            return TickClaim::take(&self.locks, key, ttl).await;
        }
        match self.locks.holder(&key).await? {
            Some(holder) if Stage::of(&holder) == Some(Stage::Lost) => {
                TickClaim::take_from(&self.locks, key, ttl, holder.owner, Stage::Claimed).await
            }
            _ => Ok(None),
        }
    }

    /// The lease under which the work runs, and its key.
    pub(super) fn run_lock(&self, tick: Option<Tick>) -> (Lock, String) {
        let name = &self.task.name;
        let key = match (self.task.overlap, tick) {
            (None, Some(tick)) => run_key(name, tick),
            _ => name.clone(),
        };
        let lock = self.locks.lock(&key).wait(Wait::No).tie(self.tie);
        (self.task.overlap.map_or_else(|| lock.clone(), |ttl| lock.clone().ttl(ttl)), key)
    }

    async fn skip(&self, reason: SkipReason, key: Option<String>) -> Skipped {
        // For people to read; who that is decides nothing.
        let holder = match &key {
            Some(key) => self.locks.holder(key).await.ok().flatten(),
            None => None,
        };
        self.skipped(reason, key, holder)
    }

    fn skipped(&self, reason: SkipReason, key: Option<String>, holder: Option<Holder>) -> Skipped {
        let skipped = Skipped { task: self.task.name.clone(), tick: self.tick, reason, key, holder };
        let (task, reason) = (self.task.name.clone(), skipped.reason.word());
        match skipped.reason {
            // As it should be: of several servers all but one skip each tick.
            SkipReason::OtherServer | SkipReason::Condition(_) => tracing::debug!(task, reason, "{skipped}"),
            _ => tracing::info!(task, reason, "{skipped}"),
        }
        let teller = &self.locks.engine().teller;
        teller.note(|store| Event::Skipped(observe::Skipped { store, task, reason }));
        teller.tell();
        skipped
    }
}
