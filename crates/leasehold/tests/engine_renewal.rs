//! Renewal in the background: batches, failures, and its end.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

mod support {
    pub(crate) mod bent;
    pub(crate) mod rig;
}

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Waker};
use std::time::Duration;

use leasehold::observe::{Event, Observer};
use leasehold::store::{Attempt, Grant, Tie};
use leasehold::testkit::{Fault, Residue};
use leasehold::{Close, Error, ErrorKind, LockGuard, LockManager, LostReason, Operation, Renew};
use support::rig::{Note, Rig, TTL, key, ms, reason, secs, settle, until_nothing_is_left};
use tokio::time::sleep;

async fn hold(manager: &LockManager, names: impl IntoIterator<Item = String>) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for name in names {
        guards.push(manager.lock(&name).try_acquire().await.unwrap().unwrap());
    }
    guards
}

fn names(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|number| format!("k{number}"))
}

#[tokio::test(start_paused = true)]
async fn a_thousand_leases_are_renewed_in_a_few_calls() {
    let rig = Rig::new();
    let guards = hold(&rig.manager(), names(1000)).await;
    sleep(secs(301)).await;
    assert!(guards.iter().all(|guard| guard.check().is_ok() && guard.remaining() > secs(19)));
    assert_eq!(rig.calls(Operation::Extend), 30 * 4);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_carries_the_ttl_and_neither_tie_nor_holder() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").reason("first").try_acquire().await.unwrap().unwrap();
    guard.extend(secs(60)).await.unwrap();
    rig.store.clear_log();
    sleep(secs(21)).await;
    let log = rig.store.log();
    assert_eq!(log.len(), 1, "after an extend to 60 s it is renewed every 20 s");
    assert_eq!((log[0].ttl, log[0].tie), (Some(secs(60)), None));
    let holder = rig.holder("k").await.unwrap();
    assert_eq!(holder.info.reason.as_deref(), Some("first"));
    guard.extend(secs(6)).await.unwrap();
    rig.store.clear_log();
    sleep(secs(61)).await;
    guard.check().unwrap();
    assert!(rig.store.log().iter().all(|call| call.ttl == Some(secs(6))));
    assert_eq!(rig.store.log().len(), 30);
    assert_eq!(rig.store.log()[0].tie, None);
    drop(guard);
    let acquired = rig.manager().lock("k").try_acquire().await.unwrap();
    drop(acquired);
    assert!(rig.store.log().iter().any(|call| call.tie == Some(Tie::Process)), "only a first grant is tied");
    rig.store.clear_log();
    let acquired = rig.manager().lock("group").tie(Tie::Group(7)).try_acquire().await.unwrap();
    drop(acquired);
    assert_eq!(rig.store.log()[0].tie, Some(Tie::Group(7)));
}

