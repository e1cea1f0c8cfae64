//! Passing a held lease on by its owner token, leaving it standing, and acting on it without taking it on.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

#[path = "fixtures/bed.rs"]
mod bed;

use leasehold::store::{Expiry, Tie};
use leasehold::testkit::Fault;
use leasehold::{ErrorKind, LostReason, Operation, OwnerToken, Renew};
use tokio::time::timeout;

use self::bed::{Bed, SECOND, TTL, at_rest, ms, others_run};

#[tokio::test(start_paused = true)]
async fn taking_on_rotates_the_token_and_raises_the_fence() {
    let bed = Bed::new();
    let (giver, taker) = (bed.manager(), bed.manager());
    let guard = giver.lock("given").try_acquire().await.unwrap().unwrap();
    let fence = guard.fencing_token();
    let token = guard.hand_over().await.unwrap();
    assert_eq!(guard.check().unwrap_err().lost_reason(), Some(LostReason::HandedOver));
    assert_eq!(guard.release().await.unwrap_err().lost_reason(), Some(LostReason::HandedOver));
    assert_eq!(bed.owner("given").await.as_ref(), Some(&token));

    let lock = taker.lock("given");
    let resumed = lock.resume(&token).await.unwrap();
    assert!(resumed.fencing_token() > fence);
    assert_ne!(bed.owner("given").await.as_ref(), Some(&token));
    // The giver's token is dead.
    assert_eq!(lock.release_by(&token).await.unwrap_err().kind(), ErrorKind::NotHeld);
    assert_eq!(lock.extend_by(&token, TTL).await.unwrap_err().kind(), ErrorKind::NotHeld);
    assert_eq!(lock.resume(&token).await.unwrap_err().kind(), ErrorKind::NotHeld);
    // The taker renews.
    tokio::time::sleep(5 * TTL).await;
    resumed.check().unwrap();
    resumed.release().await.unwrap();
    assert_eq!(bed.owner("given").await, None);
}

