//! Every rule of the store interface, with each call on another thread.

use std::time::Duration;

use super::*;
use crate::store::memory::MemoryStore;
use crate::testkit::conformance::Fixture;

crate::conformance! { hosted, OnAThread(MemoryStore::new()), without: [outages] }

/// One place; each client has a thread of its own.
struct OnAThread(MemoryStore);

#[async_trait]
impl Fixture for OnAThread {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Hosted::new(Arc::new(self.0.clone()), OwnRuntime::start()?)))
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(300)
    }
}
