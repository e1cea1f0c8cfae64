//! When a breaker opens, what it refuses then, and how it closes again.

use std::error::Error as _;
use std::time::Duration;

use leasehold::store::breaker::{Breaker, Phase};
use leasehold::store::{Attempt, Claim, Store};
use leasehold::testkit::Fault;
use leasehold::{Error, ErrorKind, LockManager, Operation, OwnerToken};
use tokio::time::{advance, sleep, timeout};

use crate::support::rig::{Rig, TTL, key, ms, secs, settle};

fn breaker(rig: &Rig) -> Breaker {
    Breaker::new(rig.store.clone()).failures(3).pause(secs(10)).clock(rig.clock.clone().into())
}

fn owner() -> OwnerToken {
    OwnerToken::mint().unwrap()
}

async fn ask(breaker: &Breaker, name: &str) -> Result<Attempt, Error> {
    breaker.acquire(&Claim::new(&key(name), &owner(), TTL)).await
}

/// A breaker that is open because of an outage that goes on.
async fn open(rig: &Rig) -> Breaker {
    let breaker = breaker(rig);
    rig.store.outage(Fault::fail(ErrorKind::Unavailable));
    for _ in 0..3 {
        assert_eq!(breaker.phase(), Phase::Closed);
        ask(&breaker, "k").await.unwrap_err();
    }
    assert_eq!(breaker.phase(), Phase::Open(secs(10)));
    breaker
}

