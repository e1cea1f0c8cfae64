//! Where background work runs, what becomes of it when its runtime ends, and that nothing piles up.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

#[path = "fixtures/bed.rs"]
mod bed;

use std::sync::Arc;
use std::time::Duration;

use leasehold::store::memory::MemoryStore;
use leasehold::testkit::Residue;
use leasehold::{LockManager, LostReason};
use tokio::runtime::{Builder, Handle, Runtime};

use self::bed::{Bed, Happened, Recorder, SECOND, Shaped, TTL, at_rest, key, ms};

/// Long enough to be renewed in time on a busy machine, short enough to wait for a renewal.
const REAL_TTL: Duration = Duration::from_secs(6);

#[test]
fn a_guard_dropped_after_its_runtime_does_not_panic_and_is_counted() {
    for runtime in [current_thread(), multi_thread()] {
        let events = Recorder::default();
        let store = MemoryStore::new();
        let guard = runtime.block_on(async {
            let locks = LockManager::builder(store.clone()).observer(events.clone()).build().unwrap();
            locks.lock("orphan").try_acquire().await.unwrap().unwrap()
        });
        runtime.shutdown_timeout(60 * SECOND);
        guard.check().unwrap();
        drop(guard);
        assert_eq!(events.all(), [Happened::Dropped { release_sent: false }]);
        assert!(is_held(&store, "orphan"), "left to its ttl");
    }
}

#[test]
fn a_guard_dropped_outside_of_a_living_runtime_is_given_back_there() {
    let runtime = multi_thread();
    let events = Recorder::default();
    let (locks, guard) = runtime.block_on(async {
        let locks = LockManager::builder(MemoryStore::new()).observer(events.clone()).build().unwrap();
        let guard = locks.lock("outside").try_acquire().await.unwrap().unwrap();
        (locks, guard)
    });
    drop(guard);
    runtime.block_on(at_rest(&locks));
    assert_eq!(events.all(), [Happened::Dropped { release_sent: true }]);
    runtime.block_on(async { assert!(locks.holder("outside").await.unwrap().is_none()) });
}

#[test]
fn a_guard_that_its_task_takes_down_with_the_runtime_does_not_panic() {
    for runtime in [current_thread(), multi_thread()] {
        let events = Recorder::default();
        let locks = runtime
            .block_on(async { LockManager::builder(MemoryStore::new()).observer(events.clone()).build() })
            .unwrap();
        for number in 0..20 {
            let locks = locks.clone();
            let held = Arc::new(tokio::sync::Notify::new());
            runtime.spawn({
                let held = Arc::clone(&held);
                async move {
                    let name = format!("task {number}");
                    let work = async |_| {
                        held.notify_one();
                        std::future::pending::<()>().await;
                    };
                    locks.with_lock(&name, work).await.map(drop)
                }
            });
            runtime.block_on(held.notified());
        }
        runtime.shutdown_timeout(60 * SECOND);
        assert_eq!(events.all(), [Happened::Dropped { release_sent: false }; 20]);
        assert!(Residue::of(&locks).is_none());
    }
}

#[test]
fn a_manager_built_outside_works_on_the_runtime_of_the_call() {
    let events = Recorder::default();
    let store = MemoryStore::new();
    let locks = LockManager::builder(store.clone()).ttl(REAL_TTL).observer(events.clone()).build().unwrap();
    let runtime = current_thread();
    let guard = runtime.block_on(async {
        let guard = locks.lock("outside").try_acquire().await.unwrap().unwrap();
        renewed_once_more(&events, "outside").await;
        guard.check().unwrap();
        // Given back in the background, here.
        drop(locks.lock("inside").try_acquire().await.unwrap().unwrap());
        while {
            let left = Residue::of(&locks);
            left.background > 0 || left.events > 0
        } {
            tokio::time::sleep(ms(1)).await;
        }
        guard
    });
    assert!(!is_held(&store, "inside"));
    drop(guard);
    let dropped = [true, false].map(|release_sent| Happened::Dropped { release_sent });
    assert_eq!(events.all(), dropped);
    assert!(is_held(&store, "outside"));
}