#[tokio::test(start_paused = true)]
async fn a_poisoned_key_loses_only_itself() {
    for fault in [Fault::hang(), Fault::fail(ErrorKind::Indeterminate), Fault::fail(ErrorKind::Rejected)] {
        let rig = Rig::new();
        let guards = hold(&rig.manager(), names(50)).await;
        rig.store.always(Operation::Extend, fault.on(&key("k7")));
        sleep(secs(120)).await;
        let lost: Vec<_> =
            guards.iter().filter(|guard| guard.check().is_err()).map(|guard| guard.key().name().to_owned()).collect();
        assert_eq!(lost, ["k7"]);
        let calls = rig.calls(Operation::Extend);
        sleep(secs(100)).await;
        assert_eq!(rig.calls(Operation::Extend) - calls, 10, "the others are one batch again");
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_hangs_delays_no_other() {
    let rig = Rig::new();
    let manager = rig.manager();
    let early = hold(&manager, names(3)).await;
    sleep(secs(1)).await;
    let late = hold(&manager, ["late".to_owned()]).await;
    rig.store.once(Operation::Extend, Fault::hang());
    sleep(ms(10_050)).await;
    assert!(late[0].remaining() > secs(29), "renewed at 11 s, while the batch of 10 s hangs");
    assert!(early.iter().all(|guard| guard.remaining() < secs(19)));
    sleep(secs(5)).await;
    assert!(early.iter().all(|guard| guard.remaining() > secs(28)), "each by itself, once the batch was given up");
    assert_eq!(rig.calls(Operation::Extend), 1 + 1 + 3);
}

#[tokio::test(start_paused = true)]
async fn a_lease_survives_failures_that_end_before_its_deadline() {
    for fault in
        [Fault::fail(ErrorKind::Unavailable), Fault::lose_reply(), Fault::hang(), Fault::fail(ErrorKind::Rejected)]
    {
        let rig = Rig::new();
        let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
        rig.store.outage(fault);
        sleep(secs(25)).await;
        rig.store.heal();
        sleep(secs(60)).await;
        guard.check().unwrap();
        assert_eq!(rig.seen.count(|note| matches!(note, Note::Lost(..))), 0);
        let failed = rig.seen.count(|note| matches!(note, Note::RenewalFailed(..)));
        assert!((2..30).contains(&failed), "{failed} failures in 15 s");
        guard.release().await.unwrap();
        assert!(rig.is_free("k").await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_store_is_not_hammered_as_the_deadline_comes_near() {
    let rig = Rig::new();
    let guards = hold(&rig.manager(), names(3)).await;
    rig.store.outage(Fault::fail(ErrorKind::Unavailable));
    guards[0].lost().await;
    let calls = rig.calls(Operation::Extend);
    assert!(calls < 3 * 100, "{calls} calls for three leases");
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_tried_again_within_the_interval() {
    let rig = Rig::new();
    let lock = rig.manager().lock("k").ttl(secs(600)).renew(Renew::Every(secs(5)));
    let guard = lock.try_acquire().await.unwrap().unwrap();
    rig.store.once(Operation::Extend, Fault::fail(ErrorKind::Unavailable));
    sleep(ms(5_500)).await;
    assert_eq!(rig.calls(Operation::Extend), 1);
    sleep(secs(5)).await;
    assert_eq!(rig.calls(Operation::Extend), 2);
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_shortest_leases_are_renewed_at_their_interval() {
    let rig = Rig::new();
    let manager = rig.manager();
    let short = manager.lock("short").ttl(ms(30)).try_acquire().await.unwrap().unwrap();
    let brisk = manager.lock("brisk").renew(Renew::Every(ms(15))).try_acquire().await.unwrap().unwrap();
    sleep(secs(1)).await;
    short.check().unwrap();
    brisk.check().unwrap();
    let calls = rig.calls(Operation::Extend);
    assert!((80..=220).contains(&calls), "{calls} calls in a second");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_grants_less_than_was_asked_is_renewed_in_time() {
    let short = |grant: Grant| {
        let mut short = grant;
        short.validity = secs(3);
        short
    };
    let rig = Rig::bent(|bent| {
        bent.acquire(move |_, attempt| match attempt {
            Attempt::Acquired(grant) => Attempt::Acquired(short(grant)),
            contended => contended,
        })
        .extend(move |_, answers| {
            answers.map(|answers| answers.into_iter().map(|answer| Ok(answer?.map(short))).collect())
        })
    });
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    sleep(secs(60)).await;
    guard.check().unwrap();
    let calls = rig.calls(Operation::Extend);
    assert!((40..90).contains(&calls), "{calls} calls in a minute");
}

#[tokio::test(start_paused = true)]
async fn not_held_ends_it_at_once() {
    let rig = Rig::new();
    let manager = rig.manager();
    let guard = manager.lock("k").try_acquire().await.unwrap().unwrap();
    rig.manager().force_release("k", None).await.unwrap().unwrap();
    let successor = rig.manager().lock("k").ttl(secs(300)).try_acquire().await.unwrap().unwrap();
    assert_eq!(guard.lost().await, LostReason::NotHeld);
    assert_eq!((rig.now(), rig.calls(Operation::Extend)), (secs(10), 1));
    assert!(guard.release().await.is_err());
    sleep(secs(60)).await;
    successor.check().unwrap();
    assert!(successor.fencing_token().is_some());
    assert_eq!(Residue::of(&manager), Residue::default());
}

#[tokio::test(start_paused = true)]
async fn renewal_stops_with_the_guard() {
    let rig = Rig::new();
    let manager = rig.manager();
    fastrand::seed(28);
    for round in 0..1000_u64 {
        let guard = manager.lock("k").ttl(ms(300)).acquire().await.unwrap();
        match fastrand::u8(0..3) {
            0 => rig.store.once(Operation::Extend, Fault::delay(ms(fastrand::u64(0..300)))),
            1 => rig.store.once(Operation::Extend, Fault::delay_reply(ms(fastrand::u64(0..300)))),
            _ => {}
        }
        sleep(ms(fastrand::u64(80..120))).await;
        if round % 2 == 0 {
            guard.release().await.unwrap()
        } else {
            drop(guard)
        }
        settle().await;
        rig.store.heal();
        assert!(rig.is_free("k").await, "round {round}");
    }
    until_nothing_is_left(&manager).await;
    sleep(secs(1)).await;
    let calls = rig.calls(Operation::Extend);
    sleep(secs(10)).await;
    assert_eq!(rig.calls(Operation::Extend), calls, "a renewal outlived its guard");
    assert!(rig.is_free("k").await);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_after_the_release_is_nobodys_failure() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    rig.store.once(Operation::Extend, Fault::hang());
    sleep(secs(11)).await;
    guard.release().await.unwrap();
    sleep(secs(60)).await;
    assert_eq!(rig.seen.count(|note| matches!(note, Note::RenewalFailed(..) | Note::Lost(..))), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_renewal_leaves_the_present_deadline() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    sleep(secs(11)).await;
    guard.stop_renewal();
    let left = guard.remaining();
    assert!(left > secs(28));
    let since = rig.now();
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert_eq!(rig.now() - since, left);
    assert_eq!(rig.calls(Operation::Extend), 1);
}

#[tokio::test(start_paused = true)]
async fn an_extend_by_hand_does_not_start_a_stopped_renewal() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    guard.stop_renewal();
    guard.extend(secs(60)).await.unwrap();
    guard.lost().await;
    assert_eq!((rig.now(), rig.calls(Operation::Extend)), (secs(60) - ms(602), 1));
}

#[tokio::test(start_paused = true)]
async fn an_interval_must_leave_room_for_a_retry() {
    let rig = Rig::new();
    let every = |interval| rig.builder().ttl(secs(10)).renew(Renew::Every(interval)).build();
    for interval in [Duration::ZERO, ms(5001), secs(10), secs(11)] {
        assert_eq!(every(interval).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    let manager = every(secs(5)).unwrap();
    let error = manager.lock("k").ttl(secs(9)).try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), rig.store.total_calls()), (ErrorKind::InvalidInput, 0));
    let guard = manager.lock("k").try_acquire().await.unwrap().unwrap();
    guard.extend(secs(4)).await.unwrap();
    sleep(secs(60)).await;
    guard.check().unwrap();
    assert!(rig.calls(Operation::Extend) >= 25, "after an extend to 4 s, every 2 s");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_or_answers_too_few_costs_only_its_own_time() {
    for panics in [true, false] {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let rig = Rig::bent(|bent| {
            bent.extend(move |_, answers| {
                if counted.fetch_add(1, Ordering::Relaxed) >= 2 {
                    return answers;
                }
                assert!(!panics, "a bug in the store");
                answers.map(|mut answers| {
                    answers.pop();
                    answers
                })
            })
        });
        let manager = rig.manager();
        let guards = hold(&manager, names(3)).await;
        sleep(secs(100)).await;
        assert!(guards.iter().all(|guard| guard.check().is_ok()));
        assert!(count.load(Ordering::Relaxed) >= 10);
        drop(guards);
        until_nothing_is_left(&manager).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_fails_in_a_batch_fails_alone() {
    let rig = Rig::bent(|bent| {
        bent.extend(|claims, answers| {
            answers.map(|answers| {
                let failed = |name: &str| name == "k1";
                let one = |(claim, answer): (&leasehold::store::Claim<'_>, _)| {
                    if failed(claim.key.name()) {
                        Err(Error::new(ErrorKind::Unavailable, "slot moved"))
                    } else {
                        answer
                    }
                };
                claims.iter().zip(answers).map(one).collect()
            })
        })
    });
    let guards = hold(&rig.manager(), names(3)).await;
    sleep(secs(40)).await;
    assert_eq!(guards.iter().map(reason).collect::<Vec<_>>(), [None, Some(LostReason::Expired), None]);
}

#[tokio::test(start_paused = true)]
async fn blocking_code_makes_nobody_believe_too_long() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    // As a busy loop does it: the clock goes on, no timer fires and no task runs.
    rig.clock.suspend(secs(29));
    guard.check().unwrap();
    rig.clock.suspend(secs(1));
    assert_eq!(reason(&guard), Some(LostReason::Expired));
    let other = rig.manager().lock("other");
    let stopped = other.run(async |_| {
        rig.clock.suspend(TTL);
        tokio::task::yield_now().await;
        panic!("polled after its lease was lost");
    });
    assert_eq!(stopped.await.unwrap_err().lost_reason(), Some(LostReason::Expired));
}

/// Closes a manager from within a renewal that just looks at several leases.
#[derive(Debug, Default)]
struct ClosesOnLoss(OnceLock<LockManager>);

impl Observer for ClosesOnLoss {
    fn observe(&self, event: &Event) {
        if let (Event::Lost(lost), Some(manager)) = (event, self.0.get())
            && lost.reason == LostReason::Expired
        {
            let closing = pin!(manager.close(Close::Release));
            assert!(closing.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
    }
}

#[derive(Debug)]
struct Shared(Arc<ClosesOnLoss>);

impl Observer for Shared {
    fn observe(&self, event: &Event) {
        self.0.observe(event);
    }
}

#[tokio::test(start_paused = true)]
async fn an_extend_that_nobody_polls_costs_no_lease() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    rig.store.once(Operation::Extend, Fault::delay(secs(1)));
    let mut extend = Box::pin(guard.extend(secs(6)));
    assert!(extend.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    rig.store.clear_log();
    sleep(secs(21)).await;
    assert_eq!(rig.calls(Operation::Extend), 0, "there was time yet");
    sleep(secs(180)).await;
    guard.check().unwrap();
    extend.await.ok();
    guard.check().unwrap();
    // What follows waits for both.
    guard.hand_over().await.unwrap();
    rig.store.clear_log();
    sleep(secs(20)).await;
    assert_eq!(rig.calls(Operation::Extend), 0);
}

/// Whoever it is to be tied to, a renewal says nothing of that, and cannot harm it.
#[tokio::test(start_paused = true)]
async fn a_tie_that_nobody_polls_costs_no_lease() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    rig.store.once(Operation::Extend, Fault::delay(secs(1)));
    let mut tying = Box::pin(guard.tie_to(Tie::Nothing));
    assert!(tying.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    rig.store.clear_log();
    sleep(secs(180)).await;
    guard.check().unwrap();
    let log = rig.store.log();
    assert!(!log.is_empty() && log.iter().all(|call| call.tie.is_none()), "{log:?}");
    tying.await.ok();
    guard.check().unwrap();
    guard.tie_to(Tie::Process).await.unwrap();
    assert_eq!(rig.store.log().pop().unwrap().tie, Some(Tie::Process));
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_waits_for_a_renewal_that_went_beside_an_extend() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    rig.store.once(Operation::Extend, Fault::hang());
    let mut extend = Box::pin(guard.extend(TTL));
    assert!(extend.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    rig.store.clear_log();
    rig.store.once(Operation::Extend, Fault::delay(secs(1)));
    while rig.calls(Operation::Extend) == 0 {
        sleep(ms(10)).await;
    }
    drop(extend);
    let before = rig.now();
    guard.hand_over().await.unwrap();
    assert!(rig.now() - before > ms(900), "it did not wait");
}

#[tokio::test(start_paused = true)]
async fn nothing_overtakes_a_hand_over_that_nobody_polls() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    rig.store.once(Operation::Extend, Fault::hang());
    let mut hand_over = Box::pin(guard.hand_over());
    assert!(hand_over.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    sleep(secs(60)).await;
    assert_eq!(rig.calls(Operation::Extend), 1);
    assert_eq!(reason(&guard), Some(LostReason::Expired));
}

#[tokio::test(start_paused = true)]
async fn closing_finds_a_lease_that_is_just_looked_at() {
    let rig = Rig::new();
    let closes = Arc::new(ClosesOnLoss::default());
    let manager = rig.builder().renew(Renew::Off).observer(Shared(Arc::clone(&closes))).build().unwrap();
    let expiring = manager.lock("a").try_acquire().await.unwrap().unwrap();
    let other = manager.lock("b").ttl(TTL + ms(10)).try_acquire().await.unwrap().unwrap();
    closes.0.set(manager.clone()).unwrap();
    sleep(ms(29_699)).await;
    assert_eq!(reason(&expiring), Some(LostReason::Expired));
    assert_eq!(reason(&other), Some(LostReason::Closed));
    settle().await;
    assert!(rig.is_free("b").await);
}
