//! Every store of this crate against the suite.

#![allow(clippy::unwrap_used, reason = "a fixture that cannot be built fails its test")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::store::Store;
use leasehold::store::memory::MemoryStore;
use leasehold::testkit::conformance::{Fixture, Outage};
use leasehold::testkit::{Fault, FaultStore, TestClock};
use leasehold::{Clock, ErrorKind, Operation, Result};

leasehold::conformance! { memory, MemoryFixture::new() }

/// A memory store in paused time.
struct MemoryFixture {
    clock: TestClock,
    store: FaultStore,
}

impl MemoryFixture {
    fn new() -> Self {
        tokio::time::pause();
        let clock = TestClock::start();
        let store = FaultStore::new(MemoryStore::with_clock(clock.clone().into()));
        Self { clock, store }
    }
}

#[async_trait]
impl Fixture for MemoryFixture {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(self.store.clone()))
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn clock(&self) -> Clock {
        self.clock.clone().into()
    }

    async fn outage(&self) -> Option<Outage> {
        self.store.outage(Fault::fail(ErrorKind::Unavailable));
        Some(Box::new(Heal(self.store.clone())))
    }
}

struct Heal(FaultStore);

impl Drop for Heal {
    fn drop(&mut self) {
        self.0.heal();
    }
}

#[cfg(feature = "sqlite")]
leasehold::conformance! { sqlite, SqliteFixture::new(), without: [places] }

/// A SQLite file in a directory of its own, in real time.
#[cfg(feature = "sqlite")]
struct SqliteFixture(tempfile::TempDir);

#[cfg(feature = "sqlite")]
impl SqliteFixture {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("leases.db")
    }
}

#[cfg(feature = "sqlite")]
#[async_trait]
impl Fixture for SqliteFixture {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(leasehold::store::sqlite::SqliteStore::open(self.path()).await?))
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(300)
    }

    /// Another connection that is in the middle of a write.
    async fn outage(&self) -> Option<Outage> {
        let connection = rusqlite::Connection::open(self.path()).unwrap();
        connection.execute_batch("BEGIN EXCLUSIVE").unwrap();
        Some(Box::new(connection))
    }
}

#[path = "../examples/custom_store.rs"]
mod custom_store;

#[test]
fn the_example_of_a_store_runs() {
    custom_store::main().unwrap();
}

leasehold::conformance! { custom, CustomFixture::new(), without: [outages, places, wakes] }

/// The store of the example, in paused time.
struct CustomFixture {
    clock: TestClock,
    store: custom_store::TableStore,
}

impl CustomFixture {
    fn new() -> Self {
        tokio::time::pause();
        let clock = TestClock::start();
        let store = custom_store::TableStore::new(clock.clone().into());
        Self { clock, store }
    }
}

#[async_trait]
impl Fixture for CustomFixture {
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

leasehold::conformance! { delayed, DelayedFixture::new(), without: [outages] }

/// A memory store far away: an ask is under way for a while, and arrives although its sender has given up.
struct DelayedFixture(MemoryFixture);

impl DelayedFixture {
    fn new() -> Self {
        let fixture = MemoryFixture::new();
        fixture.store.always(Operation::Acquire, Fault::delay(Duration::from_millis(2)));
        Self(fixture)
    }
}

#[async_trait]
impl Fixture for DelayedFixture {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        self.0.client().await
    }

    fn ttl(&self) -> Duration {
        self.0.ttl()
    }

    fn clock(&self) -> Clock {
        self.0.clock()
    }
}
