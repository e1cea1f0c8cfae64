//! One session and the locks that it holds: they are there as long as it is.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::answer;
use super::super::fault::{self, Effect};
use super::super::link::Link;
use super::super::marks::MARK;
use super::super::micros;
use super::super::wire::{Parameter, Wire, text};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::store::Loss;
use crate::types::{FencingToken, Key, OwnerToken};

const CHECK: &str = "SELECT current_setting('leasehold.session', true) = $1";
const UNLOCK: &str = "SELECT CASE WHEN current_setting('leasehold.session', true) = $1 THEN pg_advisory_unlock($2) END";

/// How long a session may take to prove that it is there, once a request to it was given up.
const PATIENCE: Duration = Duration::from_secs(1);

/// A session, and who holds what on it.
pub(super) struct Session {
    link: Arc<Link>,
    wire: Arc<Wire>,
    /// The server's process, and since when it is there.
    backend: (i32, String),
    slots: Mutex<HashMap<i64, Arc<Slot>>>,
    /// Those to tell when it ends.
    losses: Mutex<HashMap<i64, Loss>>,
    ended: AtomicBool,
}

/// Who holds a lock here. The server would grant it to each of us, for it knows the session alone; so whoever asks for it
/// or gives it back has the slot until the answer is there.
type Slot = tokio::sync::Mutex<Option<Held>>;

#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) key: Key,
    pub(super) owner: OwnerToken,
    pub(super) fence: FencingToken,
    pub(super) loss: Loss,
}

/// What became of a claim.
pub(super) enum Answer {
    Granted(Held),
    /// Somebody in this process has it, who tells of the release here.
    HeldHere,
    /// Another session has it; whether it was marked as waited for.
    HeldElsewhere(bool),
}

