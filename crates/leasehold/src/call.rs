//! One call for a lease, as observers and spans see it: it begins, may wait, and ends once, also when it is dropped.

use std::sync::Arc;
use std::time::Duration;

use tracing::Span;

use crate::clock::{Clock, Moment};
use crate::engine::log;
use crate::error::{Error, Operation};
use crate::lease::Lease;
use crate::observe::{
    Acquired, Acquiring, Cancelled, Contended, Event, Failed, Polled, Teller, TimedOut, WaitEnded, Waiting, outcome,
};
use crate::options::Wait;
use crate::types::Key;

/// Who is told of a call, and by which clock and of which store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told<'a> {
    pub(crate) teller: &'a Arc<Teller>,
    pub(crate) clock: &'a Clock,
    pub(crate) store: &'static str,
}

#[derive(Debug)]
pub(crate) struct Call<'a> {
    told: Told<'a>,
    key: &'a Key,
    span: &'a Span,
    pub(crate) called: Moment,
    attempts: u32,
    /// Since when it waits.
    waits: Option<Moment>,
    ended: bool,
}

/// How a call ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End<'a> {
    /// With a lease; with none where the lock is a transaction's.
    Granted(Option<&'a Lease>),
    /// Somebody else held it to the end.
    NotGranted,
    Failed(&'a Error),
}

impl<'a> Call<'a> {
    pub(crate) fn begin(told: Told<'a>, key: &'a Key, span: &'a Span, wait: Wait) -> Self {
        let called = told.clock.now();
        let call = Self { told, key, span, called, attempts: 0, waits: None, ended: false };
        call.note(|store| Event::Acquiring(Acquiring { store, key: key.clone(), wait }));
        told.teller.tell();
        call
    }

    fn note(&self, event: impl FnOnce(&'static str) -> Event) {
        self.told.teller.note(|_| event(self.told.store));
    }

    /// It asks the store.
    pub(crate) fn asks(&mut self) {
        self.attempts += 1;
        if self.attempts > 1 {
            self.note(|store| Event::Polled(Polled { store, key: self.key.clone() }));
        }
    }

    /// It is about to sleep until the lease may be had.
    pub(crate) fn waits(&mut self) {
        if self.waits.is_none() {
            self.waits = Some(self.told.clock.now());
            self.note(|store| Event::Waiting(Waiting { store, key: self.key.clone() }));
        }
        // Those behind it in line wait for this call: no observer may hold it up.
        self.told.teller.tell_apart();
    }

    pub(crate) fn end(mut self, end: End<'_>) {
        self.ended = true;
        self.wait_ended();
        let (key, attempts) = (|| self.key.clone(), self.attempts);
        if self.told.teller.is_heard() {
            let waited = self.elapsed();
            self.note(|store| match end {
                End::Granted(lease) => {
                    let fencing = lease.and_then(|lease| lease.fencing);
                    Event::Acquired(Acquired { store, key: key(), waited, attempts, fencing })
                }
                End::NotGranted if self.waits.is_some() => {
                    Event::TimedOut(TimedOut { store, key: key(), waited, attempts })
                }
                End::NotGranted => Event::Contended(Contended { store, key: key(), waited, attempts }),
                End::Failed(error) => {
                    let (operation, kind) = (Operation::Acquire, error.kind());
                    Event::Failed(Failed { store, operation, key: Some(key()), kind, waited: Some(waited) })
                }
            });
            self.told.teller.tell();
        }
        match end {
            End::Granted(lease) => self.record(outcome::GRANTED, lease, None),
            End::NotGranted if self.waits.is_some() => self.record(outcome::TIMED_OUT, None, None),
            End::NotGranted => self.record(outcome::CONTENDED, None, None),
            End::Failed(error) => self.record(error.kind().as_str(), None, Some(error)),
        }
    }

    fn wait_ended(&self) {
        if let (Some(since), true) = (self.waits, self.told.teller.is_heard()) {
            let waited = self.told.clock.now().since(since);
            self.note(|store| Event::WaitEnded(WaitEnded { store, key: self.key.clone(), waited }));
        }
    }

    fn record(&self, how: &'static str, lease: Option<&Lease>, error: Option<&Error>) {
        if self.span.is_disabled() {
            return;
        }
        log(|| {
            self.span.record("outcome", how);
            self.span.record("waited", self.elapsed().as_secs_f64());
            self.span.record("attempts", self.attempts);
            if let Some(lease) = lease {
                lease.record_on(self.span);
            }
            if let Some(error) = error {
                self.span.record("error", tracing::field::display(error));
            }
        });
    }

    fn elapsed(&self) -> Duration {
        self.told.clock.now().since(self.called)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        self.wait_ended();
        if self.told.teller.is_heard() {
            let (waited, attempts) = (self.elapsed(), self.attempts);
            let key = self.key.clone();
            self.note(|store| Event::Cancelled(Cancelled { store, key, waited, attempts }));
            self.told.teller.tell();
        }
        self.record(outcome::CANCELLED, None, None);
    }
}
