//! What is written refuses a holder that comes too late, by the statements that are documented.

use leasehold::store::postgres::PostgresAdvisoryStore;
use leasehold::{LockGuard, LockManager};
use store_tests::{Table, run};
use tokio_postgres::Client;

use crate::setting::{LONG, SHORT, manager, soon};

#[allow(dead_code, reason = "the example is run by its parts")]
#[path = "../../../leasehold/examples/postgres_fencing.rs"]
mod example;

/// A row in a database of its own, which it keeps.
pub(crate) struct Resource {
    client: Client,
    _table: Table,
}

impl Resource {
    pub(crate) async fn new() -> Self {
        let table = Table::new();
        let client = table.client().await;
        client
            .batch_execute("CREATE TABLE reports (name text PRIMARY KEY, body text, fence bigint NOT NULL)")
            .await
            .unwrap();
        Self { client, _table: table }
    }

    /// Writes by the statement for a row that may not be there yet; `false` = refused.
    pub(crate) async fn upsert(&self, holder: &LockGuard, body: &str) -> bool {
        self.write("INSERT INTO reports", holder, body).await
    }

    /// Writes by the statement for a row that is there; `false` = refused.
    pub(crate) async fn update(&self, holder: &LockGuard, body: &str) -> bool {
        self.write("UPDATE reports", holder, body).await
    }

    pub(crate) async fn body(&self) -> String {
        self.client.query_one("SELECT body FROM reports", &[]).await.unwrap().get(0)
    }

    async fn write(&self, begin: &str, holder: &LockGuard, body: &str) -> bool {
        let documented = include_str!("../../../../docs/stores-postgres.md");
        let (_, statement) = documented.split_once(begin).unwrap();
        let (statement, _) = statement.split_once("```").unwrap();
        let fence = i64::try_from(holder.fencing_token().unwrap().get()).unwrap();
        self.client.execute(&format!("{begin}{statement}"), &[&"nightly", &body, &fence]).await.unwrap() == 1
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_late_holder_of_a_lease_is_refused() {
    run(async {
        let (table, resource) = (Table::new(), Resource::new().await);
        let (first, second) = (manager(&table.url(), SHORT).await, manager(&table.url(), LONG).await);
        let late = first.lock("k").try_acquire().await.unwrap().unwrap();
        assert!(resource.upsert(&late, "early").await && resource.update(&late, "again").await);
        let next = soon("the end of the lease", second.lock("k").acquire()).await.unwrap();
        assert!(resource.update(&next, "next").await);
        assert!(!resource.update(&late, "late").await && !resource.upsert(&late, "late").await);
        assert_eq!(resource.body().await, "next");
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_late_holder_of_a_session_is_refused() {
    run(async {
        let (table, resource) = (Table::new(), Resource::new().await);
        let manager =
            async || LockManager::builder(PostgresAdvisoryStore::connect(&table.url()).await.unwrap()).build().unwrap();
        let (first, second) = (manager().await, manager().await);
        let late = first.lock("k").try_acquire().await.unwrap().unwrap();
        assert!(resource.upsert(&late, "early").await);
        let ending = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' \
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        table.client().await.query(ending, &[]).await.unwrap();
        let next = soon("the lock", second.lock("k").acquire()).await.unwrap();
        assert!(resource.upsert(&next, "next").await && !resource.upsert(&late, "late").await);
        assert_eq!(resource.body().await, "next");
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn the_example_ends_with_a_refused_write() {
    run(async {
        let table = Table::new();
        // On a busy machine there may be no answer at first.
        let mut ended = soon("the example", example::late_write(&table.url())).await;
        for _ in 0..4 {
            if ended.is_err() {
                ended = soon("the example", example::late_write(&table.url())).await;
            }
        }
        assert!(!ended.unwrap());
    });
}
