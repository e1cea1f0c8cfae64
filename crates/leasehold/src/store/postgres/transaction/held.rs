//! What observers and spans are told of a lock that a transaction has, and of the questions to the server.

use std::future::Future;

use tracing::Instrument;
use tracing::field::Empty;

use super::{STORE, TransactionLocks};
use crate::clock::Moment;
use crate::engine::log;
use crate::error::{Error, ErrorKind, LostReason, Operation, Result};
use crate::observe::{Dropped, Ended, Event, Lost, Released, StoreCall, outcome};
use crate::types::Key;

/// A transaction that could not be ended as it should.
pub(super) struct NotEnded {
    pub(super) error: Error,
    /// Why the lock was gone before, if it was.
    pub(super) lost: Option<LostReason>,
}

/// A lock that a transaction has. Dropped, it ends in the background, with the transaction.
pub(super) struct Held<'a> {
    locks: &'a TransactionLocks,
    key: &'a Key,
    since: Moment,
    ended: bool,
}

impl<'a> Held<'a> {
    pub(super) fn by(locks: &'a TransactionLocks, key: &'a Key) -> Self {
        Self { locks, key, since: locks.clock.now(), ended: false }
    }

    /// It is the transaction's now, of whose end nobody is told.
    pub(super) fn by_the_transaction(mut self) {
        self.ended = true;
        self.tell_end(LostReason::HandedOver);
        self.locks.teller.tell();
    }

    /// Held until the transaction is ended.
    pub(super) async fn until(mut self, end: impl Future<Output = std::result::Result<(), NotEnded>>) -> Result<()> {
        let span = tracing::debug_span!(
            "lock.release",
            namespace = self.key.namespace(),
            key = self.key.name(),
            store = STORE,
            held = Empty,
            outcome = Empty,
        );
        let end = self.locks.timed(Operation::Release, |end: &NotEnded| end.error.kind(), end);
        let end = end.instrument(span.clone()).await;
        self.ended = true;
        let lost = end.as_ref().err().and_then(|end| end.lost);
        let end = end.map_err(|end| end.error.during(Operation::Release));
        self.tell_end(lost.unwrap_or(LostReason::Released));
        let held = self.locks.clock.now().since(self.since);
        // What the server refused to commit it has rolled back.
        let gone = |error: &&Error| lost.is_some() || error.kind() == ErrorKind::Indeterminate;
        let failed = end.as_ref().err().filter(gone).map(Error::kind);
        let key = self.key;
        self.locks.teller.note(|_| Event::Released(Released { store: STORE, key: key.clone(), held, failed }));
        self.locks.teller.tell();
        span.record("outcome", failed.map_or(outcome::OK, ErrorKind::as_str));
        span.record("held", held.as_secs_f64());
        end
    }

    fn tell_end(&self, reason: LostReason) {
        let wanted = matches!(reason, LostReason::Released | LostReason::HandedOver);
        let (teller, key) = (&self.locks.teller, self.key);
        let held = self.locks.clock.now().since(self.since);
        teller.note(|_| Event::Ended(Ended { store: STORE, key: key.clone(), reason, held }));
        if !wanted {
            log(|| tracing::warn!(key = key.name(), store = STORE, %reason, "lease lost"));
            teller.note(|_| Event::Lost(Lost { store: STORE, key: key.clone(), reason, held }));
        }
    }
}

impl TransactionLocks {
    /// Asks the server, and tells how long that took.
    pub(super) async fn timed<T, E>(
        &self,
        operation: Operation,
        kind: impl FnOnce(&E) -> ErrorKind,
        asked: impl Future<Output = std::result::Result<T, E>>,
    ) -> std::result::Result<T, E> {
        let started = self.clock.now();
        let answer = asked.await;
        let failed = answer.as_ref().err().map(kind);
        let duration = self.clock.now().since(started);
        self.teller.note(|_| Event::StoreCall(StoreCall { store: STORE, operation, duration, failed }));
        answer
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        self.tell_end(LostReason::Released);
        let key = self.key;
        let dropped = |_| Event::Dropped(Dropped { store: STORE, key: key.clone(), release_sent: true });
        self.locks.teller.note(dropped);
        self.locks.teller.tell();
    }
}