#[test]
fn another_runtime_takes_on_the_leases_and_the_work_of_one_that_is_gone() {
    for first in [current_thread(), multi_thread()] {
        let events = Recorder::default();
        let store = MemoryStore::new();
        let (locks, old) = first.block_on(async {
            let locks = LockManager::builder(store.clone()).ttl(REAL_TTL).observer(events.clone()).build().unwrap();
            let old = locks.lock("old").try_acquire().await.unwrap().unwrap();
            (locks, old)
        });
        first.shutdown_timeout(60 * SECOND);
        let second = current_thread();
        second.block_on(async {
            let new = locks.lock("new").try_acquire().await.unwrap().unwrap();
            renewed_once_more(&events, "old").await;
            renewed_once_more(&events, "new").await;
            old.check().unwrap();
            drop(old);
            new.release().await.unwrap();
            at_rest(&locks).await;
        });
        assert!(!is_held(&store, "old") && !is_held(&store, "new"));
        assert_eq!(events.all().len(), 2, "{:?}", events.all());
    }
}

async fn renewed_once_more(events: &Recorder, name: &str) {
    let before = events.renewals(name);
    for _ in 0..5 * REAL_TTL.as_millis() / 10 {
        if events.renewals(name) > before {
            return;
        }
        tokio::time::sleep(ms(10)).await;
    }
    panic!("\"{name}\" was not renewed");
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

fn is_held(store: &MemoryStore, name: &str) -> bool {
    let inspection = current_thread().block_on(leasehold::store::Store::inspect(store, &key(name)));
    !inspection.unwrap().holders.is_empty()
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_guard_is_renewed_until_its_longest_hold() {
    let bed = Bed::new();
    let events = Recorder::default();
    let locks = bed.builder().observer(events.clone()).build().unwrap();
    std::mem::forget(locks.lock("bounded").max_hold(10 * TTL).try_acquire().await.unwrap().unwrap());
    std::mem::forget(locks.lock("unbounded").try_acquire().await.unwrap().unwrap());
    tokio::time::sleep(10 * TTL - ms(1)).await;
    assert!(bed.owner("bounded").await.is_some());
    tokio::time::sleep(TTL + SECOND).await;
    assert_eq!(events.all(), [Happened::Lost(LostReason::MaxHold)]);
    assert_eq!(bed.owner("bounded").await, None);
    assert_eq!(Residue::of(&locks).leases, 1);
    tokio::time::sleep(100 * TTL).await;
    assert!(bed.owner("unbounded").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_short_leases_half_dropped_half_released_leave_nothing() {
    let bed = Bed::new();
    let locks = bed.manager();
    for number in 0..10_000 {
        let guard = locks.lock(&format!("short {}", number % 997)).acquire().await.unwrap();
        if number % 2 == 0 {
            guard.release().await.unwrap();
        }
    }
    at_rest(&locks).await;
    assert_eq!(bed.held().await, Vec::<String>::new());
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 1, "the renewal task");
}

#[test]
fn ten_thousand_short_leases_on_two_workers_leave_nothing() {
    let runtime = multi_thread();
    runtime.block_on(async {
        let locks = LockManager::new(MemoryStore::new());
        let tasks: Vec<_> = (0..8)
            .map(|task| {
                let locks = locks.clone();
                tokio::spawn(async move {
                    for number in 0..1250 {
                        let guard = locks.lock(&format!("short {}", number % 3)).acquire().await.unwrap();
                        guard.check().unwrap();
                        if (number + task) % 2 == 0 {
                            guard.release().await.unwrap();
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        at_rest(&locks).await;
        for number in 0..3 {
            assert!(locks.lock(&format!("short {number}")).try_acquire().await.unwrap().is_some());
        }
    });
}

#[tokio::test(start_paused = true)]
async fn managers_that_were_used_and_dropped_leave_neither_tasks_nor_themselves() {
    let alive = Arc::new(());
    for number in 0..2000 {
        let held = Arc::clone(&alive);
        let store = Shaped::new(&MemoryStore::new()).on_call(move |_| _ = &held);
        let locks = LockManager::new(store);
        let guard = locks.lock("flat").acquire().await.unwrap();
        if number % 3 == 0 {
            guard.release().await.unwrap();
        }
        if number % 5 == 0 {
            locks.close(leasehold::Close::Release).await.unwrap();
        }
    }
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
    assert_eq!(Arc::strong_count(&alive), 1);
}
