//! Quorums of memory stores against the suite, in paused time.

#![allow(clippy::unwrap_used, reason = "a fixture that cannot be built fails its test")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::store::Store;
use leasehold::store::memory::MemoryStore;
use leasehold::store::quorum::Quorum;
use leasehold::testkit::conformance::{Fixture, Outage};
use leasehold::testkit::{Fault, FaultStore, TestClock};
use leasehold::{Clock, ErrorKind, Operation, Result};

leasehold::conformance! { three, QuorumFixture::new(3), without: [fencing, places, wakes] }
leasehold::conformance! { five, QuorumFixture::new(5), without: [fencing, places, wakes] }
leasehold::conformance! { fenced, QuorumFixture { fence: Some(1), ..QuorumFixture::new(3) }, without: [places, wakes] }
leasehold::conformance! { one_of_three_dead, QuorumFixture::new(3).dead(1), without: [fencing, places, wakes] }
leasehold::conformance! { two_of_five_silent, QuorumFixture::new(5).silent(2), without: [fencing, places, wakes] }
leasehold::conformance! { far_away, QuorumFixture::new(3).far(), without: [fencing, places, wakes] }

/// Longer than any ttl of the suite.
const MAX_TTL: Duration = Duration::from_secs(3600);

/// Memory stores that have been up for long.
struct QuorumFixture {
    clock: TestClock,
    nodes: Vec<FaultStore>,
    fence: Option<usize>,
    /// Nodes that are out from the beginning.
    out: usize,
}

impl QuorumFixture {
    fn new(nodes: usize) -> Self {
        tokio::time::pause();
        let clock = TestClock::start();
        let node = |_| FaultStore::new(MemoryStore::with_clock(clock.clone().into()));
        let nodes = (0..nodes).map(node).collect();
        clock.suspend(MAX_TTL * 2);
        Self { clock, nodes, fence: None, out: 0 }
    }

    fn dead(mut self, count: usize) -> Self {
        self.nodes[..count].iter().for_each(|node| node.outage(Fault::fail(ErrorKind::Unavailable)));
        self.out = count;
        self
    }

    fn silent(mut self, count: usize) -> Self {
        self.nodes[..count].iter().for_each(|node| node.outage(Fault::hang()));
        self.out = count;
        self
    }

    fn far(self) -> Self {
        for (node, pause) in self.nodes.iter().zip([2, 5, 9]) {
            node.always(Operation::Acquire, Fault::delay(Duration::from_millis(pause)));
            node.always(Operation::Release, Fault::delay(Duration::from_millis(pause)));
        }
        self
    }
}

#[async_trait]
impl Fixture for QuorumFixture {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        let mut quorum = Quorum::builder(self.nodes.clone()).max_ttl(MAX_TTL).clock(self.clock.clone().into());
        if let Some(index) = self.fence {
            quorum = quorum.fence_from(index);
        }
        Ok(Arc::new(quorum.build()?))
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn clock(&self) -> Clock {
        self.clock.clone().into()
    }

    async fn outage(&self) -> Option<Outage> {
        let live: Vec<_> = self.nodes[self.out..].to_vec();
        live.iter().for_each(|node| node.outage(Fault::fail(ErrorKind::Unavailable)));
        Some(Box::new(Heal(live)))
    }
}

struct Heal(Vec<FaultStore>);

impl Drop for Heal {
    fn drop(&mut self) {
        self.0.iter().for_each(FaultStore::heal);
    }
}
