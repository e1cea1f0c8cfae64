//! Waiters that want to know when a key is worth asking for again.

use std::time::Duration;

use tokio::sync::oneshot;

use super::file::LeaseFile;
use super::host::Host;
use super::lease;
use crate::clock::{Clock, Moment};
use crate::store::{Holder, Wake};
use crate::types::{FencingToken, Key};

/// How long a commit of another process may go unnoticed. One look costs about 10 us.
pub(super) const INTERVAL: Duration = Duration::from_millis(20);

/// The waiters of one store.
#[derive(Debug)]
pub(super) struct Watches {
    watches: Vec<Watch>,
    /// The file's version at the last look; `None` = look at the rows in any case.
    version: Option<i64>,
    looked: Moment,
}

#[derive(Debug)]
struct Watch {
    key: Key,
    seen: Option<FencingToken>,
    bell: oneshot::Sender<()>,
}

impl Watches {
    pub(super) fn new() -> Self {
        Self { watches: Vec::new(), version: None, looked: Moment::from_nanos(0) }
    }

    /// A wake-up for when `key` is no longer held as it was seen.
    pub(super) fn add(&mut self, key: &Key, seen: &Holder) -> Wake {
        if self.watches.is_empty() {
            // The version was not followed while nobody waited.
            self.version = None;
            self.looked = Clock::system().now();
        }
        let (bell, rung) = oneshot::channel::<()>();
        self.watches.push(Watch { key: key.clone(), seen: seen.fencing, bell });
        Wake::Hint(Box::pin(async move {
            // An error means that the store was closed, which is worth asking again for, too.
            rung.await.ok();
        }))
    }

    /// When to look next; `None` while nobody waits.
    pub(super) fn due(&self) -> Option<Moment> {
        (!self.watches.is_empty()).then(|| self.looked + INTERVAL)
    }

    /// Wakes those who wait for `key`.
    pub(super) fn wake(&mut self, key: &Key) {
        self.wake_where(|watch| watch.key == *key);
    }

    pub(super) fn wake_all(&mut self) {
        self.wake_where(|_| true);
    }

    /// Wakes those whose key has another holder than they saw, or none.
    ///
    /// What cannot be read now is looked at next time; waiters ask by themselves as well.
    pub(super) fn look(&mut self, file: &LeaseFile, host: &Host) {
        self.looked = Clock::system().now();
        self.watches.retain(|watch| !watch.bell.is_closed());
        if self.watches.is_empty() {
            return;
        }
        let Ok(version) = file.version() else { return };
        if self.version == Some(version) {
            return;
        }
        self.version = Some(version);
        self.wake_where(|watch| match lease::inspect(file, host, watch.key.as_stored()) {
            Ok(holder) => holder.is_none_or(|holder| holder.fencing != watch.seen),
            Err(_) => true,
        });
    }

    fn wake_where(&mut self, matches: impl FnMut(&mut Watch) -> bool) {
        for watch in self.watches.extract_if(.., matches) {
            watch.bell.send(()).ok();
        }
    }
}
