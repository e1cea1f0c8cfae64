//! Managers on a table of the test's own.

use std::future::Future;
use std::time::Duration;

use leasehold::store::postgres::PostgresStore;
use leasehold::{ErrorKind, Lock, LockGuard, LockManager, LockManagerBuilder, Renew};
use store_tests::connected;

/// Five times and more of what anything here needs on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// A ttl with an operation limit of a second, so that what is lost is noticed soon.
pub(crate) const SHORT: Duration = Duration::from_secs(6);

/// A ttl that leaves time to connect anew in the middle of a call.
pub(crate) const ROOMY: Duration = Duration::from_secs(30);

/// Longer than any test takes: nothing ends or is renewed by itself.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A manager whose leases are not renewed unless that is asked for.
pub(crate) async fn manager(url: &str, ttl: Duration) -> LockManager {
    builder(url, ttl).await.renew(Renew::Off).build().unwrap()
}

pub(crate) async fn builder(url: &str, ttl: Duration) -> LockManagerBuilder {
    LockManager::builder(connected(false, || PostgresStore::connect(url)).await.unwrap()).ttl(ttl)
}

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.unwrap_or_else(|_| panic!("never came: {what}"))
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

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, condition: impl AsyncFnMut() -> bool) {
    until_within(SOON, what, condition).await;
}

pub(crate) async fn until_within(limit: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(limit, waiting).await.unwrap_or_else(|_| panic!("never came: {what}"));
}
