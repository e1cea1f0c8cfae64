//! Closing a manager while its requests are under way.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

#[path = "fixtures/bed.rs"]
mod bed;

use std::sync::Arc;
use std::task::{Context, Waker};

use leasehold::observe::{Event, Observer};
use leasehold::testkit::Fault;
use leasehold::{Close, ErrorKind, LockManager, LostReason, Operation};
use parking_lot::Mutex;
use tokio::time::timeout;

use self::bed::{Bed, SECOND, TTL, at_rest, ms, others_run};

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
    fn observe(&self, event: &Event) {
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
        assert_eq!(
            closed.map_err(|error| error.kind()),
            if has_place { Err(ErrorKind::Indeterminate) } else { Ok(()) }
        );
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
