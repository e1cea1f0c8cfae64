//! What the ways of keeping a lock that end with a session have in common with a table: how they are opened, and by whom.

use std::sync::Arc;
use std::time::Duration;

use leasehold::store::postgres::{PostgresAdvisoryStore, PostgresTransactionStore};
use leasehold::store::{Store, Waiting};
use leasehold::{ErrorKind, LockManager, config};
use store_tests::{Table, connected, run};
use tokio_postgres::Config;

use crate::setting::{LONG, soon, until};

/// One store of each mode, over connections like this.
async fn stores(url: &str, table: &str) -> [(&'static str, Arc<dyn Store>); 2] {
    waiting_stores(Waiting::Poll, url, table).await
}

/// The same, whose waiters are told where that can be.
async fn waiting_stores(waiting: Waiting, url: &str, table: &str) -> [(&'static str, Arc<dyn Store>); 2] {
    let config: Config = url.parse().unwrap();
    let advisory =
        connected(waiting == Waiting::Hint, || PostgresAdvisoryStore::from_config(config.clone(), "public", table));
    let transactions =
        connected(false, || PostgresTransactionStore::from_config(config.clone(), "public", table)).await.unwrap();
    [("advisory", Arc::new(advisory.await.unwrap())), ("xact", Arc::new(transactions))]
}

/// Everything that such a store can do.
async fn works(mode: &str, ours: Arc<dyn Store>, theirs: Arc<dyn Store>) {
    ours.probe().await.unwrap();
    let manager = |store: Arc<dyn Store>| LockManager::builder(store).ttl(LONG).build().unwrap();
    let (ours, theirs) = (manager(ours), manager(theirs));
    let guard = ours.lock("k").try_acquire().await.unwrap().unwrap();
    guard.extend(LONG).await.unwrap();
    let lock = theirs.lock("k");
    assert!(lock.try_acquire().await.unwrap().is_none(), "{mode}");
    assert!(lock.holder().await.unwrap().is_some(), "{mode}");
    let (next, released) = tokio::join!(soon(mode, lock.acquire()), guard.release());
    released.unwrap();
    let next = next.unwrap();
    assert!(next.fencing_token().is_some(), "{mode}");
    next.release().await.unwrap();
    // A wait that is given up.
    let guard = ours.lock("k").try_acquire().await.unwrap().unwrap();
    assert!(lock.acquire_within(Duration::from_millis(200)).await.unwrap().is_none(), "{mode}");
    assert_eq!(ours.force_release("k", None).await.unwrap_err().kind(), ErrorKind::Unsupported, "{mode}");
    guard.release().await.unwrap();
    // Who leaves the line may be granted the lock on the way.
    until(mode, async || lock.holder().await.unwrap().is_none()).await;
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_configuration_of_the_client_opens_them() {
    run(async {
        let table = Table::new();
        let (ours, theirs) = (stores(&table.url(), "locks").await, stores(&table.url(), "locks").await);
        for ((mode, ours), (_, theirs)) in ours.into_iter().zip(theirs) {
            works(mode, ours, theirs).await;
        }
        let names = "SELECT count(*) FROM pg_class WHERE relname IN ('locks', 'locks_fence', 'leasehold')";
        assert_eq!(table.client().await.query_one(names, &[]).await.unwrap().get::<_, i64>(0), 2);
        let config: Config = table.url().parse().unwrap();
        let error = PostgresAdvisoryStore::from_config(config.clone(), "public", "A").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        let error = PostgresTransactionStore::from_config(config, "nowhere", "locks").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn the_rights_that_are_documented_are_enough_for_them() {
    run(async {
        let table = Table::alone(&[]);
        drop(table.store().await);
        let documented = include_str!("../../../../docs/stores-postgres.md");
        let (_, rights) = documented.split_once("```sql\nGRANT").expect("they are documented");
        let rights = format!("GRANT{}", rights.split_once("```").unwrap().0);
        let lines: Vec<_> = rights.lines().collect();
        let [space, _, sequence] = lines[..] else { panic!("{lines:?}") };
        let client = table.client().await;
        client.batch_execute("REVOKE ALL ON SCHEMA public FROM PUBLIC; CREATE ROLE locks LOGIN").await.unwrap();
        let url = table.url().replace("postgres@", "locks@");
        // The least, then all.
        for (rights, waiting) in [(format!("{space} {sequence}"), Waiting::Poll), (rights.clone(), Waiting::Hint)] {
            client.batch_execute(&rights).await.unwrap();
            let stores = async || waiting_stores(waiting, &url, "leasehold").await;
            let (ours, theirs) = (stores().await, stores().await);
            assert_eq!(ours[0].1.capabilities().waiting, waiting);
            for ((mode, ours), (_, theirs)) in ours.into_iter().zip(theirs) {
                works(mode, ours, theirs).await;
            }
        }
    });
}

/// A lock that was taken before the statement failed must not stay.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn who_may_draw_no_token_is_refused_and_keeps_no_lock() {
    run(async {
        let table = Table::alone(&[]);
        drop(table.store().await);
        let client = table.client().await;
        client.batch_execute("CREATE ROLE locks LOGIN; GRANT USAGE ON SCHEMA public TO locks").await.unwrap();
        let url = table.url().replace("postgres@", "locks@");
        let (ours, theirs) = (stores(&url, "leasehold").await, stores(&table.url(), "leasehold").await);
        for ((mode, ours), (_, theirs)) in ours.into_iter().zip(theirs) {
            let ours = LockManager::new(ours);
            for _ in 0..2 {
                let error = soon("an answer", ours.lock("k").try_acquire()).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Rejected, "{mode}: {error}");
                assert!(error.to_string().contains("42501"), "{mode}: {error}");
                let held = "SELECT FROM pg_locks WHERE locktype = 'advisory'";
                until("nothing is left", async || client.query(held, &[]).await.unwrap().is_empty()).await;
            }
            let theirs = LockManager::new(theirs);
            soon("an answer", theirs.lock("k").try_acquire()).await.unwrap().unwrap().release().await.unwrap();
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_folder_with_a_socket_is_a_host() {
    run(async {
        let table = Table::new();
        let folder = table.server().dir().to_str().unwrap().replace('/', "%2F");
        for mode in ["table", "advisory", "xact"] {
            let (port, database) = (table.server().port(), table.database());
            let url = format!("postgres://postgres@{folder}:{port}/{database}?mode={mode}");
            let locks = config::open(&url).await.unwrap().build().unwrap();
            let guard = soon("an answer", locks.lock("k").try_acquire()).await.unwrap().unwrap();
            let sessions = "SELECT FROM pg_stat_activity WHERE application_name LIKE 'leasehold%' \
                AND datname = current_database() AND client_addr IS NOT NULL";
            assert!(table.client().await.query(sessions, &[]).await.unwrap().is_empty(), "{mode}");
            let other = config::open(&format!("{}?mode={mode}", table.url())).await.unwrap().build().unwrap();
            assert!(soon("an answer", other.lock("k").try_acquire()).await.unwrap().is_none(), "{mode}");
            guard.release().await.unwrap();
            drop((locks, other));
            until("they have gone", async || table.client().await.query(sessions, &[]).await.unwrap().is_empty()).await;
        }
    });
}
