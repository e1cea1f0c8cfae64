//! The order of things at the end: of a lease, of a manager, of a store.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

#[path = "fixtures/bed.rs"]
mod bed;

use std::sync::Arc;

use leasehold::store::SharedStore;
use leasehold::store::memory::MemoryStore;
use leasehold::testkit::{Fault, FaultStore, Residue};
use leasehold::{Close, ErrorKind, LeaseHandle, LockManager, LostReason, Operation};
use parking_lot::Mutex;
use tokio::time::timeout;

use self::bed::{Bed, SECOND, TTL, at_rest, ms, others_run};

#[tokio::test(start_paused = true)]
async fn a_guard_counts_as_lost_before_its_release_is_sent() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let watched = Arc::new(Mutex::new(None::<LeaseHandle>));
    let bed = Bed::shaped(|shaped| {
        let (seen, watched) = (Arc::clone(&seen), Arc::clone(&watched));
        shaped.on_call(move |operation| {
            if operation == Operation::Release {
                let handle = watched.lock().take().unwrap();
                seen.lock().push(handle.check().unwrap_err().lost_reason().unwrap());
            }
        })
    });
    let locks = bed.manager();
    let lock = locks.lock("order");

    let guard = lock.try_acquire().await.unwrap().unwrap();
    *watched.lock() = Some(guard.handle());
    guard.release().await.unwrap();
    let guard = lock.try_acquire().await.unwrap().unwrap();
    *watched.lock() = Some(guard.handle());
    drop(guard);
    at_rest(&locks).await;
    locks.with_lock("order", async |lease| *watched.lock() = Some(lease)).await.unwrap();
    let guard = lock.try_acquire().await.unwrap().unwrap();
    *watched.lock() = Some(guard.handle());
    locks.close(Close::Release).await.unwrap();
    drop(guard);
    at_rest(&locks).await;
    use LostReason::{Closed, Released};
    assert_eq!(*seen.lock(), [Released, Released, Released, Closed]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_not_released_while_its_work_still_runs() {
    let bed = Bed::new();
    let locks = bed.manager();
    let guard = locks.lock("lost").renew(leasehold::Renew::Off).try_acquire().await.unwrap().unwrap();
    assert_eq!(guard.lost().await, LostReason::Expired);
    tokio::time::sleep(2 * TTL).await;
    assert_eq!(bed.store.calls(Operation::Release), 0);
    drop(guard);
    at_rest(&locks).await;
    assert_eq!(bed.store.calls(Operation::Release), 1);

    let held = locks.lock("hold").max_hold(TTL / 2).try_acquire().await.unwrap().unwrap();
    assert_eq!(held.lost().await, LostReason::MaxHold);
    others_run().await;
    assert!(bed.owner("hold").await.is_some());
    drop(held);
    at_rest(&locks).await;
    assert_eq!(bed.owner("hold").await, None);
}

#[tokio::test(start_paused = true)]
async fn closing_ends_waiters_guards_clones_and_new_calls() {
    for bed in [Bed::new(), Bed::polled()] {
        let (locks, others) = (bed.manager(), bed.manager());
        let clone = locks.clone();
        let theirs = others.lock("theirs").try_acquire().await.unwrap().unwrap();
        let ours = locks.lock("ours").try_acquire().await.unwrap().unwrap();
        let mut waiters = Vec::new();
        for _ in 0..3 {
            let (acquiring, within, scoped) = (locks.lock("theirs"), locks.lock("theirs"), locks.clone());
            waiters.push(tokio::spawn(async move { acquiring.acquire().await.map(drop) }));
            waiters.push(tokio::spawn(async move { within.acquire_within(TTL).await.map(drop) }));
            waiters.push(tokio::spawn(async move { scoped.with_lock("theirs", async |_| ()).await.map(drop) }));
            others_run().await;
        }
        locks.close(Close::Release).await.unwrap();
        for waiter in waiters {
            let ended = timeout(ms(10), waiter).await.unwrap().unwrap();
            assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
        }
        assert_eq!(ours.check().unwrap_err().lost_reason(), Some(LostReason::Closed));
        assert_eq!(bed.owner("ours").await, None);
        let error = ours.release().await.unwrap_err();
        assert_eq!((error.kind(), error.lost_reason()), (ErrorKind::NotHeld, Some(LostReason::Closed)));
        let asked = bed.store.total_calls();
        every_call_is_refused(&clone).await;
        assert_eq!(bed.store.total_calls(), asked);
        at_rest(&clone).await;
        // Others on the same store go on.
        theirs.check().unwrap();
        theirs.release().await.unwrap();
        assert_eq!(bed.held().await, Vec::<String>::new());
    }
}

async fn every_call_is_refused(locks: &LockManager) {
    let lock = locks.lock("new");
    let token = leasehold::OwnerToken::mint().unwrap();
    let kinds = [
        lock.try_acquire().await.map(drop).unwrap_err().kind(),
        lock.acquire_within(TTL).await.map(drop).unwrap_err().kind(),
        lock.acquire().await.map(drop).unwrap_err().kind(),
        lock.resume(&token).await.map(drop).unwrap_err().kind(),
        lock.release_by(&token).await.unwrap_err().kind(),
        lock.extend_by(&token, TTL).await.unwrap_err().kind(),
        lock.holder().await.unwrap_err().kind(),
        locks.try_with_lock("new", async |_| ()).await.map(drop).unwrap_err().kind(),
        locks.inspect("new").await.map(drop).unwrap_err().kind(),
        locks.list("", leasehold::store::Page::first(1)).await.map(drop).unwrap_err().kind(),
        locks.force_release("new", None).await.map(drop).unwrap_err().kind(),
        locks.ping().await.map(drop).unwrap_err().kind(),
    ];
    assert_eq!(kinds, [ErrorKind::Closed; 12]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_left_to_its_ttl_stands_until_then() {
    let bed = Bed::new();
    let locks = bed.manager();
    let (dropped, released) = (locks.lock("dropped"), locks.lock("released"));
    let dropped = dropped.try_acquire().await.unwrap().unwrap();
    let released = released.try_acquire().await.unwrap().unwrap();
    let scoped = tokio::spawn({
        let locks = locks.clone();
        async move { locks.with_lock("scoped", async |_| std::future::pending::<()>().await).await }
    });
    others_run().await;
    locks.close(Close::LeaveToTtl).await.unwrap();
    assert_eq!(scoped.await.unwrap().unwrap_err().lost_reason(), Some(LostReason::Closed));
    assert_eq!(dropped.check().unwrap_err().lost_reason(), Some(LostReason::Closed));
    assert_eq!(released.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
    drop(dropped);
    at_rest(&locks).await;
    assert_eq!(bed.store.calls(Operation::Release), 0);
    tokio::time::sleep(TTL - ms(100)).await;
    assert_eq!(bed.held().await.len(), 3);
    tokio::time::sleep(ms(200)).await;
    assert_eq!(bed.held().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn scoped_work_is_given_back_before_close_answers_and_before_the_store_closes() {
    let bed = Bed::new();
    let locks = bed.manager();
    let mut running = Vec::new();
    for number in 0..5 {
        let locks = locks.clone();
        running.push(tokio::spawn(async move {
            locks.with_lock(&format!("scoped {number}"), async |_| std::future::pending::<()>().await).await
        }));
    }
    others_run().await;
    bed.store.always(Operation::Release, Fault::delay(SECOND));
    locks.close(Close::Release).await.unwrap();
    assert_eq!(bed.held().await, Vec::<String>::new());
    assert_eq!(bed.operations().last(), Some(&Operation::Close));
    assert_eq!(bed.store.calls(Operation::Release), 5);
    for work in running {
        assert_eq!(work.await.unwrap().unwrap_err().kind(), ErrorKind::Lost);
    }
}

#[tokio::test(start_paused = true)]
async fn closing_says_so_if_a_lease_could_not_be_given_back() {
    for kind in [ErrorKind::Unavailable, ErrorKind::Rejected] {
        let bed = Bed::new();
        let locks = bed.manager();
        let guard = locks.lock("held").try_acquire().await.unwrap().unwrap();
        bed.store.always(Operation::Release, Fault::fail(kind));
        let error = locks.close(Close::Release).await.unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::Indeterminate, Some(Operation::Close)));
        assert_eq!(bed.store.calls(Operation::Close), 1, "the store is closed all the same");
        assert!(guard.check().is_err() && bed.owner("held").await.is_some());
    }
    // A release that takes more than one try is none that failed.
    let bed = Bed::new();
    let locks = bed.manager();
    let _guard = locks.lock("held").try_acquire().await.unwrap().unwrap();
    bed.store.once(Operation::Release, Fault::fail(ErrorKind::Unavailable));
    locks.close(Close::Release).await.unwrap();
    assert_eq!(bed.owner("held").await, None);
}

#[tokio::test(start_paused = true)]
async fn closing_twice_is_closing_once() {
    let bed = Bed::new();
    let locks = bed.manager();
    let guard = locks.lock("held").try_acquire().await.unwrap().unwrap();
    let clone = locks.clone();
    let (first, second) = tokio::join!(locks.close(Close::Release), clone.close(Close::LeaveToTtl));
    first.unwrap();
    second.unwrap();
    clone.close(Close::Release).await.unwrap();
    assert_eq!(bed.store.calls(Operation::Close), 1);
    assert_eq!(bed.store.calls(Operation::Release), 1);
    drop(guard);
    at_rest(&locks).await;
    assert_eq!(bed.held().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_store_closes_with_its_last_manager_only() {
    let store = FaultStore::new(MemoryStore::new());
    let shared = SharedStore::new(store.clone());
    let (one, two, three) =
        (LockManager::new(shared.clone()), LockManager::new(shared.clone()), LockManager::new(shared.clone()));
    let bad = LockManager::builder(shared).ttl(std::time::Duration::ZERO).build();
    assert!(bad.is_err());
    one.close(Close::Release).await.unwrap();
    one.close(Close::Release).await.unwrap();
    drop(one);
    assert_eq!(store.calls(Operation::Close), 0);
    two.lock("alive").try_acquire().await.unwrap().unwrap().release().await.unwrap();
    drop(three);
    two.close(Close::Release).await.unwrap();
    assert_eq!(store.calls(Operation::Close), 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_is_closed_even_if_the_first_to_close_it_was_cancelled() {
    let bed = Bed::new();
    let locks = bed.manager();
    let guard = locks.lock("held").try_acquire().await.unwrap().unwrap();
    bed.store.once(Operation::Release, Fault::delay(SECOND));
    assert!(timeout(ms(5), locks.close(Close::Release)).await.is_err());
    assert!(guard.check().is_err());
    locks.close(Close::Release).await.unwrap();
    assert_eq!(bed.store.calls(Operation::Close), 1);
    assert_eq!(bed.held().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn dropping_every_handle_of_a_manager_ends_it_but_not_its_guards() {
    let bed = Bed::new();
    let locks = bed.manager();
    let guard = locks.lock("alone").try_acquire().await.unwrap().unwrap();
    drop(locks);
    tokio::time::sleep(5 * TTL).await;
    guard.check().unwrap();
    drop(guard);
    tokio::time::sleep(SECOND).await;
    assert_eq!(bed.held().await, Vec::<String>::new());
    let quiet = bed.store.total_calls();
    tokio::time::sleep(5 * TTL).await;
    assert_eq!(bed.store.total_calls(), quiet);
}

#[tokio::test(start_paused = true)]
async fn a_closed_manager_holds_on_to_nothing() {
    let bed = Bed::new();
    let locks = bed.manager();
    let guards: Vec<_> = {
        let mut guards = Vec::new();
        for number in 0..50 {
            guards.push(locks.lock(&format!("many {number}")).try_acquire().await.unwrap().unwrap());
        }
        guards
    };
    assert_eq!(Residue::of(&locks).leases, 50);
    locks.close(Close::Release).await.unwrap();
    assert!(Residue::of(&locks).is_none());
    assert_eq!(bed.held().await, Vec::<String>::new());
    drop(guards);
}
