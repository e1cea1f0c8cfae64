//! Waiters that want to know when a key is worth asking for again.

use std::time::Duration;

use tokio::sync::oneshot;

use super::file::LeaseFile;
use super::host::{Host, TieFacts};
use super::lease;
use super::liveness::Look;
use super::row::fencing;
use crate::clock::{Clock, Moment};
use crate::store::{Holder, Wake};
use crate::types::{FencingToken, Key};

/// How long a commit of another process may go unnoticed. One look costs about 10 us.
pub(super) const INTERVAL: Duration = Duration::from_millis(20);

/// Looks at holders may take this part of the thread's time: a group without its leader is looked for among all
/// processes of the machine.
const SHARE: u32 = 20;

/// The waiters of one store.
#[derive(Debug)]
pub(super) struct Watches {
    watches: Vec<Watch>,
    /// The file's version at the last look; `None` = look at the rows in any case.
    version: Option<i64>,
    looked: Moment,
    /// When to look again whether those who hold the keys are alive.
    holders_due: Moment,
}

#[derive(Debug)]
struct Watch {
    key: Key,
    seen: Option<FencingToken>,
    tie: TieFacts,
    bell: oneshot::Sender<()>,
}

impl Watches {
    pub(super) fn new() -> Self {
        let never = Moment::from_nanos(0);
        Self { watches: Vec::new(), version: None, looked: never, holders_due: never }
    }

    /// A wake-up for when `key` is no longer held as it was seen, or whoever holds it is gone.
    pub(super) fn add(&mut self, key: &Key, seen: &Holder, tie: TieFacts) -> Wake {
        if self.watches.is_empty() {
            // The version was not followed while nobody waited.
            self.version = None;
            self.looked = Clock::system().now();
        }
        let (bell, rung) = oneshot::channel::<()>();
        self.watches.push(Watch { key: key.clone(), seen: seen.fencing, tie, bell });
        Wake::Hint(Box::pin(async move {
            // An error means that the store was closed, which is worth asking again for, too.
            rung.await.ok();
        }))
    }

    /// When to look next; `None` while nobody waits.
    pub(super) fn due(&self) -> Option<Moment> {
        (!self.watches.is_empty()).then(|| (self.looked + INTERVAL).min(self.holders_due))
    }

    /// Wakes those who wait for `key`.
    pub(super) fn wake(&mut self, key: &Key) {
        self.wake_where(|watch| watch.key == *key);
    }

    pub(super) fn wake_all(&mut self) {
        self.wake_where(|_| true);
    }

    /// Wakes those whose key has another holder than they saw, or none that is alive.
    ///
    /// What cannot be read now is looked at next time; waiters ask by themselves as well.
    pub(super) fn look(&mut self, file: &LeaseFile, host: &Host) {
        self.watches.retain(|watch| !watch.bell.is_closed());
        let now = Clock::system().now();
        if now >= self.looked + INTERVAL {
            self.looked = now;
            self.look_at_rows(file, host);
        }
        if now >= self.holders_due {
            self.look_at_holders(host);
        }
    }

    fn look_at_rows(&mut self, file: &LeaseFile, host: &Host) {
        if self.watches.is_empty() {
            return;
        }
        let Ok(version) = file.version() else { return };
        if self.version == Some(version) {
            return;
        }
        self.version = Some(version);
        self.wake_where(|watch| match lease::unexpired(file, host, &watch.key) {
            Ok(Some((_, row))) if Some(fencing(row.token)) == watch.seen => {
                watch.tie = row.tie;
                false
            }
            Ok(_) | Err(_) => true,
        });
    }

    fn look_at_holders(&mut self, host: &Host) {
        let began = Clock::system().now();
        let mut look = Look::new(host);
        self.wake_where(|watch| look.is_tied_to_the_gone(&watch.tie));
        let ended = Clock::system().now();
        self.holders_due = ended + (ended.since(began) * SHARE).max(INTERVAL);
    }

    fn wake_where(&mut self, matches: impl FnMut(&mut Watch) -> bool) {
        for watch in self.watches.extract_if(.., matches) {
            watch.bell.send(()).ok();
        }
    }
}
