//! The connections that transactions run on: so many and no more, used again once they are known to be at rest.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::super::answer;
use super::super::fault::{self, Effect};
use super::super::link::Link;
use super::super::wire::{Wire, text};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::store::Loss;
use crate::types::FencingToken;

/// A connection that nobody has used for so long is ended.
const IDLE: Duration = Duration::from_secs(10);

/// How long a claim waits for a place that somebody is leaving, beside a twelfth of its ttl, which is half of what a call has
/// time for: many times what a cancel request and a rollback take.
const LEAVING: (Duration, u32) = (Duration::from_secs(4), 12);

/// How long the server may take to end what is left of a connection that was cut.
const ENDING: Duration = Duration::from_secs(1);

/// How often it is asked meanwhile whether it has.
const PAUSE: Duration = Duration::from_millis(5);

/// What transactions run on.
pub(super) struct Connections {
    pub(super) link: Arc<Link>,
    /// What begins a transaction, but for its names.
    begin: String,
    limit: usize,
    places: Arc<Semaphore>,
    /// How many places are about to be free.
    leaving: AtomicUsize,
    spares: Mutex<Vec<(Moment, Connection)>>,
    /// Somebody looks after spares that are not used any more.
    is_watched: AtomicBool,
}

impl Connections {
    pub(super) fn to(link: Arc<Link>, begin: String, limit: usize) -> Arc<Self> {
        Arc::new(Self {
            link,
            begin,
            limit,
            places: Arc::new(Semaphore::new(limit)),
            leaving: AtomicUsize::new(0),
            spares: Mutex::default(),
            is_watched: AtomicBool::new(false),
        })
    }

    /// The same, with another limit. Nobody has used it yet.
    pub(super) fn limited_to(&self, limit: usize) -> Arc<Self> {
        Self::to(Arc::clone(&self.link), self.begin.clone(), limit)
    }

    /// What begins a transaction of this name.
    pub(super) fn begin(&self, id: &str) -> String {
        self.begin.replace("{id}", id).replace("{name}", &name(id))
    }

    /// A place, and a connection for it, for a claim of this length.
    pub(super) async fn take(&self, ttl: Duration) -> Result<(OwnedSemaphorePermit, Connection)> {
        let place = self.place(LEAVING.0.min(ttl / LEAVING.1)).await?;
        let spare = std::iter::from_fn(|| self.spares.lock().pop()).find(|(_, spare)| spare.wire.stands());
        let connection = match spare {
            Some((_, spare)) if !self.link.is_closed() => spare,
            _ => self.connect().await?,
        };
        Ok((place, connection))
    }

