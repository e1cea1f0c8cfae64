//! Many threads at one key in real time: no wake-up is lost between them, and nobody overlaps.
//!
//! Polls are so far apart here that a lost wake-up is a hang.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

mod support {
    pub(crate) mod bent;
    pub(crate) mod rig;
}

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::store::SharedStore;
use leasehold::store::memory::MemoryStore;
use leasehold::testkit::Residue;
use leasehold::{Backoff, Clock, LockGuard, LockManager};
use support::bent::BentStore;
use support::rig::{ms, secs};
use tokio::time::timeout;

/// Bounds what would otherwise hang.
const PATIENCE: Duration = secs(60);

fn managers(polled: bool, count: usize) -> Vec<LockManager> {
    let bent = BentStore::new(MemoryStore::with_clock(Clock::system()));
    let store: SharedStore = if polled { bent.without_wakes().into() } else { bent.into() };
    let rare = Backoff::new(secs(600), secs(600), 1.0).unwrap();
    let manager = || LockManager::builder(store.clone()).ttl(secs(1800)).backoff(rare.clone()).build().unwrap();
    (0..count).map(|_| manager()).collect()
}

/// Who is inside: more than one is a failure.
#[derive(Default)]
struct Inside {
    busy: AtomicBool,
    entered: AtomicUsize,
}

impl Inside {
    async fn visit(&self, guard: LockGuard, how: u8) {
        assert!(!self.busy.swap(true, Ordering::SeqCst), "two holders");
        if how & 1 == 0 {
            tokio::task::yield_now().await;
        }
        guard.check().unwrap();
        self.entered.fetch_add(1, Ordering::Relaxed);
        self.busy.store(false, Ordering::SeqCst);
        if how & 2 == 0 {
            guard.release().await.unwrap();
        } else {
            drop(guard);
        }
    }
}

async fn until_nothing_is_left(managers: &[LockManager]) {
    let empty = async {
        while !managers.iter().all(|manager| Residue::of(manager).is_none()) {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, empty).await.unwrap();
}

/// `tasks` at one key, each until it was inside so many times.
async fn hammer(managers: &[LockManager], tasks: usize, rounds: usize, impatient: bool) {
    let inside = Arc::new(Inside::default());
    let tasks: Vec<_> = (0..tasks)
        .map(|number| {
            let (lock, inside) = (managers[number % managers.len()].lock("k"), Arc::clone(&inside));
            let mut rng = fastrand::Rng::with_seed(number as u64);
            tokio::spawn(async move {
                let mut round = 0;
                while round < rounds {
                    let acquired = if impatient && rng.u8(0..3) == 0 {
                        timeout(ms(rng.u64(0..2)), lock.acquire()).await
                    } else {
                        Ok(lock.acquire().await)
                    };
                    if let Ok(guard) = acquired {
                        inside.visit(guard.unwrap(), rng.u8(..)).await;
                        round += 1;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        timeout(PATIENCE, task).await.unwrap_or_else(|_| panic!("a wake-up was lost")).unwrap();
    }
    assert!(inside.entered.load(Ordering::Relaxed) >= rounds);
    until_nothing_is_left(managers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_ring_is_lost_in_one_manager_on_a_polled_store() {
    hammer(&managers(true, 1), 8, 1_000, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_ring_is_lost_when_some_leave() {
    hammer(&managers(true, 1), 8, 500, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_place_is_lost_between_managers() {
    hammer(&managers(false, 3), 9, 1_000, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_place_is_lost_when_some_leave() {
    hammer(&managers(false, 3), 9, 500, true).await;
}
