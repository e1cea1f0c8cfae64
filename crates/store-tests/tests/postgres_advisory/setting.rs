//! Managers on sessions of their own, and what the server knows of them.

use std::future::Future;
use std::time::Duration;

use leasehold::LockManager;
use leasehold::store::postgres::PostgresAdvisoryStore;
use store_tests::{Table, connected};

/// Five times and more of what anything here needs on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) const RULE: &str = "('x' || left(encode(sha256(convert_to($1, 'UTF8')), 'hex'), 16))::bit(64)::bigint";

/// Advisory locks of this database.
pub(crate) const HELD: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// Every session of a store in this database.
pub(crate) const STORES: &str =
    "FROM pg_stat_activity WHERE application_name LIKE 'leasehold%' AND datname = current_database()";

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.unwrap_or_else(|_| panic!("never came: {what}"))
}

pub(crate) async fn manager(url: &str) -> LockManager {
    LockManager::builder(connected(false, || PostgresAdvisoryStore::connect(url)).await.unwrap()).build().unwrap()
}

pub(crate) async fn number(table: &Table, statement: &str) -> i64 {
    table.client().await.query_one(statement, &[]).await.unwrap().get(0)
}

pub(crate) async fn none_held(table: &Table) {
    let waiting = async {
        while number(table, HELD).await > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("all locks are free", waiting).await;
}
