//! Jobs of which one at a time is under way.

#![cfg(all(feature = "schedule", feature = "testkit"))]
#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::time::Duration;

use leasehold::schedule::{JobEnd, UniqueJob};
use leasehold::store::memory::MemoryStore;
use leasehold::testkit::{Fault, FaultStore, TestClock};
use leasehold::{Clock, ErrorKind, LockManager, Operation, OwnerToken};

const TTL: Duration = Duration::from_secs(60);

struct Queue {
    store: FaultStore,
    clock: Clock,
}

impl Queue {
    fn new() -> Self {
        let clock = Clock::from(TestClock::start());
        Self { store: FaultStore::new(MemoryStore::with_clock(clock.clone())), clock }
    }

    /// Each in a process of its own.
    fn job(&self) -> UniqueJob {
        let locks = LockManager::builder(self.store.clone()).clock(self.clock.clone()).build().unwrap();
        locks.unique("mail", "user 7").ttl(TTL)
    }

    async fn dispatch(&self) -> Option<OwnerToken> {
        self.job().dispatch().await.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn one_job_at_a_time_from_its_dispatch_to_its_end() {
    let queue = Queue::new();
    let token = queue.dispatch().await.unwrap();
    tokio::time::sleep(TTL / 2).await;
    assert!(queue.dispatch().await.is_none(), "it waits in the queue");
    let worker = queue.job();
    let work = async {
        tokio::time::sleep(10 * TTL).await;
        assert!(queue.dispatch().await.is_none(), "it is worked at");
        JobEnd::Done(5)
    };
    assert_eq!(worker.work(&token, work).await.unwrap(), JobEnd::Done(5));
    assert!(queue.dispatch().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_tried_again_stays_unique_and_keeps_its_token() {
    let queue = Queue::new();
    let token = queue.dispatch().await.unwrap();
    for _ in 0..3 {
        assert_eq!(queue.job().work(&token, async { JobEnd::Retry(()) }).await.unwrap(), JobEnd::Retry(()));
        tokio::time::sleep(TTL - Duration::from_secs(5)).await;
        assert!(queue.dispatch().await.is_none());
    }
    assert_eq!(queue.job().work(&token, async { JobEnd::Failed(()) }).await.unwrap(), JobEnd::Failed(()));
    assert!(queue.dispatch().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_lease_ended_does_not_run_and_leaves_its_successor_alone() {
    let queue = Queue::new();
    let stale = queue.dispatch().await.unwrap();
    tokio::time::sleep(TTL).await;
    let token = queue.dispatch().await.unwrap();
    let error = queue.job().work(&stale, async { panic!("it runs") as JobEnd<()> }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld);
    assert_eq!(queue.job().release(&stale).await.unwrap_err().kind(), ErrorKind::NotHeld);
    assert!(queue.dispatch().await.is_none(), "the successor's lease stands");
    queue.job().release(&token).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn work_is_stopped_when_its_lease_cannot_be_extended() {
    let queue = Queue::new();
    let token = queue.dispatch().await.unwrap();
    let work = async {
        queue.store.always(Operation::Extend, Fault::hang());
        tokio::time::sleep(10 * TTL).await;
        JobEnd::Done(())
    };
    let began = queue.clock.now();
    let error = queue.job().work(&token, work).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    let took = queue.clock.now().since(began);
    assert!(took < TTL && took > TTL / 2, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn work_is_not_polled_once_more_after_the_machine_slept_for_longer_than_its_lease() {
    let clock = TestClock::start();
    let shown = Clock::from(clock.clone());
    let store = FaultStore::new(MemoryStore::with_clock(shown.clone()));
    let queue = Queue { store, clock: shown };
    let token = queue.dispatch().await.unwrap();
    let work = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        clock.suspend(2 * TTL);
        tokio::task::yield_now().await;
        panic!("it goes on") as JobEnd<()>
    };
    assert_eq!(queue.job().work(&token, work).await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_dispatch_that_is_given_up_leaves_nothing() {
    let queue = Queue::new();
    queue.store.once(Operation::Acquire, Fault::delay_reply(Duration::from_secs(1)));
    assert!(tokio::time::timeout(Duration::from_millis(10), queue.job().dispatch()).await.is_err());
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(queue.dispatch().await.is_some());
    for (name, id) in [("", "a"), ("a", ""), ("a#b", "c")] {
        let job = LockManager::new(MemoryStore::new()).unique(name, id);
        assert_eq!(job.dispatch().await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
