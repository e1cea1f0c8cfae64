//! Dropped acquisitions on a real file: nothing is left in the store, in any line, or in the background.

#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::time::Duration;

use leasehold::store::Page;
use leasehold::store::sqlite::SqliteStore;
use leasehold::testkit::Residue;
use leasehold::{LockManager, Result};
use tokio::time::{sleep, timeout};

const MANY: usize = 1000;

/// Two managers on one file, as two processes would have them.
async fn managers() -> (tempfile::TempDir, LockManager, LockManager) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("leases.db");
    let open = || async { LockManager::new(SqliteStore::open(&path).await.unwrap()) };
    let (one, other) = (open().await, open().await);
    (directory, one, other)
}

/// Well before any ttl (30 s) could have helped.
async fn until_nothing_is_left(locks: &[&LockManager]) {
    let left = async {
        for locks in locks {
            while !Residue::of(locks).is_none() || !held(locks).await.unwrap().is_empty() {
                sleep(Duration::from_millis(20)).await;
            }
        }
    };
    let limit = Duration::from_secs(20);
    if timeout(limit, left).await.is_err() {
        panic!(
            "left behind: {:?} {:?}",
            locks.iter().map(|locks| Residue::of(locks)).collect::<Vec<_>>(),
            held(locks[0]).await
        );
    }
}

async fn held(locks: &LockManager) -> Result<Vec<String>> {
    let listing = locks.list("", Page::first(MANY)).await?;
    Ok(listing.entries.into_iter().map(|entry| entry.key).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_race_on_600_keys_leaves_nothing() {
    let (_directory, locks, other) = managers().await;
    let tasks: Vec<_> = (0..600)
        .map(|number| {
            let lock = if number % 2 == 0 { &locks } else { &other }.lock(&format!("race {number}"));
            tokio::spawn(async move {
                // From before the request is sent until after its answer.
                let patience = Duration::from_micros(fastrand::u64(0..4000));
                match number % 3 {
                    0 => timeout(patience, lock.try_acquire()).await.map(drop),
                    1 => timeout(patience, lock.acquire()).await.map(drop),
                    _ => timeout(patience, lock.acquire_within(Duration::from_secs(1))).await.map(drop),
                }
                .is_err()
            })
        })
        .collect();
    let mut cancelled = 0;
    for task in tasks {
        cancelled += usize::from(task.await.unwrap());
    }
    assert!(cancelled > 0, "nothing was cancelled");
    until_nothing_is_left(&[&locks, &other]).await;
    for number in 0..600 {
        let guard = other.lock(&format!("race {number}")).try_acquire().await.unwrap();
        guard.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_2000_dropped_acquires_leaves_nothing() {
    let (_directory, locks, other) = managers().await;
    let held_meanwhile = other.lock("storm 0").acquire().await.unwrap();
    let tasks: Vec<_> = (0..2000)
        .map(|number| {
            let lock = if number % 2 == 0 { &locks } else { &other }.lock(&format!("storm {}", number % 5));
            tokio::spawn(async move {
                let patience = Duration::from_micros(fastrand::u64(0..300_000));
                timeout(patience, lock.acquire()).await.is_ok_and(|guard| guard.is_ok())
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    held_meanwhile.release().await.unwrap();
    until_nothing_is_left(&[&locks, &other]).await;
    for number in 0..5 {
        let guard = locks.lock(&format!("storm {number}")).try_acquire().await.unwrap();
        guard.unwrap().release().await.unwrap();
    }
}
