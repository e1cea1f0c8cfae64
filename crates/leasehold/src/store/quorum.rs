//! One lease on a majority of several independent stores: it stands as long as most of them do.
//!
//! A [`Quorum`] asks all of its nodes at once, and what a majority grants is granted. Every other outcome is undone: a
//! grant of a minority, one that comes late, one whose caller has gone. A node that is dead, slow or wiped costs
//! nothing as long as a majority is left, and gets its leases back with the next extension.
//!
//! **What it rests on.** The nodes fail independently, share no data and do not replicate to one another; most of them
//! keep time at about the rate of the holder, and do not step; a node that comes back without its memory keeps out for
//! as long as any lease it forgot may stand. The last is seen to: nothing is granted for longer than
//! [`max_ttl`](QuorumBuilder::max_ttl), which has to be the same for everybody who uses these nodes, and a node that
//! was restarted more recently than that does not vote. How long it has been up is asked on every new connection, and
//! where a store does not number its connections, after every grant.
//!
//! **How many.** An odd number, three or five. Four stand no more failures than three; fewer than three are refused:
//! two fail as soon as either does, and one is no quorum.
//!
//! **Fencing.** The nodes' tokens have nothing to do with one another, so there are none, unless
//! [`fence_from`](QuorumBuilder::fence_from) names the node whose tokens are handed out. That node then has to be part
//! of each majority, and nothing is granted while it is out.
//!
//! ```
//! # use leasehold::store::{memory::MemoryStore, quorum::Quorum};
//! # use leasehold::LockManager;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> leasehold::Result<()> {
//! let nodes = [MemoryStore::new(), MemoryStore::new(), MemoryStore::new()];
//! // These were started just now, and know that nothing was forgotten.
//! let quorum = Quorum::builder(nodes).restart_guard(false).build()?;
//! let locks = LockManager::new(quorum);
//! let ran = locks.try_with_lock("import:nightly", async |_| 42).await?;
//! assert!(ran.is_some());
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{
    Attempt, BoxFuture, Capabilities, Claim, Grant, Inspection, Listing, Page, Probe, Removed, SharedStore, Store,
};
use crate::types::{Key, OwnerToken};

mod acquire;
mod builder;
mod end;
mod extend;
mod node;
mod record;
mod round;
mod survey;
mod tally;
mod watch;

pub use self::builder::QuorumBuilder;
use self::node::Node;
use self::record::Records;

/// How long a node may take for what is no decision about a lease.
const SURVEY_LIMIT: Duration = Duration::from_secs(2);

/// A node has this share of a lease's ttl to answer, at most: asking and undoing are then done within a sixth, which is
/// what the engine gives a request.
const LIMIT_SHARE: u32 = 15;

/// Closing waits this long for what is still being undone.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);
const CLOSE_LOOK: Duration = Duration::from_millis(5);

/// A store over several stores; clones share everything.
#[derive(Clone, Debug)]
pub struct Quorum(Arc<Core>);

#[derive(Debug)]
struct Core {
    nodes: Vec<Node>,
    /// Held by whoever writes down what a node is.
    recognizing: Mutex<()>,
    records: Arc<Records>,
    capabilities: Capabilities,
    clock: Clock,
    runtime: Option<Handle>,
    max_ttl: Duration,
    node_timeout: Duration,
    restart_guard: bool,
    fence: Option<usize>,
    is_closed: AtomicBool,
}

impl Quorum {
    /// A quorum of these stores, with the defaults of [`QuorumBuilder`].
    ///
    /// # Errors
    ///
    /// As [`QuorumBuilder::build`].
    pub fn new<S: Into<SharedStore>>(stores: impl IntoIterator<Item = S>) -> Result<Self> {
        Self::builder(stores).build()
    }

    /// A quorum of these stores, to be given options. They are named `node 1`, `node 2` and so on.
    pub fn builder<S: Into<SharedStore>>(stores: impl IntoIterator<Item = S>) -> QuorumBuilder {
        QuorumBuilder::new(stores.into_iter().map(Into::into).collect())
    }

    /// Connects to the nodes and learns which of them may vote, so that the first claim need not.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if fewer than a majority answer; the message names each.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub async fn connect(&self) -> Result<()> {
        self.0.look_at_all().await
    }
}

impl Core {
    fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// So many nodes can be missing.
    fn spare(&self) -> usize {
        self.nodes.len() - self.majority()
    }

    /// How long a node may take to answer a claim.
    fn limit(&self, ttl: Duration) -> Duration {
        self.node_timeout.min(ttl / LIMIT_SHARE)
    }

    fn check_ttl(&self, ttl: Duration) -> Result<()> {
        if ttl <= self.max_ttl {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "invalid ttl {ttl:?}: this quorum grants at most {:?}, which is how long a restarted node keeps out; \
                 raise max_ttl for everybody who uses it",
                self.max_ttl
            ),
        ))
    }

    fn check_open(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the quorum was closed"));
        }
        Ok(())
    }

    async fn close(self: &Arc<Self>) -> Result<()> {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // Goes on when the caller does.
        match tokio::spawn(Arc::clone(self).close_nodes()).await {
            Ok(closed) => closed,
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "the runtime has ended")),
        }
    }

    async fn close_nodes(self: Arc<Self>) -> Result<()> {
        let mut waited = Duration::ZERO;
        while waited < CLOSE_LIMIT && self.nodes.iter().any(|node| node.running() > 0) {
            sleep(CLOSE_LOOK).await;
            waited += CLOSE_LOOK;
        }
        let close = |core: Arc<Self>, index: usize| -> BoxFuture<Result<()>> {
            Box::pin(async move {
                let node = &core.nodes[index];
                if node.shared.leave() { node.store().close().await } else { Ok(()) }
            })
        };
        let said = self.gather(SURVEY_LIMIT, ErrorKind::Unavailable, close, |_| false, None).await;
        self.check_majority(&said)
    }
}

#[async_trait]
impl Store for Quorum {
    fn name(&self) -> &'static str {
        "redlock"
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities
    }

    async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt> {
        self.0.check_open()?;
        self.0.acquire(claim).await
    }

    async fn extend(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        self.0.check_open()?;
        self.0.extend(claims).await
    }

    async fn release(&self, key: &Key, owner: &OwnerToken) -> Result<bool> {
        self.0.check_open()?;
        self.0.release(key, owner).await
    }

    async fn transfer(&self, from: &OwnerToken, claim: &Claim<'_>) -> Result<Option<Grant>> {
        self.0.check_open()?;
        self.0.transfer(from, claim).await
    }

    async fn force_release(&self, key: &Key, expected: Option<&OwnerToken>) -> Result<Option<Removed>> {
        self.0.check_open()?;
        self.0.force_release(key, expected).await
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        self.0.check_open()?;
        self.0.inspect(key).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<Listing> {
        self.0.check_open()?;
        self.0.list(prefix, page).await
    }

    async fn probe(&self) -> Result<Probe> {
        self.0.check_open()?;
        self.0.probe().await
    }

    /// Waits up to 2 s for what is being undone, then closes the nodes.
    async fn close(&self) -> Result<()> {
        self.0.close().await
    }
}
