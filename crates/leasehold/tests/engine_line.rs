//! The local line: its order, its share in answers, and what it spares the store.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

mod support {
    pub(crate) mod bent;
    pub(crate) mod rig;
}

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::testkit::{Fault, Residue};
use leasehold::{ErrorKind, LockGuard, LockManager, Operation, Result};
use parking_lot::Mutex;
use support::rig::{LIMIT, Note, Rig, ms, secs, settle, until_nothing_is_left};
use tokio::task::JoinHandle;
use tokio::time::sleep;

type Waiter = JoinHandle<Result<Option<LockGuard>>>;

/// Starts to wait, and stands in line when this returns.
async fn waiter(manager: &LockManager, wait: Duration) -> Waiter {
    let lock = manager.lock("k");
    let waiter = tokio::spawn(async move { lock.acquire_within(wait).await });
    tokio::task::yield_now().await;
    waiter
}

async fn kind(waiter: Waiter) -> Option<ErrorKind> {
    waiter.await.unwrap().err().map(|error| error.kind())
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order_also_when_some_leave() {
    for set_up in [Rig::new, Rig::polled] {
        let rig = set_up();
        let manager = rig.manager();
        let held = manager.lock("k").try_acquire().await.unwrap().unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiters = Vec::new();
        for number in 0..20 {
            let (lock, order) = (manager.lock("k"), Arc::clone(&order));
            waiters.push(tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                order.lock().push(number);
                guard.release().await.unwrap();
            }));
            tokio::task::yield_now().await;
        }
        for leaves in [0, 1, 9, 10, 19] {
            waiters[leaves].abort();
        }
        settle().await;
        let before = rig.now();
        held.release().await.unwrap();
        for waiter in waiters {
            _ = waiter.await;
        }
        let expected: Vec<_> = (0..20).filter(|number| ![0, 1, 9, 10, 19].contains(number)).collect();
        assert_eq!(*order.lock(), expected);
        assert_eq!(rig.now(), before, "each release rings the next one, without a poll");
        until_nothing_is_left(&manager).await;
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_of_two_managers_are_all_served() {
    for set_up in [Rig::new, Rig::polled] {
        let rig = set_up();
        let managers = [rig.manager(), rig.manager()];
        let held = managers[0].lock("k").try_acquire().await.unwrap().unwrap();
        let order = Arc::new(Mutex::new([Vec::new(), Vec::new()]));
        let mut waiters = Vec::new();
        for number in 0..20 {
            let (lock, order) = (managers[number % 2].lock("k"), Arc::clone(&order));
            waiters.push(tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                order.lock()[number % 2].push(number);
                sleep(ms(7)).await;
                guard.release().await.unwrap();
            }));
            tokio::task::yield_now().await;
        }
        held.release().await.unwrap();
        for waiter in waiters {
            waiter.await.unwrap();
        }
        assert!(order.lock().iter().all(|order| order.is_sorted() && order.len() == 10));
        for manager in &managers {
            until_nothing_is_left(manager).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_may_overtake_the_line_of_a_polled_store() {
    let rig = Rig::polled();
    let manager = rig.manager();
    let held = manager.lock("k").try_acquire().await.unwrap().unwrap();
    let first = waiter(&manager, secs(60)).await;
    held.release().await.unwrap();
    let overtaker = manager.lock("k").try_acquire().await.unwrap().unwrap();
    sleep(secs(1)).await;
    assert!(!first.is_finished());
    overtaker.release().await.unwrap();
    assert!(first.await.unwrap().unwrap().is_some());
}

/// How often a store is asked for `count` waiters with one deadline.
async fn asked_for(rig: Rig, count: usize) -> usize {
    let manager = rig.manager();
    let _held = rig.manager().lock("k").ttl(secs(300)).try_acquire().await.unwrap().unwrap();
    rig.store.clear_log();
    let lock = manager.lock("k");
    let waiters: Vec<_> = (0..count)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire_within(secs(20)).await })
        })
        .collect();
    for waiter in waiters {
        assert!(waiter.await.unwrap().unwrap().is_none());
    }
    assert_eq!(rig.now(), secs(20));
    assert_eq!(rig.seen.count(|note| matches!(note, Note::Contended(_, waited, _) if *waited == secs(20))), count);
    assert_eq!(rig.seen.count(|note| matches!(note, Note::Failed(..))), 0);
    until_nothing_is_left(&manager).await;
    rig.calls(Operation::Acquire)
}

