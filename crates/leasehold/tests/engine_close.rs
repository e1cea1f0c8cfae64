//! The order of things at the end: of a lease, of a manager, of a store.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

#[path = "fixtures/bed.rs"]
mod bed;

use std::sync::Arc;
use std::task::{Context, Waker};

use leasehold::observe::{Event, Observer};
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
async fn closing_during_an_acquire_that_is_under_way_leaves_nothing() {
    for fault in [
        Fault::delay(ms(200)),
        Fault::delay_reply(ms(200)),
        Fault::lose_reply().silently(),
        Fault::apply_late(ms(50)).silently(),
        Fault::apply_late(ms(50)),
    ] {
        let bed = Bed::new();
        let locks = bed.manager();
        bed.store.once(Operation::Acquire, fault.clone());
        let acquiring = tokio::spawn({
            let lock = locks.lock("under way");
            async move { lock.acquire().await.map(drop) }
        });
        others_run().await;
        locks.close(Close::Release).await.unwrap();
        assert_eq!(bed.owner("under way").await, None, "{fault:?}");
        assert_eq!(bed.operations().last(), Some(&Operation::Close), "{fault:?}");
        let error = timeout(ms(10), acquiring).await.unwrap().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{fault:?}");
        tokio::time::sleep(SECOND).await;
        assert_eq!(bed.owner("under way").await, None, "{fault:?}");
        at_rest(&locks).await;
    }
}

#[tokio::test(start_paused = true)]
async fn closing_during_a_resume_that_is_under_way_gives_the_lease_back_to_its_token() {
    let bed = Bed::new();
    let (locks, giver) = (bed.manager(), bed.manager());
    let token = giver.lock("resumed").try_acquire().await.unwrap().unwrap().hand_over().await.unwrap();
    bed.store.once(Operation::Transfer, Fault::delay_reply(ms(200)));
    let resuming = tokio::spawn({
        let (lock, token) = (locks.lock("resumed"), token.clone());
        async move { lock.resume(&token).await.map(drop) }
    });
    others_run().await;
    locks.close(Close::Release).await.unwrap();
    assert_eq!(bed.owner("resumed").await, Some(token));
    assert_eq!(timeout(ms(10), resuming).await.unwrap().unwrap().unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_a_release_that_is_under_way() {
    let bed = Bed::new();
    let locks = bed.builder().operation_limit(ms(500)).build().unwrap();
    let guard = locks.lock("under way").try_acquire().await.unwrap().unwrap();
    bed.store.once(Operation::Release, Fault::lose_reply().silently());
    let releasing = tokio::spawn(guard.release());
    others_run().await;
    locks.close(Close::Release).await.unwrap();
    use Operation::{Acquire, Close as Closed, Release};
    assert_eq!(bed.operations(), [Acquire, Release, Release, Closed]);
    timeout(ms(10), releasing).await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn closing_in_the_middle_of_everything_leaves_nothing_and_asks_no_closed_store() {
    for _ in 0..100 {
        let bed = Bed::new();
        let locks = bed.manager();
        let started = Arc::new(tokio::sync::Barrier::new(9));
        let tasks: Vec<_> = (0..8)
            .map(|task| {
                let (locks, started) = (locks.clone(), Arc::clone(&started));
                tokio::spawn(async move {
                    started.wait().await;
                    for number in 0.. {
                        let lock = locks.lock(&format!("busy {}", (task + number) % 5));
                        let guard = match number % 3 {
                            0 => lock.acquire().await.map(Some),
                            1 => lock.try_acquire().await,
                            _ => lock.run(async |lease| lease.check().is_ok()).await.map(|_| None),
                        };
                        match guard {
                            Ok(Some(guard)) if number % 2 == 0 => _ = guard.release().await,
                            Ok(guard) => drop(guard),
                            Err(error) if error.kind() == ErrorKind::Closed => return,
                            Err(error) => assert_eq!(error.lost_reason(), Some(LostReason::Closed)),
                        }
                    }
                })
            })
            .collect();
        started.wait().await;
        tokio::task::yield_now().await;
        locks.close(Close::Release).await.unwrap();
        assert_eq!(bed.held().await, Vec::<String>::new());
        for task in tasks {
            task.await.unwrap();
        }
        at_rest(&locks).await;
        assert_eq!(bed.operations().last(), Some(&Operation::Close));
        assert_eq!(bed.held().await, Vec::<String>::new());
    }
}

/// Closes its manager when it hears of a lost lease.
#[derive(Debug, Default)]
struct Closer(Mutex<Option<LockManager>>);

impl Observer for &'static Closer {
    fn observe(&self, event: &Event<'_>) {
        if !matches!(event, Event::Lost(_)) {
            return;
        }
        let locks = self.0.lock().take();
        if let Some(locks) = locks {
            let closing = std::pin::pin!(locks.close(Close::Release));
            assert!(closing.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn closing_reaches_a_lease_that_is_being_looked_at() {
    let closer: &Closer = Box::leak(Box::default());
    let bed = Bed::new();
    let locks = bed.builder().observer(closer).build().unwrap();
    // Both are due at the same moment: the first to be lost, the second to be renewed.
    let _first = locks.lock("first").max_hold(TTL / 3).try_acquire().await.unwrap().unwrap();
    let second = locks.lock("second").try_acquire().await.unwrap().unwrap();
    *closer.0.lock() = Some(locks.clone());
    tokio::time::sleep(TTL / 2).await;
    assert!(closer.0.lock().is_none());
    assert_eq!(second.check().unwrap_err().lost_reason(), Some(LostReason::Closed));
    assert_eq!(bed.owner("second").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_nobody_polls_does_not_hold_up_the_end_for_long() {
    for (bed, has_place) in [(Bed::new(), true), (Bed::polled(), false)] {
        let (locks, others) = (bed.manager(), bed.manager());
        let holder = others.lock("held").try_acquire().await.unwrap().unwrap();
        let lock = locks.lock("held");
        let mut waiting = std::pin::pin!(lock.acquire());
        assert!(timeout(ms(50), &mut waiting).await.is_err());
        let closed = timeout(TTL, locks.close(Close::Release)).await.unwrap();
        // Its place may be granted the lease until it is dropped, which closing cannot hide.
        assert_eq!(closed.map_err(|error| error.kind()), if has_place { Err(ErrorKind::Unavailable) } else { Ok(()) });
        assert_eq!(waiting.await.unwrap_err().kind(), ErrorKind::Closed);
        holder.release().await.unwrap();
        at_rest(&locks).await;
        assert_eq!(bed.held().await, Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn closing_a_hanging_store_ends_in_bounded_time() {
    let bed = Bed::new();
    let locks = bed.manager();
    let guard = locks.lock("held").try_acquire().await.unwrap().unwrap();
    let scoped = tokio::spawn({
        let locks = locks.clone();
        async move { locks.with_lock("scoped", async |_| std::future::pending::<()>().await).await }
    });
    let blocked = tokio::spawn({
        let lock = locks.lock("under way");
        async move {
            others_run().await;
            lock.acquire().await.map(drop)
        }
    });
    others_run().await;
    bed.store.outage(Fault::hang());
    others_run().await;
    let closed = timeout(20 * SECOND, locks.close(Close::Release)).await.unwrap();
    assert_eq!(closed.unwrap_err().operation(), Some(Operation::Close));
    assert!(guard.check().is_err());
    assert_eq!(timeout(ms(10), scoped).await.unwrap().unwrap().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(timeout(ms(10), blocked).await.unwrap().unwrap().unwrap_err().kind(), ErrorKind::Closed);
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
