//! Waiters that want to know when a key is worth asking for again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::oneshot;

use super::file::LeaseFile;
use super::host::{Host, TieFacts};
use super::lease;
use super::liveness::Look;
use super::notices::{Heard, Notices};
use super::row::fencing;
use crate::clock::{Clock, Moment};
use crate::store::{Holder, Wake};
use crate::types::{FencingToken, Key};

/// How long a commit of another process, or the end of one, may go unnoticed where nothing tells of it. One look costs
/// about 10 us.
pub(super) const INTERVAL: Duration = Duration::from_millis(20);
/// The same where notices tell of commits. Also how long they are kept when nobody waits any more: to end them takes
/// the kernel some milliseconds.
const SLOW: Duration = Duration::from_secs(1);
/// The times between the looks that follow a notice, which comes when a commit is written and not yet to be seen. Until
/// the first of them nobody listens, or a busy file would take up the thread.
const FOLLOW_UPS: [Duration; 6] = [
    Duration::from_micros(250),
    Duration::from_millis(1),
    Duration::from_millis(4),
    Duration::from_millis(16),
    Duration::from_millis(64),
    Duration::from_millis(256),
];

/// Looks at holders may take this part of the thread's time: a group without its leader is looked for among all
/// processes of the machine.
const SHARE: u32 = 20;

/// The waiters of one store.
#[derive(Debug)]
pub(super) struct Watches {
    path: PathBuf,
    watches: Vec<Watch>,
    /// `None` while nobody waits, and where the kernel gives none.
    notices: Option<Notices>,
    /// The file's version at the last look; `None` = look at the rows in any case.
    version: Option<i64>,
    /// When to look at the rows again, or, if nobody waits, to do without notices.
    rows_due: Moment,
    /// How many looks there were since the last notice.
    looks: usize,
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
    pub(super) fn new(path: &Path) -> Self {
        let past = Moment::from_nanos(0);
        Self {
            path: path.to_owned(),
            watches: Vec::new(),
            notices: None,
            version: None,
            rows_due: past,
            looks: 0,
            holders_due: past,
        }
    }

    /// A wake-up for when `key` is no longer held as it was seen, or whoever holds it is gone.
    pub(super) fn add(&mut self, key: &Key, seen: &Holder, tie: TieFacts) -> Wake {
        if self.watches.is_empty() {
            // The version was not followed while nobody waited.
            self.version = None;
            self.notices = self.notices.take().or_else(|| Notices::of(&self.path).ok());
            // What was committed since the rows were read has not been told.
            self.noticed();
        }
        let (bell, rung) = oneshot::channel::<()>();
        self.watches.push(Watch { key: key.clone(), seen: seen.fencing, tie, bell });
        Wake::Hint(Box::pin(async move {
            // An error means that the store was closed, which is worth asking again for, too.
            rung.await.ok();
        }))
    }

    /// When to look next; `None` = not before somebody waits.
    pub(super) fn due(&self) -> Option<Moment> {
        match (self.watches.is_empty(), &self.notices) {
            (true, None) => None,
            (true, Some(_)) => Some(self.rows_due),
            (false, _) => Some(self.rows_due.min(self.holders_due)),
        }
    }

    /// What to listen to until the next look.
    pub(super) fn notices(&self, now: Moment) -> Option<&Notices> {
        let is_resting = self.watches.is_empty() || self.rows_due <= now + FOLLOW_UPS[0];
        self.notices.as_ref().filter(|_| !is_resting)
    }

    #[cfg(test)]
    pub(super) fn has_notices(&self) -> bool {
        self.notices.is_some()
    }

    /// The file may have changed.
    pub(super) fn noticed(&mut self) {
        self.looks = 0;
        self.rows_due = Clock::system().now();
    }

    /// The file is another one, or none.
    pub(super) fn end(&mut self) {
        self.wake_all();
        self.notices = None;
    }

    /// Wakes those who wait for `key`.
    pub(super) fn wake(&mut self, key: &Key) {
        self.wake_where(|watch| watch.key == *key);
    }

    fn wake_all(&mut self) {
        self.wake_where(|_| true);
    }

    /// Wakes those whose key has another holder than they saw, or none that is alive.
    ///
    /// What cannot be read now is looked at next time; waiters ask by themselves as well.
    pub(super) fn look(&mut self, file: &LeaseFile, host: &Host) {
        let now = Clock::system().now();
        if self.watches.is_empty() {
            self.notices = None;
            return;
        }
        self.watches.retain(|watch| !watch.bell.is_closed());
        self.rest_if_nobody_waits();
        if now >= self.rows_due {
            let follow_up = FOLLOW_UPS.get(self.looks).copied().unwrap_or(SLOW);
            self.looks += 1;
            self.rows_due = now + if self.notices.is_some() { follow_up } else { INTERVAL };
            self.look_at_rows(file, host);
        }
        if now >= self.holders_due {
            self.look_at_holders(host);
            // A thread that always has something to do never listens.
            if self.notices.as_ref().is_some_and(|notices| notices.listen(Some(Duration::ZERO)) == Heard::Change) {
                self.noticed();
            }
        }
    }

    fn look_at_rows(&mut self, file: &LeaseFile, host: &Host) {
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
        let waiting = self.watches.len();
        for watch in self.watches.extract_if(.., matches) {
            watch.bell.send(()).ok();
        }
        if self.watches.len() < waiting {
            self.rest_if_nobody_waits();
        }
    }

    fn rest_if_nobody_waits(&mut self) {
        if self.watches.is_empty() {
            self.rows_due = Clock::system().now() + SLOW;
        }
    }
}
