//! The suite that every store has to pass, against quorums of Redis servers.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::Result;
use leasehold::store::Store;
use leasehold::store::quorum::Quorum;
use leasehold::store::redis::RedisStore;
use leasehold::testkit::Proxy;
use leasehold::testkit::conformance::{Fixture, Outage};
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
        Ok(Arc::new(quorum.node_timeout(Duration::from_secs(1)).build()?))
    }

    /// A fifteenth of it is what every machine keeps up with.
    fn ttl(&self) -> Duration {
        Duration::from_millis(1500)
    }

    /// Every connection breaks, and no other can be made.
    async fn outage(&self) -> Option<Outage> {
        let proxies: Vec<_> = self.0.iter().map(|(proxy, _)| Arc::clone(proxy)).collect();
        for proxy in &proxies {
            proxy.refuse();
            proxy.reset();
        }
        while proxies.iter().any(|proxy| proxy.connections() > 0) {
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
