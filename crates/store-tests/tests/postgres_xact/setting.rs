//! Managers of transactions, and what is left of them.

use std::future::Future;
use std::time::Duration;

use leasehold::store::postgres::PostgresTransactionStore;
use leasehold::{ErrorKind, Lock, LockGuard, LockManager};
use store_tests::{Table, connected};
use tokio::task::JoinHandle;

/// Five times and more of what anything here needs on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// A ttl with an operation limit of a second, so that what is lost is noticed soon.
pub(crate) const SHORT: Duration = Duration::from_secs(6);

/// The number of a key's lock.
pub(crate) const RULE: &str = "('x' || left(encode(sha256(convert_to($1, 'UTF8')), 'hex'), 16))::bit(64)::bigint";

const LOCKS: &str = "FROM pg_locks WHERE locktype = 'advisory' \
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// Every session of a store in this database that is within a transaction.
const AT_WORK: &str = "FROM pg_stat_activity WHERE application_name LIKE 'leasehold%' \
    AND datname = current_database() AND state <> 'idle'";

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.unwrap_or_else(|_| panic!("never came: {what}"))
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(what, waiting).await;
}

pub(crate) async fn manager(url: &str) -> LockManager {
    LockManager::builder(store(url).await).build().unwrap()
}

/// One whose calls do not take long.
pub(crate) async fn hasty(url: &str) -> LockManager {
    LockManager::builder(store(url).await).ttl(SHORT).build().unwrap()
}

async fn store(url: &str) -> PostgresTransactionStore {
    connected(false, || PostgresTransactionStore::connect(url)).await.unwrap()
}

pub(crate) async fn take(locks: &LockManager, name: &str) -> LockGuard {
    soon("an answer", locks.lock(name).try_acquire()).await.unwrap().expect("nobody else has it")
}

/// The lock, as soon as the server answers and nobody else has it.
pub(crate) async fn granted(locks: &LockManager, name: &str) -> LockGuard {
    obtained(&locks.lock(name)).await
}

/// The same, with options of its own.
pub(crate) async fn obtained(lock: &Lock) -> LockGuard {
    let asking = async {
        loop {
            match lock.acquire().await {
                Ok(guard) => break guard,
                Err(error) => {
                    let unknown = [ErrorKind::Unavailable, ErrorKind::Indeterminate];
                    assert!(unknown.contains(&error.kind()), "{error}");
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("the lock", asking).await
}

pub(crate) async fn number(table: &Table, statement: &str) -> i64 {
    table.client().await.query_one(statement, &[]).await.unwrap().get(0)
}

/// How many sessions have a lock, or wait for one.
pub(crate) async fn locks(table: &Table, granted: bool) -> i64 {
    number(table, &format!("SELECT count(*) {LOCKS} AND granted = {granted}")).await
}

/// The server's process that has the only lock, or waits for one.
pub(crate) async fn backend(table: &Table, granted: bool) -> Option<i32> {
    let client = table.client().await;
    let rows = client.query(&format!("SELECT pid {LOCKS} AND granted = {granted}"), &[]).await.unwrap();
    assert!(rows.len() < 2, "{rows:?}");
    rows.first().map(|row| row.get(0))
}

/// Somebody who waits, and stands in the server's line behind `before` others.
pub(crate) async fn waiter(table: &Table, locks: &LockManager, name: &str, before: i64) -> JoinHandle<LockGuard> {
    let lock = locks.lock(name);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    until("it stands in line", async || self::locks(table, false).await == before + 1).await;
    waiter
}

/// Waits until there is no lock, nobody who waits, and no transaction.
pub(crate) async fn at_rest(table: &Table) {
    let client = table.client().await;
    let statement = format!("SELECT (SELECT count(*) {LOCKS}) + (SELECT count(*) {AT_WORK})");
    until("nothing is left", async || client.query_one(&statement, &[]).await.unwrap().get::<_, i64>(0) == 0).await;
}
