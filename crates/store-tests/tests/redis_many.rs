//! Very many leases of one manager.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::observe::{Event, Observer};
use leasehold::store::redis::RedisStore;
use leasehold::testkit::{Proxy, Residue};
use leasehold::{Clock, LockGuard, LockManager, Operation};
use store_tests::{Monitor, Site, on_every_server};

on_every_server! {
    ten_thousand_leases_are_renewed_in_batches
    a_renewal_is_one_script_and_a_batch_is_one_message
}

const LEASES: u32 = 10_000;
/// With an operation limit of five seconds, for thousands of leases that fall due together.
const TTL: Duration = Duration::from_secs(30);
/// A third of it is far longer than it takes to acquire a thousand leases.
const LONG: Duration = Duration::from_secs(54);
/// The most leases of a batch, and how far apart those of one may fall due.
const BATCH: (u32, Duration) = (256, Duration::from_millis(20));

async fn ten_thousand_leases_are_renewed_in_batches(site: Site) {
    let counts = Arc::new(Counts::default());
    let locks = site.builder().await.ttl(TTL).observer(Looker(Arc::clone(&counts))).build().unwrap();
    let began = Clock::system().now();
    let guards = acquire_all(&locks, LEASES).await;
    let spread = Clock::system().now().since(began);
    let fences: Vec<_> = guards.iter().map(|guard| guard.fencing_token()).collect();
    let was = |count: &AtomicU32| count.load(Ordering::Relaxed);
    let (requests, before) = (was(&counts.requests), was(&counts.renewed));
    // Each of them twice.
    let until = Clock::system().now() + TTL * 2;
    while was(&counts.renewed) - before < 2 * LEASES && Clock::system().now() < until {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (requests, renewed) = (was(&counts.requests) - requests, was(&counts.renewed) - before);

    for (guard, fence) in guards.iter().zip(fences) {
        guard.check().unwrap();
        assert_eq!(guard.fencing_token(), fence);
    }
    assert_eq!(was(&counts.lost), 0);
    // Where the machine stands still for longer than an answer may take, some fail, and are asked for one by one.
    let failed = was(&counts.failed);
    assert!(failed < LEASES / 2, "{failed} renewals failed");
    assert!(renewed >= 2 * LEASES, "{renewed} renewals");
    // Once within each third of a ttl: as many batches as it takes, and one more for each moment at which some fall due.
    let moments = spread.div_duration_f64(BATCH.1).ceil() as u32;
    let most = (renewed.div_ceil(LEASES) + 1) * (LEASES.div_ceil(BATCH.0) + moments + 1) + 2 * failed;
    assert!(requests <= most, "{requests} requests for {renewed} renewals of leases taken within {spread:?}");
    drop(guards);
    site.at_rest(std::slice::from_ref(&locks)).await;
    assert!(Residue::of(&locks).is_none());
}

/// What goes over the wire in one period.
async fn a_renewal_is_one_script_and_a_batch_is_one_message(site: Site) {
    const FEW: u32 = 1000;
    let proxy = Proxy::start(site.server().address()).unwrap();
    let store = RedisStore::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let counts = Arc::new(Counts::default());
    let locks = LockManager::builder(store).ttl(LONG).observer(Looker(Arc::clone(&counts))).build().unwrap();
    // The first use loads the scripts.
    let warm = locks.lock("warm").try_acquire().await.unwrap().unwrap();
    warm.extend(LONG).await.unwrap();
    warm.release().await.unwrap();
    let began = Clock::system().now();
    let guards = acquire_all(&locks, FEW).await;
    let moments = Clock::system().now().since(began).div_duration_f64(BATCH.1).ceil() as u32;
    let renewed = || counts.renewed.load(Ordering::Relaxed);
    assert_eq!(renewed(), 0, "renewed while others were being acquired");
    let mut monitor = Monitor::start(site.server().address());
    let (batches, messages) = (counts.requests.load(Ordering::Relaxed), proxy.requests().arrived());
    // A third of the ttl, and what a busy machine needs.
    for _ in 0..1200 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if renewed() == FEW {
            break;
        }
    }
    assert_eq!(renewed(), FEW);
    let (batches, messages) =
        (counts.requests.load(Ordering::Relaxed) - batches, proxy.requests().arrived() - messages);
    let requests = monitor.requests();
    assert_eq!(requests.len(), FEW as usize);
    assert!(requests.iter().all(|request| request.starts_with("\"EVALSHA\"")), "{:?}", &requests[..4]);
    // They fall due over as long as it took to acquire them.
    let most = FEW.div_ceil(BATCH.0) + moments + 1;
    assert!(batches <= most, "{batches} batches, and no more than {most} moments at which some fall due");
    // A large batch may be read in a few pieces.
    let most = u64::from(batches + 3 * FEW.div_ceil(BATCH.0));
    assert!(messages <= most, "{messages} messages for {batches} batches");
    drop(guards);
    site.at_rest(std::slice::from_ref(&locks)).await;
}

async fn acquire_all(locks: &LockManager, count: u32) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for some in (0..count).collect::<Vec<_>>().chunks(500) {
        let ask = |number: &u32| {
            let lock = locks.lock(&format!("lease {number}"));
            tokio::spawn(async move { lock.try_acquire().await })
        };
        for task in some.iter().map(ask).collect::<Vec<_>>() {
            guards.push(task.await.unwrap().unwrap().unwrap());
        }
    }
    guards
}

/// What became of renewals.
#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU32,
    renewed: AtomicU32,
    failed: AtomicU32,
    lost: AtomicU32,
}

#[derive(Debug)]
struct Looker(Arc<Counts>);

impl Observer for Looker {
    fn observe(&self, event: &Event) {
        let count = match event {
            Event::StoreCall(call) if call.operation == Operation::Extend => &self.0.requests,
            Event::Renewed(_) => &self.0.renewed,
            Event::RenewalFailed(_) => &self.0.failed,
            Event::Lost(_) => &self.0.lost,
            _ => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}
