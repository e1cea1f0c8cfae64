//! Until when a lease may be assumed, and how its end becomes known.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

mod support {
    pub(crate) mod bent;
    pub(crate) mod rig;
}

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::clock::TimeSource;
use leasehold::store::memory::MemoryStore;
use leasehold::store::{Attempt, Loss};
use leasehold::testkit::{Fault, History, Record, TestClock, Violation};
use leasehold::{Clock, Close, ErrorKind, LockManager, LostReason, Margin, Operation, Renew};
use support::rig::{LIMIT, Note, Rig, TTL, VALIDITY, key, ms, reason, secs, settle, until_nothing_is_left};
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn the_deadline_counts_from_the_send_not_from_the_reply() {
    let rig = Rig::new();
    rig.store.once(Operation::Acquire, Fault::delay_reply(secs(4)));
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    assert_eq!((rig.now(), guard.remaining()), (secs(4), VALIDITY - secs(4)));
}

#[tokio::test(start_paused = true)]
async fn a_repeat_after_a_lost_reply_counts_from_the_repeat() {
    let rig = Rig::new();
    rig.store.once(Operation::Acquire, Fault::lose_reply().silently());
    rig.store.once(Operation::Acquire, Fault::delay_reply(secs(2)));
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    // The first was given up after the limit, the second sent after a pause of 10 ms.
    assert_eq!(rig.now(), LIMIT + ms(10) + secs(2));
    assert_eq!(guard.remaining(), VALIDITY - secs(2));
    // One of the two may still be on its way, so the release is asked for more than once.
    guard.release().await.unwrap();
    sleep(secs(2)).await;
    assert!(rig.is_free("k").await);
    assert!(rig.calls(Operation::Release) > 1);
}

#[tokio::test(start_paused = true)]
async fn a_short_validity_shortens_the_deadline() {
    let rig = Rig::bent(|bent| {
        bent.acquire(|_, attempt| match attempt {
            Attempt::Acquired(mut grant) => {
                grant.validity = secs(3);
                Attempt::Acquired(grant)
            }
            contended => contended,
        })
    });
    let guard = rig.manager().lock("k").renew(Renew::Off).try_acquire().await.unwrap().unwrap();
    assert_eq!(guard.remaining(), secs(3) - ms(302));
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert_eq!(rig.now(), secs(3) - ms(302));
}

#[tokio::test(start_paused = true)]
async fn a_grant_past_its_deadline_is_given_back() {
    // The machine sleeps while the request is under way.
    let clock = TestClock::start();
    let memory = MemoryStore::with_clock(Clock::tokio());
    let (asleep, once) = (clock.clone(), AtomicBool::new(true));
    let bent = support::bent::BentStore::new(memory.clone()).acquire(move |_, attempt| {
        if once.swap(false, Ordering::Relaxed) {
            asleep.suspend(TTL);
        }
        attempt
    });
    let rig = Rig::of(clock, memory, bent);
    let manager = rig.manager();
    let error = manager.lock("k").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(rig.is_free("k").await, "it was given back before the error came");
    assert_eq!(rig.seen.count(|note| matches!(note, Note::Acquired(..))), 0);
    assert!(manager.lock("k").try_acquire().await.unwrap().is_some());
    until_nothing_is_left(&manager).await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_past_its_deadline_that_cannot_be_given_back_is_indeterminate() {
    let rig = Rig::bent(|bent| {
        bent.acquire(|_, attempt| match attempt {
            Attempt::Acquired(mut grant) => {
                grant.validity = ms(1);
                Attempt::Acquired(grant)
            }
            contended => contended,
        })
    });
    rig.store.once(Operation::Release, Fault::fail(ErrorKind::Unavailable));
    let manager = rig.manager();
    let error = manager.lock("k").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate);
    until_nothing_is_left(&manager).await;
    assert!(rig.is_free("k").await, "the undo went on in the background");
}

#[tokio::test(start_paused = true)]
async fn extending_to_a_shorter_ttl_shortens_nothing() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").renew(Renew::Off).try_acquire().await.unwrap().unwrap();
    guard.extend(secs(6)).await.unwrap();
    assert_eq!((guard.remaining(), guard.ttl()), (VALIDITY, secs(6)));
    assert_eq!(rig.holder("k").await.unwrap().remaining, Some(TTL));
    sleep(secs(28)).await;
    guard.extend(secs(6)).await.unwrap();
    assert_eq!(guard.remaining(), ms(5_938));
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_extend_moves_nothing() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").renew(Renew::Off).try_acquire().await.unwrap().unwrap();
    sleep(secs(1)).await;
    rig.store.always(Operation::Extend, Fault::lose_reply());
    let error = guard.extend(secs(60)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate);
    assert_eq!((guard.remaining(), guard.ttl()), (VALIDITY - rig.now(), TTL));
    assert!(rig.holder("k").await.unwrap().remaining > Some(secs(58)), "it was applied all the same");
    rig.store.heal();
    guard.release().await.unwrap();
    assert!(rig.is_free("k").await);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_in_flight_does_not_outdate_a_longer_extend() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    rig.store.once(Operation::Extend, Fault::delay_reply(secs(3)));
    sleep(secs(11)).await;
    // The renewal was sent at 10 s and is answered at 13 s; only then is the extend sent.
    guard.extend(secs(60)).await.unwrap();
    assert_eq!((rig.now(), guard.remaining()), (secs(13), secs(60) - ms(602)));
    assert_eq!(rig.calls(Operation::Extend), 2);
}

