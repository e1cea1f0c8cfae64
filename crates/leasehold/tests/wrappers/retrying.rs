//! What is retried, for how long, and what is left to the engine.

use std::time::Duration;

use leasehold::store::retry::Retry;
use leasehold::store::{Attempt, Claim, Store};
use leasehold::testkit::Fault;
use leasehold::{Backoff, Error, ErrorKind, Jitter, LockManager, Operation, OwnerToken};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use crate::support::rig::{Rig, TTL, key, ms, secs, settle};

fn retry(rig: &Rig) -> Retry {
    let pauses = Backoff::new(ms(20), ms(500), 2.0).unwrap().jitter(Jitter::from_fn(|| 1.0));
    Retry::new(rig.store.clone()).backoff(pauses).clock(rig.clock.clone().into())
}

fn owner() -> OwnerToken {
    OwnerToken::mint().unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_was_surely_not_applied_is_asked_again_by_the_same_owner() {
    let rig = Rig::new();
    let (retry, name, holder, heir) = (retry(&rig), key("k"), owner(), owner());
    for operation in
        [Operation::Acquire, Operation::Extend, Operation::Transfer, Operation::Release, Operation::Inspect]
    {
        for _ in 0..3 {
            rig.store.once(operation, Fault::fail(ErrorKind::Unavailable));
        }
    }
    let claim = Claim::new(&name, &holder, TTL);
    assert!(matches!(retry.acquire(&claim).await, Ok(Attempt::Acquired(_))));
    assert_eq!(rig.now(), ms(20 + 40 + 80));
    assert!(matches!(retry.extend(&[claim]).await.unwrap()[..], [Ok(Some(_))]));
    assert!(retry.transfer(&holder, &Claim::new(&name, &heir, TTL)).await.unwrap().is_some());
    assert_eq!(retry.inspect(&name).await.unwrap().holders.len(), 1);
    assert!(retry.release(&name, &heir).await.unwrap());
    let asked = rig.store.log().into_iter().filter(|call| call.operation == Operation::Acquire);
    assert!(asked.map(|call| call.owner).eq(vec![Some(holder); 4]));
}

/// Nobody asked for a ttl of zero, so a release is retried for as long as ever.
#[tokio::test(start_paused = true)]
async fn an_extend_of_nothing_does_not_end_the_retries_of_later_releases() {
    let rig = Rig::new();
    let (retry, name, holder) = (retry(&rig), key("k"), owner());
    assert!(matches!(retry.acquire(&Claim::new(&name, &holder, TTL)).await, Ok(Attempt::Acquired(_))));
    assert!(retry.extend(&[]).await.unwrap().is_empty());
    for _ in 0..3 {
        rig.store.once(Operation::Release, Fault::fail(ErrorKind::Unavailable));
    }
    assert!(retry.release(&name, &holder).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn contention_and_refusals_are_answers() {
    let rig = Rig::new();
    let retry = retry(&rig);
    retry.acquire(&Claim::new(&key("k"), &owner(), TTL)).await.unwrap();
    assert!(matches!(retry.acquire(&Claim::new(&key("k"), &owner(), TTL)).await, Ok(Attempt::Contended(_))));
    for kind in [ErrorKind::Rejected, ErrorKind::Unsupported, ErrorKind::Closed, ErrorKind::InvalidInput] {
        rig.store.clear_log();
        rig.store.once(Operation::Acquire, Fault::fail(kind));
        let error = retry.acquire(&Claim::new(&key("k"), &owner(), TTL)).await.unwrap_err();
        assert_eq!((error.kind(), rig.calls(Operation::Acquire)), (kind, 1));
    }
    assert_eq!(rig.now(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn it_ends_before_the_engine_gives_up() {
    let rig = Rig::new();
    let locks = LockManager::builder(retry(&rig)).clock(rig.clock.clone().into()).build().unwrap();
    rig.store.outage(Fault::fail(ErrorKind::Unavailable));
    for (ttl, at_most) in [(TTL, secs(3)), (secs(6), ms(750)), (ms(100), Duration::from_micros(12_500))] {
        let before = rig.now();
        let error = locks.lock("k").ttl(ttl).try_acquire().await.unwrap_err();
        let took = rig.now() - before;
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(took <= at_most && took >= at_most / 3 || ttl == ms(100), "{ttl:?}: {took:?}");
    }
    // Nothing was sent that would have to be undone.
    assert_eq!(rig.calls(Operation::Release), 0);
}

#[tokio::test(start_paused = true)]
async fn a_release_ends_before_the_engine_gives_up_too() {
    let rig = Rig::new();
    let locks = LockManager::builder(retry(&rig)).clock(rig.clock.clone().into()).build().unwrap();
    let guard = locks.lock("k").ttl(secs(6)).acquire().await.unwrap();
    rig.store.outage(Fault::fail(ErrorKind::Unavailable));
    let before = rig.now();
    let error = guard.release().await.unwrap_err();
    let took = rig.now() - before;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(took > ms(250) && took <= ms(750), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn an_acquire_whose_reply_was_lost_finds_its_own_lease() {
    let rig = Rig::new();
    let locks = LockManager::builder(retry(&rig)).clock(rig.clock.clone().into()).build().unwrap();
    rig.store.once(Operation::Acquire, Fault::lose_reply());
    rig.store.once(Operation::Acquire, Fault::fail(ErrorKind::Unavailable));
    let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
    let owners: Vec<_> = rig.store.log().into_iter().filter_map(|call| call.owner).collect();
    assert_eq!(owners, vec![guard.owner_token().clone(); 3]);
    assert_eq!(rig.holder("k").await.unwrap().owner, *guard.owner_token());
    guard.release().await.unwrap();
    assert!(rig.is_free("k").await);
}

/// A retry that hid the lost request would have the engine believe that nothing can come late.
#[tokio::test(start_paused = true)]
async fn a_lost_request_that_comes_late_is_undone() {
    let rig = Rig::new();
    let locks = LockManager::builder(retry(&rig)).clock(rig.clock.clone().into()).build().unwrap();
    rig.store.once(Operation::Acquire, Fault::apply_late(ms(600)));
    let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
    guard.release().await.unwrap();
    sleep(secs(2)).await;
    assert!(rig.is_free("k").await);
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_reply_was_lost_is_a_release() {
    let rig = Rig::new();
    let locks = LockManager::builder(retry(&rig)).clock(rig.clock.clone().into()).build().unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();
    rig.store.once(Operation::Release, Fault::lose_reply());
    rig.store.once(Operation::Release, Fault::fail(ErrorKind::Unavailable));
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn dropped_while_it_pauses_it_asks_no_more() {
    let rig = Rig::new();
    let retry = retry(&rig);
    rig.store.outage(Fault::fail(ErrorKind::Unavailable));
    assert!(timeout(ms(50), retry.acquire(&Claim::new(&key("k"), &owner(), TTL))).await.is_err());
    let asked = rig.store.total_calls();
    rig.store.heal();
    sleep(secs(5)).await;
    settle().await;
    assert_eq!(rig.store.total_calls(), asked);
    assert!(rig.is_free("k").await);
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_costs_neither_an_acquire_nor_a_lease() {
    let rig = Rig::new();
    let locks = LockManager::builder(retry(&rig)).clock(rig.clock.clone().into()).build().unwrap();
    let guard = locks.lock("held").acquire().await.unwrap();
    sleep(ms(9_900)).await;
    rig.store.outage(Fault::fail(ErrorKind::Unavailable));
    let store = rig.store.clone();
    tokio::spawn(async move {
        sleep(secs(1)).await;
        store.heal();
    });
    locks.lock("k").acquire().await.unwrap().release().await.unwrap();
    sleep(secs(60)).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
}

/// A store that applies an extend and gives `kinds`, one after the other, as the answer of the claims for the key "bad".
fn failing_claims(kinds: &[ErrorKind]) -> Rig {
    let kinds = Mutex::new(kinds.iter().rev().copied().collect::<Vec<_>>());
    Rig::bent(|bent| {
        bent.extend(move |claims, answers| {
            let kind = kinds.lock().pop();
            let answered = claims.iter().zip(answers?).map(|(claim, answer)| match kind {
                Some(kind) if claim.key.name() == "bad" => Err(Error::new(kind, "by design")),
                _ => answer,
            });
            Ok(answered.collect())
        })
    })
}

/// Most stores answer an extend per claim, a single one too.
#[tokio::test(start_paused = true)]
async fn an_extend_of_which_each_claim_failed_is_asked_again() {
    let rig = failing_claims(&[ErrorKind::Unavailable, ErrorKind::Indeterminate]);
    let (retry, bad, gone) = (retry(&rig), key("bad"), key("gone"));
    let (holder, other) = (owner(), owner());
    assert!(matches!(retry.acquire(&Claim::new(&bad, &holder, TTL)).await, Ok(Attempt::Acquired(_))));
    let answers = retry.extend(&[&holder, &other].map(|owner| Claim::new(&bad, owner, TTL))).await.unwrap();
    assert!(matches!(answers[..], [Ok(Some(_)), Ok(None)]), "{answers:?}");
    assert_eq!(rig.now(), ms(20 + 40));
    assert!(matches!(retry.extend(&[Claim::new(&gone, &holder, TTL)]).await.unwrap()[..], [Ok(None)]));
}

/// An answer is not held up by the claims beside it.
#[tokio::test(start_paused = true)]
async fn an_extend_of_which_one_claim_was_answered_is_told_at_once() {
    let rig = failing_claims(&[ErrorKind::Unavailable]);
    let (retry, good, bad, holder) = (retry(&rig), key("good"), key("bad"), owner());
    for name in [&good, &bad] {
        assert!(matches!(retry.acquire(&Claim::new(name, &holder, TTL)).await, Ok(Attempt::Acquired(_))));
    }
    let answers = retry.extend(&[&bad, &good].map(|name| Claim::new(name, &holder, TTL))).await.unwrap();
    assert!(matches!(answers[..], [Err(_), Ok(Some(_))]), "{answers:?}");
    assert_eq!(rig.now(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_extended_through_a_short_outage_that_is_told_per_claim() {
    let rig = failing_claims(&[ErrorKind::Unavailable; 3]);
    let locks = LockManager::builder(retry(&rig)).clock(rig.clock.clone().into()).build().unwrap();
    let guard = locks.lock("bad").acquire().await.unwrap();
    guard.extend(2 * TTL).await.unwrap();
    assert_eq!(rig.now(), ms(20 + 40 + 80));
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn refusals_of_single_claims_are_answers() {
    let rig = failing_claims(&[ErrorKind::Rejected]);
    let (retry, bad, holder) = (retry(&rig), key("bad"), owner());
    retry.acquire(&Claim::new(&bad, &holder, TTL)).await.unwrap();
    let answers = retry.extend(&[Claim::new(&bad, &holder, TTL)]).await.unwrap();
    assert_eq!(answers[0].as_ref().unwrap_err().kind(), ErrorKind::Rejected);
    assert_eq!((rig.calls(Operation::Extend), rig.now()), (1, Duration::ZERO));
}

/// An extend of which one request may have been applied is not told as surely not applied.
#[tokio::test(start_paused = true)]
async fn what_was_unknown_once_stays_so() {
    let mut kinds = vec![ErrorKind::Unavailable; 100];
    kinds[1] = ErrorKind::Indeterminate;
    let rig = failing_claims(&kinds);
    let (retry, bad, holder) = (retry(&rig), key("bad"), owner());
    retry.acquire(&Claim::new(&bad, &holder, TTL)).await.unwrap();
    let answers = retry.extend(&[Claim::new(&bad, &holder, TTL)]).await.unwrap();
    assert_eq!(answers[0].as_ref().unwrap_err().kind(), ErrorKind::Indeterminate);
    assert!(rig.calls(Operation::Extend) > 2 && rig.now() <= secs(3));
    // Of the whole request as well.
    rig.store.once(Operation::Extend, Fault::lose_reply());
    for _ in 0..100 {
        rig.store.once(Operation::Extend, Fault::fail(ErrorKind::Unavailable));
    }
    let error = retry.extend(&[Claim::new(&bad, &holder, TTL)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate);
}
