//! The server stands still, or has room for nobody else.

use std::time::Duration;

use leasehold::store::postgres::{PostgresAdvisoryStore, PostgresStore};
use leasehold::{ErrorKind, LockManager, LockManagerBuilder, LostReason};
use store_tests::{Table, run};
use tokio_postgres::NoTls;

use crate::setting::{soon, until};

const TTL: Duration = Duration::from_secs(3);

/// Builders of both ways of keeping a lock.
async fn builders(table: &Table) -> [(&'static str, LockManagerBuilder); 2] {
    let advisory = PostgresAdvisoryStore::connect(&table.url()).await.unwrap();
    [("table", LockManager::builder(table.store().await)), ("advisory", LockManager::builder(advisory))]
}

async fn managers(table: &Table, ttl: Duration) -> [(&'static str, LockManager); 2] {
    builders(table).await.map(|(mode, builder)| (mode, builder.ttl(ttl).build().unwrap()))
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_server_that_stands_still_longer_than_the_ttl_costs_the_lease_in_time() {
    run(async {
        let table = Table::alone(&[]);
        let (ours, theirs) = (managers(&table, TTL).await, managers(&table, TTL).await);
        let mut guards = Vec::new();
        for (_, locks) in &ours {
            guards.push(locks.lock("k").try_acquire().await.unwrap().unwrap());
        }
        let paused = table.pause();
        for (guard, (mode, _)) in guards.iter().zip(&ours) {
            assert_eq!(soon(mode, guard.lost()).await, LostReason::Expired, "{mode}");
        }
        drop(paused);
        for ((guard, (_, before)), (mode, after)) in guards.into_iter().zip(&ours).zip(&theirs) {
            let token = guard.fencing_token();
            // A session keeps the lock of a holder that hangs; this one knows that it has lost it.
            guard.release().await.unwrap_err();
            let next = soon(mode, after.lock("k").acquire()).await.unwrap();
            assert!(next.fencing_token() > token, "{mode}");
            next.release().await.unwrap();
            soon(mode, before.lock("k").acquire()).await.unwrap().release().await.unwrap();
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_server_that_stands_still_for_less_than_the_ttl_costs_no_lease() {
    run(async {
        let table = Table::alone(&[]);
        for (mode, locks) in managers(&table, Duration::from_secs(30)).await {
            let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
            let paused = table.pause();
            // Others are impatient meanwhile, for longer than a session may take to answer.
            for _ in 0..6 {
                let lock = locks.lock("other");
                tokio::time::timeout(Duration::from_millis(500), lock.try_acquire()).await.unwrap_err();
            }
            guard.check().unwrap();
            drop(paused);
            let extended = async || guard.extend(Duration::from_secs(30)).await.is_ok();
            until(mode, extended).await;
            guard.release().await.unwrap_or_else(|error| panic!("{mode}: {error}"));
            soon(mode, locks.lock("other").acquire()).await.unwrap().release().await.unwrap();
            soon(mode, locks.lock("k").acquire()).await.unwrap().release().await.unwrap();
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn locks_go_on_where_no_connection_is_left_for_others() {
    run(async {
        let table = Table::alone(&["-c", "max_connections=20", "-c", "superuser_reserved_connections=0"]);
        let (ours, theirs) = (managers(&table, TTL).await, managers(&table, TTL).await);
        let mut pool = Vec::new();
        let full = loop {
            match tokio_postgres::connect(&table.url(), NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(connection);
                    pool.push(client);
                }
                Err(error) => break error,
            }
        };
        assert_eq!(full.code().unwrap().code(), "53300", "{full}");
        for ((mode, ours), (_, theirs)) in ours.iter().zip(&theirs) {
            let guard = ours.lock("k").try_acquire().await.unwrap().unwrap();
            let lock = theirs.lock("k");
            let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
            // Renewed, and waited for.
            tokio::time::sleep(TTL * 2).await;
            guard.check().unwrap();
            assert!(!waiter.is_finished(), "{mode}");
            guard.release().await.unwrap();
            soon(mode, waiter).await.unwrap().release().await.unwrap();
        }
        // Who comes now is told, and not that somebody holds something.
        let error = PostgresStore::connect(&table.url()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("max_connections"), "{error}");
    });
}
