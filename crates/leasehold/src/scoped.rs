//! Work under a lease: stopped when the lease is lost, and the lease given back whatever becomes of the work.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use tracing::Span;

use crate::error::{Error, ErrorKind, LostReason, Operation, Result};
use crate::guard::{LeaseHandle, LockGuard};
use crate::lease::Lease;
use crate::observe::outcome;
use crate::release::release;

/// What came of work that ran to its end under a lease.
#[non_exhaustive]
#[derive(Debug)]
pub struct Ran<T> {
    /// What the work returned.
    pub value: T,
    /// What came of giving the lease back. An error of kind [`ErrorKind::NotHeld`] means that the lease had ended
    /// before the work did: another holder may have overlapped with its last part.
    pub release: Result<()>,
}

impl<T> Ran<T> {
    /// The work's value, or the release's error.
    ///
    /// # Errors
    ///
    /// What stands in [`release`](Self::release).
    pub fn into_value(self) -> Result<T> {
        self.release.map(|()| self.value)
    }
}

enum End<T> {
    Returned(T),
    Panicked(Box<dyn Any + Send>),
    Lost(LostReason),
}

/// Runs `work` under the lease. Dropped, it drops the work first and then gives the lease back in the background.
pub(crate) async fn run<T, F: Future<Output = T>>(
    guard: LockGuard,
    work: impl FnOnce(LeaseHandle) -> F,
    span: &Span,
) -> Result<Ran<T>> {
    let lease = Arc::clone(guard.lease());
    if !span.is_disabled() {
        lease.record_on(span);
    }
    // Closing the manager waits for the work to be stopped; so the release is not sent before.
    let ticket = lease.engine.background.ticket();
    lease.scoped.store(true, Ordering::Release);
    let handle = guard.handle();
    // Started by the first poll, so that code before its first await is stopped and caught like the rest.
    match stop_on_loss(&lease, async move { work(handle).await }).await {
        End::Returned(value) => {
            let release = release(&lease).await;
            drop((guard, ticket));
            Ok(Ran { value, release })
        }
        End::Panicked(panic) => {
            // The panic is what the caller has to see; the release reports itself to the observer.
            _ = release(&lease).await;
            span.record("outcome", outcome::PANICKED);
            resume_unwind(panic)
        }
        End::Lost(reason) => {
            let error = Error::lost(ErrorKind::Lost, reason);
            let error = lease.in_context(error, Operation::Run);
            lease.engine.failed(Operation::Run, Some(&lease.key), &error);
            drop((guard, ticket));
            lease.engine.teller.tell();
            Err(error)
        }
    }
}

/// How scoped work went, for its span.
pub(crate) fn outcome<T>(ran: &Result<Option<Ran<T>>>) -> &'static str {
    match ran {
        Ok(Some(Ran { release: Ok(()), .. })) => outcome::RAN,
        Ok(Some(_)) => outcome::RAN_UNRELEASED,
        Ok(None) => outcome::NOT_RUN,
        Err(error) => error.kind().as_str(),
    }
}

/// What the work returned, or the panic that it ended with.
#[cfg(feature = "postgres")]
pub(crate) async fn caught<T>(work: impl Future<Output = T>) -> std::thread::Result<T> {
    let mut work = pin!(work);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

async fn stop_on_loss<T>(lease: &Lease, work: impl Future<Output = T>) -> End<T> {
    let mut work = pin!(work);
    let mut lost = pin!(lease.until_lost());
    poll_fn(|context| {
        // Asked before every poll: a timer may be late after a suspend, the clock is not.
        if let Some(reason) = lease.lost() {
            return Poll::Ready(End::Lost(reason));
        }
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
            Ok(Poll::Ready(value)) => Poll::Ready(End::Returned(value)),
            Ok(Poll::Pending) => lost.as_mut().poll(context).map(End::Lost),
            Err(panic) => Poll::Ready(End::Panicked(panic)),
        }
    })
    .await
}