impl Session {
    pub(super) async fn begin(link: &Arc<Link>, wire: &Arc<Wire>) -> Result<Arc<Self>> {
        let rows = wire.ask(include_str!("../sql/begin.sql"), &[text(wire.id())]).await.map_err(fault::of_look)?;
        let row = rows.first().ok_or_else(fault::unexpected_look)?;
        if answer::get::<Option<&str>>(row, 0, Effect::Look)?.is_none() {
            // The next one may be lent a better one.
            wire.cut();
            return Err(pooled());
        }
        let session = Arc::new(Self {
            link: Arc::clone(link),
            wire: Arc::clone(wire),
            backend: (answer::get(row, 1, Effect::Look)?, answer::get(row, 2, Effect::Look)?),
            slots: Mutex::default(),
            losses: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let (watched, over) = (Arc::downgrade(&session), wire.over());
        tokio::spawn(async move {
            over.await;
            if let Some(session) = watched.upgrade() {
                session.end();
            }
        });
        Ok(session)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The server's process, and since when it is there.
    pub(super) const fn backend(&self) -> &(i32, String) {
        &self.backend
    }

    /// What the server knows it by.
    pub(super) fn id(&self) -> &String {
        self.wire.id()
    }

    /// Looks whether the other end is there, if there is a doubt. Ends a session that is good for nothing new, unless it
    /// holds something.
    pub(super) async fn settle(&self) {
        if self.wire.is_silent() && !matches!(tokio::time::timeout(PATIENCE, self.check()).await, Ok(Ok(()))) {
            self.end();
        }
        if !self.wire.stands() && self.losses.lock().is_empty() {
            self.end();
        }
    }

    /// Runs to its end what must not be left half done, also if it is given up.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let mut given_up = GivenUp(Some((Arc::clone(&self.wire), Clock::system().now())));
        let answer = tokio::spawn(work).await;
        given_up.0 = None;
        answer.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Indeterminate, "the runtime ended before the answer").with_source(error))
        })
    }

    /// Gives it up: its locks may be anybody's.
    pub(super) fn end(&self) {
        self.wire.cut();
        self.close();
    }

    /// Lets it go: its locks are free once the connection has ended, which it does in order.
    pub(super) fn close(&self) {
        self.ended.store(true, Ordering::Release);
        for (_, loss) in std::mem::take(&mut *self.losses.lock()) {
            loss.raise(LostReason::ConnectionLost);
        }
        self.link.watches.all_touched();
    }

    /// Asks for a lock. To be run to its end, whoever waits for the answer.
    pub(super) async fn claim(self: Arc<Self>, id: i64, key: Key, owner: OwnerToken, waits: bool) -> Result<Answer> {
        let slot = self.slot(id);
        let mut held = slot.lock().await;
        let answer = match &*held {
            Some(held) if held.owner == owner => self.check().await.map(|()| Answer::Granted(held.clone())),
            Some(_) => Ok(Answer::HeldHere),
            None => {
                let unread = Unread::of(&self);
                let answer = self.claim_from_server(id, &key, &owner, waits).await;
                unread.read(&answer);
                answer
            }
        };
        if let Ok(Answer::Granted(granted)) = &answer {
            *held = Some(granted.clone());
        }
        drop(held);
        self.forget(id, &slot);
        answer
    }

    async fn claim_from_server(&self, id: i64, key: &Key, owner: &OwnerToken, waits: bool) -> Result<Answer> {
        let mut fence = self.try_lock(id).await?;
        let mut is_marked = waits && self.link.marks.has(key.as_stored());
        if fence.is_none() && waits && !is_marked {
            let sent = Clock::system().now();
            let (stored, length) = (key.as_stored(), micros(MARK));
            let marking: [Parameter<'_>; 2] = [(&stored, Type::TEXT), (&length, Type::INT8)];
            // A release that the mark came too late for is seen by the second question.
            let (marked, tried) =
                tokio::join!(biased; self.wire.ask(&self.link.statements.mark, &marking), self.try_lock(id));
            fence = tried?;
            is_marked = marked.is_ok();
            if is_marked {
                self.link.marks.add(stored, sent);
            }
        }
        let Some(fence) = fence else { return Ok(Answer::HeldElsewhere(is_marked)) };
        let held = Held { key: key.clone(), owner: owner.clone(), fence, loss: Loss::new() };
        self.losses.lock().insert(id, held.loss.clone());
        // It may have ended just before it could have told.
        if self.has_ended() {
            held.loss.raise(LostReason::ConnectionLost);
        }
        Ok(Answer::Granted(held))
    }

    /// The token, if the lock was free.
    async fn try_lock(&self, id: i64) -> Result<Option<FencingToken>> {
        let asking: [Parameter<'_>; 2] = [text(self.wire.id()), (&id, Type::INT8)];
        let rows = match self.wire.ask_once(&self.link.statements.try_lock, &asking).await {
            Ok(rows) => rows,
            Err(error) => {
                let error = fault::of(error, Effect::Change);
                // A statement that fails keeps the lock that it took before.
                if error.kind() != ErrorKind::Indeterminate {
                    let unlocked = self.wire.ask_once(UNLOCK, &asking).await;
                    if !unlocked.is_ok_and(|rows| verdict(&rows).is_some()) {
                        self.end();
                    }
                }
                return Err(error);
            }
        };
        let row = rows.first().ok_or_else(|| fault::unexpected(Effect::Change))?;
        match answer::get::<Option<bool>>(row, 0, Effect::Change)? {
            Some(true) => answer::token(answer::get(row, 1, Effect::Change)?, Effect::Change).map(Some),
            Some(false) => Ok(None),
            None => Err(self.swapped()),
        }
    }

    /// Gives a lock back; `false` = this owner has it not. To be run to its end, whoever waits for the answer.
    pub(super) async fn release(self: Arc<Self>, id: i64, key: Key, owner: OwnerToken) -> Result<bool> {
        let slot = self.slot(id);
        let mut held = slot.lock().await;
        let is_ours = held.as_ref().is_some_and(|held| held.owner == owner && held.key == key);
        let released = if is_ours {
            let unread = Unread::of(&self);
            let unlocked = self.unlock(id, &key).await;
            unread.read(&unlocked);
            unlocked.map(|()| true)
        } else {
            Ok(false)
        };
        if is_ours && released.is_ok() {
            *held = None;
            self.losses.lock().remove(&id);
        }
        drop(held);
        if is_ours {
            self.link.watches.released(&key, &owner);
        }
        self.forget(id, &slot);
        released
    }

    async fn unlock(&self, id: i64, key: &Key) -> Result<()> {
        let unlocking: [Parameter<'_>; 2] = [text(self.wire.id()), (&id, Type::INT8)];
        let (stored, told) = (key.as_stored(), self.link.released(key.as_stored()));
        let telling: [Parameter<'_>; 2] = [(&stored, Type::TEXT), (&told, Type::TEXT)];
        let (unlocked, _) = tokio::join!(biased;
            self.wire.ask_once(UNLOCK, &unlocking),
            self.wire.ask(&self.link.statements.tell, &telling),
        );
        let unlocked = unlocked.map_err(|error| fault::of(error, Effect::Change));
        match unlocked.map(|rows| verdict(&rows)) {
            Ok(Some(true)) => Ok(()),
            Ok(Some(false)) => {
                self.end();
                Err(Error::new(ErrorKind::Indeterminate, "the session did not hold what it should: it was ended"))
            }
            Ok(None) => Err(self.swapped()),
            Err(error) => {
                self.end();
                Err(error)
            }
        }
    }

    /// Who holds a lock here.
    pub(super) async fn holder(&self, id: i64) -> Option<Held> {
        let slot = self.slots.lock().get(&id).cloned()?;
        let held = slot.lock().await.clone();
        self.forget(id, &slot);
        held
    }

    /// Makes sure that the session is still the one that was begun: then it has what it was granted.
    pub(super) async fn check(&self) -> Result<()> {
        let rows = self.wire.ask(CHECK, &[text(self.wire.id())]).await.map_err(fault::of_look)?;
        match verdict(&rows) {
            Some(true) => Ok(()),
            _ => Err(self.swapped()),
        }
    }

    /// The statement came to a session that is not ours.
    fn swapped(&self) -> Error {
        self.end();
        pooled()
    }

    fn slot(&self, id: i64) -> Arc<Slot> {
        Arc::clone(self.slots.lock().entry(id).or_default())
    }

    /// Drops a slot that nobody uses.
    fn forget(&self, id: i64, slot: &Arc<Slot>) {
        let mut slots = self.slots.lock();
        // The map's and the caller's; others are made under the lock.
        if Arc::strong_count(slot) == 2 && slot.try_lock().is_ok_and(|held| held.is_none()) {
            slots.remove(&id);
        }
    }
}

/// Ends a session unless it is certain what it holds: an answer that nobody has read, as where a runtime ends, may have
/// been a grant.
struct Unread<'a>(Option<&'a Session>);

impl<'a> Unread<'a> {
    const fn of(session: &'a Session) -> Self {
        Self(Some(session))
    }

    fn read<T>(mut self, answer: &Result<T>) {
        if !answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Indeterminate) {
            self.0 = None;
        }
    }
}

impl Drop for Unread<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.0 {
            session.end();
        }
    }
}

/// What one row with one column tells; `None` = nothing, as where the session is not ours.
fn verdict(rows: &[Row]) -> Option<bool> {
    rows.first()?.try_get(0).ok().flatten()
}

/// Tells of a request that is given up while it stands.
struct GivenUp(Option<(Arc<Wire>, Moment)>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        if let Some((wire, sent)) = self.0.take() {
            wire.given_up(sent);
        }
    }
}

/// Session locks are not what they seem there.
pub(super) fn pooled() -> Error {
    Error::new(
        ErrorKind::Rejected,
        "a pooler lends sessions to others as they are, with the locks that they hold: connect past it, or write \
         mode=table",
    )
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("backend", &self.backend.0)
            .field("ended", &self.has_ended())
            .finish_non_exhaustive()
    }
}
