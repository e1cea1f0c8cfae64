//! The suite that every store has to pass, against servers of the Redis family.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::Result;
use leasehold::store::Store;
use leasehold::store::redis::RedisStore;
use leasehold::testkit::Proxy;
use leasehold::testkit::conformance::{Fixture, Outage};
use store_tests::Site;

/// What every machine keeps up with.
const TTL: Duration = Duration::from_millis(300);

leasehold::conformance! {
    #[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
    redis, Remote::new(Site::redis()), without: [places]
}

leasehold::conformance! {
    #[cfg_attr(not(has_valkey_server), ignore = "valkey-server is not installed")]
    valkey, Remote::new(Site::valkey()), without: [places]
}

leasehold::conformance! {
    #[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
    of_a_client, OfClient(Remote::new(Site::redis())), without: [places]
}

leasehold::conformance! {
    #[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
    seen_as_cache, Cached(Remote::new(Site::redis())), without: [fencing, hand_over, lists, places, wakes]
}

leasehold::conformance! {
    #[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
    old_protocol, Refusing(Site::old()), without: [places, wakes]
}

/// A server of its own behind a network that can fail.
struct Remote {
    proxy: Arc<Proxy>,
    _site: Site,
}

impl Remote {
    fn new(site: Site) -> Self {
        Self { proxy: Arc::new(Proxy::start(site.server().address()).unwrap()), _site: site }
    }
}

#[async_trait]
impl Fixture for Remote {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(RedisStore::connect(&format!("redis://{}", self.proxy.address())).await?))
    }

    fn ttl(&self) -> Duration {
        TTL
    }

    /// Every connection breaks, and no other can be made.
    async fn outage(&self) -> Option<Outage> {
        self.proxy.refuse();
        while self.proxy.connections() > 0 {
            // Again: one that is too new is not met.
            self.proxy.reset();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let proxy = Arc::clone(&self.proxy);
        Some(Box::new(Heal(move || proxy.heal())))
    }
}

/// Over a client of the caller's, in the form that it has by default.
struct OfClient(Remote);

#[async_trait]
impl Fixture for OfClient {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        let client = ::redis::Client::open(format!("redis://{}", self.0.proxy.address())).unwrap();
        Ok(Arc::new(RedisStore::from_client(&client).await?))
    }

    fn ttl(&self) -> Duration {
        TTL
    }

    async fn outage(&self) -> Option<Outage> {
        self.0.outage().await
    }
}

#[allow(dead_code, reason = "its `main` is for those who run it as an example")]
#[path = "../../leasehold/examples/cache_over_store.rs"]
mod cache_over_store;

/// Locks over a cache, which is what the store is seen as.
struct Cached(Remote);

#[async_trait]
impl Fixture for Cached {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        let cache = cache_over_store::SeenAsCache::new(self.0.client().await?);
        Ok(Arc::new(leasehold::store::cache::CacheStore::new(cache)))
    }

    fn ttl(&self) -> Duration {
        TTL
    }

    async fn outage(&self) -> Option<Outage> {
        self.0.outage().await
    }
}

/// A server of its own that can refuse. In the old protocol nobody is told that a connection has ended, so that the
/// next request goes unanswered.
struct Refusing(Site);

#[async_trait]
impl Fixture for Refusing {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(self.0.store().await))
    }

    fn ttl(&self) -> Duration {
        TTL
    }

    /// Everybody has lost the right to run scripts.
    async fn outage(&self) -> Option<Outage> {
        let mut client = self.0.client();
        let mut permit =
            move |rule: &str| ::redis::cmd("ACL").arg(&["SETUSER", "default", rule]).exec(&mut client).unwrap();
        permit("-@scripting");
        Some(Box::new(Heal(move || permit("+@all"))))
    }
}

struct Heal<F: FnMut()>(F);

impl<F: FnMut()> Drop for Heal<F> {
    fn drop(&mut self) {
        self.0();
    }
}
