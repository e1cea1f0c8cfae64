//! Very many leases, and very many calls that were given up.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::observe::{Event, Observer};
use leasehold::store::{Attempt, Claim, Store};
use leasehold::testkit::Residue;
use leasehold::{Clock, Key, LockGuard, LockManager, Operation, OwnerToken};
use store_tests::{Table, run};

const LEASES: u32 = 10_000;
const TTL: Duration = Duration::from_secs(30);
/// The most leases of a batch, and how far apart those of one may fall due.
const BATCH: (u32, Duration) = (256, Duration::from_millis(20));

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn ten_thousand_leases_are_renewed_in_batches() {
    run(async {
        let table = Table::new();
        let counts = Arc::new(Counts::default());
        let builder = LockManager::builder(table.store().await).ttl(TTL);
        let locks = builder.observer(Looker(Arc::clone(&counts))).build().unwrap();
        let began = Clock::system().now();
        let guards = acquire_all(&locks).await;
        let spread = Clock::system().now().since(began);
        let fences: Vec<_> = guards.iter().map(|guard| guard.fencing_token()).collect();
        let was = |count: &AtomicU32| count.load(Ordering::Relaxed);
        let (requests, renewed) = (was(&counts.requests), was(&counts.renewed));
        tokio::time::sleep(TTL + Duration::from_secs(1)).await;
        let (requests, renewed) = (was(&counts.requests) - requests, was(&counts.renewed) - renewed);

        for (guard, fence) in guards.iter().zip(fences) {
            guard.check().unwrap();
            assert_eq!(guard.fencing_token(), fence);
        }
        assert_eq!(was(&counts.lost), 0);
        assert!(renewed >= 2 * LEASES, "{renewed} renewals");
        // Once within each third of a ttl: as many batches as it takes, and one more for each moment at which some fall due.
        let moments = spread.div_duration_f64(BATCH.1).ceil() as u32;
        let most = (renewed.div_ceil(LEASES) + 1) * (LEASES.div_ceil(BATCH.0) + moments + 1);
        // A batch that failed, as on a machine that is too busy, is asked for again, one by one.
        let failed = was(&counts.failed);
        assert!(
            requests <= most + failed,
            "{requests} requests for {renewed} renewals of leases taken within {spread:?}"
        );
        drop(guards);
        let rest = async {
            while !Residue::of(&locks).is_none() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(TTL * 5, rest).await.expect("everything is given back");
        table.at_rest(std::slice::from_ref(&locks)).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn leases_of_a_batch_are_extended_by_one_statement() {
    run(async {
        let table = Table::alone(&["-c", "log_statement=all"]);
        let store = table.store().await;
        let owner = OwnerToken::mint().unwrap();
        let keys: Vec<_> = (0..BATCH.0).map(|number| Key::new("", &number.to_string()).unwrap()).collect();
        let claims: Vec<_> = keys.iter().map(|key| Claim::new(key, &owner, TTL)).collect();
        for claim in &claims {
            assert!(matches!(store.acquire(claim).await.unwrap(), Attempt::Acquired(_)));
        }
        let count = || {
            let log = table.server().log();
            ["execute ", "statement: "].map(|kind| log.matches(&format!("LOG:  {kind}")).count())
        };
        // Until what is seen to now and then is over.
        let [executed, plain] = loop {
            let before = count();
            tokio::time::sleep(Duration::from_secs(2)).await;
            if count() == before {
                break before;
            }
        };
        let extended = store.extend(&claims).await.unwrap();
        assert!(extended.into_iter().all(|answer| answer.unwrap().is_some()));
        assert_eq!(count(), [executed + 1, plain]);
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn two_thousand_dropped_acquires_leave_nothing() {
    run(async {
        let table = Table::new();
        let managers = [table.manager().await, table.manager().await];
        let mut tasks = Vec::new();
        for number in 0..2000_u64 {
            let lock = managers[usize::try_from(number % 2).unwrap()].lock(&format!("key {}", number % 7));
            tasks.push(tokio::spawn(async move {
                let limit = Duration::from_micros(number * 37 % 4000);
                // Given up somewhere between the first await and long after the grant.
                if let Ok(guard) = tokio::time::timeout(limit, lock.acquire()).await {
                    guard.unwrap().release().await.unwrap();
                }
            }));
            if number % 20 == 0 {
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        table.at_rest(&managers).await;
        let client = table.client().await;
        let open = "SELECT count(*) FROM pg_stat_activity \
            WHERE application_name = 'leasehold' AND datname = current_database() AND state <> 'idle'";
        let ends = async {
            while client.query_one(open, &[]).await.unwrap().get::<_, i64>(0) > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(TTL, ends).await.expect("nothing is under way");
        for number in 0..7 {
            let lock = managers[0].lock(&format!("key {number}"));
            lock.try_acquire().await.unwrap().unwrap().release().await.unwrap();
        }
    });
}

async fn acquire_all(locks: &LockManager) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for some in (0..LEASES).collect::<Vec<_>>().chunks(250) {
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
