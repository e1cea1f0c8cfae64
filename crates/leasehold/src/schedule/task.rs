//! A task: its name, and when it is not to run.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::tick::Tick;
use super::timetable::Timetable;
use crate::options::MAX_TTL;

/// How long a claim on a tick stands unless the task says otherwise: an hour, which outlasts every run that matters to
/// the tick and every clock that is off.
pub const DEFAULT_CLAIM: Duration = Duration::from_secs(60 * 60);

type Condition = Arc<dyn Fn() -> bool + Send + Sync>;

/// A task of a [`Scheduler`](super::Scheduler): its name, and when it is not to run.
///
/// The name makes the keys. It has to be the same on every server and at every release: name what is done, not the file
/// that does it.
#[derive(Clone)]
#[must_use = "a task runs when a scheduler is asked to"]
pub struct Task {
    pub(super) name: String,
    pub(super) overlap: Option<Duration>,
    pub(super) one_server: bool,
    pub(super) claim: Duration,
    pub(super) timetable: Option<Timetable>,
    conditions: Vec<(String, Condition)>,
}

impl Task {
    /// A task that always runs.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            overlap: None,
            one_server: false,
            claim: DEFAULT_CLAIM,
            timetable: None,
            conditions: Vec::new(),
        }
    }

    /// Skips it while its last run lasts, wherever that is. The lease is renewed while the work runs; `ttl` is how long
    /// it outlives a crash.
    pub fn without_overlapping(mut self, ttl: Duration) -> Self {
        self.overlap = Some(ttl);
        self
    }

    /// Runs each tick on one server only.
    pub fn on_one_server(mut self) -> Self {
        self.one_server = true;
        self
    }

    /// Sets how long a claim on a tick stands, an hour unless set: longer than a run and twice as long as any clock is
    /// off. A tick that is half of this ago is skipped as too late.
    pub fn claim_for(mut self, length: Duration) -> Self {
        self.claim = length;
        self
    }

    /// Says when it is due, so that earlier ticks can be looked at.
    pub fn timetable(mut self, timetable: Timetable) -> Self {
        self.timetable = Some(timetable);
        self
    }

    /// Skips it while this is not so. Conditions are asked before anything else, in the order in which they were given.
    pub fn when(mut self, name: &str, condition: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.conditions.push((name.to_owned(), Arc::new(condition)));
        self
    }

    /// The first condition that is not met.
    pub(super) fn unmet(&self) -> Option<&str> {
        self.conditions.iter().find(|(_, condition)| !condition()).map(|(name, _)| name.as_str())
    }

    /// Whether it needs a store at all.
    pub(super) fn is_guarded(&self) -> bool {
        self.one_server || self.overlap.is_some()
    }

    /// How long the claim on a tick stands: also until the next one has come, whose run looks at it.
    pub(super) fn claim_ttl(&self, tick: Tick) -> Duration {
        let next = self.timetable.as_ref().and_then(|timetable| timetable.next(tick));
        let gap = next.map_or(Duration::ZERO, |next| tick.age(next.time()));
        gap.saturating_add(self.claim).min(MAX_TTL)
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("name", &self.name)
            .field("without_overlapping", &self.overlap)
            .field("on_one_server", &self.one_server)
            .field("claim", &self.claim)
            .field("conditions", &self.conditions.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