#[tokio::test(start_paused = true)]
async fn exactly_one_of_many_resumers_wins() {
    for count in [2, 50] {
        let bed = Bed::new();
        let token = bed.manager().lock("once").try_acquire().await.unwrap().unwrap().hand_over().await.unwrap();
        let mut resumers = Vec::new();
        for _ in 0..count {
            let (locks, token) = (bed.manager(), token.clone());
            bed.store.once(Operation::Transfer, Fault::delay(ms(fastrand::u64(0..20))));
            resumers.push(tokio::spawn(async move { locks.lock("once").resume(&token).await }));
        }
        let mut won = Vec::new();
        for resumer in resumers {
            match resumer.await.unwrap() {
                Ok(guard) => won.push(guard),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotHeld),
            }
        }
        assert_eq!(won.len(), 1);
        tokio::time::sleep(2 * TTL).await;
        won.pop().unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_resume_goes_back_to_its_token_even_when_its_request_is_late() {
    for late in [0, 5, 50, 500] {
        let bed = Bed::new();
        let locks = bed.manager();
        let lock = locks.lock("back");
        let token = lock.try_acquire().await.unwrap().unwrap().hand_over().await.unwrap();
        bed.store.clear_log();
        let fault = if late == 0 { Fault::lose_reply().silently() } else { Fault::delay(ms(late)) };
        bed.store.once(Operation::Transfer, fault);
        assert!(timeout(ms(2), lock.resume(&token)).await.is_err());
        tokio::time::sleep(ms(late)).await;
        at_rest(&locks).await;
        assert_eq!(bed.owner("back").await.as_ref(), Some(&token), "applied {late} ms late");
        let log = bed.store.log();
        let backwards = log.iter().filter(|call| call.owner.as_ref() == Some(&token));
        assert!(backwards.clone().all(|call| call.tie == Some(Tie::Nothing)), "{log:?}");
        assert_eq!(bed.store.calls(Operation::Release), 0);
        assert!(backwards.count() > 0);
        lock.resume(&token).await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_to_a_transfer_is_repaired_by_the_repeat() {
    for fault in [Fault::lose_reply(), Fault::lose_reply().silently()] {
        let bed = Bed::new();
        let locks = bed.manager();
        let lock = locks.lock("repeat");
        let token = lock.try_acquire().await.unwrap().unwrap().hand_over().await.unwrap();
        bed.store.once(Operation::Transfer, fault);
        let guard = lock.resume(&token).await.unwrap();
        assert_eq!(bed.store.calls(Operation::Transfer), 2);
        let holder = locks.holder("repeat").await.unwrap().unwrap();
        assert_eq!(guard.fencing_token(), holder.fencing);
        guard.release().await.unwrap();
        at_rest(&locks).await;
        assert_eq!(bed.held().await, Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn a_transfer_that_is_applied_late_changes_nothing() {
    let bed = Bed::new();
    let locks = bed.manager();
    let lock = locks.lock("late");
    let token = lock.try_acquire().await.unwrap().unwrap().hand_over().await.unwrap();
    // The first request arrives when its repeat has long been answered, and when the lease was given back.
    bed.store.once(Operation::Transfer, Fault::apply_late(ms(100)));
    let guard = lock.resume(&token).await.unwrap();
    let owner = bed.owner("late").await;
    tokio::time::sleep(ms(200)).await;
    assert_eq!(bed.owner("late").await, owner);
    guard.check().unwrap();

    bed.store.once(Operation::Transfer, Fault::apply_late(ms(100)));
    let token = guard.hand_over().await.unwrap();
    let guard = lock.resume(&token).await.unwrap();
    guard.release().await.unwrap();
    let successor = lock.try_acquire().await.unwrap().unwrap();
    tokio::time::sleep(2 * SECOND).await;
    successor.check().unwrap();
    assert!(bed.owner("late").await.is_some());
    successor.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_kept_lease_stands_for_its_full_ttl_and_is_tied_to_nothing() {
    let bed = Bed::new();
    let locks = bed.manager();
    let guard = locks.lock("kept").renew(Renew::Off).try_acquire().await.unwrap().unwrap();
    tokio::time::sleep(TTL / 2).await;
    guard.keep().await.unwrap();
    drop(guard);
    at_rest(&locks).await;
    drop(locks);
    let last = bed.store.log().pop().unwrap();
    assert_eq!((last.operation, last.tie, last.ttl), (Operation::Extend, Some(Tie::Nothing), Some(TTL)));
    tokio::time::sleep(TTL - ms(1)).await;
    assert!(bed.owner("kept").await.is_some());
    tokio::time::sleep(ms(2)).await;
    assert_eq!(bed.owner("kept").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_arrives_after_keep_ties_the_lease_to_nobody() {
    let bed = Bed::new();
    let locks = bed.manager();
    let guard = locks.lock("kept").try_acquire().await.unwrap().unwrap();
    // The renewal at a third of the ttl is under way for longer than its limit.
    bed.store.once(Operation::Extend, Fault::apply_late(8 * SECOND).silently());
    tokio::time::sleep(TTL / 3 + SECOND).await;
    guard.keep().await.unwrap();
    let kept_at = bed.store.log().len();
    tokio::time::sleep(2 * TTL).await;
    let log = bed.store.log();
    assert!(log[1..kept_at - 1].iter().all(|call| call.tie.is_none()), "{log:?}");
    assert_eq!(log[kept_at - 1].tie, Some(Tie::Nothing));
    assert_eq!(log.len(), kept_at, "nothing is asked for a lease that was left");
    assert_eq!(bed.owner("kept").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_failed_hand_over_leaves_the_guard_as_it_was() {
    for (fault, kind) in [
        (Fault::fail(ErrorKind::Unavailable), ErrorKind::Unavailable),
        (Fault::fail(ErrorKind::Rejected), ErrorKind::Rejected),
        (Fault::hang(), ErrorKind::Indeterminate),
        (Fault::lose_reply(), ErrorKind::Indeterminate),
    ] {
        let bed = Bed::new();
        let locks = bed.manager();
        let guard = locks.lock("mine").try_acquire().await.unwrap().unwrap();
        bed.store.always(Operation::Extend, fault);
        assert_eq!(guard.hand_over().await.unwrap_err().kind(), kind);
        assert_eq!(guard.keep().await.unwrap_err().kind(), kind);
        guard.check().unwrap();
        bed.store.heal();
        // It is renewed as before, and can be handed over after all.
        tokio::time::sleep(5 * TTL).await;
        guard.check().unwrap();
        let token = guard.hand_over().await.unwrap();
        locks.lock("mine").release_by(&token).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_of_a_lost_lease_is_refused_and_does_not_recreate_it() {
    let bed = Bed::new();
    let locks = bed.manager();
    let guard = locks.lock("gone").try_acquire().await.unwrap().unwrap();
    locks.force_release("gone", None).await.unwrap().unwrap();
    let error = guard.hand_over().await.unwrap_err();
    assert_eq!((error.kind(), error.lost_reason()), (ErrorKind::NotHeld, Some(LostReason::NotHeld)));
    assert_eq!(guard.check().unwrap_err().lost_reason(), Some(LostReason::NotHeld));
    assert_eq!(bed.owner("gone").await, None);
}

#[tokio::test(start_paused = true)]
async fn an_extend_that_stood_behind_a_hand_over_does_not_reach_the_lease() {
    let bed = Bed::new();
    let locks = bed.manager();
    let guard = locks.lock("behind").try_acquire().await.unwrap().unwrap();
    bed.store.once(Operation::Extend, Fault::delay(SECOND));
    let (kept, extended, given) = tokio::join!(guard.keep(), guard.extend(10 * TTL), guard.hand_over());
    kept.unwrap();
    assert_eq!(extended.unwrap_err().lost_reason(), Some(LostReason::HandedOver));
    assert_eq!(given.unwrap_err().lost_reason(), Some(LostReason::HandedOver));
    assert_eq!(bed.store.calls(Operation::Extend), 1);
    tokio::time::sleep(TTL).await;
    assert_eq!(bed.owner("behind").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_transfer_that_was_answered_too_late_goes_back_to_its_token() {
    let clock = std::sync::Arc::new(parking_lot::Mutex::new(None::<leasehold::testkit::TestClock>));
    let bed = Bed::shaped(|shaped| {
        let clock = std::sync::Arc::clone(&clock);
        shaped.on_call(move |operation| {
            if let (Operation::Transfer, Some(clock)) = (operation, clock.lock().take()) {
                clock.suspend(TTL - SECOND);
            }
        })
    });
    let locks = bed.manager();
    let lock = locks.lock("asleep").ttl(TTL / 2);
    let token = locks.lock("asleep").try_acquire().await.unwrap().unwrap().hand_over().await.unwrap();
    *clock.lock() = Some(bed.clock.clone());
    assert_eq!(lock.resume(&token).await.unwrap_err().kind(), ErrorKind::Indeterminate);
    at_rest(&locks).await;
    assert_eq!(bed.owner("asleep").await.as_ref(), Some(&token));
    lock.resume(&token).await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stores_whose_leases_cannot_pass_on_say_so_and_are_not_asked() {
    let without = Bed::shaped(|shaped| {
        shaped.promising(|mut capabilities| {
            capabilities.hand_over = false;
            capabilities
        })
    });
    let session = Bed::shaped(|shaped| shaped.promising(|capabilities| capabilities.expiry(Expiry::Session)));
    for bed in [without, session] {
        let locks = bed.manager();
        let lock = locks.lock("bound");
        let guard = lock.try_acquire().await.unwrap().unwrap();
        bed.store.clear_log();
        assert_eq!(guard.hand_over().await.unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(guard.keep().await.unwrap_err().kind(), ErrorKind::Unsupported);
        let token = OwnerToken::mint().unwrap();
        assert_eq!(lock.resume(&token).await.unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(bed.store.total_calls(), 0);
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn acting_by_token_needs_the_right_one() {
    let bed = Bed::new();
    let locks = bed.manager();
    let lock = locks.lock("token");
    let old = lock.try_acquire().await.unwrap().unwrap().hand_over().await.unwrap();
    // A generation that has expired, and a token that never held.
    tokio::time::sleep(TTL).await;
    let token = lock.try_acquire().await.unwrap().unwrap().hand_over().await.unwrap();
    for wrong in [old, OwnerToken::mint().unwrap(), OwnerToken::from_bytes(b"foreign").unwrap()] {
        assert_eq!(lock.release_by(&wrong).await.unwrap_err().kind(), ErrorKind::NotHeld);
        assert_eq!(lock.extend_by(&wrong, TTL).await.unwrap_err().kind(), ErrorKind::NotHeld);
        assert_eq!(lock.resume(&wrong).await.unwrap_err().kind(), ErrorKind::NotHeld);
        assert_eq!(bed.owner("token").await.as_ref(), Some(&token));
    }
    lock.extend_by(&token, 3 * TTL).await.unwrap();
    tokio::time::sleep(2 * TTL).await;
    assert_eq!(bed.owner("token").await.as_ref(), Some(&token));
    let extended = bed.store.log().into_iter().rfind(|call| call.operation == Operation::Extend).unwrap();
    assert_eq!((extended.tie, extended.ttl), (None, Some(3 * TTL)));
    // Never shortens.
    lock.extend_by(&token, ms(100)).await.unwrap();
    tokio::time::sleep(SECOND).await;
    lock.release_by(&token).await.unwrap();
    assert_eq!(lock.release_by(&token).await.unwrap_err().kind(), ErrorKind::NotHeld);
}

#[tokio::test(start_paused = true)]
async fn a_token_of_another_key_opens_nothing() {
    let bed = Bed::new();
    let locks = bed.manager();
    let token = locks.lock("one").try_acquire().await.unwrap().unwrap().hand_over().await.unwrap();
    let other = locks.lock("other").try_acquire().await.unwrap().unwrap();
    assert_eq!(locks.lock("other").resume(&token).await.unwrap_err().kind(), ErrorKind::NotHeld);
    other.check().unwrap();
    assert_eq!(bed.owner("one").await, Some(token));
}

#[test]
fn a_guard_can_be_released_on_another_runtime() {
    let (here, there) = (runtime(), runtime());
    let (bed, guard) = here.block_on(async {
        let bed = Bed::new();
        let guard = bed.manager().lock("moved").try_acquire().await.unwrap().unwrap();
        (bed, guard)
    });
    there.block_on(async {
        guard.release().await.unwrap();
        assert_eq!(bed.owner("moved").await, None);
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_resume_that_loses_a_race_with_the_ttl_leaves_the_successor_alone() {
    let bed = Bed::new();
    let (locks, others) = (bed.manager(), bed.manager());
    let token = locks.lock("race").try_acquire().await.unwrap().unwrap().hand_over().await.unwrap();
    tokio::time::sleep(TTL - SECOND).await;
    bed.store.once(Operation::Transfer, Fault::delay(2 * SECOND));
    let resuming = tokio::spawn(async move { locks.lock("race").resume(&token).await.map(drop) });
    let successor = others.lock("race").acquire_within(2 * SECOND).await.unwrap().unwrap();
    assert_eq!(resuming.await.unwrap().unwrap_err().kind(), ErrorKind::NotHeld);
    others_run().await;
    successor.check().unwrap();
    successor.release().await.unwrap();
}
