//! One session and the locks that it holds: they are there as long as it is.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::carry::Carry;
use super::turn::{Slots, Turn};

use super::super::answer;
use super::super::fault::{self, Effect};
use super::super::link::Link;
use super::super::waiters::Telling;
use super::super::wire::{Parameter, Wire, text};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::store::Loss;
use crate::types::{FencingToken, Key, OwnerToken};

/// How long a session that holds nothing may be silent before it is given up: as long as a request may take. Until then
/// what is under way on it may get its answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A session, and who holds what on it.
pub(super) struct Session {
    link: Arc<Link>,
    wire: Arc<Wire>,
    /// The server's process, and since when it is there.
    backend: (i32, String),
    /// The server would grant a lock to each of us, for it knows the session alone; so whoever asks for it or gives it
    /// back has its slot until the answer is there.
    slots: Slots,
    held: Mutex<HashMap<i64, Held>>,
    ended: AtomicBool,
    /// Since when the server is asked to end it.
    ending: OnceLock<Moment>,
}

#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) key: Key,
    pub(super) owner: OwnerToken,
    pub(super) fence: FencingToken,
    pub(super) loss: Loss,
    /// When its holder ceases to assume it unless it is renewed.
    until: Moment,
}

/// A claim.
pub(super) struct Ask {
    pub(super) key: Key,
    pub(super) owner: OwnerToken,
    pub(super) ttl: Duration,
    pub(super) waits: bool,
}

