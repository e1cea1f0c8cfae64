//! Jobs of which only one is under way at a time, from when it is dispatched to when it has ended.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Moment;
use crate::error::{Error, ErrorKind, LostReason, Operation, Result};
use crate::lock::Lock;
use crate::manager::LockManager;
use crate::options::Renew;
use crate::store::{Expiry, Tie};
use crate::types::OwnerToken;

/// A job of which only one is under way at a time.
///
/// Whoever dispatches it gets an owner token, which travels with the job. The worker extends and gives back the lease by
/// that token and does not resume it, so that a job that is tried again still has it. Keep the token out of logs.
#[derive(Clone, Debug)]
pub struct UniqueJob {
    locks: LockManager,
    lock: Result<Lock>,
    ttl: Duration,
}

/// What came of a try at a job.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEnd<T> {
    /// It is done: the next one may be dispatched.
    Done(T),
    /// It has failed for good: the next one may be dispatched.
    Failed(T),
    /// It will be tried again, and stays unique until then.
    Retry(T),
}

impl<T> JobEnd<T> {
    /// What the work has said.
    pub fn into_inner(self) -> T {
        let (Self::Done(value) | Self::Failed(value) | Self::Retry(value)) = self;
        value
    }
}

impl UniqueJob {
    pub(super) fn new(locks: &LockManager, name: &str, id: &str) -> Self {
        let lock = if name.contains('#') || name.is_empty() || id.is_empty() {
            let message = "invalid job: its name must not be empty or have a '#', nor its id be empty";
            Err(Error::new(ErrorKind::InvalidInput, message))
        } else {
            Ok(locks.lock(&format!("{name}#{id}")))
        };
        Self { locks: locks.clone(), lock, ttl: locks.ttl() }
    }

    /// Sets how long the job stays unique while nobody works at it: longer than it waits in its queue.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Takes the lease for a job that is about to be dispatched; `None` = there is one under way.
    ///
    /// The lease stands for its ttl whatever becomes of this process.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] on stores whose leases cannot outlive their connection; else as [`Lock::try_acquire`].
    ///
    /// # Cancel safety
    ///
    /// If dropped, what may have been granted is given back in the background.
    pub async fn dispatch(&self) -> Result<Option<OwnerToken>> {
        let capabilities = self.locks.capabilities();
        if capabilities.expiry == Expiry::Session || !capabilities.hand_over {
            let message = "its leases end with their connection, so none can travel with a job: use a store with ttls";
            return Err(Error::new(ErrorKind::Unsupported, message).on_store(self.locks.store_name()));
        }
        let lock = self.lock()?.renew(Renew::Off).tie(Tie::Nothing);
        Ok(lock.try_acquire().await?.map(|guard| guard.leave_standing()))
    }

    /// Gives back the lease of a job that will not be tried any more.
    ///
    /// # Errors
    ///
    /// As [`Lock::release_by`].
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::release_by`].
    pub async fn release(&self, owner: &OwnerToken) -> Result<()> {
        self.lock()?.release_by(owner).await
    }

    /// Works at the job: extends its lease while `work` runs, and gives it back at the end unless it is to be tried again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotHeld`] if the token does not hold the lease any more, so that another job may be under way: nothing
    /// was run. [`ErrorKind::Lost`] if the work was stopped because the lease could not be extended. A release that failed
    /// is logged: the ttl ends the lease.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the work is dropped; the lease stands for its ttl, for the next try.
    pub async fn work<T>(&self, owner: &OwnerToken, work: impl Future<Output = JobEnd<T>>) -> Result<JobEnd<T>> {
        let lock = self.lock()?;
        let valid_until = Mutex::new(lock.extend_for(owner).await?);
        let mut lost = pin!(self.keep_extending(&lock, owner, &valid_until));
        let mut work = pin!(work);
        let clock = &self.locks.engine().clock;
        let end = poll_fn(|context| {
            // Asked before every poll: a timer may be late after a suspend, the clock is not.
            if clock.now() >= *valid_until.lock() {
                return Poll::Ready(Err(LostReason::Expired));
            }
            if let Poll::Ready(reason) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(reason));
            }
            work.as_mut().poll(context).map(Ok)
        });
        let end = end.await.map_err(|reason| Error::lost(ErrorKind::Lost, reason).during(Operation::Run))?;
        let kept = match &end {
            JobEnd::Done(_) | JobEnd::Failed(_) => lock.release_by(owner).await,
            JobEnd::Retry(_) => lock.extend_for(owner).await.map(drop),
        };
        if let Err(error) = kept {
            tracing::warn!(%error, "the lease of a job is left to its ttl");
        }
        Ok(end)
    }

    /// Extends the lease again and again; ends when it is lost.
    async fn keep_extending(&self, lock: &Lock, owner: &OwnerToken, valid_until: &Mutex<Moment>) -> LostReason {
        let engine = self.locks.engine();
        let (every, again) = (self.ttl / 3, self.ttl / 12);
        let mut due = engine.clock.now() + every;
        loop {
            let end = *valid_until.lock();
            engine.sleep_until(due.min(end)).await;
            if engine.clock.now() >= end {
                return LostReason::Expired;
            }
            let extended = tokio::select! {
                extended = lock.extend_for(owner) => extended,
                () = engine.sleep_until(end) => return LostReason::Expired,
            };
            let now = engine.clock.now();
            match extended {
                Ok(until) => {
                    *valid_until.lock() = end.max(until);
                    due = now + every;
                }
                Err(error) if error.kind() == ErrorKind::NotHeld => return LostReason::NotHeld,
                Err(_) => due = now + again,
            }
        }
    }

    fn lock(&self) -> Result<Lock> {
        self.lock.clone().map(|lock| lock.ttl(self.ttl))
    }
}
