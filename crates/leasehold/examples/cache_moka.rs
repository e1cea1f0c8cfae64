//! Locks over an in-process cache, here that of the crate `moka`: what it takes is the trait `Cache`.
//!
//! Such locks exclude the tasks of one process. The cache must not evict what has not ended, so it has no capacity.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold::clock::Moment;
use leasehold::store::Scope;
use leasehold::store::cache::{Cache, CacheStore, Locking};
use leasehold::{Clock, LockManager, Result};
use moka::Expiry;
use moka::ops::compute::{CompResult, Op};

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let locks = LockManager::new(CacheStore::new(MokaCache::new(Clock::system())));
    let ran = locks.try_with_lock("import", async |_| "imported").await?;
    assert_eq!(ran.map(|ran| ran.value), Some("imported"));
    Ok(())
}

/// Clones share their entries.
#[derive(Clone, Debug)]
pub(crate) struct MokaCache {
    entries: moka::sync::Cache<String, Entry>,
    clock: Clock,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    value: Vec<u8>,
    /// By our own clock, which counts suspend. The cache's own is good enough to forget entries some time later.
    ends: Moment,
    ttl: Duration,
}

#[derive(Debug)]
struct AfterTtl;

impl Expiry<String, Entry> for AfterTtl {
    fn expire_after_create(&self, _: &String, entry: &Entry, _: Instant) -> Option<Duration> {
        Some(entry.ttl)
    }

    fn expire_after_update(&self, _: &String, entry: &Entry, _: Instant, _: Option<Duration>) -> Option<Duration> {
        Some(entry.ttl)
    }
}

impl MokaCache {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { entries: moka::sync::Cache::builder().expire_after(AfterTtl).build(), clock }
    }

    /// One step: `decide` sees the entry, if it has not ended, and says what becomes of it. `true` = a change was made.
    fn compute(&self, key: &str, decide: impl FnOnce(Option<Entry>, Moment) -> Op<Entry>) -> bool {
        let computed = self.entries.entry_by_ref(key).and_compute_with(|entry| {
            let now = self.clock.now();
            let entry = entry.map(moka::Entry::into_value).filter(|entry| now < entry.ends);
            decide(entry, now)
        });
        matches!(computed, CompResult::Inserted(_) | CompResult::ReplacedWith(_) | CompResult::Removed(_))
    }
}

#[async_trait]
impl Cache for MokaCache {
    fn name(&self) -> &'static str {
        "moka"
    }

    fn reach(&self) -> Scope {
        Scope::Process
    }

    fn locking(&self) -> Locking {
        Locking::Atomic
    }

    async fn add(&self, key: &str, value: &[u8], ttl: Duration) -> Result<bool> {
        Ok(self.compute(key, |entry, now| match entry {
            Some(_) => Op::Nop,
            None => Op::Put(Entry { value: value.to_vec(), ends: now + ttl, ttl }),
        }))
    }

    async fn forget_if(&self, key: &str, value: &[u8]) -> Result<bool> {
        Ok(self.compute(key, |entry, _| match entry {
            Some(entry) if entry.value == value => Op::Remove,
            _ => Op::Nop,
        }))
    }

    async fn extend_if(&self, key: &str, value: &[u8], ttl: Duration) -> Result<bool> {
        Ok(self.compute(key, |entry, now| match entry {
            Some(entry) if entry.value == value => {
                let ends = entry.ends.max(now + ttl);
                Op::Put(Entry { ends, ttl: ends.since(now), ..entry })
            }
            _ => Op::Nop,
        }))
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let now = self.clock.now();
        Ok(self.entries.get(key).filter(|entry| now < entry.ends).map(|entry| entry.value))
    }
}
