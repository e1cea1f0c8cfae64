//! The server stands still, or has room for nobody else.

use std::time::Duration;

use leasehold::store::postgres::PostgresAdvisoryStore;
use leasehold::{Clock, ErrorKind, LockManager, LockManagerBuilder, LostReason, Renew};
use store_tests::{Table, run};
use tokio_postgres::{Client, NoTls};

use crate::setting::{LONG, ROOMY, granted, obtained, soon, until};

const TTL: Duration = Duration::from_secs(3);

/// Builders of both ways of keeping a lock.
async fn builders(table: &Table) -> [(&'static str, LockManagerBuilder); 2] {
    let advisory = PostgresAdvisoryStore::connect(&table.url()).await.unwrap();
    [("table", LockManager::builder(table.store().await)), ("advisory", LockManager::builder(advisory))]
}

/// Asks, and does not wait for long: no answer is right.
async fn gives_up(locks: &LockManager, name: &str) {
    let lock = locks.lock(name);
    if let Ok(answer) = tokio::time::timeout(Duration::from_millis(500), lock.try_acquire()).await {
        answer.unwrap_err();
    }
}

async fn managers(table: &Table, ttl: Duration) -> [(&'static str, LockManager); 2] {
    builders(table).await.map(|(mode, builder)| (mode, builder.ttl(ttl).build().unwrap()))
}

/// Takes every connection that is left, also those of clients that are just ending.
async fn fill(table: &Table, pool: &mut Vec<Client>) {
    let mut refused = 0;
    while refused < 10 {
        match tokio_postgres::connect(&table.url(), NoTls).await {
            Ok((client, connection)) => {
                tokio::spawn(connection);
                pool.push(client);
                refused = 0;
            }
            Err(error) => {
                assert_eq!(error.code().unwrap().code(), "53300", "{error}");
                refused += 1;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_server_that_stands_still_longer_than_the_ttl_costs_the_lease_in_time() {
    run(async {
        let table = Table::alone(&[]);
        let (ours, theirs) = (managers(&table, TTL).await, managers(&table, ROOMY).await);
        let mut guards = Vec::new();
        for (_, locks) in &ours {
            guards.push(granted(locks, "k").await);
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
            let next = granted(after, "k").await;
            assert!(next.fencing_token() > token, "{mode}");
            next.release().await.unwrap();
            obtained(&before.lock("k").ttl(ROOMY)).await.release().await.unwrap();
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
                gives_up(&locks, "other").await;
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

/// Where nobody else is let in, a connection must not be given up for an answer that was late.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_connection_that_answered_late_is_used_again() {
    run(async {
        let table = Table::alone(&["-c", "max_connections=20", "-c", "superuser_reserved_connections=0"]);
        let managers = managers(&table, LONG).await;
        let mut guards = Vec::new();
        for (mode, locks) in &managers {
            guards.push(locks.lock(&format!("{mode} k")).try_acquire().await.unwrap().unwrap());
        }
        let mut pool = Vec::new();
        fill(&table, &mut pool).await;
        let paused = table.pause();
        for (_, locks) in &managers {
            gives_up(locks, "other").await;
        }
        drop(paused);
        for ((mode, locks), guard) in managers.iter().zip(guards) {
            let again = async || match locks.lock(&format!("{mode} again")).try_acquire().await {
                Ok(guard) => guard.unwrap_or_else(|| panic!("{mode}: nobody has it")).release().await.is_ok(),
                Err(_) => false,
            };
            until(mode, again).await;
            guard.extend(LONG).await.unwrap();
            guard.release().await.unwrap();
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn locks_go_on_where_no_connection_is_left_for_others() {
    run(async {
        let table = Table::alone(&["-c", "max_connections=20", "-c", "superuser_reserved_connections=0"]);
        let renewing = async || {
            builders(&table).await.map(|(mode, builder)| {
                (mode, builder.ttl(ROOMY).renew(Renew::Every(Duration::from_secs(1))).build().unwrap())
            })
        };
        let (ours, theirs) = (renewing().await, renewing().await);
        let mut pool = Vec::new();
        fill(&table, &mut pool).await;
        for ((mode, ours), (_, theirs)) in ours.iter().zip(&theirs) {
            let guard = ours.lock("k").try_acquire().await.unwrap().unwrap();
            let lock = theirs.lock("k");
            let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
            // Renewed, again and again, and waited for.
            let end = || Clock::system().now() + guard.remaining();
            let before = end();
            until("renewals", async || end() > before + Duration::from_secs(3)).await;
            guard.check().unwrap();
            assert!(!waiter.is_finished(), "{mode}");
            guard.release().await.unwrap();
            soon(mode, waiter).await.unwrap().release().await.unwrap();
        }
        // Who comes now is told, and not that somebody holds something.
        for mode in ["table", "advisory", "xact"] {
            let url = format!("{}?mode={mode}", table.url());
            let error = LockManager::connect(&url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{mode}: {error}");
            assert!(error.to_string().contains("max_connections"), "{mode}: {error}");
        }
    });
}
