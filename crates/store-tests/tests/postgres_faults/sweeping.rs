//! What nobody uses any more goes, whatever came between.

use std::time::Duration;

use leasehold::LockManager;
use leasehold::testkit::{Accident, Proxy};
use store_tests::{Table, run};
use tokio_postgres::Client;

use crate::setting::{LONG, manager, until_within};

/// When grants are followed by a sweep is left to chance: far more than it takes.
pub(crate) const AT_LAST: Duration = Duration::from_secs(150);

/// Rows of yesterday, rows that are not old enough, and marks of waiters.
pub(crate) const ROWS: &str = "INSERT INTO leasehold \
    SELECT 'old ' || number, ''::bytea, number, past, past, past, '' FROM generate_series(1, 1500) AS number, \
        (SELECT clock_timestamp() - interval '25 hours') AS old (past) \
    UNION ALL SELECT 'new ' || number, ''::bytea, number, past, past, past, '' FROM generate_series(1, 700) AS number, \
        (SELECT clock_timestamp() - interval '1 hour') AS new (past); \
    INSERT INTO leasehold_waits SELECT 'old ' || number, clock_timestamp() - interval '2 hours' \
        FROM generate_series(1, 300) AS number";

pub(crate) async fn left(client: &Client, like: &str, table: &str) -> i64 {
    let statement = format!("SELECT count(*) FROM {table} WHERE key LIKE '{like} %'");
    client.query_one(&statement, &[]).await.unwrap().get(0)
}

/// Grants and releases; now and then a grant is followed by a sweep.
pub(crate) async fn some_grants(locks: &LockManager, name: &str) {
    for _ in 0..50 {
        locks.lock(name).try_acquire().await.unwrap().unwrap().release().await.unwrap();
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn rows_of_yesterday_go_and_others_stay() {
    run(async {
        let table = Table::new();
        let (locks, client) = (manager(&table.url(), LONG).await, table.client().await);
        client.batch_execute(ROWS).await.unwrap();
        let held = locks.lock("held").try_acquire().await.unwrap().unwrap();
        until_within(AT_LAST, "the old rows are gone", async || {
            some_grants(&locks, "k").await;
            left(&client, "old", "leasehold").await + left(&client, "old", "leasehold_waits").await == 0
        })
        .await;
        assert_eq!(left(&client, "new", "leasehold").await, 700);
        held.extend(LONG).await.unwrap();
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn rows_go_without_the_table_of_waiters_and_over_the_same_connections() {
    run(async {
        let table = Table::new();
        let (locks, client) = (manager(&table.url(), LONG).await, table.client().await);
        client.batch_execute(&format!("{ROWS}; DROP TABLE leasehold_waits")).await.unwrap();
        let statement = "SELECT array_agg(pid ORDER BY pid) FROM pg_stat_activity \
            WHERE application_name = 'leasehold' AND datname = current_database()";
        let sessions = async || client.query_one(statement, &[]).await.unwrap().get::<_, Vec<i32>>(0);
        let before = sessions().await;
        until_within(AT_LAST, "the old rows are gone", async || {
            some_grants(&locks, "k").await;
            left(&client, "old", "leasehold").await == 0
        })
        .await;
        assert_eq!(sessions().await, before);
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_sweep_that_ends_with_its_runtime_is_not_the_last_one() {
    run(async {
        let table = Table::new();
        drop(table.store().await);
        let client = table.client().await;
        client.batch_execute(ROWS).await.unwrap();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let url = table.url_at(proxy.address());
        let ended = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let store = runtime.block_on(async {
                let store = leasehold::store::postgres::PostgresStore::connect(&url).await.unwrap();
                let locks = LockManager::builder(store.clone()).ttl(LONG).build().unwrap();
                // The first sweep is under way for ever, and whatever else goes over its connection.
                proxy.once(Accident::lose_reply().silently().containing("'1 day'"));
                let granting = async {
                    loop {
                        some_grants(&locks, "k").await;
                    }
                };
                tokio::select! {
                    () = granting => {}
                    () = until_within(AT_LAST, "a sweep is under way", async || proxy.pending() == 0) => {}
                }
                store
            });
            runtime.shutdown_timeout(Duration::from_secs(5));
            (store, proxy)
        });
        let (store, _proxy) = ended.await.unwrap();
        let locks = LockManager::builder(store).ttl(LONG).build().unwrap();
        until_within(AT_LAST, "the old rows are gone", async || {
            // What was under way when the runtime ended may hold the other one.
            some_grants(&locks, "another").await;
            left(&client, "old", "leasehold").await == 0
        })
        .await;
    });
}
