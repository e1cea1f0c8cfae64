//! One call for a lease, as observers and spans see it: it begins, may wait, and ends once, also when it is dropped.

use std::sync::Arc;
use std::time::Duration;

use tracing::Span;

use crate::clock::Moment;
use crate::engine::{Engine, log};
use crate::error::{Error, Operation, Result};
use crate::lease::Lease;
use crate::observe::{
    Acquired, Acquiring, Cancelled, Contended, Event, Failed, Polled, TimedOut, WaitEnded, Waiting, outcome,
};
use crate::options::Wait;
use crate::types::Key;

#[derive(Debug)]
pub(crate) struct Call<'a> {
    engine: &'a Arc<Engine>,
    key: &'a Key,
    span: &'a Span,
    pub(crate) called: Moment,
    attempts: u32,
    /// Since when it waits.
    waits: Option<Moment>,
    ended: bool,
}

impl<'a> Call<'a> {
    pub(crate) fn begin(engine: &'a Arc<Engine>, key: &'a Key, span: &'a Span, wait: Wait) -> Self {
        engine.teller.note(|store| Event::Acquiring(Acquiring { store, key: key.clone(), wait }));
        engine.teller.tell();
        Self { engine, key, span, called: engine.clock.now(), attempts: 0, waits: None, ended: false }
    }

    /// It asks the store.
    pub(crate) fn asks(&mut self) {
        self.attempts += 1;
        if self.attempts > 1 {
            self.engine.teller.note(|store| Event::Polled(Polled { store, key: self.key.clone() }));
        }
    }

    /// It is about to sleep until the lease may be had.
    pub(crate) fn waits(&mut self) {
        if self.waits.is_none() {
            self.waits = Some(self.engine.clock.now());
            self.engine.teller.note(|store| Event::Waiting(Waiting { store, key: self.key.clone() }));
        }
        // Those behind it in line wait for this call: no observer may hold it up.
        self.engine.teller.tell_apart();
    }

    pub(crate) fn end(mut self, ended: &Result<Option<Arc<Lease>>>) {
        self.ended = true;
        self.wait_ended();
        let (key, attempts) = (|| self.key.clone(), self.attempts);
        let teller = &self.engine.teller;
        if teller.is_heard() {
            let waited = self.elapsed();
            teller.note(|store| match ended {
                Ok(Some(lease)) => {
                    let fencing = lease.fencing;
                    Event::Acquired(Acquired { store, key: key(), waited, attempts, fencing })
                }
                Ok(None) if self.waits.is_some() => Event::TimedOut(TimedOut { store, key: key(), waited, attempts }),
                Ok(None) => Event::Contended(Contended { store, key: key(), waited, attempts }),
                Err(error) => {
                    let (operation, kind) = (Operation::Acquire, error.kind());
                    Event::Failed(Failed { store, operation, key: Some(key()), kind, waited: Some(waited) })
                }
            });
            teller.tell();
        }
        let how = match ended {
            Ok(Some(_)) => outcome::GRANTED,
            Ok(None) if self.waits.is_some() => outcome::TIMED_OUT,
            Ok(None) => outcome::CONTENDED,
            Err(error) => error.kind().as_str(),
        };
        self.record(how, ended.as_ref().ok().and_then(Option::as_ref), ended.as_ref().err());
    }

    fn wait_ended(&self) {
        if let (Some(since), true) = (self.waits, self.engine.teller.is_heard()) {
            let waited = self.engine.clock.now().since(since);
            self.engine.teller.note(|store| Event::WaitEnded(WaitEnded { store, key: self.key.clone(), waited }));
        }
    }

    fn record(&self, how: &'static str, lease: Option<&Arc<Lease>>, error: Option<&Error>) {
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
        self.engine.clock.now().since(self.called)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        self.wait_ended();
        if self.engine.teller.is_heard() {
            let (waited, attempts) = (self.elapsed(), self.attempts);
            let key = self.key.clone();
            self.engine.teller.note(|store| Event::Cancelled(Cancelled { store, key, waited, attempts }));
            self.engine.teller.tell();
        }
        self.record(outcome::CANCELLED, None, None);
    }
}
