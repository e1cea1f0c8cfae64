//! The suite that every store has to pass, against quorums of Redis servers.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::store::quorum::Quorum;
use leasehold::store::redis::RedisStore;
use leasehold::store::{Attempt, Capabilities, Claim, Grant, Inspection, Listing, Page, Probe, Removed, Store};
use leasehold::testkit::Proxy;
use leasehold::testkit::conformance::{Fixture, Outage};
use leasehold::{ErrorKind, Key, OwnerToken, Result};
use store_tests::Site;

leasehold::conformance! {
    #[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
    three, Nodes::new(3), without: [fencing, places]
}

leasehold::conformance! {
    #[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
    five, Nodes::new(5), without: [fencing, places]
}

/// Servers of the quorum's own, each behind a network that can fail.
struct Nodes(Vec<(Arc<Proxy>, Site)>);

impl Nodes {
    fn new(count: usize) -> Self {
        let node = |_| {
            let site = Site::redis();
            (Arc::new(Proxy::start(site.server().address()).unwrap()), site)
        };
        Self((0..count).map(node).collect())
    }
}

#[async_trait]
impl Fixture for Nodes {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        let mut stores = Vec::new();
        for (proxy, _) in &self.0 {
            stores.push(RedisStore::connect(&format!("redis://{}", proxy.address())).await?);
        }
        // They were started just now, and have forgotten nothing.
        let quorum = Quorum::builder(stores).restart_guard(false).max_ttl(Duration::from_secs(3600));
        // A machine that stands still fails no request that is asked once; claims have no longer than their ttl allows.
        Ok(Arc::new(Patient(quorum.node_timeout(Duration::from_secs(10)).build()?)))
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(1500)
    }

    /// Every connection breaks, and no other can be made.
    async fn outage(&self) -> Option<Outage> {
        let proxies: Vec<_> = self.0.iter().map(|(proxy, _)| Arc::clone(proxy)).collect();
        proxies.iter().for_each(|proxy| proxy.refuse());
        while proxies.iter().any(|proxy| proxy.connections() > 0) {
            // Again: one that is too new is not met.
            proxies.iter().for_each(|proxy| proxy.reset());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Some(Box::new(Heal(proxies)))
    }
}

struct Heal(Vec<Arc<Proxy>>);

impl Drop for Heal {
    fn drop(&mut self) {
        self.0.iter().for_each(|proxy| proxy.heal());
    }
}

/// A quorum asked as an engine asks: again while an outcome is unknown, for nodes have no longer than a fifteenth of a ttl,
/// which a busy machine may miss; and again when it met others half-way.
#[derive(Debug)]
struct Patient(Quorum);

impl Patient {
    /// Asks until the outcome is known: longer than it takes to undo what a slow round left.
    async fn settle<T, F: Future<Output = Result<T>> + Send>(
        &self,
        is_open: impl Fn(&T) -> bool + Send,
        ask: impl Fn() -> F + Send,
    ) -> Result<T> {
        let mut unknown = None;
        for _ in 0..50 {
            match ask().await {
                Ok(answer) if !is_open(&answer) => return Ok(answer),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Indeterminate => unknown = Some(error),
                Err(error) if unknown.is_none() => return Err(error),
                // Refused for certain, which says nothing of the request before.
                Err(_) => {}
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        match (ask().await, unknown) {
            (Err(_), Some(unknown)) => Err(unknown),
            (answer, _) => answer,
        }
    }
}

#[async_trait]
impl Store for Patient {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt> {
        let is_split = |attempt: &Attempt| match attempt {
            // No wake-up is lost by that.
            Attempt::Contended(contention) if !claim.waits => {
                contention.retry_after.is_some_and(|pause| pause <= Duration::from_millis(40))
            }
            _ => false,
        };
        self.settle(is_split, || self.0.acquire(claim)).await
    }

    async fn extend(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        let is_unknown = |answers: &Vec<Result<Option<Grant>>>| {
            answers.iter().any(|answer| matches!(answer, Err(error) if error.kind() == ErrorKind::Indeterminate))
        };
        self.settle(is_unknown, || self.0.extend(claims)).await
    }

    async fn release(&self, key: &Key, owner: &OwnerToken) -> Result<bool> {
        self.0.release(key, owner).await
    }

    async fn transfer(&self, from: &OwnerToken, claim: &Claim<'_>) -> Result<Option<Grant>> {
        self.settle(|_| false, || self.0.transfer(from, claim)).await
    }

    async fn force_release(&self, key: &Key, expected: Option<&OwnerToken>) -> Result<Option<Removed>> {
        self.0.force_release(key, expected).await
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        self.0.inspect(key).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<Listing> {
        self.0.list(prefix, page).await
    }

    async fn probe(&self) -> Result<Probe> {
        self.0.probe().await
    }

    async fn close(&self) -> Result<()> {
        self.0.close().await
    }
}
