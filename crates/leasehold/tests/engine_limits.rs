//! How long single requests may take, and what one that takes too long may cost: an attempt, never the lease.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

mod support {
    pub(crate) mod bent;
    pub(crate) mod rig;
}

use std::time::Duration;

use leasehold::store::{Page, SharedStore, Tie};
use leasehold::testkit::Fault;
use leasehold::{Close, ErrorKind, LockManager, LostReason, MAX_OPERATION_LIMIT, Operation, Renew};
use support::rig::{Note, Rig, TTL, ms, reason, secs};
use tokio::time::{sleep, timeout};

#[tokio::test(start_paused = true)]
async fn a_lost_packet_in_an_extend_by_the_caller_costs_an_attempt() {
    for long in [secs(60), secs(3600)] {
        let rig = Rig::new();
        let guard = rig.manager().lock("k").ttl(secs(1)).try_acquire().await.unwrap().unwrap();
        rig.store.once(Operation::Extend, Fault::hang());
        timeout(secs(1), guard.extend(long)).await.unwrap().unwrap();
        sleep(secs(50)).await;
        guard.check().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_does_not_keep_the_caller_of_an_extend_beyond_the_deadline() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").ttl(secs(6)).try_acquire().await.unwrap().unwrap();
    rig.store.always(Operation::Extend, Fault::hang());
    let failed = timeout(secs(6), guard.extend(secs(3600))).await.unwrap().unwrap_err();
    assert!(matches!(failed.kind(), ErrorKind::Indeterminate | ErrorKind::NotHeld), "{failed}");
    let failed = timeout(secs(6), guard.tie_to(Tie::Process)).await.unwrap().unwrap_err();
    assert!(matches!(failed.kind(), ErrorKind::Indeterminate | ErrorKind::NotHeld), "{failed}");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_near_the_deadline_leaves_time_for_another() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    rig.store.always(Operation::Extend, Fault::fail(ErrorKind::Unavailable));
    while guard.remaining() > secs(6) {
        sleep(ms(100)).await;
    }
    rig.store.heal();
    rig.store.once(Operation::Extend, Fault::hang());
    sleep(TTL).await;
    guard.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_near_its_longest_holding_time_does_not_hurry_its_company() {
    let rig = Rig::new();
    let manager = rig.manager();
    let mut guards = Vec::new();
    for number in 0..50 {
        guards.push(manager.lock(&number.to_string()).try_acquire().await.unwrap().unwrap());
    }
    let brief = manager.lock("brief").max_hold(ms(10_012)).try_acquire().await.unwrap().unwrap();
    rig.store.always(Operation::Extend, Fault::delay_reply(ms(8)));
    assert_eq!(brief.lost().await, LostReason::MaxHold);
    sleep(secs(1)).await;
    assert_eq!(rig.calls(Operation::Extend), 1);
    assert_eq!(rig.seen.count(|note| matches!(note, Note::RenewalFailed(..))), 0);
}

#[tokio::test(start_paused = true)]
async fn a_grant_beyond_its_longest_holding_time_is_no_grant() {
    let rig = Rig::new();
    rig.store.once(Operation::Acquire, Fault::delay_reply(secs(2)));
    let lock = rig.manager().lock("k").max_hold(secs(1));
    assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(rig.is_free("k").await);
    let never = rig.manager().lock("k").max_hold(Duration::ZERO);
    assert_eq!(never.try_acquire().await.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test(start_paused = true)]
async fn everybody_who_closes_waits_for_the_store() {
    let rig = Rig::new();
    let shared = SharedStore::new(rig.store.clone());
    let manager = LockManager::builder(shared).clock(rig.clock.clone().into()).build().unwrap();
    rig.store.always(Operation::Close, Fault::delay(secs(2)));
    // Cancelled while the store is closing.
    assert!(timeout(secs(1), manager.close(Close::Release)).await.is_err());
    let before = rig.now();
    let (one, other) = tokio::join!(manager.close(Close::Release), manager.close(Close::Release));
    one.unwrap();
    other.unwrap();
    assert_eq!(rig.now() - before, secs(2));
    manager.close(Close::Release).await.unwrap();
    assert_eq!(rig.calls(Operation::Close), 2, "once in vain, once for all");
}

#[tokio::test(start_paused = true)]
async fn closing_from_within_work_ends_the_work() {
    let rig = Rig::new();
    let manager = rig.manager();
    let inner = manager.clone();
    let ran = manager.with_lock("k", async move |_| inner.close(Close::Release).await).await;
    assert_eq!(ran.unwrap_err().lost_reason(), Some(LostReason::Closed));
    manager.close(Close::Release).await.unwrap();
    assert!(rig.is_free("k").await);
}

#[tokio::test(start_paused = true)]
async fn limits_are_bounded() {
    let rig = Rig::new();
    for limit in [Duration::ZERO, MAX_OPERATION_LIMIT + ms(1), Duration::MAX] {
        let refused = rig.builder().operation_limit(limit).build().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    }
    let manager = rig.manager();
    assert_eq!(manager.list("", Page::first(0)).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    manager.list("", Page::first(usize::MAX)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn renewal_goes_on_with_the_last_ttl_after_a_slow_extend() {
    let rig = Rig::new();
    let guard = rig.manager().lock("k").ttl(secs(6)).renew(Renew::Automatic).try_acquire().await.unwrap().unwrap();
    rig.store.once(Operation::Extend, Fault::delay_reply(ms(900)));
    guard.extend(secs(12)).await.unwrap();
    sleep(secs(60)).await;
    assert_eq!(reason(&guard), None);
}
