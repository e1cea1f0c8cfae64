//! One task at one tick: skipped, or run under its leases.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::claim::{Claim, Stage, claim_key, run_key};
use super::look::Seen;
use super::outcome::{Outcome, Run, SkipReason, Skipped};
use super::task::Task;
use super::tick::{Tick, WallClock};
use super::timetable::Timetable;
use super::unshared;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::Lock;
use crate::manager::LockManager;
use crate::observe::{self, Event};
use crate::options::Wait;
use crate::scoped::Ran;
use crate::store::Holder;

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
}

impl Occurrence {
    pub(super) fn new(locks: &LockManager, task: Task, tick: Option<Tick>) -> Self {
        let (wall, seen) = (WallClock::system(), Arc::new(Seen::briefly()));
        Self { locks: locks.clone(), task, tick, wall, seen, allow_unshared: false, again: false }
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
        unshared::check(&self.locks, std::slice::from_ref(&self.task), self.allow_unshared)?;
        if let Some(unmet) = self.task.unmet() {
            let reason = SkipReason::Condition(unmet.to_owned());
            return Ok(self.skip(reason, None).await);
        }
        if !self.task.is_guarded() {
            return Err(Error::new(ErrorKind::InvalidInput, "a task that may run anywhere at any time needs no locks"));
        }
        match self.tick.filter(|_| self.task.one_server) {
            Some(tick) => self.run_on_one_server(tick, work).await,
            None if self.task.one_server => {
                Err(Error::new(ErrorKind::InvalidInput, "a task that runs on one server needs a tick"))
            }
            None => self.run_alone(work).await,
        }
    }

    /// Without a claim: only not while the last run lasts.
    async fn run_alone<T, F: Future<Output = T>>(&self, work: impl FnOnce(Run) -> F) -> Result<Outcome<T>> {
        let (lock, key) = self.run_lock(self.tick);
        let tick = self.tick;
        match lock.run_future(|lease| work(Run { lease, tick, lost: Vec::new() })).await? {
            Some(ran) => Ok(Outcome::Ran(ran)),
            None => Ok(self.skip(SkipReason::StillRunning, Some(key)).await),
        }
    }

    async fn run_on_one_server<T, F: Future<Output = T>>(
        &self,
        tick: Tick,
        work: impl FnOnce(Run) -> F,
    ) -> Result<Outcome<T>> {
        let age = tick.age(self.wall.now());
        if age > self.task.claim / 2 && !self.again {
            return Ok(self.skip(SkipReason::TooLate(age), None).await);
        }
        let (lock, run_key) = self.run_lock(Some(tick));
        if self.task.overlap.is_some()
            && let Some(holder) = lock.holder().await?
        {
            return Ok(self.skipped(SkipReason::StillRunning, Some(run_key), Some(holder)));
        }
        let Some(mut claim) = self.claim(tick).await? else {
            let key = claim_key(&self.task.name, tick);
            return Ok(self.skip(SkipReason::OtherServer, Some(key)).await);
        };
        let ours = &mut claim;
        let ran = lock.run_future(|lease| async move {
            if !ours.step(Stage::Runs).await? {
                return Ok(None);
            }
            let lost = self.look(tick, true).await;
            let value = work(Run { lease, tick: Some(tick), lost }).await;
            // Before the lease is given back: whoever finds neither would take the run for lost.
            ours.conclude(Stage::Done).await;
            Result::Ok(Some(value))
        });
        match ran.await? {
            Some(Ran { value: Ok(Some(value)), release }) => Ok(Outcome::Ran(Ran { value, release })),
            Some(Ran { value: Ok(None), .. }) => Ok(self.skip(SkipReason::GivenUp, None).await),
            Some(Ran { value: Err(error), .. }) => Err(error),
            None => {
                claim.conclude(Stage::Skipped).await;
                Ok(self.skip(SkipReason::StillRunning, Some(run_key)).await)
            }
        }
    }

    async fn claim(&self, tick: Tick) -> Result<Option<Claim>> {
        let (key, ttl) = (claim_key(&self.task.name, tick), self.task.claim_ttl(tick));
        if !self.again {
            return Claim::take(&self.locks, key, ttl).await;
        }
        match self.locks.holder(&key).await? {
            Some(holder) if Stage::of(&holder) == Some(Stage::Lost) => {
                Claim::take_from(&self.locks, key, ttl, holder.owner, Stage::Claimed).await
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
        let lock = self.locks.lock(&key).wait(Wait::No);
        (self.task.overlap.map_or_else(|| lock.clone(), |ttl| lock.clone().ttl(ttl)), key)
    }

    async fn skip<T>(&self, reason: SkipReason, key: Option<String>) -> Outcome<T> {
        // For people to read; who that is decides nothing.
        let holder = match &key {
            Some(key) => self.locks.holder(key).await.ok().flatten(),
            None => None,
        };
        self.skipped(reason, key, holder)
    }

    fn skipped<T>(&self, reason: SkipReason, key: Option<String>, holder: Option<Holder>) -> Outcome<T> {
        let skipped = Skipped { task: self.task.name.clone(), tick: self.tick, reason, key, holder };
        let (task, word) = (self.task.name.as_str(), skipped.reason.word());
        tracing::info!(task, reason = word, "{skipped}");
        self.locks.engine().observe(&Event::Skipped(observe::Skipped { task, reason: word }));
        Outcome::Skipped(skipped)
    }
}
