//! How observers are told: in order, by one thread at a time, and never while something is left undone that a lease
//! needs.
//!
//! An event is noted where it happens, and told where the call, or the renewal, has nothing more to do. Whoever comes
//! while another thread is telling leaves its events to that one.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::{Event, Missed, Observer};
use crate::clock::{Clock, Moment};
use crate::engine::log;

/// How many events are kept while an observer blocks.
const KEPT: usize = 10_000;

/// How many events a call tells before it leaves the others' to a thread of their own.
const SHARE: usize = 64;

/// How long a thread for blocking work may take to begin. There may be none left, for as long as the work that others
/// have there; then one is started for the events alone.
const PATIENCE: Duration = Duration::from_secs(1);

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
    /// Whose turn it is: that of a thread that is telling, or was asked to, and will tell these as well.
    turn: Option<Turn>,
    turns: u64,
    missed: u64,
}

impl Noted {
    /// `Some` = there is no room for it.
    fn keep(&mut self, store: &'static str, event: Event) -> Option<Event> {
        if self.events.len() >= KEPT {
            self.missed += 1;
            return Some(event);
        }
        if self.missed > 0 {
            let events = std::mem::take(&mut self.missed);
            self.events.push_back(Event::Missed(Missed { store, events }));
        }
        self.events.push_back(event);
        None
    }
}

#[derive(Debug)]
struct Turn {
    number: u64,
    /// Since when it is waited for a thread that has not begun.
    asked: Option<Moment>,
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
        noted.events.len() + usize::from(noted.turn.is_some())
    }

    /// Keeps an event until [`tell`](Self::tell).
    pub(crate) fn note(&self, event: impl FnOnce(&'static str) -> Event) {
        if !self.is_heard() {
            return;
        }
        let event = event(self.store);
        let Ok(()) = self.note_if(|| Ok::<_, Infallible>(()), [event]);
    }

    /// Keeps the events if `happens` says that they did happen. Whoever acts on what it did has its own events told
    /// after these.
    // Most managers have nobody who listens: their path is the short one.
    #[inline(never)]
    pub(crate) fn note_if<E>(
        &self,
        happens: impl FnOnce() -> Result<(), E>,
        events: impl IntoIterator<Item = Event>,
    ) -> Result<(), E> {
        let mut noted = self.noted.lock();
        happens()?;
        let missed = noted.missed;
        // Dropped without the lock: the cause of an error is foreign code.
        let _unkept: Vec<_> = events.into_iter().filter_map(|event| noted.keep(self.store, event)).collect();
        let first = missed == 0 && noted.missed > 0;
        drop(noted);
        if first {
            log(|| tracing::warn!(store = self.store, "an observer blocks: events are missed"));
        }
        Ok(())
    }

    /// Tells what was noted.
    pub(crate) fn tell(self: &Arc<Self>) {
        if !self.is_heard() {
            return;
        }
        let Some(telling) = self.begin(None) else { return };
        if telling.is_overdue {
            telling.tell_on_a_thread();
        } else if telling.tell(SHARE) {
            self.tell_apart();
        }
    }

    /// Tells what was noted on a thread for blocking work.
    pub(crate) fn tell_apart(self: &Arc<Self>) {
        if !self.is_heard() {
            return;
        }
        let Some(telling) = self.begin(Some(Clock::system().now())) else { return };
        if telling.is_overdue {
            return telling.tell_on_a_thread();
        }
        let tell = move || _ = telling.tell(usize::MAX);
        let Ok(runtime) = Handle::try_current() else { return tell() };
        // Panics where the system has no thread left; what was to be told is then told here.
        if catch_unwind(AssertUnwindSafe(|| drop(runtime.spawn_blocking(tell)))).is_err()
            && let Some(telling) = self.begin(None)
        {
            telling.tell(usize::MAX);
        }
    }

    /// `None` if there is nothing to tell, or it is the turn of somebody else who does not keep us waiting. `asked` = the
    /// moment, if it will go on on another thread.
    fn begin(self: &Arc<Self>, asked: Option<Moment>) -> Option<Telling> {
        let mut noted = self.noted.lock();
        if noted.events.is_empty() {
            return None;
        }
        let is_overdue = match &noted.turn {
            None => false,
            Some(Turn { asked: Some(since), .. }) if Clock::system().now().since(*since) >= PATIENCE => true,
            Some(_) => return None,
        };
        noted.turns += 1;
        let number = noted.turns;
        noted.turn = Some(Turn { number, asked });
        Some(Telling { teller: Arc::clone(self), number, is_overdue })
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
    number: u64,
    /// Another one was asked long ago, and has not begun.
    is_overdue: bool,
}

impl Telling {
    /// `true` if there is more to tell.
    fn tell(self, most: usize) -> bool {
        let mut told = 0;
        loop {
            let mut noted = self.teller.noted.lock();
            match &mut noted.turn {
                Some(turn) if turn.number == self.number => turn.asked = None,
                // It took too long to begin.
                _ => return false,
            }
            let event = if told < most { noted.events.pop_front() } else { None };
            let Some(event) = event else {
                noted.turn = None;
                return !noted.events.is_empty();
            };
            drop(noted);
            self.teller.tell_all(&event);
            told += 1;
        }
    }

    /// Where no thread for blocking work is to be had.
    fn tell_on_a_thread(self) {
        let (teller, runtime) = (Arc::clone(&self.teller), Handle::try_current());
        let tell = move || {
            let _entered = runtime.as_ref().map(Handle::enter);
            self.tell(usize::MAX);
        };
        // Not even that: what was to be told is then told here.
        if thread::Builder::new().name("leasehold-events".to_owned()).spawn(tell).is_err()
            && let Some(telling) = teller.begin(None)
        {
            telling.tell(usize::MAX);
        }
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        // The runtime was shut down before the thread began.
        let mut noted = self.teller.noted.lock();
        if noted.turn.as_ref().is_some_and(|turn| turn.number == self.number) {
            noted.turn = None;
        }
    }
}
