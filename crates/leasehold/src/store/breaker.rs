//! A circuit breaker in front of a store: after some failures in a row nobody new is let through for a while.
//!
//! A store that does not answer costs every caller the whole operation limit. The breaker refuses at once instead, and
//! sends one request now and then to see whether the store is back. It looks at acquires only, and stops nothing but
//! acquires: what gives back, extends or passes on a lease always goes through, since holding it back would turn an
//! outage into lost leases.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Attempt, Capabilities, Claim, Grant, Inspection, Listing, Page, Probe, Removed, Store};
use crate::types::{Key, OwnerToken};

mod state;

use self::state::{Outcome, Pass, Refusal, State};

/// After how many failed acquires in a row a breaker opens, unless it is set.
pub const DEFAULT_FAILURES: u32 = 5;

/// How long a breaker stays open before it probes, unless it is set: time enough for a failover.
pub const DEFAULT_PAUSE: Duration = Duration::from_secs(10);

/// How long an acquire may be without an answer before being given up counts as a failure, unless it is set.
pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(1);

/// Stands in front of a store and refuses acquires while the store fails.
///
/// *Closed*, everything passes. A granted or contended acquire is a success; an error by which the store did not do its
/// work ([`Unavailable`](ErrorKind::Unavailable), [`Indeterminate`](ErrorKind::Indeterminate)) is a failure, and so is an
/// acquire that was given up after a while without an answer. A limit that the store itself sets is no exception: with
/// `mode=xact` of PostgreSQL an acquire is [`Unavailable`](ErrorKind::Unavailable), too, when all its connections are in
/// use. Other errors are answers, and count as neither. *Open*, after some failures in a row, acquires are refused as
/// [`Unavailable`](ErrorKind::Unavailable), with
/// the last failure as source. *Half open*, after a pause, one acquire is let through: its success closes the breaker, its
/// failure opens it anew. A probe that is dropped without an outcome leaves its turn to the next acquire; one that succeeds after
/// another has taken its turn closes the breaker all the same.
///
/// Everything else passes in every state and has no part in the count. Clones share one state. Put a
/// [`Retry`](crate::store::retry::Retry) inside of a breaker, not around it.
///
/// ```
/// # use leasehold::LockManager;
/// # use leasehold::store::{breaker::{Breaker, Phase}, memory::MemoryStore};
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let breaker = Breaker::new(MemoryStore::new()).failures(3);
/// let locks = LockManager::new(breaker.clone());
/// locks.lock("import").acquire().await?.release().await?;
/// assert_eq!(breaker.phase(), Phase::Closed);
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Breaker {
    store: Arc<dyn Store>,
    clock: Clock,
    failures: u32,
    pause: Duration,
    patience: Duration,
    state: Arc<Mutex<State>>,
}

/// What a [`Breaker`] does at this moment.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Everything passes.
    Closed,
    /// Acquires are refused; the next one after this time is a probe.
    Open(Duration),
    /// A probe is under way; all other acquires are refused.
    HalfOpen,
}

impl Breaker {
    /// Stands in front of `store`.
    pub fn new(store: impl Store) -> Self {
        Self::from_arc(Arc::new(store))
    }

    /// Stands in front of a store that is behind a pointer already.
    pub fn from_arc(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            clock: Clock::system(),
            failures: DEFAULT_FAILURES,
            pause: DEFAULT_PAUSE,
            patience: DEFAULT_PATIENCE,
            state: Arc::default(),
        }
    }

    /// Sets after how many failures in a row it opens; 0 counts as 1.
    pub fn failures(mut self, failures: u32) -> Self {
        self.failures = failures.max(1);
        self
    }

    /// Sets how long it stays open before it probes. A probe without an outcome is given up for another after this time.
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Sets how long an acquire may be without an answer before being given up counts as a failure; a twelfth of the ttl
    /// limits it further. It has to be shorter than the operation limit, or a store that hangs is never noticed.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets the clock by which it counts.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// What it does at this moment, for health checks.
    pub fn phase(&self) -> Phase {
        self.state.lock().phase(self.clock.now())
    }

    /// Lets an acquire through, or says why not.
    fn enter(&self, claim: &Claim<'_>) -> Result<Pass<'_>> {
        let now = self.clock.now();
        let entered = self.state.lock().enter(now, self.pause);
        let patience = self.patience.min(claim.ttl / 12);
        match entered {
            Ok(turn) => Ok(Pass::new(self, turn, now, patience)),
            Err(refusal) => Err(self.refused(refusal)),
        }
    }

    fn settle(&self, turn: u64, outcome: Outcome) {
        self.state.lock().settle(turn, outcome, self.clock.now(), self.failures, self.pause);
    }

    fn refused(&self, Refusal { probes_in, last }: Refusal) -> Error {
        let next = match probes_in {
            Some(probes_in) => format!("it probes the store in {probes_in:.1?}"),
            None => "a probe of the store is under way".to_owned(),
        };
        let error = Error::new(ErrorKind::Unavailable, format!("the circuit breaker is open: {next}"));
        match last {
            Some(last) => error.with_source(last),
            None => error,
        }
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker").field("store", &self.store).field("phase", &self.phase()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for Breaker {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt> {
        let pass = self.enter(claim)?;
        let answer = self.store.acquire(claim).await;
        pass.settle(Outcome::of(&answer));
        answer
    }

    async fn extend(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        self.store.extend(claims).await
    }

    async fn release(&self, key: &Key, owner: &OwnerToken) -> Result<bool> {
        self.store.release(key, owner).await
    }

    async fn transfer(&self, from: &OwnerToken, claim: &Claim<'_>) -> Result<Option<Grant>> {
        self.store.transfer(from, claim).await
    }

    async fn force_release(&self, key: &Key, expected: Option<&OwnerToken>) -> Result<Option<Removed>> {
        self.store.force_release(key, expected).await
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        self.store.inspect(key).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<Listing> {
        self.store.list(prefix, page).await
    }

    async fn probe(&self) -> Result<Probe> {
        self.store.probe().await
    }

    async fn close(&self) -> Result<()> {
        self.store.close().await
    }
}
