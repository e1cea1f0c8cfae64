//! A cluster as a place that keeps leases.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "an error fails the test, also in its helpers")]

use std::future::Future;
use std::time::Duration;

use leasehold::store::redis::RedisStore;
use leasehold::{Backoff, Jitter, LockGuard, LockManager};
use store_tests::Cluster;
use tokio::task::JoinHandle;

mod layout;
mod learning;
mod many;
mod moves;
mod nodes;
mod pushes;
mod rights;

/// Longer than any test takes: nothing ends or is renewed by itself.
const LONG: Duration = Duration::from_secs(600);

/// Five times and more of what anything here needs on a busy machine, and far from any ttl that is called long.
const SOON: Duration = Duration::from_secs(60);

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.unwrap_or_else(|_| panic!("never came: {what}"))
}

/// Waits until there is something.
async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut attempt: impl FnMut() -> F) -> T {
    let waiting = async {
        loop {
            if let Some(value) = attempt().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon(what, waiting).await
}

async fn take(locks: &LockManager, name: &str) -> LockGuard {
    locks.lock(name).try_acquire().await.unwrap().expect("nobody else is there")
}

/// A manager that asks again after a push, after the end of a lease, and otherwise never.
async fn pushed(cluster: &Cluster) -> LockManager {
    let never = Backoff::new(LONG, LONG, 1.0).unwrap().jitter(Jitter::from_fn(|| 1.0));
    let store = RedisStore::connect(&cluster.url()).await.unwrap();
    LockManager::builder(store).ttl(LONG).backoff(never).build().unwrap()
}

/// Somebody who waits, and has been refused already.
async fn waiter(locks: &LockManager, name: &str) -> JoinHandle<LockGuard> {
    let lock = locks.lock(name);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiter.is_finished());
    waiter
}