#[tokio::test(start_paused = true)]
async fn extends_at_the_same_time_go_one_after_the_other() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").renew(Renew::Off).try_acquire().await.unwrap().unwrap();
    rig.store.always(Operation::Extend, Fault::delay_reply(secs(1)));
    let (long, short) = tokio::join!(guard.extend(secs(60)), guard.extend(secs(40)));
    long.unwrap();
    short.unwrap();
    assert_eq!((rig.now(), guard.ttl(), guard.remaining()), (secs(2), secs(40), secs(60) - ms(602) - secs(2)));
}

#[tokio::test(start_paused = true)]
async fn an_extend_is_not_sent_for_a_lease_that_was_lost_while_it_waited_its_turn() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    rig.store.once(Operation::Extend, Fault::delay_reply(secs(3)));
    sleep(secs(11)).await;
    let (extended, ()) = tokio::join!(guard.extend(secs(60)), async {
        sleep(secs(1)).await;
        rig.clock.suspend(secs(20));
    });
    let error = extended.unwrap_err();
    assert_eq!((error.kind(), error.lost_reason()), (ErrorKind::NotHeld, Some(LostReason::Expired)));
    assert_eq!(rig.calls(Operation::Extend), 1);
}

#[tokio::test(start_paused = true)]
async fn lost_comes_at_the_deadline_whatever_the_network_does() {
    for fault in [Fault::hang(), Fault::fail(ErrorKind::Unavailable), Fault::lose_reply(), Fault::delay_reply(secs(40))]
    {
        let rig = Rig::new();
        let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
        rig.store.outage(fault);
        assert_eq!(guard.lost().await, LostReason::Expired);
        assert_eq!(rig.now(), VALIDITY);
        assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::NotHeld);
        assert_eq!(guard.remaining(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn lost_comes_within_a_second_after_a_suspend() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    let handle = guard.handle();
    let watcher = tokio::spawn(async move { handle.lost().await });
    settle().await;
    rig.clock.suspend(secs(3600));
    assert_eq!(reason(&guard), Some(LostReason::Expired), "the first check knows");
    let woke = rig.now();
    assert_eq!(watcher.await.unwrap(), LostReason::Expired);
    assert!(rig.now() - woke <= secs(1));
}

#[tokio::test(start_paused = true)]
async fn nobody_has_to_look_for_a_suspended_lease_to_be_told_as_lost() {
    let rig = Rig::new();
    let _guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    settle().await;
    rig.clock.suspend(secs(3600));
    sleep(ms(1001)).await;
    assert_eq!(rig.seen.count(|note| *note == Note::Lost("k".into(), LostReason::Expired)), 1);
    assert_eq!(rig.calls(Operation::Extend), 0, "a lost lease is not renewed");
}

#[tokio::test(start_paused = true)]
async fn a_short_suspend_is_made_up_by_a_renewal() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    settle().await;
    rig.clock.suspend(secs(25));
    sleep(ms(1001)).await;
    guard.check().unwrap();
    assert!(guard.remaining() > secs(28));
}

#[tokio::test(start_paused = true)]
async fn a_late_renewal_reply_revives_nothing() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").max_hold(secs(12)).try_acquire().await.unwrap().unwrap();
    let other = rig.manager().lock("other").try_acquire().await.unwrap().unwrap();
    rig.store.always(Operation::Extend, Fault::delay_reply(secs(4)));
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    sleep(secs(5)).await;
    assert_eq!(reason(&guard), Some(LostReason::MaxHold));
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert!(guard.extend(TTL).await.is_err());
    other.check().unwrap();
    assert_eq!(rig.seen.count(|note| *note == Note::Renewed("k".into())), 0);
}

#[tokio::test(start_paused = true)]
async fn a_suspend_during_a_renewal_is_not_forgiven_by_its_reply() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    rig.store.once(Operation::Extend, Fault::delay_reply(secs(2)));
    sleep(secs(11)).await;
    rig.clock.suspend(secs(25));
    // At 38 s by the clock comes the answer to what was sent at 10 s; it would reach to 39.7 s.
    sleep(secs(2)).await;
    assert_eq!(reason(&guard), Some(LostReason::Expired));
    assert_eq!(rig.seen.count(|note| *note == Note::Lost("k".into(), LostReason::Expired)), 1);
}

