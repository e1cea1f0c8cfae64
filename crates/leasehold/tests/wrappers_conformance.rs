//! What stands in front of a store, and locks over caches, against the suite.

#![allow(clippy::unwrap_used, reason = "a fixture that cannot be built fails its test")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::store::Store;
use leasehold::store::breaker::Breaker;
use leasehold::store::cache::{CacheStore, Prefixed};
use leasehold::store::memory::MemoryStore;
use leasehold::store::retry::Retry;
use leasehold::testkit::conformance::{Fixture, Outage};
use leasehold::testkit::{Fault, FaultStore, TestClock};
use leasehold::{Clock, ErrorKind, Result};

#[path = "../examples/cache_moka.rs"]
mod cache_moka;
#[path = "../examples/cache_over_store.rs"]
mod cache_over_store;

use self::cache_moka::MokaCache;
use self::cache_over_store::SeenAsCache;

#[test]
fn the_examples_of_caches_run() {
    cache_moka::main().unwrap();
    cache_over_store::main().unwrap();
}

leasehold::conformance! { breaker, InPausedTime::new(|bed| Breaker::new(bed.store.clone()).clock(bed.clock())) }

leasehold::conformance! { retry, InPausedTime::new(|bed| Retry::new(bed.store.clone()).clock(bed.clock())) }

leasehold::conformance! {
    breaker_around_retry,
    InPausedTime::new(|bed| Breaker::new(Retry::new(bed.store.clone()).clock(bed.clock())).clock(bed.clock()))
}

leasehold::conformance! {
    memory_seen_as_cache,
    InPausedTime::new(|bed| CacheStore::new(SeenAsCache::new(Arc::new(bed.store.clone())))),
    without: [fencing, hand_over, lists, places, wakes]
}

leasehold::conformance! {
    moka,
    Shared::new(|clock| CacheStore::new(MokaCache::new(clock))),
    without: [fencing, hand_over, lists, outages, places, wakes]
}

leasehold::conformance! {
    prefixed_moka,
    Shared::new(|clock| CacheStore::new(Prefixed::new("app:", MokaCache::new(clock)))),
    without: [fencing, hand_over, lists, outages, places, wakes]
}

/// A memory store in paused time that can fail.
struct Bed {
    clock: TestClock,
    store: FaultStore,
}

impl Bed {
    fn clock(&self) -> Clock {
        self.clock.clone().into()
    }
}

/// Each client has a wrapper of its own.
struct InPausedTime<S> {
    bed: Bed,
    wrap: fn(&Bed) -> S,
}

impl<S: Store> InPausedTime<S> {
    fn new(wrap: fn(&Bed) -> S) -> Self {
        tokio::time::pause();
        let clock = TestClock::start();
        let store = FaultStore::new(MemoryStore::with_clock(clock.clone().into()));
        Self { bed: Bed { clock, store }, wrap }
    }
}

#[async_trait]
impl<S: Store> Fixture for InPausedTime<S> {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        Ok(Arc::new((self.wrap)(&self.bed)))
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn clock(&self) -> Clock {
        self.bed.clock()
    }

    async fn outage(&self) -> Option<Outage> {
        self.bed.store.outage(Fault::fail(ErrorKind::Unavailable));
        Some(Box::new(Heal(self.bed.store.clone())))
    }
}

struct Heal(FaultStore);

impl Drop for Heal {
    fn drop(&mut self) {
        self.0.heal();
    }
}

/// All clients are clones of one store, in paused time.
struct Shared {
    clock: TestClock,
    store: CacheStore,
}

impl Shared {
    fn new(make: impl FnOnce(Clock) -> CacheStore) -> Self {
        tokio::time::pause();
        let clock = TestClock::start();
        Self { store: make(clock.clone().into()), clock }
    }
}

#[async_trait]
impl Fixture for Shared {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(self.store.clone()))
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn clock(&self) -> Clock {
        self.clock.clone().into()
    }
}
