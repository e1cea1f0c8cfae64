//! Options of a quorum.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::node::Node;
use super::record::Records;
use super::{Core, Quorum};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Capabilities, Expiry, Fencing, Scope, SharedStore, TimeAuthority, Waiting};

/// As for the published algorithm: many round trips of one data centre, and little beside a ttl of seconds.
const NODE_TIMEOUT: Duration = Duration::from_millis(50);

/// Twice the default ttl of a lease.
const MAX_TTL: Duration = Duration::from_secs(60);

/// Leaves a node 10 ms to answer.
const MIN_TTL: Duration = Duration::from_millis(150);

/// Options of a [`Quorum`].
#[derive(Debug)]
#[must_use = "nothing happens until `build`"]
pub struct QuorumBuilder {
    stores: Vec<SharedStore>,
    names: Vec<String>,
    clock: Clock,
    max_ttl: Duration,
    node_timeout: Duration,
    restart_guard: bool,
    fence: Option<usize>,
}

impl QuorumBuilder {
    pub(super) fn new(stores: Vec<SharedStore>) -> Self {
        Self {
            names: (1..=stores.len()).map(|number| format!("node {number}")).collect(),
            stores,
            clock: Clock::system(),
            max_ttl: MAX_TTL,
            node_timeout: NODE_TIMEOUT,
            restart_guard: true,
            fence: None,
        }
    }

    /// Names the nodes, in the order of the stores, as errors show them.
    pub fn names<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.names = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets how long a node may take to answer, at most a fifteenth of the lease's ttl; 50 ms unless set.
    pub fn node_timeout(mut self, length: Duration) -> Self {
        self.node_timeout = length;
        self
    }

    /// Sets the longest ttl, which is also how long a restarted node keeps out; 60 s unless set. It has to be the same
    /// for everybody who uses these nodes.
    pub fn max_ttl(mut self, length: Duration) -> Self {
        self.max_ttl = length;
        self
    }

    /// Sets whether a node keeps out after a restart, unless its leases survive one; so it is unless set. Without, a
    /// node that comes back empty can help a second owner to a majority.
    pub fn restart_guard(mut self, is_on: bool) -> Self {
        self.restart_guard = is_on;
        self
    }

    /// Names the node, counted from 0, whose fencing tokens are those of the quorum. It has to grant every lease.
    pub fn fence_from(mut self, index: usize) -> Self {
        self.fence = Some(index);
        self
    }

    /// Sets the clock by which restarts are judged; the system's unless set.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Makes the quorum. Nothing is asked yet, see [`Quorum::connect`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for fewer than three stores, one without ttls or
    /// that cannot lock, a length of zero, a number of names
    /// that is not that of the stores, or a node for the fence that is not there or has none.
    pub fn build(self) -> Result<Quorum> {
        let Self { stores, names, clock, max_ttl, node_timeout, restart_guard, fence } = self;
        if stores.len() < 3 {
            return Err(invalid(format!(
                "a quorum needs 3 stores or more, better an odd number: there are {}",
                stores.len()
            )));
        }
        if names.len() != stores.len() {
            return Err(invalid(format!("{} stores of a quorum have {} names", stores.len(), names.len())));
        }
        if max_ttl.is_zero() || node_timeout.is_zero() {
            return Err(invalid("the max_ttl and the node_timeout of a quorum must be longer than zero"));
        }
        let nodes: Vec<_> = names.into_iter().zip(stores).map(|(name, store)| Node::new(name, store)).collect();
        if let Some(node) = nodes.iter().find(|node| node.capabilities.expiry == Expiry::Session) {
            return Err(invalid(format!("{} cannot be part of a quorum: its leases end with a connection", node.name)));
        }
        if let Some(node) = nodes.iter().find(|node| !node.capabilities.locks) {
            return Err(invalid(format!("{} cannot be part of a quorum: it cannot lock", node.name)));
        }
        let fencing = match fence {
            None => Fencing::None,
            Some(index) => nodes.get(index).map_or(Fencing::None, |node| node.capabilities.fencing),
        };
        if fence.is_some() && fencing == Fencing::None {
            return Err(invalid("the node that the fence of a quorum is from is not there, or has none"));
        }
        // Sharing begins here, so that a quorum which was not made has closed nothing.
        nodes.iter().for_each(|node| node.shared.enter());
        Ok(Quorum(Arc::new(Core {
            capabilities: weakest(&nodes).fencing(fencing),
            records: Records::new(nodes.len(), max_ttl),
            nodes,
            recognizing: Mutex::default(),
            clock,
            runtime: Handle::try_current().ok(),
            max_ttl,
            node_timeout,
            restart_guard,
            fence,
            is_closed: AtomicBool::new(false),
        })))
    }
}

/// What all nodes promise.
fn weakest(nodes: &[Node]) -> Capabilities {
    let of = || nodes.iter().map(|node| &node.capabilities);
    let mut weakest = Capabilities::new(of().map(|node| node.scope).min().unwrap_or(Scope::None));
    let times = [TimeAuthority::None, TimeAuthority::Client];
    weakest.time = times.into_iter().find(|time| of().any(|node| node.time == *time)).unwrap_or(TimeAuthority::Store);
    // A hint may be lost anyway, so one that gives them is enough. A place would be granted a lease on its node alone.
    weakest.waiting = if of().any(|node| node.waiting == Waiting::Hint) { Waiting::Hint } else { Waiting::Poll };
    weakest.hand_over = of().all(|node| node.hand_over);
    weakest.lists = of().all(|node| node.lists);
    weakest.liveness = of().all(|node| node.liveness);
    weakest.survives_restart = of().all(|node| node.survives_restart);
    weakest.survives_failover = of().all(|node| node.survives_failover);
    let steps = of().map(|node| node.ttl_step.as_nanos().max(1));
    let step = steps.fold(1, |common, step| common / greatest_divisor(common, step) * step);
    let step = Duration::from_nanos(u64::try_from(step).unwrap_or(u64::MAX));
    let min = of().map(|node| node.min_ttl).fold(MIN_TTL, Duration::max);
    weakest.ttl_limits(min, step)
}

fn greatest_divisor(one: u128, other: u128) -> u128 {
    if other == 0 { one } else { greatest_divisor(other, one % other) }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}
