//! What one owner has of one key: a place in the server's line, or the lock.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use self::line::Place;
use super::super::fault::{self, Effect};
use super::connections::{Connections, Leaving};
use super::transaction::Transaction;
use crate::error::{Error, LostReason, Result};
use crate::store::{BoxFuture, Grant, Loss};
use crate::types::{FencingToken, Key, OwnerToken};

mod line;

/// Who has what.
#[derive(Debug, Default)]
pub(super) struct Seats(Mutex<HashMap<(Key, OwnerToken), Arc<Seat>>>);

impl Seats {
    /// The seat of an owner, a new one if there is none.
    pub(super) fn take(self: &Arc<Self>, key: &Key, owner: &OwnerToken, lock: i64) -> Arc<Seat> {
        let mut seats = self.0.lock();
        let seat = seats.entry((key.clone(), owner.clone()));
        let seat = seat.or_insert_with(|| Seat::new(self, key, owner, lock));
        if matches!(*seat.state.lock(), State::Over(_)) {
            *seat = Seat::new(self, key, owner, lock);
        }
        Arc::clone(seat)
    }

    pub(super) fn find(&self, key: &Key, owner: &OwnerToken) -> Option<Arc<Seat>> {
        self.0.lock().get(&(key.clone(), owner.clone())).cloned()
    }

    /// Who in this process has the lock of this name.
    pub(super) fn holder(&self, stored: &str) -> Option<(OwnerToken, FencingToken)> {
        let seats: Vec<_> = {
            let seats = self.0.lock();
            seats.values().filter(|seat| seat.key.as_stored() == stored).map(Arc::clone).collect()
        };
        let standing = |seat: &Arc<Seat>| seat.held().filter(|held| !held.transaction.has_ended());
        seats.iter().find_map(|seat| Some((seat.owner.clone(), standing(seat)?.fence)))
    }

    /// All, none of which is to be found any more.
    pub(super) fn clear(&self) -> Vec<Arc<Seat>> {
        std::mem::take(&mut *self.0.lock()).into_values().collect()
    }
}

/// What one owner has of one key.
pub(super) struct Seat {
    key: Key,
    owner: OwnerToken,
    lock: i64,
    seats: Weak<Seats>,
    /// Whoever asks for this owner, or gives back, has it until the answer is there.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    /// Nobody waits for the answer to a claim any more, so that it will be given back.
    given_up: Mutex<Option<Leaving>>,
    /// The state is another one.
    changed: Notify,
    /// The task that waits is to leave, or to look whether it is still needed.
    dismissed: Notify,
}

enum State {
    Empty,
    /// In the server's line.
    Waiting,
    /// Granted by the line, and nobody has looked.
    Granted(Held),
    Held(Held),
    /// And why, if something failed.
    Over(Option<Error>),
}

/// A lock that is held.
#[derive(Clone, Debug)]
pub(super) struct Held {
    transaction: Arc<Transaction>,
    fence: FencingToken,
    loss: Loss,
}

impl Held {
    pub(super) fn grant(self, ttl: Duration) -> Grant {
        Grant::new(ttl).fencing(self.fence).loss(self.loss)
    }
}

/// What became of a claim.
pub(super) enum Answer {
    Granted(Held),
    Contended,
    /// Who claims stands in line; with the place, if it is a new one.
    InLine(Option<BoxFuture>),
    /// What there was is gone: there is a new seat for the next one.
    Gone,
}

impl Seat {
    fn new(seats: &Arc<Seats>, key: &Key, owner: &OwnerToken, lock: i64) -> Arc<Self> {
        Arc::new(Self {
            key: key.clone(),
            owner: owner.clone(),
            lock,
            seats: Arc::downgrade(seats),
            turn: tokio::sync::Mutex::default(),
            state: Mutex::new(State::Empty),
            given_up: Mutex::default(),
            changed: Notify::new(),
            dismissed: Notify::new(),
        })
    }

    /// A claim was given up before its answer.
    pub(super) fn give_up(&self, leaving: Leaving) {
        let state = self.state.lock();
        if !matches!(*state, State::Over(_)) {
            *self.given_up.lock() = Some(leaving);
        }
    }

    /// Asks for the lock. To be run to its end, whoever waits for the answer.
    pub(super) async fn claim(
        self: Arc<Self>,
        connections: Arc<Connections>,
        ttl: Duration,
        waits: bool,
    ) -> Result<Answer> {
        let _turn = self.turn.lock().await;
        // Somebody waits again.
        drop(self.given_up.lock().take());
        if self.is_waiting() {
            return Ok(Answer::InLine(None));
        }
        if let Some(held) = self.held() {
            let is_held = self.confirm(&held).await?;
            return Ok(if is_held { Answer::Granted(held) } else { Answer::Gone });
        }
        if !matches!(*self.state.lock(), State::Empty) {
            return Ok(Answer::Gone);
        }
        let answer = self.ask(&connections, ttl, waits).await;
        if !matches!(answer, Ok(Answer::Granted(_) | Answer::InLine(_))) {
            self.over(None);
        }
        answer
    }