/// What became of it.
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
            slots: Slots::default(),
            held: Mutex::default(),
            ended: AtomicBool::new(false),
            ending: OnceLock::new(),
        });
        let watched = Arc::downgrade(&session);
        // No task of its own: its runtime might end before that of the connection, or with it.
        wire.when_over(move || {
            if let Some(session) = watched.upgrade() {
                session.end();
            }
        });
        Ok(session)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Since when the server is asked to end it: since now, if it was not before.
    pub(super) fn ending(&self) -> Moment {
        *self.ending.get_or_init(|| Clock::system().now())
    }

    /// The server's process, and since when it is there.
    pub(super) const fn backend(&self) -> &(i32, String) {
        &self.backend
    }

    /// What the server knows it by.
    pub(super) fn id(&self) -> &String {
        self.wire.id()
    }

    pub(super) fn is_on(&self, wire: &Arc<Wire>) -> bool {
        Arc::ptr_eq(&self.wire, wire)
    }

    /// Whether it is good for something new.
    pub(super) fn stands(&self) -> bool {
        !self.has_ended() && self.wire.stands()
    }

    /// Whether somebody asks for this lock here, or holds it.
    pub(super) fn concerns(&self, id: i64) -> bool {
        self.slots.has(id) || self.held.lock().contains_key(&id)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.slots.is_empty() && self.held.lock().is_empty()
    }

    /// Ends a session that is good for nothing new, once nobody relies on what it holds. One that is only silent keeps
    /// that: it is lost when the connection ends, or when the holder's own time is up.
    pub(super) fn settle(&self) {
        let now = Clock::system().now();
        let is_relied_on = || self.held.lock().values().any(|held| held.until > now);
        let may_recover = self.wire.silence().is_some_and(|silence| silence < PATIENCE);
        if !self.has_ended() && !self.wire.stands() && !may_recover && !is_relied_on() {
            self.end();
        }
    }

    /// Who asks for a lock here, or gives it back, while the value stands.
    pub(super) fn turn(self: &Arc<Self>, id: i64) -> Turn {
        Turn::new(Arc::clone(self), id)
    }

    pub(super) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Runs to its end what must not be left half done, also if it is given up.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let mut given_up = GivenUp(Some((Arc::clone(&self.wire), Clock::system().now())));
        let answer = Carry::new(work).await;
        given_up.0 = None;
        answer
    }

    /// Gives it up: its locks may be anybody's.
    pub(super) fn end(&self) {
        self.wire.cut();
        self.close();
    }

    /// Lets it go: its locks are free once the connection has ended, which it does in order.
    pub(super) fn close(&self) {
        self.ended.store(true, Ordering::Release);
        for (_, held) in std::mem::take(&mut *self.held.lock()) {
            held.loss.raise(LostReason::ConnectionLost);
        }
        self.link.watches.all_touched();
    }

    /// Asks for a lock. To be run to its end, whoever waits for the answer.
    pub(super) async fn claim(mut turn: Turn, ask: Ask) -> Result<Answer> {
        turn.begin().await;
        let (session, id) = (turn.session(), turn.id());
        let sent = Clock::system().now();
        match session.held(id) {
            Some(held) if held.owner == ask.owner => {
                session.check().await?;
                Ok(session.prolong(id, &ask.owner, sent + ask.ttl).map_or(Answer::HeldHere, Answer::Granted))
            }
            Some(_) => Ok(Answer::HeldHere),
            None => {
                let unread = Unread::of(session);
                let answer = session.claim_from_server(id, &ask).await;
                unread.read(&answer);
                answer
            }
        }
    }

    async fn claim_from_server(&self, id: i64, ask: &Ask) -> Result<Answer> {
        let (sent, stored) = (Clock::system().now(), ask.key.as_stored());
        // A mark that comes later does not count for a release that came before it.
        let mut is_marked = ask.waits && self.link.marks.has(stored);
        let mut fence = self.try_lock(id).await?;
        if fence.is_none() && ask.waits && !is_marked {
            // A release that the mark came too late for is seen by the second question.
            let (marked, tried) = tokio::join!(biased; self.link.mark(&self.wire, stored), self.try_lock(id));
            (is_marked, fence) = (marked, tried?);
        }
        let Some(fence) = fence else { return Ok(Answer::HeldElsewhere(is_marked)) };
        let (key, owner, until) = (ask.key.clone(), ask.owner.clone(), sent + ask.ttl);
        let held = Held { key, owner, fence, loss: Loss::new(), until };
        self.held.lock().insert(id, held.clone());
        // It may have ended just before it could have told.
        if self.has_ended() {
            held.loss.raise(LostReason::ConnectionLost);
        }
        Ok(Answer::Granted(held))
    }

    /// The holder relies on it until then.
    pub(super) fn prolong(&self, id: i64, owner: &OwnerToken, until: Moment) -> Option<Held> {
        let mut held = self.held.lock();
        let held = held.get_mut(&id).filter(|held| held.owner == *owner)?;
        held.until = held.until.max(until);
        Some(held.clone())
    }

    /// The token, if the lock was free.
    async fn try_lock(&self, id: i64) -> Result<Option<FencingToken>> {
        let asking: [Parameter<'_>; 2] = [text(self.wire.id()), (&id, Type::INT8)];
        let rows = match self.wire.ask_often_once(&self.link.statements.try_lock, &asking).await {
            Ok(rows) => rows,
            Err(error) => {
                let error = fault::of(error, Effect::Change);
                // A statement that fails keeps the lock that it took before.
                if error.kind() != ErrorKind::Indeterminate {
                    let unlocked = self.wire.ask_often_once(&self.link.statements.unlock, &asking).await;
                    if !unlocked.is_ok_and(|rows| verdict(&rows).is_some()) {
                        self.end();
                    }
                }
                return Err(error);
            }
        };
        let row = rows.first().ok_or_else(|| fault::unexpected(Effect::Change))?;
        match answer::get::<Option<Vec<i64>>>(row, 0, Effect::Change)?.as_deref() {
            Some([token]) => answer::token(*token, Effect::Change).map(Some),
            Some([]) => Ok(None),
            Some(_) => Err(fault::unexpected(Effect::Change)),
            None => Err(self.swapped()),
        }
    }

    /// Gives a lock back; `false` = this owner has it not. To be run to its end, whoever waits for the answer.
    pub(super) async fn release(mut turn: Turn, key: Key, owner: OwnerToken) -> Result<bool> {
        turn.begin().await;
        let (session, id) = (turn.session(), turn.id());
        let is_ours = session.held(id).is_some_and(|held| held.owner == owner && held.key == key);
        if !is_ours {
            return Ok(false);
        }
        // If it is not certain that it was given back the session ends.
        session.held.lock().remove(&id);
        let unread = Unread::of(session);
        let unlocked = session.unlock(id, &key).await;
        unread.read(&unlocked);
        session.link.watches.released(&key, &owner);
        unlocked.map(|()| true)
    }

    async fn unlock(&self, id: i64, key: &Key) -> Result<()> {
        let unlocking: [Parameter<'_>; 2] = [text(self.wire.id()), (&id, Type::INT8)];
        let (stored, telling) = (key.as_stored(), self.link.waiters.telling(key.as_stored()));
        let (unlocked, ()) = tokio::join!(biased;
            self.wire.ask_often_once(&self.link.statements.unlock, &unlocking),
            self.link.tell(&self.wire, stored, telling),
        );
        let unlocked = unlocked.map_err(|error| fault::of(error, Effect::Change));
        match unlocked.map(|rows| verdict(&rows)) {
            Ok(Some(true)) => {
                if telling == Telling::Nobody {
                    self.link.tell_late(&self.wire, stored).await;
                }
                Ok(())
            }
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
    pub(super) fn held(&self, id: i64) -> Option<Held> {
        self.held.lock().get(&id).cloned()
    }

    /// Makes sure that the session is still the one that was begun: then it has what it was granted.
    pub(super) async fn check(&self) -> Result<()> {
        let rows =
            self.wire.ask_often(&self.link.statements.check, &[text(self.wire.id())]).await.map_err(fault::of_look)?;
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
