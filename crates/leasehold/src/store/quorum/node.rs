//! One of the stores of a quorum: its name, whether its grants count, and how much still runs on at it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::survey::answered;
use super::{Core, SURVEY_LIMIT};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{BoxFuture, Capabilities, SharedStore, Store, Waiting};

/// So many requests may run on at one node after their callers went on; while there are more, it is not asked.
const CROWD: usize = 1000;

/// With so many of them at a node that does answer, callers wait for it, so that they do not outrun it.
const BACKLOG: usize = 64;

/// An uptime in whole seconds may say one more than it was.
const GRAIN: Duration = Duration::from_secs(1);

/// A store among others.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) shared: SharedStore,
    pub(super) capabilities: Capabilities,
    seen: Mutex<Option<Seen>>,
    /// Held by whoever looks whether it was restarted.
    looking: tokio::sync::Mutex<()>,
    running: AtomicUsize,
    /// When it last answered, in nanoseconds of the clock.
    heard: AtomicU64,
}

/// What a node said of itself when it was last looked at.
#[derive(Clone, Debug)]
struct Seen {
    connection: Option<u64>,
    identity: Option<String>,
    /// Before, it may have forgotten a lease that still stands; `None` = it tells too little to know.
    votes_from: Option<Moment>,
    /// Another node that is the same place.
    twin: Option<String>,
}

impl Node {
    pub(super) fn new(name: String, shared: SharedStore) -> Self {
        Self {
            name,
            capabilities: shared.store().capabilities(),
            shared,
            seen: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
            running: AtomicUsize::new(0),
            heard: AtomicU64::new(0),
        }
    }

    pub(super) fn store(&self) -> &dyn Store {
        self.shared.store()
    }

    /// Whether a refused claim gets a wake-up that owns nothing. A place in line would be granted a lease by itself.
    pub(super) fn hints(&self) -> bool {
        self.capabilities.waiting == Waiting::Hint
    }

    /// An error unless one more request may be sent.
    pub(super) fn check_crowd(&self) -> Result<()> {
        if self.running() < CROWD {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, format!("not asked: {CROWD} earlier requests are not answered")))
    }

    pub(super) fn heard(&self, now: Moment) {
        self.heard.fetch_max(now.as_nanos(), Ordering::AcqRel);
    }

    /// Whether it answers, if slower than it is asked.
    pub(super) fn is_behind(&self, core: &Core) -> bool {
        self.running() > BACKLOG
            && core.clock.now().since(Moment::from_nanos(self.heard.load(Ordering::Acquire))) < core.node_timeout
    }

    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Acquire)
    }
}

/// Something that runs on at a node.
#[derive(Debug)]
pub(super) struct Running(Arc<Core>, usize);

impl Running {
    pub(super) fn start(core: &Arc<Core>, index: usize) -> Self {
        core.nodes[index].running.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(core), index)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.nodes[self.1].running.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Core {
    /// An error if it is known already that a grant of this node would not count.
    pub(super) fn check_bar(&self, index: usize) -> Result<()> {
        if !self.is_guarded(index) {
            return Ok(());
        }
        match &*self.nodes[index].seen.lock() {
            Some(seen) if seen.twin.is_none() && seen.votes_from.is_some() => self.check_seen(seen),
            _ => Ok(()),
        }
    }

    /// An error unless a grant that came over `connection` counts: the node has been up, and has kept what it knew, for
    /// as long as any lease can stand.
    pub(super) async fn vet(&self, index: usize, connection: Option<u64>) -> Result<()> {
        if !self.is_guarded(index) {
            return Ok(());
        }
        let node = &self.nodes[index];
        let is_known = |seen: &Option<Seen>| match seen {
            // Looked at since, on the connection that granted.
            Some(seen) => connection.is_some() && seen.connection == connection,
            None => false,
        };
        if connection.is_none() {
            // What others find later or earlier says nothing of this grant.
            return self.check_seen(&self.look_at(index).await?);
        }
        if !is_known(&node.seen.lock()) {
            let _turn = node.looking.lock().await;
            if !is_known(&node.seen.lock()) {
                self.look_at(index).await?;
            }
        }
        match &*node.seen.lock() {
            Some(seen) if seen.connection == connection => self.check_seen(seen),
            _ => Err(Error::new(ErrorKind::Unavailable, "its connection broke while it was looked at")),
        }
    }

    /// Looks at every node; what cannot be looked at now is when it grants.
    pub(super) async fn look_at_all(self: &Arc<Self>) -> Result<()> {
        let look = |core: Arc<Self>, index: usize| -> BoxFuture<Result<()>> {
            Box::pin(async move {
                let _turn = core.nodes[index].looking.lock().await;
                core.look_at(index).await.map(|_| ())
            })
        };
        let is_enough = |said: &[Option<Result<()>>]| answered(said).count() >= self.majority();
        let said = self.gather(SURVEY_LIMIT, ErrorKind::Unavailable, look, is_enough, None).await;
        self.check_majority(&said)
    }

    async fn look_at(&self, index: usize) -> Result<Seen> {
        let node = &self.nodes[index];
        let probe = node.store().probe().await.map_err(|error| {
            let message = format!("how long it has been up is not known: {}", error.message());
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        })?;
        let now = self.clock.now();
        // One after the other, so that of several names of one server exactly one is nobody's twin.
        let _turn = self.recognizing.lock();
        let mut seen = node.seen.lock();
        let before = seen.take();
        let is_same = |before: &Seen| before.identity == probe.identity && before.connection == probe.connection;
        let votes_from = match (probe.uptime, &probe.identity) {
            (Some(uptime), _) => Some(now + (self.max_ttl + GRAIN).saturating_sub(uptime)),
            // It has been up since it was seen first, at least.
            (None, Some(_)) => match before.filter(is_same) {
                Some(before) => before.votes_from,
                None => Some(now + self.max_ttl),
            },
            (None, None) => None,
        };
        let identity = &probe.identity;
        let is_same_server = |seen: &Seen| identity.is_some() && seen.identity == *identity && seen.twin.is_none();
        let mut others = self.nodes.iter().enumerate().filter(|(other, _)| *other != index);
        let twin = others.find(|(_, other)| other.seen.lock().as_ref().is_some_and(is_same_server));
        let twin = twin.map(|(_, twin)| twin.name.clone());
        let found = Seen { connection: probe.connection, identity: probe.identity, votes_from, twin };
        *seen = Some(found.clone());
        Ok(found)
    }

    fn check_seen(&self, seen: &Seen) -> Result<()> {
        if let Some(twin) = &seen.twin {
            return Err(Error::new(ErrorKind::InvalidConfig, format!("it is the same server as {twin}: name it once")));
        }
        let Some(votes_from) = seen.votes_from else {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "it tells neither its uptime nor its identity, so that nobody knows when it was restarted",
            ));
        };
        let left = votes_from.since(self.clock.now());
        if left.is_zero() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "it was started less than {:?} ago and may have forgotten leases: it votes in {left:.0?}",
                self.max_ttl
            ),
        ))
    }

    fn is_guarded(&self, index: usize) -> bool {
        self.restart_guard && !self.nodes[index].capabilities.survives_restart
    }
}
