//! One leader among replicas of one process, in paused time.

#![cfg(feature = "testkit")]
#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::time::Duration;

use leasehold::election::{Candidate, STUCK_AFTER};
use leasehold::store::memory::MemoryStore;
use leasehold::testkit::{Fault, FaultStore, TestClock};
use leasehold::{Clock, Close, ErrorKind, LockManager, Operation};
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(10);

struct Replica {
    locks: LockManager,
    store: FaultStore,
    clock: TestClock,
}

impl Replica {
    fn of(memory: &MemoryStore, clock: &TestClock) -> Self {
        let store = FaultStore::new(memory.clone());
        let own = clock.clone();
        let locks = LockManager::builder(store.clone()).clock(own.clone().into()).build().unwrap();
        Self { locks, store, clock: own }
    }

    fn campaign(&self) -> Candidate {
        Candidate::campaign(self.locks.lock("leader").ttl(TTL))
    }
}

fn replicas<const N: usize>() -> [Replica; N] {
    let clock = TestClock::start();
    let memory = MemoryStore::with_clock(Clock::from(clock.clone()));
    std::array::from_fn(|_| Replica::of(&memory, &clock))
}

fn leaders(candidates: &[&Candidate]) -> usize {
    candidates.iter().filter(|candidate| candidate.is_leader()).count()
}

#[tokio::test(start_paused = true)]
async fn one_leads_and_another_follows_when_it_resigns() {
    let [one, two] = replicas();
    let first = one.campaign();
    let leadership = first.elected().await.unwrap();
    let second = two.campaign();
    sleep(10 * TTL).await;
    assert!(first.is_leader() && !second.is_leader());
    assert!(second.leader().await.unwrap().is_some());
    assert!(timeout(TTL, second.elected()).await.is_err());
    first.resign().await.unwrap();
    leadership.check().unwrap_err();
    let next = timeout(Duration::from_secs(2), second.elected()).await.unwrap().unwrap();
    assert!(next.fencing_token() > leadership.fencing_token());
    second.resign().await.unwrap();
    assert!(one.locks.holder("leader").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn one_that_is_cut_off_stops_to_lead_before_another_begins_and_campaigns_again() {
    let [one, two] = replicas();
    let (first, second) = (one.campaign(), two.campaign());
    first.elected().await.unwrap();
    one.store.outage(Fault::hang());
    let mut waited = Duration::ZERO;
    while !second.is_leader() {
        assert!(leaders(&[&first, &second]) <= 1 && waited < 3 * TTL);
        sleep(Duration::from_millis(10)).await;
        waited += Duration::from_millis(10);
    }
    assert!(!first.is_leader());
    first.health().unwrap();
    sleep(2 * TTL).await;
    first.health().unwrap();
    assert!(first.last_error().is_some());
    one.store.heal();
    second.resign().await.unwrap();
    // By itself.
    timeout(3 * TTL, first.elected()).await.unwrap().unwrap();
    assert!(first.last_error().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_slept_does_not_lead_when_it_wakes_and_campaigns_again() {
    let [one] = replicas();
    let first = one.campaign();
    let before = first.elected().await.unwrap();
    one.clock.suspend(2 * TTL);
    // No task has run since.
    assert!(!first.is_leader() && first.leadership().is_none());
    let after = timeout(TTL, first.elected()).await.unwrap().unwrap();
    assert!(after.fencing_token() > before.fencing_token());
}

#[tokio::test(start_paused = true)]
async fn a_leadership_that_was_removed_is_campaigned_for_again() {
    let [one] = replicas();
    let first = one.campaign();
    let before = first.elected().await.unwrap();
    one.locks.force_release("leader", None).await.unwrap();
    before.lost().await;
    let after = timeout(TTL, first.elected()).await.unwrap().unwrap();
    assert!(after.fencing_token() > before.fencing_token());
}

#[tokio::test(start_paused = true)]
async fn a_campaign_that_shows_no_sign_of_life_is_not_healthy() {
    let [one] = replicas();
    let first = one.campaign();
    first.elected().await.unwrap();
    first.health().unwrap();
    // The clock goes on and the campaign does not: the runtime is blocked.
    one.clock.suspend(STUCK_AFTER + Duration::from_secs(1));
    assert_eq!(first.health().unwrap_err().kind(), ErrorKind::Unavailable);
    sleep(Duration::from_secs(6)).await;
    first.health().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_campaign_ends_with_its_manager_and_says_so() {
    let [one, two] = replicas();
    let (first, second) = (one.campaign(), two.campaign());
    first.elected().await.unwrap();
    one.locks.close(Close::Release).await.unwrap();
    assert!(!first.is_leader());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(first.health().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(first.elected().await.unwrap_err().kind(), ErrorKind::Closed);
    timeout(TTL, second.elected()).await.unwrap().unwrap();
    // Dropped without a word: the lease is given back in the background.
    drop(second);
    sleep(Duration::from_secs(1)).await;
    assert!(two.locks.holder("leader").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn an_outage_at_the_start_is_ridden_out() {
    let [one] = replicas();
    one.store.always(Operation::Acquire, Fault::fail(ErrorKind::Unavailable));
    let first = one.campaign();
    sleep(5 * TTL).await;
    first.health().unwrap();
    assert_eq!(first.last_error().unwrap().kind(), ErrorKind::Unavailable);
    one.store.heal();
    timeout(TTL, first.elected()).await.unwrap().unwrap();
    first.resign().await.unwrap();
}