#[tokio::test(start_paused = true)]
async fn a_thousand_waiters_with_one_deadline_ask_no_more_than_one() {
    let (place, polled) = (asked_for(Rig::new(), 1).await, asked_for(Rig::polled(), 1).await);
    assert_eq!((asked_for(Rig::new(), 1000).await, asked_for(Rig::polled(), 1000).await), (place, polled));
    assert_eq!(place, 2, "when it came, and at the deadline");
    assert!(polled < 25, "{polled} calls in 20 s");
}

#[tokio::test(start_paused = true)]
async fn one_question_serves_all_who_are_due() {
    for set_up in [Rig::new, Rig::polled] {
        let rig = set_up();
        let manager = rig.manager();
        let _held = rig.manager().lock("k").ttl(secs(300)).try_acquire().await.unwrap().unwrap();
        let head = waiter(&manager, secs(60)).await;
        sleep(ms(1650)).await;
        rig.store.clear_log();
        let before = rig.now();
        let lock = manager.lock("k");
        let late =
            std::iter::repeat_n(lock, 100).map(|lock| tokio::spawn(async move { lock.acquire_within(ms(200)).await }));
        let late: Vec<_> = late.collect();
        for waiter in late {
            assert!(waiter.await.unwrap().unwrap().is_none(), "no error: the store is well");
        }
        assert_eq!((rig.now() - before, rig.calls(Operation::Acquire)), (ms(200), 1));
        head.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn who_gets_no_answer_from_a_hanging_store_is_told_so_in_time() {
    for set_up in [Rig::new, Rig::polled] {
        let rig = set_up();
        let manager = rig.manager();
        let _held = rig.manager().lock("k").ttl(secs(300)).try_acquire().await.unwrap().unwrap();
        let head = waiter(&manager, secs(60)).await;
        let answered = waiter(&manager, secs(60)).await;
        sleep(ms(3600)).await;
        rig.store.outage(Fault::hang());
        let before = rig.now();
        let late = waiter(&manager, ms(200)).await;
        assert_eq!(kind(late).await, Some(ErrorKind::Unavailable));
        assert!(rig.now() - before <= ms(200) + LIMIT, "after {:?}", rig.now() - before);
        assert_eq!(kind(head).await, Some(ErrorKind::Indeterminate), "its request may have been applied");
        assert_eq!(kind(answered).await, Some(ErrorKind::Unavailable), "its own was never sent");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_ends_the_wait_of_those_who_stood_in_line_when_the_question_was_sent() {
    for (fault, for_head) in [
        (Fault::fail(ErrorKind::Rejected), ErrorKind::Rejected),
        (Fault::fail(ErrorKind::Unavailable), ErrorKind::Unavailable),
        (Fault::lose_reply(), ErrorKind::Indeterminate),
    ] {
        let for_others = if for_head == ErrorKind::Indeterminate { ErrorKind::Unavailable } else { for_head };
        let rig = Rig::polled();
        let manager = rig.manager();
        let held = rig.manager().lock("k").ttl(secs(300)).try_acquire().await.unwrap().unwrap();
        let head = waiter(&manager, secs(60)).await;
        let followers = [waiter(&manager, secs(60)).await, waiter(&manager, secs(60)).await];
        rig.store.always(Operation::Acquire, fault);
        while !head.is_finished() {
            sleep(ms(1)).await;
        }
        rig.store.heal();
        // Those who were told have not left yet: it stands behind them, and asks for itself.
        let later = waiter(&manager, secs(60)).await;
        assert_eq!(kind(head).await, Some(for_head));
        for follower in followers {
            assert_eq!(kind(follower).await, Some(for_others));
        }
        sleep(secs(10)).await;
        assert!(!later.is_finished());
        held.release().await.unwrap();
        assert!(later.await.unwrap().unwrap().is_some());
        until_nothing_is_left(&manager).await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_joins_while_the_failing_question_is_under_way_asks_for_itself() {
    let rig = Rig::polled();
    let manager = rig.manager();
    rig.store.outage(Fault::hang());
    let head = waiter(&manager, secs(60)).await;
    sleep(secs(1)).await;
    let later = waiter(&manager, secs(60)).await;
    sleep(LIMIT).await;
    rig.store.heal();
    assert!(!head.is_finished());
    assert_eq!(kind(head).await, Some(ErrorKind::Indeterminate));
    assert!(later.await.unwrap().unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_store_takes_only_the_one_who_asked() {
    let asked = AtomicUsize::new(0);
    let rig = Rig::bent(|bent| {
        bent.without_wakes().acquire(move |_, attempt| {
            assert!(asked.fetch_add(1, Ordering::Relaxed) != 2, "a bug in the store");
            attempt
        })
    });
    let manager = rig.manager();
    let held = manager.lock("k").try_acquire().await.unwrap().unwrap();
    let head = waiter(&manager, secs(60)).await;
    let next = waiter(&manager, secs(60)).await;
    assert!(head.await.unwrap_err().is_panic());
    sleep(secs(5)).await;
    held.release().await.unwrap();
    next.await.unwrap().unwrap().unwrap().release().await.unwrap();
    until_nothing_is_left(&manager).await;
    assert!(rig.is_free("k").await);
}

#[tokio::test(start_paused = true)]
async fn the_line_is_bounded_per_key() {
    let rig = Rig::new();
    let manager = rig.builder().max_waiters(3).build().unwrap();
    let held = manager.lock("k").try_acquire().await.unwrap().unwrap();
    let waiters = [waiter(&manager, secs(9)).await, waiter(&manager, secs(9)).await, waiter(&manager, secs(9)).await];
    let error = manager.lock("k").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().starts_with("too many waiters"));
    assert!(manager.lock("other").acquire().await.is_ok());
    assert!(manager.lock("k").try_acquire().await.unwrap().is_none(), "who does not wait needs no room");
    waiters[1].abort();
    settle().await;
    let next = waiter(&manager, secs(9)).await;
    held.release().await.unwrap();
    let [first, _, third] = waiters;
    for waiter in [first, third, next] {
        assert!(waiter.await.unwrap().unwrap().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn everybody_gets_an_equal_share() {
    for set_up in [Rig::new, Rig::polled] {
        let rig = set_up();
        let manager = rig.manager();
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let lock = manager.lock("k");
                tokio::spawn(async move {
                    let mut count = 0_u32;
                    loop {
                        let Some(guard) = lock.acquire_within(secs(5)).await.unwrap() else { return count };
                        sleep(ms(1)).await;
                        guard.release().await.unwrap();
                        count += 1;
                        if count == 500 {
                            return count;
                        }
                        // Whoever is far behind would still be at work when the first is done.
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        while !tasks.iter().any(JoinHandle::is_finished) {
            sleep(ms(1)).await;
        }
        let first_done = rig.now();
        for task in tasks {
            assert_eq!(task.await.unwrap(), 500);
        }
        assert!(rig.now() - first_done <= ms(20), "the last one came {:?} after the first", rig.now() - first_done);
    }
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_cancellations_leaves_nothing() {
    for set_up in [Rig::new, Rig::polled] {
        let rig = set_up();
        fastrand::seed(18);
        let managers = [rig.manager(), rig.manager()];
        for _ in 0..300 {
            let lock = managers[fastrand::usize(0..2)].lock(["a", "b", "c"][fastrand::usize(0..3)]);
            let (stay, hold) = (ms(fastrand::u64(0..400)), ms(fastrand::u64(0..50)));
            if fastrand::u8(0..4) == 0 {
                rig.store.once(Operation::Acquire, Fault::delay(ms(fastrand::u64(0..100))));
            }
            tokio::spawn(tokio::time::timeout(stay, async move {
                let guard = lock.acquire().await;
                sleep(hold).await;
                drop(guard);
            }));
            sleep(ms(fastrand::u64(0..10))).await;
        }
        for manager in &managers {
            until_nothing_is_left(manager).await;
            assert_eq!(Residue::of(manager), Residue::default());
        }
        for name in ["a", "b", "c"] {
            assert!(rig.is_free(name).await, "{name}");
        }
    }
}
