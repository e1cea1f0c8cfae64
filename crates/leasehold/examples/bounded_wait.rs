//! A wait that ends: `None` = somebody else still holds it, which is no error.

use std::time::Duration;

use leasehold::store::memory::MemoryStore;
use leasehold::{Error, ErrorKind, LockManager, Result, Wait};

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let locks = LockManager::new(MemoryStore::new());
    let deploy = locks.lock("deploy").ttl(Duration::from_secs(60));
    let guard = deploy.acquire().await?;

    // By hand. It asks for the last time at the end of the wait.
    assert!(deploy.acquire_within(Duration::from_millis(50)).await?.is_none());
    // The same for work.
    let ran = deploy.clone().wait(Wait::UpTo(Duration::from_millis(50))).run(async |_| "deployed").await?;
    assert!(ran.is_none());
    // Who has to have it makes an error of that.
    let needed = deploy.try_acquire().await?.ok_or(Error::contended(deploy.key()?));
    assert_eq!(needed.map(drop).map_err(|error| error.kind()), Err(ErrorKind::Contended));

    // A waiter is woken by the release.
    let waiter = tokio::spawn(async move { deploy.acquire_within(Duration::from_secs(10)).await });
    guard.release().await?;
    match waiter.await {
        Ok(Ok(Some(guard))) => guard.release().await,
        other => panic!("the lease was free: {other:?}"),
    }
}