#[tokio::test(start_paused = true)]
async fn failures_in_a_row_open_it_and_refusals_cost_the_store_nothing() {
    let rig = Rig::new();
    let breaker = open(&rig).await;
    rig.store.clear_log();
    advance(ms(2500)).await;
    let error = ask(&breaker, "k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(error.to_string(), "the circuit breaker is open: it probes the store in 7.5s");
    assert_eq!(error.source().unwrap().to_string(), "injected fault");
    assert_eq!(rig.store.total_calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn contention_is_a_success() {
    let rig = Rig::new();
    let breaker = breaker(&rig);
    let holder = owner();
    breaker.acquire(&Claim::new(&key("k"), &holder, TTL)).await.unwrap();
    for round in 0..4 {
        for kind in [ErrorKind::Unavailable, ErrorKind::Indeterminate] {
            rig.store.once(Operation::Acquire, Fault::fail(kind));
            ask(&breaker, "k").await.unwrap_err();
        }
        assert!(matches!(ask(&breaker, "k").await, Ok(Attempt::Contended(_))), "round {round}");
    }
    assert_eq!(breaker.phase(), Phase::Closed);
}

#[tokio::test(start_paused = true)]
async fn what_says_nothing_of_the_store_does_not_count() {
    let rig = Rig::new();
    let breaker = breaker(&rig);
    // A refusal may be about one key alone, and came at once.
    for kind in [ErrorKind::Rejected, ErrorKind::Unsupported, ErrorKind::InvalidInput, ErrorKind::Closed] {
        for _ in 0..5 {
            rig.store.once(Operation::Acquire, Fault::fail(kind));
            ask(&breaker, "k").await.unwrap_err();
        }
    }
    assert_eq!(breaker.phase(), Phase::Closed);
}

#[tokio::test(start_paused = true)]
async fn open_it_refuses_acquires_and_nothing_else() {
    let rig = Rig::new();
    let breaker = breaker(&rig);
    let (held, holder, heir) = (key("held"), owner(), owner());
    breaker.acquire(&Claim::new(&held, &holder, TTL)).await.unwrap();
    for _ in 0..3 {
        rig.store.once(Operation::Acquire, Fault::fail(ErrorKind::Unavailable));
        ask(&breaker, "k").await.unwrap_err();
    }
    assert_eq!(ask(&breaker, "k").await.unwrap_err().kind(), ErrorKind::Unavailable);
    let extended = breaker.extend(&[Claim::new(&held, &holder, TTL)]).await.unwrap();
    assert!(matches!(extended[..], [Ok(Some(_))]));
    assert_eq!(breaker.inspect(&held).await.unwrap().holders.len(), 1);
    assert!(breaker.transfer(&holder, &Claim::new(&held, &heir, TTL)).await.unwrap().is_some());
    assert!(breaker.release(&held, &heir).await.unwrap());
    assert!(breaker.force_release(&held, None).await.unwrap().is_none());
    breaker.probe().await.unwrap();
    // Their success is none of the breaker's business.
    assert!(matches!(breaker.phase(), Phase::Open(_)));
}

#[tokio::test(start_paused = true)]
async fn failures_of_anything_else_do_not_open_it() {
    let rig = Rig::new();
    let breaker = breaker(&rig);
    rig.store.outage(Fault::fail(ErrorKind::Unavailable));
    for _ in 0..10 {
        breaker.release(&key("k"), &owner()).await.unwrap_err();
        breaker.extend(&[Claim::new(&key("k"), &owner(), TTL)]).await.unwrap_err();
        breaker.probe().await.unwrap_err();
    }
    assert_eq!(breaker.phase(), Phase::Closed);
}

#[tokio::test(start_paused = true)]
async fn half_open_it_lets_one_through() {
    let rig = Rig::new();
    let breaker = open(&rig).await;
    rig.store.heal();
    rig.store.once(Operation::Acquire, Fault::delay(secs(2)));
    advance(secs(10)).await;
    let prober = breaker.clone();
    let probe = tokio::spawn(async move { ask(&prober, "probe").await });
    settle().await;
    assert_eq!(breaker.phase(), Phase::HalfOpen);
    rig.store.clear_log();
    let error = ask(&breaker, "k").await.unwrap_err();
    assert_eq!(error.to_string(), "the circuit breaker is open: a probe of the store is under way");
    assert_eq!(rig.store.total_calls(), 0);
    assert!(matches!(probe.await.unwrap(), Ok(Attempt::Acquired(_))));
    assert_eq!(breaker.phase(), Phase::Closed);
    assert!(matches!(ask(&breaker, "k").await, Ok(Attempt::Acquired(_))));
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_fails_opens_it_for_another_pause() {
    let rig = Rig::new();
    let breaker = open(&rig).await;
    for _ in 0..3 {
        advance(secs(10)).await;
        ask(&breaker, "k").await.unwrap_err();
        assert_eq!(breaker.phase(), Phase::Open(secs(10)));
    }
    rig.store.heal();
    advance(secs(10)).await;
    ask(&breaker, "k").await.unwrap();
    assert_eq!(breaker.phase(), Phase::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_probe_leaves_its_turn_to_the_next() {
    let rig = Rig::new();
    let breaker = open(&rig).await;
    rig.store.heal();
    rig.store.once(Operation::Acquire, Fault::hang());
    advance(secs(10)).await;
    assert!(timeout(ms(5), ask(&breaker, "k")).await.is_err());
    assert_eq!(breaker.phase(), Phase::Open(Duration::ZERO));
    ask(&breaker, "other").await.unwrap();
    assert_eq!(breaker.phase(), Phase::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_not_polled_keeps_nobody_out_for_ever() {
    let rig = Rig::new();
    let breaker = open(&rig).await;
    rig.store.heal();
    rig.store.once(Operation::Acquire, Fault::hang());
    advance(secs(10)).await;
    let (name, holder) = (key("k"), owner());
    let claim = Claim::new(&name, &holder, TTL);
    let mut forgotten = Box::pin(breaker.acquire(&claim));
    assert!(timeout(Duration::ZERO, &mut forgotten).await.is_err());
    advance(secs(10)).await;
    ask(&breaker, "other").await.unwrap();
    assert_eq!(breaker.phase(), Phase::Closed);
    // Its end has no say any more.
    drop(forgotten);
    assert_eq!(breaker.phase(), Phase::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_succeeds_after_its_pause_closes_it() {
    let rig = Rig::new();
    let breaker = open(&rig).await;
    rig.store.heal();
    advance(secs(10)).await;
    let probe = |name: &'static str, takes: u64| {
        rig.store.once(Operation::Acquire, Fault::delay(secs(takes)));
        let breaker = breaker.clone();
        tokio::spawn(async move { ask(&breaker, name).await })
    };
    let first = probe("first", 15);
    settle().await;
    sleep(secs(10)).await;
    let second = probe("second", 60);
    settle().await;
    assert_eq!(breaker.phase(), Phase::HalfOpen);
    first.await.unwrap().unwrap();
    assert_eq!(breaker.phase(), Phase::Closed);
    // The other one belongs to an outage that is over: its end has no say any more.
    rig.store.outage(Fault::fail(ErrorKind::Unavailable));
    for _ in 0..3 {
        ask(&breaker, "k").await.unwrap_err();
    }
    sleep(secs(9)).await;
    assert!(matches!(breaker.phase(), Phase::Open(_)));
    second.abort();
    second.await.unwrap_err();
    assert!(matches!(breaker.phase(), Phase::Open(_)));
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_dropped_early_do_not_count_and_silence_does() {
    let rig = Rig::new();
    let breaker = breaker(&rig);
    rig.store.outage(Fault::hang());
    for _ in 0..10 {
        assert!(timeout(ms(900), ask(&breaker, "k")).await.is_err());
    }
    assert_eq!(breaker.phase(), Phase::Closed);
    for _ in 0..3 {
        assert!(timeout(secs(5), ask(&breaker, "k")).await.is_err());
    }
    assert!(matches!(breaker.phase(), Phase::Open(_)));
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_before_it_opened_has_no_say() {
    let rig = Rig::new();
    let breaker = breaker(&rig);
    rig.store.once(Operation::Acquire, Fault::delay(secs(1)));
    let slow = breaker.clone();
    let slow = tokio::spawn(async move { ask(&slow, "slow").await });
    settle().await;
    rig.store.outage(Fault::fail(ErrorKind::Unavailable));
    for _ in 0..3 {
        ask(&breaker, "k").await.unwrap_err();
    }
    slow.await.unwrap().unwrap();
    assert!(matches!(breaker.phase(), Phase::Open(_)));
}

#[tokio::test(start_paused = true)]
async fn a_manager_notices_a_store_that_hangs_and_recovers_with_it() {
    let rig = Rig::new();
    let breaker = breaker(&rig);
    let locks = LockManager::builder(breaker.clone()).clock(rig.clock.clone().into()).build().unwrap();
    let guard = locks.lock("held").acquire().await.unwrap();
    rig.store.outage(Fault::hang());
    // The engine repeats what got no answer, so three failures take two calls.
    for _ in 0..2 {
        let error = locks.lock("k").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate);
    }
    let before = rig.now();
    let error = locks.lock("k").try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), rig.now()), (ErrorKind::Unavailable, before));
    rig.store.heal();
    sleep(secs(10)).await;
    // Renewed all the while, as far as the store answered; given back through the breaker.
    guard.check().unwrap();
    guard.release().await.unwrap();
    locks.lock("k").acquire_within(secs(20)).await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(breaker.phase(), Phase::Closed);
}
