//! Statements that fail leave no lock behind.

use std::time::Duration;

use leasehold::store::postgres::PostgresAdvisoryStore;
use leasehold::store::{Attempt, Claim, Store};
use leasehold::{ErrorKind, Key, LockManager, LostReason, OwnerToken};
use store_tests::{Table, run};

use crate::setting::{HELD, RULE, SOON, none_held, number, soon};

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn an_answer_that_cannot_be_read_leaves_no_lock() {
    run(async {
        let table = Table::new();
        let store = PostgresAdvisoryStore::connect(&table.url()).await.unwrap();
        let (key, owner) = (Key::new("n", "k").unwrap(), OwnerToken::mint().unwrap());
        let below = "ALTER SEQUENCE leasehold_fence MINVALUE -10 RESTART -5";
        table.client().await.batch_execute(below).await.unwrap();
        let error = store.acquire(&Claim::new(&key, &owner, SOON)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
        none_held(&table).await;
    });
}

/// The lock of a session survives the statement that took it.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_deadlock_leaves_no_lock() {
    run(async {
        // The server looks for a deadlock once in each wait; the other statement has to have begun by then.
        let table = Table::alone(&["-c", "deadlock_timeout=10s"]);
        let store = PostgresAdvisoryStore::connect(&table.url()).await.unwrap();
        let (key, owner) = (Key::new("n", "k").unwrap(), OwnerToken::mint().unwrap());
        let client = table.client().await;
        // So that it is not the other one that is ended.
        client.batch_execute("SET deadlock_timeout = '2min'; BEGIN").await.unwrap();
        client.batch_execute("ALTER SEQUENCE leasehold_fence INCREMENT 1").await.unwrap();
        let claim = Claim::new(&key, &owner, SOON);
        let other = async {
            while number(&table, HELD).await == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            client.query_one(&format!("SELECT pg_advisory_xact_lock({RULE})"), &[&"n:k"]).await.unwrap();
            client.batch_execute("COMMIT").await.unwrap();
        };
        let (answer, ()) = soon("both go on", async { tokio::join!(store.acquire(&claim), other) }).await;
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        none_held(&table).await;
        let Attempt::Acquired(_) = store.acquire(&claim).await.unwrap() else { panic!("refused") };
        assert_eq!(number(&table, HELD).await, 1);
    });
}

/// Whether it is still held is not known then.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn an_unlock_that_fails_ends_the_session() {
    run(async {
        for instead in ["SELECT false", "SELECT 1 / 0 = 1"] {
            let table = Table::new();
            let store = PostgresAdvisoryStore::connect(&table.url()).await.unwrap();
            let locks = LockManager::builder(store.clone()).build().unwrap();
            let other = soon("an answer", locks.lock("other").try_acquire()).await.unwrap().unwrap();
            let (key, owner) = (Key::new("n", "k").unwrap(), OwnerToken::mint().unwrap());
            store.acquire(&Claim::new(&key, &owner, SOON)).await.unwrap();
            assert_eq!(number(&table, HELD).await, 2);
            let client = table.client().await;
            let replace = format!(
                "ALTER FUNCTION pg_catalog.pg_advisory_unlock(bigint) RENAME TO pg_advisory_unlock_still; \
                CREATE FUNCTION public.pg_advisory_unlock(bigint) RETURNS boolean LANGUAGE sql AS '{instead}'"
            );
            client.batch_execute(&replace).await.unwrap();
            soon("an answer", store.release(&key, &owner)).await.unwrap_err();
            assert_eq!(soon("the loss", other.lost()).await, LostReason::ConnectionLost, "{instead}");
            none_held(&table).await;
            let restore = "DROP FUNCTION public.pg_advisory_unlock(bigint); \
                ALTER FUNCTION pg_catalog.pg_advisory_unlock_still(bigint) RENAME TO pg_advisory_unlock";
            client.batch_execute(restore).await.unwrap();
            soon("the lock", locks.lock("other").acquire()).await.unwrap().release().await.unwrap();
        }
    });
}

/// As where something else speaks PostgreSQL's protocol.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_server_without_advisory_locks_is_told_as_such() {
    run(async {
        let table = Table::new();
        let store = PostgresAdvisoryStore::connect(&table.url()).await.unwrap();
        let client = table.client().await;
        let missing = "ALTER FUNCTION pg_catalog.pg_try_advisory_lock(bigint) RENAME TO pg_try_no_lock";
        client.batch_execute(missing).await.unwrap();
        let locks = LockManager::builder(store).build().unwrap();
        for _ in 0..2 {
            let error = soon("an answer", locks.lock("k").try_acquire()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
            assert!(error.to_string().contains("42883") && error.to_string().contains("is it PostgreSQL?"), "{error}");
        }
        // A table needs none.
        table.manager().await.lock("k").try_acquire().await.unwrap().unwrap().release().await.unwrap();
    });
}