    async fn place(&self, wait: Duration) -> Result<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            return Ok(place);
        }
        if self.leaving.load(Ordering::Acquire) > 0
            && let Ok(Ok(place)) = tokio::time::timeout(wait, Arc::clone(&self.places).acquire_owned()).await
        {
            return Ok(place);
        }
        let limit = self.limit;
        let message = format!("each lock that is held or waited for has a connection, and all {limit} are in use");
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    async fn connect(&self) -> Result<Connection> {
        let watch = Arc::new(Watch::default());
        let told = Arc::clone(&watch);
        let wire = self.link.another(move || told.end()).await?;
        Ok(Connection { wire: Arc::new(wire), watch })
    }

    /// Keeps a connection that is at rest for whoever needs one next.
    pub(super) fn put_back(self: &Arc<Self>, connection: Connection) {
        if !connection.wire.stands() || self.link.is_closed() {
            return;
        }
        self.spares.lock().push((Clock::system().now(), connection));
        if !self.is_watched.swap(true, Ordering::AcqRel) {
            let mut watcher = Watcher { connections: Arc::downgrade(self), is_done: false };
            tokio::spawn(async move {
                while !watcher.is_done {
                    tokio::time::sleep(IDLE).await;
                    watcher.is_done = watcher.connections.upgrade().is_none_or(|connections| connections.prune());
                }
            });
        }
    }

    /// The next token, and since when the server is there that gave it.
    pub(super) async fn draw(&self) -> Result<(FencingToken, i64)> {
        let rows = self.link.change(&self.link.statements.draw, &[]).await?;
        let row = rows.first().ok_or_else(|| fault::unexpected(Effect::Change))?;
        let fence = answer::token(answer::get(row, 0, Effect::Change)?, Effect::Change)?;
        Ok((fence, answer::get(row, 1, Effect::Change)?))
    }

    /// Two servers were met: uses no connection any more that leads to either, but for locks that there are.
    pub(super) fn start_anew(&self) {
        drop(std::mem::take(&mut *self.spares.lock()));
        self.link.start_anew();
    }

    /// Ends those that were not used for long. `true` = there are none left.
    fn prune(&self) -> bool {
        let now = Clock::system().now();
        let mut idle = Vec::new();
        let mut spares = self.spares.lock();
        // The one used last is at the end.
        let fresh = spares.iter().position(|(since, _)| now.since(*since) < IDLE).unwrap_or(spares.len());
        idle.extend(spares.drain(..fresh));
        let is_empty = spares.is_empty();
        if is_empty {
            self.is_watched.store(false, Ordering::Release);
        }
        drop(spares);
        is_empty
    }

    /// Counts a place that is about to be free, until what is returned is dropped.
    pub(super) fn leaving(self: &Arc<Self>) -> Leaving {
        self.leaving.fetch_add(1, Ordering::AcqRel);
        Leaving(Arc::clone(self))
    }

    /// Has the server give up what the transaction of this name is at. By a statement and not by the protocol's own request:
    /// that has no answer, and some poolers do not survive it.
    pub(super) async fn cancel(&self, id: &str) -> Result<()> {
        self.link.look(include_str!("../sql/xact_cancel.sql"), &[text(&name(id))]).await.map(drop)
    }

    /// Has the server end the transaction of this name, if it is still there: its connection was lost or cut, which the
    /// server may not know.
    pub(super) async fn end(&self, id: &str) {
        let name = name(id);
        let ending = async {
            loop {
                match self.link.look(include_str!("../sql/xact_end.sql"), &[text(&name)]).await {
                    Ok(left) if !left.is_empty() => tokio::time::sleep(PAUSE).await,
                    // It is gone, or nobody can tell: then the server finds out by itself.
                    _ => return,
                }
            }
        };
        tokio::time::timeout(ENDING, ending).await.ok();
    }

    pub(super) async fn close(&self) {
        drop(std::mem::take(&mut *self.spares.lock()));
        self.link.close().await;
    }
}

/// What a transaction is called among the server's sessions as long as it lasts.
fn name(id: &str) -> String {
    format!("leasehold {}", id.get(..16).unwrap_or(id))
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_use = self.limit - self.places.available_permits();
        f.debug_struct("Connections").field("in_use", &in_use).finish_non_exhaustive()
    }
}

/// A place that is about to be free.
pub(super) struct Leaving(Arc<Connections>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leaving.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Who looks after spares. Where its runtime ends before that is done, there may be another one.
struct Watcher {
    connections: Weak<Connections>,
    is_done: bool,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(connections) = self.connections.upgrade().filter(|_| !self.is_done) {
            connections.is_watched.store(false, Ordering::Release);
        }
    }
}

/// A connection, and who is to be told of its end.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) wire: Arc<Wire>,
    pub(super) watch: Arc<Watch>,
}

impl Connection {
    /// Ends it at once, whatever is under way.
    pub(super) fn cut(&self) {
        self.wire.cut();
        self.watch.end();
    }
}

/// Who is to be told of the end of a connection.
#[derive(Default)]
pub(super) struct Watch(Mutex<(bool, Option<Loss>)>);

impl Watch {
    pub(super) fn arm(&self, loss: &Loss) {
        let mut state = self.0.lock();
        if state.0 {
            loss.raise(LostReason::ConnectionLost);
        }
        state.1 = Some(loss.clone());
    }

    /// The lock is given back.
    pub(super) fn disarm(&self) {
        self.0.lock().1 = None;
    }

    fn end(&self) {
        let mut state = self.0.lock();
        state.0 = true;
        if let Some(loss) = state.1.take() {
            loss.raise(LostReason::ConnectionLost);
        }
    }
}
