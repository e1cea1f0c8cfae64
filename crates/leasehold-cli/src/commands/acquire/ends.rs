//! Of which ends of a lease the process is told that it is kept for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::LeaseHandle;
use leasehold::observe::{Event, Observer};

use super::told::Cause;

/// How often a lease is looked at that could not be renewed.
const LOOK: Duration = Duration::from_millis(20);

/// How many renewals were confirmed.
#[derive(Clone, Debug, Default)]
pub(super) struct Renewals(Arc<AtomicU64>);

impl Renewals {
    fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

impl Observer for Renewals {
    fn observe(&self, event: &Event) {
        if matches!(event, Event::Renewed(_)) {
            self.0.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// The ends of a lease, each told once.
#[derive(Debug)]
pub(super) struct Ends<'a> {
    lease: &'a LeaseHandle,
    grace: Duration,
    renewals: &'a Renewals,
    /// How many renewals had been confirmed when the latest end was told.
    told: Option<u64>,
}

impl<'a> Ends<'a> {
    pub(super) fn new(lease: &'a LeaseHandle, grace: Duration, renewals: &'a Renewals) -> Self {
        Self { lease, grace, renewals, told: None }
    }

    /// The next end to tell; `None` = the lease is lost, as was told. Nothing is lost if the future is dropped.
    pub(super) async fn next(&mut self) -> Option<Cause> {
        loop {
            let turn = async { if self.told.is_some() { self.recovery().await } else { self.ending().await } };
            tokio::select! {
                biased;
                reason = self.lease.lost() => {
                    // It may have recovered and been lost between two looks.
                    let is_told = self.told == Some(self.renewals.count());
                    return (!is_told).then_some(Cause::Lost(reason));
                }
                () = turn => {
                    if self.told.take().is_none() {
                        self.told = Some(self.renewals.count());
                        return Some(Cause::Ending);
                    }
                }
            }
        }
    }

    /// Resolves when the lease ends within the grace, because renewals have failed.
    async fn ending(&self) {
        loop {
            let left = self.lease.remaining().saturating_sub(self.grace);
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }

    /// Resolves when the lease stands beyond the grace again, because a renewal has been confirmed late. What happens
    /// after that is another end, of which the process is told again.
    async fn recovery(&self) {
        while self.lease.remaining() <= self.grace {
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold::store::memory::MemoryStore;
    use leasehold::{LockManager, LostReason, Renew};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_loss_right_after_a_recovery_is_told() {
        let renewals = Renewals::default();
        let every = Renew::Every(Duration::from_millis(10));
        let builder = LockManager::builder(MemoryStore::new()).ttl(LONG).renew(every);
        let manager = builder.observer(renewals.clone()).build().unwrap();
        let guard = manager.lock("k").acquire().await.unwrap();
        let lease = guard.handle();
        // A grace as long as the ttl: the end is near at once.
        let mut ends = Ends::new(&lease, LONG, &renewals);
        assert!(matches!(ends.next().await, Some(Cause::Ending)));
        let before = renewals.count();
        while renewals.count() == before {
            tokio::time::sleep(LOOK).await;
        }
        manager.force_release("k", None).await.unwrap();
        guard.lost().await;
        assert!(matches!(ends.next().await, Some(Cause::Lost(LostReason::NotHeld))));
    }

    #[tokio::test]
    async fn a_loss_that_was_seen_to_come_is_told_once() {
        let renewals = Renewals::default();
        let builder = LockManager::builder(MemoryStore::new()).ttl(Duration::from_secs(3)).renew(Renew::Off);
        let manager = builder.observer(renewals.clone()).build().unwrap();
        let guard = manager.lock("k").acquire().await.unwrap();
        let lease = guard.handle();
        let mut ends = Ends::new(&lease, LONG, &renewals);
        assert!(matches!(ends.next().await, Some(Cause::Ending)));
        assert!(ends.next().await.is_none());
    }
}
