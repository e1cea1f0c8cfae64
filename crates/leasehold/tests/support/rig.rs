//! What the engine tests share: managers on one store in paused time, and a record of what happened.
#![allow(dead_code, reason = "every test crate uses its own part")]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Moment, TimeSource};
use leasehold::observe::{Event, Observer};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{Holder, Store};
use leasehold::testkit::{FaultStore, Residue, TestClock};
use leasehold::{Backoff, ErrorKind, Jitter, Key, LockGuard, LockManager, LockManagerBuilder, LostReason, Operation};
use parking_lot::Mutex;

use super::bent::BentStore;

/// The default ttl, the operation limit that goes with it, and what the margin leaves of the ttl.
pub(crate) const TTL: Duration = Duration::from_secs(30);
pub(crate) const LIMIT: Duration = Duration::from_secs(5);
pub(crate) const VALIDITY: Duration = Duration::from_millis(29_698);

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn key(name: &str) -> Key {
    Key::new("leasehold", name).unwrap()
}

/// A store in memory behind a fault store, and a clock for everybody.
pub(crate) struct Rig {
    pub(crate) clock: TestClock,
    pub(crate) memory: MemoryStore,
    pub(crate) store: FaultStore,
    pub(crate) seen: Seen,
    start: Moment,
}

impl Rig {
    /// A store with places in line.
    pub(crate) fn new() -> Self {
        Self::bent(|bent| bent)
    }

    /// A store that can only be polled.
    pub(crate) fn polled() -> Self {
        Self::bent(BentStore::without_wakes)
    }

    pub(crate) fn bent(bend: impl FnOnce(BentStore) -> BentStore) -> Self {
        let clock = TestClock::start();
        let memory = MemoryStore::with_clock(clock.clone().into());
        Self::of(clock, memory.clone(), bend(BentStore::new(memory)))
    }

    pub(crate) fn of(clock: TestClock, memory: MemoryStore, store: impl Store) -> Self {
        let seen = Seen { clock: clock.clone(), notes: Arc::default() };
        Self { start: clock.now(), clock, memory, store: FaultStore::new(store), seen }
    }

    pub(crate) fn builder(&self) -> LockManagerBuilder {
        LockManager::builder(self.store.clone()).clock(self.clock.clone().into()).observer(self.seen.clone())
    }

    /// A manager of its own, with pauses that are not random.
    pub(crate) fn manager(&self) -> LockManager {
        self.builder().backoff(steady()).build().unwrap()
    }

    /// Since the rig was set up.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now().since(self.start)
    }

    /// Who holds it in the store's own eyes.
    pub(crate) async fn holder(&self, name: &str) -> Option<Holder> {
        self.memory.inspect(&key(name)).await.unwrap().holders.pop()
    }

    pub(crate) async fn is_free(&self, name: &str) -> bool {
        self.holder(name).await.is_none()
    }

    pub(crate) fn calls(&self, operation: Operation) -> usize {
        self.store.calls(operation)
    }
}

/// The default pauses without chance: each is as long as it can be.
pub(crate) fn steady() -> Backoff {
    Backoff::default().jitter(Jitter::from_fn(|| 1.0))
}

/// Lets everybody run who can, without letting time pass.
pub(crate) async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Waits in paused time until the manager holds on to nothing.
pub(crate) async fn until_nothing_is_left(manager: &LockManager) {
    for _ in 0..10_000 {
        if Residue::of(manager).is_none() {
            return;
        }
        tokio::time::sleep(ms(10)).await;
    }
    panic!("left behind: {:?}", Residue::of(manager));
}

pub(crate) fn reason(guard: &LockGuard) -> Option<LostReason> {
    guard.check().err().and_then(|error| error.lost_reason())
}

/// One event, as far as the tests look at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    Acquired(String, Duration, u32),
    Contended(String, Duration, u32),
    Failed(Operation, ErrorKind),
    Released(String, Option<ErrorKind>),
    Renewed(String),
    RenewalFailed(String, ErrorKind),
    Lost(String, LostReason),
    Dropped(String, bool),
    Asked(Operation, Option<ErrorKind>),
}

/// An observer that writes everything down, with the moment.
#[derive(Clone)]
pub(crate) struct Seen {
    clock: TestClock,
    notes: Arc<Mutex<Vec<(Moment, Note)>>>,
}

impl Seen {
    pub(crate) fn notes(&self) -> Vec<Note> {
        self.notes.lock().iter().map(|(_, note)| note.clone()).collect()
    }

    pub(crate) fn count(&self, is: impl Fn(&Note) -> bool) -> usize {
        self.notes.lock().iter().filter(|(_, note)| is(note)).count()
    }

    /// When what is asked for happened, since `start`.
    pub(crate) fn when(&self, start: Moment, is: impl Fn(&Note) -> bool) -> Vec<Duration> {
        self.notes.lock().iter().filter(|(_, note)| is(note)).map(|(at, _)| at.since(start)).collect()
    }

    pub(crate) fn forget(&self) {
        self.notes.lock().clear();
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seen")
    }
}

impl Observer for Seen {
    fn observe(&self, event: &Event) {
        let name = |key: &Key| key.name().to_owned();
        let note = match event {
            Event::Acquired(it) => Note::Acquired(name(&it.key), it.waited, it.attempts),
            Event::Contended(it) => Note::Contended(name(&it.key), it.waited, it.attempts),
            Event::TimedOut(it) => Note::Contended(name(&it.key), it.waited, it.attempts),
            Event::Failed(it) => Note::Failed(it.operation, it.kind),
            Event::Released(it) => Note::Released(name(&it.key), it.failed),
            Event::Renewed(it) => Note::Renewed(name(&it.key)),
            Event::RenewalFailed(it) => Note::RenewalFailed(name(&it.key), it.kind),
            Event::Lost(it) => Note::Lost(name(&it.key), it.reason),
            Event::Dropped(it) => Note::Dropped(name(&it.key), it.release_sent),
            Event::StoreCall(it) => Note::Asked(it.operation, it.failed),
            _ => return,
        };
        self.notes.lock().push((self.clock.now(), note));
    }
}
