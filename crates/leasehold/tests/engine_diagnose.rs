//! What a diagnosis finds, and that nothing of it stays.

#![allow(clippy::unwrap_used, reason = "an error fails the test")]

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use leasehold::store::memory::MemoryStore;
use leasehold::store::noop::NoopStore;
use leasehold::store::{Level, Page};
use leasehold::testkit::{Fault, FaultStore};
use leasehold::{Clock, Diagnosis, ErrorKind, LockManager, Operation};

fn level(diagnosis: &Diagnosis, name: &str) -> Option<Level> {
    diagnosis.checks.iter().filter(|check| check.name == name).map(|check| check.finding.level).max()
}

async fn held(locks: &LockManager) -> usize {
    locks.list("", Page::first(10)).await.unwrap().entries.len()
}

#[tokio::test]
async fn a_sound_store_passes_and_keeps_nothing() {
    let locks = LockManager::new(MemoryStore::new());
    let diagnosis = locks.diagnose().await;
    assert!(diagnosis.error.is_none());
    for name in ["reach", "round trip", "fencing", "acquire", "exclude", "extend", "release", "hand-over"] {
        assert_eq!(level(&diagnosis, name), Some(Level::Ok), "{name}: {diagnosis:?}");
    }
    // Others are processes of their own.
    assert_eq!(level(&diagnosis, "scope"), Some(Level::Warn));
    let trips = diagnosis.round_trips.unwrap();
    assert!(trips.count > 0 && trips.p50 <= trips.p99);
    assert_eq!(held(&locks).await, 0);
    // The store is still open.
    locks.ping().await.unwrap();
}

#[tokio::test]
async fn a_store_that_excludes_nobody_fails() {
    let diagnosis = LockManager::new(NoopStore::new()).diagnose().await;
    assert_eq!((diagnosis.worst(), level(&diagnosis, "exclude")), (Level::Fail, Some(Level::Fail)));
    assert!(diagnosis.error.is_none());
}

#[tokio::test]
async fn parties_on_different_stores_do_not_exclude_each_other() {
    let (ours, theirs) = (LockManager::new(MemoryStore::new()), LockManager::new(MemoryStore::new()));
    let diagnosis = ours.diagnose_with(&theirs).await;
    assert_eq!(level(&diagnosis, "exclude"), Some(Level::Fail));
    assert_eq!((held(&ours).await, held(&theirs).await), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn each_step_that_the_store_refuses_is_named() {
    for (operation, name) in [
        (Operation::Probe, "reach"),
        (Operation::Acquire, "acquire"),
        (Operation::Extend, "extend"),
        (Operation::Release, "release"),
    ] {
        let store = FaultStore::new(MemoryStore::with_clock(Clock::tokio()));
        store.always(operation, Fault::fail(ErrorKind::Rejected));
        let locks = LockManager::builder(store).clock(Clock::tokio()).build().unwrap();
        let diagnosis = locks.diagnose().await;
        assert_eq!(level(&diagnosis, name), Some(Level::Fail), "{name}: {diagnosis:?}");
        assert_eq!(diagnosis.error.unwrap().kind(), ErrorKind::Rejected);
        let last = diagnosis.checks.last().unwrap();
        assert!(last.finding.what.contains("failed to") && !last.finding.fix.is_empty(), "{last:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_told_in_bounded_time() {
    let store = FaultStore::new(MemoryStore::with_clock(Clock::tokio()));
    store.outage(Fault::hang());
    let locks = LockManager::builder(store).clock(Clock::tokio()).build().unwrap();
    let diagnosis = tokio::time::timeout(Duration::from_secs(60), locks.diagnose()).await.unwrap();
    assert_eq!(diagnosis.error.unwrap().kind(), ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_diagnosis_that_is_dropped_leaves_nothing() {
    // Dropped after each poll that it takes.
    for polls in 1.. {
        let locks =
            LockManager::builder(MemoryStore::with_clock(Clock::tokio())).clock(Clock::tokio()).build().unwrap();
        let ended = {
            let mut diagnosis = pin!(locks.diagnose());
            let mut ended = false;
            for _ in 0..polls {
                ended |= diagnosis.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
                if ended {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            ended
        };
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(held(&locks).await, 0, "dropped after {polls} polls");
        if ended {
            assert!(polls > 1);
            return;
        }
    }
}