#[tokio::test(start_paused = true)]
async fn every_end_has_its_reason() {
    let losses = Arc::new(parking_lot::Mutex::new(Vec::<Loss>::new()));
    let raised = Arc::clone(&losses);
    let rig = Rig::bent(|bent| {
        bent.acquire(move |_, attempt| match attempt {
            Attempt::Acquired(grant) => {
                let loss = Loss::new();
                raised.lock().push(loss.clone());
                Attempt::Acquired(grant.loss(loss))
            }
            contended => contended,
        })
    });
    let manager = rig.manager();
    let acquire = async |name: &str| manager.lock(name).try_acquire().await.unwrap().unwrap();

    let guard = acquire("connection").await;
    let lost = tokio::spawn({
        let handle = guard.handle();
        async move { handle.lost().await }
    });
    settle().await;
    losses.lock().pop().unwrap().raise(LostReason::ConnectionLost);
    assert_eq!(reason(&guard), Some(LostReason::ConnectionLost));
    assert_eq!((lost.await.unwrap(), rig.now()), (LostReason::ConnectionLost, Duration::ZERO));

    let guard = acquire("removed").await;
    manager.force_release("removed", None).await.unwrap().unwrap();
    assert_eq!(guard.lost().await, LostReason::NotHeld);
    assert_eq!(rig.now(), secs(10), "at the next renewal");

    let guard = acquire("handed").await;
    guard.hand_over().await.unwrap();
    assert_eq!(guard.lost().await, LostReason::HandedOver);
    let guard = acquire("kept").await;
    guard.keep().await.unwrap();
    assert_eq!(guard.lost().await, LostReason::HandedOver);

    let guard = acquire("released").await;
    let handle = guard.handle();
    guard.release().await.unwrap();
    assert_eq!(handle.lost().await, LostReason::Released);

    let guard = acquire("closed").await;
    manager.close(Close::Release).await.unwrap();
    assert_eq!(guard.lost().await, LostReason::Closed);
    assert_eq!(guard.release().await.unwrap_err().lost_reason(), Some(LostReason::Closed));
    assert!(rig.is_free("closed").await);
    until_nothing_is_left(&manager).await;
    // Ends that the holder chose are no losses.
    let lost: Vec<_> = rig.seen.notes().into_iter().filter(|note| matches!(note, Note::Lost(..))).collect();
    assert_eq!(
        lost,
        [
            Note::Lost("connection".into(), LostReason::ConnectionLost),
            Note::Lost("removed".into(), LostReason::NotHeld),
            Note::Lost("closed".into(), LostReason::Closed),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_a_lease_that_is_renewed_well() {
    let rig = Rig::new();
    let manager = rig.builder().max_hold(secs(100)).build().unwrap();
    let guard = manager.lock("k").try_acquire().await.unwrap().unwrap();
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    assert_eq!(rig.now(), secs(100));
    assert_eq!(rig.calls(Operation::Extend), 8, "every 10 s, and not where it cannot move the end any more");
    sleep(TTL).await;
    assert_eq!(rig.calls(Operation::Extend), 8);
    assert!(rig.is_free("k").await);
}

/// One holder whose clock is 10 % slow, and the next one, by the history checker.
async fn overlaps_with_a_slow_clock(margin: Margin) -> Vec<Violation> {
    let truth = TestClock::start();
    let memory = MemoryStore::with_clock(truth.clone().into());
    let slow = LockManager::builder(memory.clone()).clock(TestClock::with_rate(0.9).into()).margin(margin);
    let slow = slow.build().unwrap();
    let exact = LockManager::builder(memory).clock(truth.clone().into()).build().unwrap();
    let history = Arc::new(History::new());
    let first = slow.lock("k").renew(Renew::Off).try_acquire().await.unwrap().unwrap();
    let (from, fencing) = (truth.now(), first.fencing_token());
    let believer = tokio::spawn({
        let (truth, history) = (truth.clone(), Arc::clone(&history));
        async move {
            first.lost().await;
            history.record(Record::new(key("k"), 1, from, truth.now()).fencing(fencing));
        }
    });
    let second = exact.lock("k").acquire().await.unwrap();
    let from = truth.now();
    believer.await.unwrap();
    sleep(secs(1)).await;
    history.record(Record::new(key("k"), 2, from, truth.now()).fencing(second.fencing_token()));
    history.check()
}

#[tokio::test(start_paused = true)]
async fn a_margin_as_large_as_the_drift_keeps_holders_apart() {
    assert_eq!(overlaps_with_a_slow_clock(Margin::new(0.1, ms(2)).unwrap()).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_drift_beyond_the_margin_is_a_violation_that_the_checker_sees() {
    let violations = overlaps_with_a_slow_clock(Margin::default()).await;
    assert!(matches!(violations[..], [Violation::Overlap(_)]), "{violations:?}");
}