    async fn ask(self: &Arc<Self>, connections: &Arc<Connections>, ttl: Duration, waits: bool) -> Result<Answer> {
        let (transaction, is_locked) = Transaction::begin(connections, self.lock, ttl).await?;
        if is_locked {
            return match transaction.draw().await {
                Ok((fence, loss)) => {
                    let held = Held { transaction: Arc::new(transaction), fence, loss };
                    *self.state.lock() = State::Held(held.clone());
                    Ok(Answer::Granted(held))
                }
                Err(error) => {
                    transaction.abandon().await;
                    Err(error)
                }
            };
        }
        if !waits {
            // It holds nothing, whatever comes of this.
            transaction.end().await.ok();
            return Ok(Answer::Contended);
        }
        let transaction = Arc::new(transaction);
        *self.state.lock() = State::Waiting;
        let place = Place::of(self, connections);
        tokio::spawn(Arc::clone(self).stand(Arc::clone(&transaction), ttl));
        self.until_in_line(&transaction).await?;
        let mut state = self.state.lock();
        match &mut *state {
            State::Waiting => {
                drop(state);
                Ok(Answer::InLine(Some(Box::pin(place))))
            }
            State::Over(error) => Err(error.take().unwrap_or_else(|| fault::unexpected(Effect::Change))),
            _ => {
                drop(state);
                self.seen().map_or(Ok(Answer::Gone), |held| Ok(Answer::Granted(held)))
            }
        }
    }

    /// Whether what is held is held still.
    async fn confirm(&self, held: &Held) -> Result<bool> {
        let is_held = match held.transaction.check().await {
            Err(_) if held.transaction.has_ended() => false,
            answer => answer?,
        };
        if is_held && self.seen().is_none() {
            // The place was left meanwhile, and what it was granted is being given back.
            held.transaction.in_time(self.until_given_back(held)).await?;
            return Ok(false);
        }
        if !is_held {
            held.loss.raise(LostReason::ConnectionLost);
            self.over(None);
            // So that what is left of it is in nobody's way.
            held.transaction.abandon().await;
        }
        Ok(is_held)
    }

    /// Waits until the task that stood in line has given back what it was granted.
    async fn until_given_back(&self, held: &Held) -> Result<()> {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if held.transaction.has_left() {
                return Ok(());
            }
            changed.await;
        }
    }

    /// What this owner holds, if that is so.
    pub(super) async fn check(self: Arc<Self>) -> Result<Option<Held>> {
        let _turn = self.turn.lock().await;
        let Some(held) = self.held() else { return Ok(None) };
        Ok(self.confirm(&held).await?.then_some(held))
    }

    /// Gives back the lock, or the place. `false` = there was no lock. To be run to its end, whoever waits for the answer.
    pub(super) async fn release(self: Arc<Self>) -> Result<bool> {
        let _turn = self.turn.lock().await;
        if self.is_waiting() {
            self.dismissed.notify_one();
            self.until_settled().await;
        }
        let held = self.held();
        // Still to be found, so that whoever asks again waits for the answer.
        *self.state.lock() = State::Over(None);
        self.dismissed.notify_one();
        let released = match held {
            Some(held) if !held.transaction.has_ended() => held.transaction.end().await,
            Some(held) => {
                held.transaction.abandon().await;
                Ok(false)
            }
            None => Ok(false),
        };
        self.over(None);
        released
    }

    /// Ends it with its store.
    pub(super) async fn close(self: Arc<Self>) {
        if let Some(held) = self.held() {
            held.loss.raise(LostReason::ConnectionLost);
        }
        // The server finds out by itself if this fails.
        self.release().await.ok();
    }

    /// Nobody waits for the place any more; a lock that somebody has seen stays.
    fn leave(self: &Arc<Self>, leaving: Leaving) {
        let state = self.state.lock();
        if matches!(*state, State::Waiting | State::Granted(_)) {
            // From here on: the task that gives it back may come to that late.
            *self.given_up.lock() = Some(leaving);
            drop(state);
            self.forget();
            self.dismissed.notify_one();
        }
    }

    fn held(&self) -> Option<Held> {
        match &*self.state.lock() {
            State::Granted(held) | State::Held(held) => Some(held.clone()),
            _ => None,
        }
    }

    /// Somebody knows of the lock.
    fn seen(&self) -> Option<Held> {
        let mut state = self.state.lock();
        let (State::Granted(held) | State::Held(held)) = &*state else { return None };
        let held = held.clone();
        *state = State::Held(held.clone());
        drop(state);
        self.dismissed.notify_one();
        Some(held)
    }

    fn is_waiting(&self) -> bool {
        matches!(*self.state.lock(), State::Waiting)
    }

    fn over(&self, error: Option<Error>) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Over(error));
        drop(before);
        drop(self.given_up.lock().take());
        self.forget();
        self.changed.notify_waiters();
    }

    fn forget(&self) {
        let Some(seats) = self.seats.upgrade() else { return };
        let name = (self.key.clone(), self.owner.clone());
        let mut seats = seats.0.lock();
        let gone = match seats.get(&name) {
            Some(seat) if std::ptr::eq(&**seat, self) => seats.remove(&name),
            _ => None,
        };
        drop(seats);
        drop(gone);
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("key", &self.key).finish_non_exhaustive()
    }
}
