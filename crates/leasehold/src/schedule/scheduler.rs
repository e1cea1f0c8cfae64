//! The tasks of a program, checked together.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use super::look::Seen;
use super::occurrence::Occurrence;
use super::outcome::{LostTick, Outcome, Run};
use super::task::Task;
use super::tick::{Tick, WallClock};
use super::unshared;
use crate::error::{Error, ErrorKind, Result};
use crate::manager::LockManager;
use crate::types::Key;

/// The tasks of a program: each is run at its ticks, on one server, not while its last run lasts, as it says.
///
/// A cheap handle: clones share everything. It has no timer of its own: [`Ticks`](super::Ticks) tells when a tick has
/// come, or another scheduler does.
#[derive(Clone)]
pub struct Scheduler {
    shared: Arc<Shared>,
}

struct Shared {
    locks: LockManager,
    tasks: Vec<Task>,
    wall: WallClock,
    seen: Arc<Seen>,
    allow_unshared: bool,
}

/// Tasks and options of a [`Scheduler`].
#[derive(Debug)]
#[must_use = "nothing happens until `build`"]
pub struct SchedulerBuilder {
    locks: LockManager,
    tasks: Vec<Task>,
    wall: WallClock,
    allow_unshared: bool,
}

impl Scheduler {
    /// A scheduler over these locks.
    pub fn builder(locks: &LockManager) -> SchedulerBuilder {
        SchedulerBuilder { locks: locks.clone(), tasks: Vec::new(), wall: WallClock::system(), allow_unshared: false }
    }

    /// A task at a tick, to be run.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if there is no task of this name.
    pub fn occurrence(&self, task: &str, tick: Tick) -> Result<Occurrence> {
        let Shared { locks, tasks, wall, seen, allow_unshared } = &*self.shared;
        let unknown = || Error::new(ErrorKind::InvalidInput, format!("there is no task \"{task}\" in this scheduler"));
        let task = tasks.iter().find(|known| known.name == task).ok_or_else(unknown)?;
        let mut occurrence = Occurrence::new(locks, task.clone(), Some(tick));
        (occurrence.wall, occurrence.seen) = (wall.clone(), Arc::clone(seen));
        occurrence.allow_unshared = *allow_unshared;
        Ok(occurrence)
    }

    /// Runs a task at a tick, or says why not. See [`Occurrence::run`].
    ///
    /// # Errors
    ///
    /// As [`occurrence`](Self::occurrence) and [`Occurrence::run`].
    ///
    /// # Cancel safety
    ///
    /// As [`Occurrence::run`].
    pub async fn run<T>(&self, task: &str, tick: Tick, work: impl AsyncFnOnce(Run) -> T) -> Result<Outcome<T>> {
        self.occurrence(task, tick)?.run(work).await
    }

    /// Looks for ticks of a task, up to now, whose holder is gone, without running anything; each is told to one of those
    /// who look, or to two if the store's answer was lost. For tasks that are due once a day or less often: claims are kept
    /// for a day at most, so call it every hour or so. What it tells is not told to the next run.
    ///
    /// # Errors
    ///
    /// As [`occurrence`](Self::occurrence). What the store refuses is logged, and looked at again the next time.
    ///
    /// # Cancel safety
    ///
    /// If dropped, what was found by then is told to nobody.
    pub async fn look(&self, task: &str) -> Result<Vec<LostTick>> {
        let now = Tick::at(self.shared.wall.now())?;
        Ok(self.occurrence(task, now)?.look(now, false).await)
    }
}

impl SchedulerBuilder {
    /// Adds a task.
    pub fn task(mut self, task: Task) -> Self {
        self.tasks.push(task);
        self
    }

    /// Accepts a store that excludes within this process only, with a warning that names the tasks: for development.
    pub fn allow_unshared(mut self) -> Self {
        self.allow_unshared = true;
        self
    }

    /// Sets the clock that says how late a tick is.
    pub fn wall_clock(mut self, wall: WallClock) -> Self {
        self.wall = wall;
        self
    }

    /// The scheduler.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if two tasks have one name; [`ErrorKind::Unsupported`] if the store does not reach
    /// other servers or cannot keep a claim; [`ErrorKind::InvalidInput`] for a name that makes no key, or a ttl out of
    /// range.
    pub fn build(self) -> Result<Scheduler> {
        let Self { locks, tasks, wall, allow_unshared } = self;
        let mut names = HashSet::new();
        let mut twice: Vec<_> = tasks.iter().map(|task| &task.name).filter(|name| !names.insert(*name)).collect();
        twice.dedup();
        if !twice.is_empty() {
            let message =
                format!("tasks with one name would keep each other from running: {twice:?}; rename all but one");
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        for task in &tasks {
            Key::new(locks.namespace(), &task.name)?;
            for ttl in task.overlap.into_iter().chain(task.one_server.then_some(task.claim)) {
                locks.engine().check_ttl(ttl)?;
            }
        }
        unshared::check(&locks, &tasks, allow_unshared)?;
        let seen = Arc::default();
        Ok(Scheduler { shared: Arc::new(Shared { locks, tasks, wall, seen, allow_unshared }) })
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler").field("tasks", &self.shared.tasks).finish_non_exhaustive()
    }
}
