//! What a call answers when requests or replies are lost, late or repeated; and what it leaves behind.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

mod support {
    pub(crate) mod bent;
    pub(crate) mod rig;
}

use leasehold::clock::TimeSource;
use leasehold::testkit::Fault;
use leasehold::{Close, ErrorKind, LockManager, LostReason, Operation, Renew};
use support::rig::{LIMIT, Note, Rig, TTL, key, ms, reason, secs, settle, until_nothing_is_left};
use tokio::time::{sleep, timeout};

#[tokio::test(start_paused = true)]
async fn a_lost_reply_to_an_acquire_is_unknown_and_undone() {
    for fault in [Fault::lose_reply(), Fault::lose_reply().silently()] {
        let rig = Rig::new();
        let manager = rig.manager();
        rig.store.always(Operation::Acquire, fault);
        let error = manager.lock("k").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate);
        assert!(rig.now() <= 2 * LIMIT, "one limit, and one more for the repeats");
        settle().await;
        assert!(rig.is_free("k").await);
        rig.store.heal();
        until_nothing_is_left(&manager).await;
        assert!(manager.lock("k").try_acquire().await.unwrap().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_applied_after_two_ttls_blocks_the_key_for_one_and_grants_nothing() {
    let rig = Rig::new();
    let manager = rig.manager();
    rig.store.always(Operation::Acquire, Fault::delay(2 * TTL));
    let error = manager.lock("k").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate);
    rig.store.heal();
    sleep(2 * TTL - rig.now() + ms(1)).await;
    assert!(!rig.is_free("k").await, "applied now, long after its undo");
    let guard = rig.manager().lock("k").acquire().await.unwrap();
    assert!(rig.now() <= 3 * TTL + 2 * LIMIT);
    guard.check().unwrap();
    until_nothing_is_left(&manager).await;
}

#[tokio::test(start_paused = true)]
async fn a_reply_later_than_the_limit_is_asked_for_again() {
    let rig = Rig::new();
    rig.store.once(Operation::Acquire, Fault::delay_reply(TTL * 9 / 10));
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    assert_eq!((rig.now(), rig.calls(Operation::Acquire)), (LIMIT + ms(10), 2));
    assert_eq!(guard.fencing_token(), rig.holder("k").await.unwrap().fencing, "the same owner, so the same grant");
    let holder = rig.holder("k").await.unwrap();
    assert!(guard.remaining() < holder.remaining.unwrap());
}

#[tokio::test(start_paused = true)]
async fn an_undo_that_overtakes_its_request_is_asked_again() {
    for delay in [5, 50, 500] {
        let rig = Rig::new();
        let manager = rig.manager();
        rig.store.once(Operation::Acquire, Fault::delay(ms(delay)));
        let lock = manager.lock("k");
        let cancelled = timeout(ms(delay) / 2, lock.try_acquire()).await;
        assert!(cancelled.is_err());
        sleep(ms(delay)).await;
        until_nothing_is_left(&manager).await;
        assert!(rig.is_free("k").await, "a request that came {delay} ms late stayed");
        assert!(rig.now() < secs(2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_later_no_does_not_settle_an_earlier_lost_request() {
    let rig = Rig::new();
    let manager = rig.manager();
    let holder = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    rig.store.once(Operation::Acquire, Fault::apply_late(ms(60)));
    assert!(manager.lock("k").try_acquire().await.unwrap().is_none());
    // Free before the lost request arrives, which then is granted to nobody.
    holder.release().await.unwrap();
    sleep(ms(55)).await;
    assert!(!rig.is_free("k").await);
    until_nothing_is_left(&manager).await;
    assert!(rig.is_free("k").await);
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_to_a_release_is_no_failure() {
    for fault in [Fault::lose_reply(), Fault::lose_reply().silently()] {
        let rig = Rig::new();
        let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
        rig.store.once(Operation::Release, fault);
        let (released, successor) = tokio::join!(guard.release(), async {
            sleep(ms(1)).await;
            rig.manager().lock("k").try_acquire().await.unwrap().unwrap()
        });
        released.unwrap();
        assert_eq!(rig.calls(Operation::Release), 2);
        sleep(secs(60)).await;
        successor.check().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_without_any_answer_says_so_and_goes_on() {
    let rig = Rig::new();
    let manager = rig.manager();
    let guard = manager.lock("k").try_acquire().await.unwrap().unwrap();
    let handle = guard.handle();
    rig.store.outage(Fault::hang());
    let (released, ()) = tokio::join!(guard.release(), async {
        settle().await;
        assert_eq!(handle.check().unwrap_err().lost_reason(), Some(LostReason::Released), "before any answer");
    });
    assert_eq!(released.unwrap_err().kind(), ErrorKind::Indeterminate);
    rig.store.heal();
    until_nothing_is_left(&manager).await;
    assert!(rig.is_free("k").await);
    assert!(rig.now() < TTL);
}

#[tokio::test(start_paused = true)]
async fn a_release_after_the_end_leaves_the_next_owner_alone() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").renew(Renew::Off).try_acquire().await.unwrap().unwrap();
    let next = rig.manager().lock("k").acquire().await.unwrap();
    let error = guard.release().await.unwrap_err();
    assert_eq!((error.kind(), error.lost_reason()), (ErrorKind::NotHeld, Some(LostReason::Expired)));
    assert_eq!(error.to_string(), "failed to release \"k\" on bent: expired");
    next.check().unwrap();
    assert_eq!(rig.holder("k").await.unwrap().fencing, next.fencing_token());
    assert_eq!(rig.seen.count(|note| *note == Note::Released("k".into(), Some(ErrorKind::NotHeld))), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_arrives_much_later_removes_nobody_else() {
    let rig = Rig::new();
    let manager = rig.manager();
    let guard = manager.lock("k").try_acquire().await.unwrap().unwrap();
    rig.store.always(Operation::Release, Fault::delay(2 * TTL));
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Indeterminate);
    let next = rig.manager().lock("k").acquire().await.unwrap();
    assert!(rig.now() <= TTL + secs(1));
    sleep(4 * TTL).await;
    next.check().unwrap();
    assert_eq!(rig.holder("k").await.unwrap().fencing, next.fencing_token());
}

#[tokio::test(start_paused = true)]
async fn an_extend_after_the_end_recreates_nothing() {
    let rig = Rig::new();
    let lock = rig.manager().lock("k").renew(Renew::Off);
    let owner = {
        let guard = lock.try_acquire().await.unwrap().unwrap();
        guard.hand_over().await.unwrap()
    };
    let guard = rig.manager().lock("other").renew(Renew::Off).try_acquire().await.unwrap().unwrap();
    sleep(TTL).await;
    for (error, calls) in [(lock.extend_by(&owner, TTL).await, 2), (guard.extend(TTL).await, 2)] {
        assert_eq!(error.unwrap_err().kind(), ErrorKind::NotHeld);
        assert_eq!(rig.calls(Operation::Extend), calls, "a guard that is lost does not even ask");
    }
    assert!(rig.is_free("k").await && rig.is_free("other").await);
    let next = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    let before = rig.holder("k").await.unwrap().remaining;
    assert_eq!(lock.extend_by(&owner, secs(60)).await.unwrap_err().kind(), ErrorKind::NotHeld);
    assert_eq!(lock.release_by(&owner).await.unwrap_err().kind(), ErrorKind::NotHeld);
    assert_eq!(rig.holder("k").await.unwrap().remaining, before);
    next.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_extend_that_arrives_after_the_release_resurrects_nothing() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    rig.store.once(Operation::Extend, Fault::delay(secs(1)));
    assert!(timeout(ms(100), guard.extend(secs(300))).await.is_err());
    guard.release().await.unwrap();
    sleep(secs(2)).await;
    assert!(rig.is_free("k").await);
    // The same for a renewal under way.
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    rig.store.once(Operation::Extend, Fault::delay(secs(1)));
    sleep(ms(10_100)).await;
    guard.release().await.unwrap();
    let next = rig.manager().lock("k").ttl(secs(90)).try_acquire().await.unwrap().unwrap();
    sleep(secs(2)).await;
    assert_eq!(rig.holder("k").await.unwrap().fencing, next.fencing_token());
    assert_eq!(reason(&next), None);
}

#[tokio::test(start_paused = true)]
async fn a_holder_whose_requests_pass_but_not_their_replies_stops_before_the_next_starts() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    let rival = LockManager::builder(rig.memory.clone()).clock(rig.clock.clone().into()).build().unwrap();
    rig.store.outage(Fault::lose_reply().silently());
    let lost = tokio::spawn({
        let (handle, clock) = (guard.handle(), rig.clock.clone());
        async move { (handle.lost().await, clock.now()) }
    });
    let next = rival.lock("k").acquire().await.unwrap();
    let taken = rig.clock.now();
    let (reason, stopped) = lost.await.unwrap();
    assert_eq!(reason, LostReason::Expired);
    assert!(stopped < taken);
    assert!(rig.now() <= 2 * TTL, "what was extended unseen ends with its ttl");
    assert!(next.fencing_token() > guard.fencing_token());
    next.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn held_is_data_and_everything_else_an_error_of_its_own_kind() {
    let rig = Rig::new();
    let manager = rig.manager();
    let _held = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    let lock = manager.lock("k");
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(lock.acquire_within(secs(3)).await.unwrap().is_none());
    assert!(manager.try_with_lock("k", async |_| ()).await.unwrap().is_none());
    // Whoever cancels hears nothing, and leaves nothing.
    assert!(timeout(secs(1), lock.acquire()).await.is_err());
    until_nothing_is_left(&manager).await;
    for kind in [ErrorKind::Unavailable, ErrorKind::Rejected, ErrorKind::Unsupported] {
        rig.store.outage(Fault::fail(kind));
        let before = rig.now();
        for error in [lock.try_acquire().await, lock.acquire_within(secs(3)).await, lock.acquire().await.map(Some)] {
            let error = error.unwrap_err();
            assert_eq!((error.kind(), error.operation()), (kind, Some(Operation::Acquire)));
            assert_eq!(error.key(), Some(&key("k")));
        }
        assert_eq!(rig.now(), before, "only contention is waited for");
        rig.store.heal();
    }
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await }
    });
    settle().await;
    manager.close(Close::Release).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn refused_for_certain_is_unavailable_and_after_an_unknown_it_stays_unknown() {
    let rig = Rig::new();
    let manager = rig.manager();
    rig.store.always(Operation::Acquire, Fault::fail(ErrorKind::Unavailable));
    let error = manager.lock("k").try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), rig.calls(Operation::Acquire)), (ErrorKind::Unavailable, 1));
    assert!(error.is_retryable());
    settle().await;
    assert_eq!(rig.calls(Operation::Release), 0, "there is nothing to undo");

    rig.store.once(Operation::Acquire, Fault::lose_reply());
    let error = manager.lock("k").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate);
    assert!(!error.is_retryable());
    settle().await;
    assert!(rig.is_free("k").await, "the first request had been applied");
    // A repeat that succeeds after refusals is a grant like any other.
    rig.store.heal();
    rig.store.once(Operation::Acquire, Fault::lose_reply());
    rig.store.once(Operation::Acquire, Fault::fail(ErrorKind::Unavailable));
    assert!(manager.lock("k").try_acquire().await.unwrap().is_some());
    let notes = rig.seen.notes();
    assert_eq!(notes.iter().filter(|note| matches!(note, Note::Failed(Operation::Acquire, _))).count(), 2);
}
