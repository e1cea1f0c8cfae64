//! When a waiter asks again: polls, hints, places, and the deadline.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

mod support {
    pub(crate) mod bent;
    pub(crate) mod rig;
}

use std::future::{pending, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::clock::TimeSource;
use leasehold::store::{Attempt, Contention, Wake};
use leasehold::testkit::Fault;
use leasehold::{ErrorKind, LockGuard, Operation, Renew, Wait};
use support::bent::BentStore;
use support::rig::{Note, Rig, TTL, ms, secs, settle, until_nothing_is_left};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// Somebody else holds the key, for five minutes.
async fn taken(rig: &Rig) -> LockGuard {
    let guard = rig.manager().lock("k").ttl(secs(300)).renew(Renew::Off).try_acquire().await.unwrap().unwrap();
    rig.store.clear_log();
    rig.seen.forget();
    guard
}

fn on_contention(bent: BentStore, bend: impl Fn(Contention) -> Contention + Send + Sync + 'static) -> BentStore {
    let asked = AtomicUsize::new(0);
    bent.acquire(move |_, attempt| {
        // In paused time a loop without a pause would never end.
        assert!(asked.fetch_add(1, Ordering::Relaxed) < 10_000, "asked without a pause");
        match attempt {
            Attempt::Contended(contention) => Attempt::Contended(bend(contention)),
            acquired => acquired,
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_wait_of_zero_asks_once_and_at_once() {
    let rig = Rig::polled();
    let _held = taken(&rig).await;
    let manager = rig.manager();
    let lock = manager.lock("k");
    assert!(lock.acquire_within(Duration::ZERO).await.unwrap().is_none());
    assert!(lock.try_acquire().await.unwrap().is_none());
    for wait in [Wait::No, Wait::UpTo(Duration::ZERO)] {
        assert!(lock.clone().wait(wait).run(async |_| ()).await.unwrap().is_none());
    }
    assert_eq!((rig.calls(Operation::Acquire), rig.now()), (4, Duration::ZERO));
    assert_eq!(rig.seen.count(|note| *note == Note::Contended("k".into(), Duration::ZERO, 1)), 4);
}

#[tokio::test(start_paused = true)]
async fn polls_slow_down_and_the_last_comes_at_the_deadline() {
    let rig = Rig::polled();
    let _held = taken(&rig).await;
    assert!(rig.manager().lock("k").acquire_within(ms(4_200)).await.unwrap().is_none());
    let asked = rig.seen.when(rig.clock.now() - rig.now(), |note| matches!(note, Note::Asked(Operation::Acquire, _)));
    assert_eq!(asked, [0, 100, 300, 700, 1500, 2500, 3500, 4200].map(ms));
    assert_eq!(rig.seen.count(|note| *note == Note::Contended("k".into(), ms(4_200), 8)), 1);
}

#[tokio::test(start_paused = true)]
async fn a_bounded_wait_is_never_early() {
    for set_up in [Rig::new, Rig::polled] {
        let rig = set_up();
        let _held = taken(&rig).await;
        let manager = rig.builder().build().unwrap();
        for micros in [1, 999, 1_001, 123_456, 7_654_321] {
            let (wait, before) = (Duration::from_micros(micros), rig.now());
            assert!(manager.lock("k").acquire_within(wait).await.unwrap().is_none());
            let waited = rig.now() - before;
            assert!(waited >= wait && waited < wait + ms(3), "{waited:?} instead of {wait:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ended_during_a_suspend_is_not_waited_out() {
    for set_up in [Rig::new, Rig::polled] {
        let rig = set_up();
        let held = taken(&rig).await;
        let manager = rig.manager();
        let [bounded, behind, patient] = [secs(250), secs(200), secs(3600)].map(|wait| {
            let lock = manager.lock("k");
            tokio::spawn(async move { lock.acquire_within(wait).await })
        });
        sleep(secs(1)).await;
        rig.clock.suspend(secs(260));
        sleep(secs(11)).await;
        assert!(bounded.is_finished() && behind.is_finished() && !patient.is_finished());
        rig.clock.suspend(secs(60));
        sleep(secs(11)).await;
        assert!(patient.await.unwrap().unwrap().is_some(), "the other's lease is over as well");
        assert!(held.check().is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_attempt_takes_what_became_free_just_before() {
    let rig = Rig::polled();
    let held = taken(&rig).await;
    let lock = rig.manager().lock("k");
    let (acquired, ()) = tokio::join!(lock.acquire_within(ms(2_400)), async {
        // The last poll was at 1500 ms, the next would be at 2500 ms.
        sleep(ms(2_399)).await;
        held.release().await.unwrap();
    });
    assert!(acquired.unwrap().is_some());
    assert_eq!(rig.now(), ms(2_400));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_present_lease_is_worth_asking_at() {
    let rig = Rig::polled();
    let other = rig.manager();
    let _abandoned = other.lock("k").ttl(ms(3_140)).renew(Renew::Off).try_acquire().await.unwrap().unwrap();
    let _guard = rig.manager().lock("k").acquire().await.unwrap();
    assert_eq!(rig.now(), ms(3_141));
    assert_eq!(rig.calls(Operation::Acquire), 1 + 7, "at 0, 100, 300, 700, 1500, 2500 and 3141 ms");
}

#[tokio::test(start_paused = true)]
async fn a_hint_shortens_the_wait_and_a_lost_one_costs_a_poll() {
    for heard in [true, false] {
        let bell = Arc::new(Notify::new());
        let hint = Arc::clone(&bell);
        let rig = Rig::bent(|bent| {
            on_contention(bent.without_wakes(), move |contention| {
                let hint = Arc::clone(&hint);
                contention.wake(Wake::Hint(Box::pin(async move { hint.notified().await })))
            })
        });
        let held = taken(&rig).await;
        let lock = rig.manager().lock("k");
        let (acquired, ()) = tokio::join!(lock.acquire_within(secs(60)), async {
            sleep(ms(20_700)).await;
            held.release().await.unwrap();
            if heard {
                bell.notify_waiters();
            }
        });
        assert!(acquired.unwrap().is_some());
        assert_eq!(rig.now(), if heard { ms(20_700) } else { ms(21_500) });
    }
}

#[tokio::test(start_paused = true)]
async fn a_hint_that_fires_early_makes_no_grant() {
    let bell = Arc::new(Notify::new());
    let hint = Arc::clone(&bell);
    let rig = Rig::bent(|bent| {
        on_contention(bent.without_wakes(), move |contention| {
            let hint = Arc::clone(&hint);
            contention.wake(Wake::Hint(Box::pin(async move { hint.notified().await })))
        })
    });
    let _held = taken(&rig).await;
    let lock = rig.manager().lock("k");
    let (acquired, ()) = tokio::join!(lock.acquire_within(secs(10)), async {
        for _ in 0..4 {
            sleep(ms(2_000)).await;
            bell.notify_waiters();
        }
    });
    assert!(acquired.unwrap().is_none());
    assert_eq!(rig.now(), secs(10));
}

#[tokio::test(start_paused = true)]
async fn hints_that_always_fire_at_once_are_no_storm() {
    // As from a subscription whose connection is gone.
    let rig = Rig::bent(|bent| {
        on_contention(bent.without_wakes(), |contention| contention.wake(Wake::Hint(Box::pin(ready(())))))
    });
    let _held = taken(&rig).await;
    assert!(rig.manager().lock("k").acquire_within(secs(60)).await.unwrap().is_none());
    let calls = rig.calls(Operation::Acquire);
    assert!(calls < 60 * 20, "{calls} calls in a minute");
}

#[tokio::test(start_paused = true)]
async fn who_was_misled_still_hears_its_own_manager() {
    let rig = Rig::bent(|bent| {
        on_contention(bent.without_wakes(), |contention| contention.wake(Wake::Hint(Box::pin(ready(())))))
    });
    let manager = rig.manager();
    let held = manager.lock("k").ttl(secs(300)).try_acquire().await.unwrap().unwrap();
    let lock = manager.lock("k").ttl(ms(600));
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire_within(secs(60)).await }
    });
    sleep(ms(20_123)).await;
    for _ in 0..20 {
        sleep(ms(77)).await;
        assert!(lock.acquire_within(ms(10)).await.unwrap().is_none(), "those behind it get an answer");
    }
    let before = rig.now();
    held.release().await.unwrap();
    assert!(waiting.await.unwrap().unwrap().is_some());
    assert_eq!(rig.now(), before);
}

#[tokio::test(start_paused = true)]
async fn places_that_are_always_broken_are_no_storm() {
    let rig = Rig::bent(|bent| {
        on_contention(bent.without_wakes(), |contention| contention.wake(Wake::Place(Box::pin(ready(())))))
    });
    let held = taken(&rig).await;
    let lock = rig.manager().lock("k");
    let (acquired, ()) = tokio::join!(lock.acquire_within(secs(60)), async {
        sleep(secs(50)).await;
        held.release().await.unwrap();
    });
    assert!(acquired.unwrap().is_some());
    assert!(rig.now() <= secs(52), "it is polled instead");
    let calls = rig.calls(Operation::Acquire);
    assert!(calls < 60 * 20, "{calls} calls in a minute");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_always_about_to_end_is_no_storm() {
    // As from a store that rounds down, or that ends a dead holder's lease late.
    for remaining in [Duration::ZERO, ms(1)] {
        for in_line in [true, false] {
            let rig = Rig::bent(|bent| {
                on_contention(bent.without_wakes(), move |contention| {
                    let contention = contention.retry_after(remaining);
                    if in_line { contention.wake(Wake::Place(Box::pin(pending()))) } else { contention }
                })
            });
            let _held = taken(&rig).await;
            assert!(rig.manager().lock("k").acquire_within(secs(60)).await.unwrap().is_none());
            let calls = rig.calls(Operation::Acquire);
            assert!(calls < 60 * 20, "{calls} calls in a minute");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_always_put_off_is_no_storm() {
    for retry_after in [Duration::ZERO, ms(5)] {
        for fires in [true, false] {
            let rig = Rig::bent(|bent| {
                on_contention(bent.without_wakes(), move |contention| {
                    let mut contention = contention.retry_after(retry_after);
                    contention.put_off = true;
                    if fires { contention.wake(Wake::Hint(Box::pin(ready(())))) } else { contention }
                })
            });
            let _held = taken(&rig).await;
            assert!(rig.manager().lock("k").acquire_within(secs(60)).await.unwrap().is_none());
            let calls = rig.calls(Operation::Acquire);
            assert!(calls < 60 * 20, "{calls} calls in a minute");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn hints_that_come_now_and_then_keep_no_polls_frequent() {
    // As when the holder's renewals change what is watched.
    let bell = Arc::new(Notify::new());
    let hint = Arc::clone(&bell);
    let rig = Rig::bent(|bent| {
        on_contention(bent.without_wakes(), move |contention| {
            let hint = Arc::clone(&hint);
            contention.wake(Wake::Hint(Box::pin(async move { hint.notified().await })))
        })
    });
    let _held = taken(&rig).await;
    let lock = rig.manager().lock("k");
    let (acquired, ()) = tokio::join!(lock.acquire_within(secs(21)), async {
        for _ in 0..40 {
            sleep(ms(500)).await;
            bell.notify_waiters();
        }
    });
    assert!(acquired.unwrap().is_none());
    let calls = rig.calls(Operation::Acquire);
    assert!(calls <= 40 + 21 + 5, "{calls} calls in 21 s");
}

#[tokio::test(start_paused = true)]
async fn a_place_whose_wake_is_lost_is_covered_by_the_ttl() {
    let rig = Rig::bent(|bent| {
        on_contention(bent.without_wakes(), |contention| contention.wake(Wake::Place(Box::pin(pending()))))
    });
    let other = rig.manager();
    let held = other.lock("k").try_acquire().await.unwrap().unwrap();
    let lock = rig.manager().lock("k");
    let (acquired, ()) = tokio::join!(lock.acquire(), async {
        sleep(secs(1)).await;
        held.release().await.unwrap();
    });
    assert!(acquired.is_ok());
    assert_eq!(rig.now(), TTL + ms(1));
}

#[tokio::test(start_paused = true)]
async fn a_lost_release_of_a_dead_holder_is_waited_out() {
    for set_up in [Rig::new, Rig::polled] {
        let rig = set_up();
        let other = rig.manager();
        let dead = other.lock("k").try_acquire().await.unwrap().unwrap();
        rig.store.always(Operation::Release, Fault::hang());
        rig.store.always(Operation::Extend, Fault::hang());
        drop(dead);
        let guard = rig.manager().lock("k").acquire().await.unwrap();
        assert!(rig.now() <= TTL + ms(1), "taken after {:?}", rig.now());
        guard.check().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_hundred_waiters_are_no_poll_storm() {
    for (rig, most) in [(Rig::new(), 2), (Rig::polled(), 14)] {
        let _held = taken(&rig).await;
        let managers = [rig.manager(), rig.manager()];
        for number in 0..100 {
            let lock = managers[number % 2].lock("k");
            tokio::spawn(async move { lock.acquire().await });
        }
        sleep(secs(10)).await;
        let calls = rig.store.total_calls();
        assert!(calls <= 2 * most, "{calls} calls for two managers in 10 s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_local_release_is_heard_while_the_answer_is_under_way() {
    let rig = Rig::polled();
    let manager = rig.manager();
    let held = manager.lock("k").ttl(secs(300)).try_acquire().await.unwrap().unwrap();
    let lock = manager.lock("k");
    let (acquired, ()) = tokio::join!(lock.acquire_within(secs(60)), async {
        sleep(ms(2_400)).await;
        // The poll at 2500 ms is refused, and its answer comes after the release.
        rig.store.once(Operation::Acquire, Fault::delay_reply(ms(300)));
        sleep(ms(200)).await;
        held.release().await.unwrap();
    });
    assert!(acquired.unwrap().is_some());
    assert_eq!(rig.now(), ms(2_800));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_rings_too() {
    let rig = Rig::polled();
    let manager = rig.manager();
    let held = manager.lock("k").ttl(secs(300)).try_acquire().await.unwrap().unwrap();
    let lock = manager.lock("k");
    let (acquired, ()) = tokio::join!(lock.acquire_within(secs(60)), async {
        sleep(ms(2_600)).await;
        drop(held);
    });
    let guard = acquired.unwrap().unwrap();
    assert_eq!(rig.now(), ms(2_600));
    assert!(guard.check().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_late_grant_given_back_rings_too() {
    // Somebody who asks outside the line is granted it too late, while the head naps.
    let late = Arc::new(AtomicBool::new(false));
    let is_late = Arc::clone(&late);
    let rig = Rig::bent(|bent| {
        bent.without_wakes().acquire(move |_, attempt| match attempt {
            Attempt::Acquired(mut grant) if is_late.swap(false, Ordering::Relaxed) => {
                grant.validity = Duration::ZERO;
                Attempt::Acquired(grant)
            }
            attempt => attempt,
        })
    });
    let held = taken(&rig).await;
    let manager = rig.manager();
    let lock = manager.lock("k");
    let (acquired, ()) = tokio::join!(lock.acquire_within(secs(60)), async {
        sleep(ms(2_600)).await;
        held.release().await.unwrap();
        late.store(true, Ordering::Relaxed);
        assert_eq!(manager.lock("k").try_acquire().await.unwrap_err().kind(), ErrorKind::Unavailable);
    });
    assert!(acquired.unwrap().is_some());
    assert_eq!(rig.now(), ms(2_600));
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_waits_for_any_more_goes_to_the_next() {
    for set_up in [Rig::new, Rig::polled] {
        let rig = set_up();
        let manager = rig.manager();
        let held = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
        let lock = manager.lock("k");
        let gone = tokio::spawn({
            let lock = lock.clone();
            async move { timeout(secs(2), lock.acquire()).await.map(drop) }
        });
        settle().await;
        let next = tokio::spawn(async move { lock.acquire().await });
        sleep(secs(2)).await;
        held.release().await.unwrap();
        // It left without the grant, or had it for an instant: both happen when the two come together.
        drop(gone.await.unwrap());
        next.await.unwrap().unwrap().release().await.unwrap();
        assert!(rig.now() <= secs(4));
        until_nothing_is_left(&manager).await;
        assert!(rig.is_free("k").await);
    }
}
