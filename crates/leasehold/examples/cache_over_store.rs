//! A store seen as a cache, and locks over that: what is lost on the way is what a cache cannot do (fencing tokens,
//! hand-over, wake-ups, listing); exclusion is not.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::store::cache::{Cache, CacheStore, Locking};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{Attempt, Claim, Scope, Store};
use leasehold::{Key, LockManager, OwnerToken, Result};

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let locks = LockManager::new(CacheStore::new(SeenAsCache::new(Arc::new(MemoryStore::new()))));
    let ran = locks.try_with_lock("import", async |_| "imported").await?;
    assert_eq!(ran.map(|ran| ran.value), Some("imported"));
    Ok(())
}

/// Entries are leases, values owner tokens.
#[derive(Clone, Debug)]
pub(crate) struct SeenAsCache(Arc<dyn Store>);

impl SeenAsCache {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }
}

fn key(stored: &str) -> Result<Key> {
    let (namespace, name) = stored.split_once(':').unwrap_or(("", stored));
    Key::new(namespace, name)
}

#[async_trait]
impl Cache for SeenAsCache {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn reach(&self) -> Scope {
        self.0.capabilities().scope
    }

    fn locking(&self) -> Locking {
        if self.0.capabilities().locks { Locking::Atomic } else { Locking::NoAtomicAdd }
    }

    async fn add(&self, stored: &str, value: &[u8], ttl: Duration) -> Result<bool> {
        let (key, owner) = (key(stored)?, OwnerToken::from_bytes(value)?);
        // To a store the same owner again is the same acquisition; to a cache an entry is an entry.
        if !self.0.inspect(&key).await?.holders.is_empty() {
            return Ok(false);
        }
        Ok(matches!(self.0.acquire(&Claim::new(&key, &owner, ttl)).await?, Attempt::Acquired(_)))
    }

    async fn forget_if(&self, stored: &str, value: &[u8]) -> Result<bool> {
        self.0.release(&key(stored)?, &OwnerToken::from_bytes(value)?).await
    }

    async fn extend_if(&self, stored: &str, value: &[u8], ttl: Duration) -> Result<bool> {
        let (key, owner) = (key(stored)?, OwnerToken::from_bytes(value)?);
        let answers = self.0.extend(&[Claim::new(&key, &owner, ttl)]).await?;
        answers.into_iter().next().map_or(Ok(false), |answer| Ok(answer?.is_some()))
    }

    async fn get(&self, stored: &str) -> Result<Option<Vec<u8>>> {
        // A probe reads a key that no lock can have, and that no store takes.
        let Ok(key) = key(stored) else {
            self.0.probe().await?;
            return Ok(None);
        };
        let holder = self.0.inspect(&key).await?.holders.into_iter().next();
        Ok(holder.map(|holder| holder.owner.as_bytes().to_vec()))
    }
}
