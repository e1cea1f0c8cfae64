//! How observers are told: in order, by one thread at a time, and never while something is left undone that a lease
//! needs.
//!
//! An event is noted where it happens, and told where the call, or the renewal, has nothing more to do. Whoever comes
//! while another thread is telling leaves its events to that one.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::{Event, Missed, Observer};
use crate::engine::log;

/// How many events are kept while an observer blocks.
const KEPT: usize = 10_000;

/// How many events a call tells before it leaves the others' to a thread of their own.
const SHARE: usize = 64;

#[derive(Debug)]
pub(crate) struct Teller {
    store: &'static str,
    observers: Vec<Arc<dyn Observer>>,
    is_forked: AtomicBool,
    noted: Mutex<Noted>,
    /// An observer panicked before: it is logged once.
    panicked: AtomicBool,
}

#[derive(Debug, Default)]
struct Noted {
    events: VecDeque<Event>,
    /// A thread is telling, and will tell these as well.
    telling: bool,
    missed: u64,
}

impl Teller {
    pub(crate) fn new(store: &'static str, observers: Vec<Arc<dyn Observer>>) -> Arc<Self> {
        Arc::new(Self {
            store,
            observers,
            is_forked: AtomicBool::new(false),
            noted: Mutex::default(),
            panicked: AtomicBool::new(false),
        })
    }

    /// The store of whose manager this is.
    pub(crate) fn store(&self) -> &'static str {
        self.store
    }

    /// Whether anybody listens.
    pub(crate) fn is_heard(&self) -> bool {
        !self.observers.is_empty() && !self.is_forked.load(Ordering::Relaxed)
    }

    /// In a forked child nobody is told: another thread of the parent may have been telling, and what it had locked is
    /// never unlocked here.
    pub(crate) fn fall_silent(&self) {
        self.is_forked.store(true, Ordering::Relaxed);
    }

    /// How many events are noted, the one that is being told included.
    #[cfg(feature = "testkit")]
    pub(crate) fn untold(&self) -> usize {
        let noted = self.noted.lock();
        noted.events.len() + usize::from(noted.telling)
    }

    /// Keeps an event until [`tell`](Self::tell).
    pub(crate) fn note(&self, event: impl FnOnce(&'static str) -> Event) {
        if !self.is_heard() {
            return;
        }
        let event = event(self.store);
        let mut noted = self.noted.lock();
        if noted.events.len() < KEPT {
            if noted.missed > 0 {
                let events = std::mem::take(&mut noted.missed);
                noted.events.push_back(Event::Missed(Missed { store: self.store, events }));
            }
            noted.events.push_back(event);
            return;
        }
        noted.missed += 1;
        let first = noted.missed == 1;
        drop(noted);
        if first {
            log(|| tracing::warn!(store = self.store, "an observer blocks: events are missed"));
        }
    }

    /// Tells what was noted.
    pub(crate) fn tell(self: &Arc<Self>) {
        if self.is_heard() && self.begin().is_some_and(|telling| telling.tell(SHARE)) {
            self.tell_apart();
        }
    }

    /// Tells what was noted on a thread for blocking work.
    pub(crate) fn tell_apart(self: &Arc<Self>) {
        if !self.is_heard() {
            return;
        }
        let Some(telling) = self.begin() else { return };
        let tell = move || _ = telling.tell(usize::MAX);
        let Ok(runtime) = Handle::try_current() else { return tell() };
        // Panics where the system has no thread left; what was to be told is then told here.
        if catch_unwind(AssertUnwindSafe(|| drop(runtime.spawn_blocking(tell)))).is_err()
            && let Some(telling) = self.begin()
        {
            telling.tell(usize::MAX);
        }
    }

    /// `None` if there is nothing to tell, or somebody at it.
    fn begin(self: &Arc<Self>) -> Option<Telling> {
        let mut noted = self.noted.lock();
        if noted.telling || noted.events.is_empty() {
            return None;
        }
        noted.telling = true;
        Some(Telling { teller: Arc::clone(self), ended: false })
    }

    /// One that panics must not take a lease with it, nor the others' event.
    fn tell_all(&self, event: &Event) {
        for observer in &self.observers {
            let told = catch_unwind(AssertUnwindSafe(|| observer.observe(event)));
            if told.is_err() && !self.panicked.swap(true, Ordering::Relaxed) {
                log(|| tracing::error!(store = self.store, "an observer panicked; this is logged once"));
            }
        }
    }
}

/// The one who tells. From its making on others leave their events to it, so that none of them is held up by an event
/// that is to be told on another thread.
struct Telling {
    teller: Arc<Teller>,
    ended: bool,
}

impl Telling {
    /// `true` if there is more to tell.
    fn tell(mut self, most: usize) -> bool {
        let mut told = 0;
        loop {
            let mut noted = self.teller.noted.lock();
            let event = if told < most { noted.events.pop_front() } else { None };
            let Some(event) = event else {
                self.ended = true;
                noted.telling = false;
                return !noted.events.is_empty();
            };
            drop(noted);
            self.teller.tell_all(&event);
            told += 1;
        }
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        // The runtime was shut down before the thread began.
        if !self.ended {
            self.teller.noted.lock().telling = false;
        }
    }
}
