//! A named lock that is not held yet.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;
use tracing::field::Empty;

use crate::call::{Call, End};
use crate::clock::Clock;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::guard::{LeaseHandle, LockGuard};
use crate::holder;
use crate::lease::Terms;
use crate::options::{Renew, Wait};
use crate::scoped::{self, Ran};
use crate::store::{Holder, HolderInfo, Tie};
use crate::types::Key;
use crate::wait::Request;

mod by_owner;

/// A named lock, with its options; nothing is asked until one of the async methods is polled.
///
/// Cheap to clone, and to be shared: each acquisition has an owner token of its own, so that two tasks that acquire
/// through one `Lock` exclude each other. There is no reentrancy.
#[derive(Clone)]
pub struct Lock {
    engine: Arc<Engine>,
    /// A bad name is reported by the first call.
    key: Result<Key>,
    ttl: Duration,
    renew: Renew,
    wait: Wait,
    max_hold: Option<Duration>,
    tie: Tie,
    holder: Option<Arc<HolderInfo>>,
}

impl Lock {
    pub(crate) fn new(engine: &Arc<Engine>, name: &str) -> Self {
        let settings = &engine.settings;
        Self {
            key: Key::new(&settings.namespace, name),
            ttl: settings.ttl,
            renew: settings.renew,
            wait: settings.wait,
            max_hold: settings.max_hold,
            tie: Tie::Process,
            holder: settings.holder.clone(),
            engine: Arc::clone(engine),
        }
    }

    /// Sets how long the lease stands without renewal: 10 ms to 24 h, rounded up to what the store can keep.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets when the lease is renewed.
    pub fn renew(mut self, renew: Renew) -> Self {
        self.renew = renew;
        self
    }

    /// Sets how long [`run`](Self::run) waits. The other methods say it in their names.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Sets after which time the lease counts as lost even though it could be renewed.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Sets who has to be alive for the lease to stand, from the grant on; this process unless it is set.
    ///
    /// Whoever it names has to live when the lease is granted: else it is free at once. For a process group that is
    /// started only later there is [`LockGuard::tie_to`]. Only stores that can tell who is alive
    /// ([`Capabilities::liveness`](crate::store::Capabilities::liveness)) heed it.
    pub fn tie(mut self, tie: Tie) -> Self {
        self.tie = tie;
        self
    }

    /// Says why the lease is held, for people who look at it.
    pub fn reason(mut self, reason: &str) -> Self {
        self.holder = self.holder.map(|info| Arc::new(holder::with_reason(&info, reason)));
        self
    }

    /// Gives the holder a name, for people who look at it.
    pub fn label(mut self, label: &str) -> Self {
        self.holder = self.holder.map(|info| Arc::new(holder::with_label(&info, label)));
        self
    }

    /// The clock by which its leases are judged.
    pub(crate) fn clock(&self) -> Clock {
        self.engine.clock.clone()
    }

    /// As [`reason`](Self::reason), also where the manager tells nothing else about the holder.
    #[cfg(feature = "schedule")]
    pub(crate) fn noted(mut self, note: &str) -> Self {
        let info = self.holder.take().unwrap_or_default();
        self.holder = Some(Arc::new(holder::with_reason(&info, note)));
        self
    }

    /// The key.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if the name is no valid key.
    pub fn key(&self) -> Result<&Key> {
        self.key.as_ref().map_err(Clone::clone)
    }

    /// Asks once; `None` = somebody else holds it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for a malformed key or ttl, [`ErrorKind::Closed`], and what the store answers:
    /// [`ErrorKind::Unavailable`], [`ErrorKind::Indeterminate`], [`ErrorKind::Rejected`], [`ErrorKind::Unsupported`].
    ///
    /// # Cancel safety
    ///
    /// If dropped, what may have been granted is given back in the background.
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
        self.acquire_with(Wait::No).await
    }

    /// Waits at most `wait`, and asks for the last time at the deadline; `None` = still held by somebody else.
    ///
    /// Waiters for one key in one manager are served in the order in which they were first polled, and only the first of them asks the
    /// store; one behind it that has an answer of those times out without asking. Only contention is waited for. A
    /// store that does not answer can take up to four operation limits longer (5 s each, or a sixth of the ttl).
    ///
    /// A future that is neither polled nor dropped keeps those behind it waiting.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire); also [`ErrorKind::Unavailable`] if too many wait already.
    ///
    /// # Cancel safety
    ///
    /// If dropped, it leaves the line, and what may have been granted is given back in the background.
    pub async fn acquire_within(&self, wait: Duration) -> Result<Option<LockGuard>> {
        self.acquire_with(Wait::UpTo(wait)).await
    }

    /// Waits until the lease is granted.
    ///
    /// # Errors
    ///
    /// As [`acquire_within`](Self::acquire_within).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire_within`](Self::acquire_within).
    pub async fn acquire(&self) -> Result<LockGuard> {
        let guard = self.acquire_with(Wait::Forever).await?;
        // Without a deadline there is no end to the wait but a grant or an error.
        guard.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the wait ended without an answer"))
    }

    /// Waits as [`wait`](Self::wait) says, runs `work` under the lease, and gives it back; `None` = not run, because
    /// somebody else holds it.
    ///
    /// The lease is given back when the work returns, panics (the panic goes on afterwards) or is cancelled. It is
    /// checked before each poll of the work, and the work is dropped when it is lost: it stops at its next await.
    /// Blocking code and tasks that the work spawned are not stopped: have those call [`LeaseHandle::check`].
    ///
    /// # Errors
    ///
    /// As [`acquire_within`](Self::acquire_within), before the work has started; [`ErrorKind::Lost`] if the work was
    /// stopped because the lease was lost. What came of the release stands in [`Ran::release`].
    ///
    /// # Cancel safety
    ///
    /// If dropped, the work is dropped first and the lease given back in the background.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(LeaseHandle) -> T) -> Result<Option<Ran<T>>> {
        self.run_future(async move |lease| work(lease).await).await
    }

    /// As [`run`](Self::run), for code that is generic over the work and spawns it: the future has a type of its own,
    /// which can be required to be `Send`.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn run_future<T, F: Future<Output = T>>(
        &self,
        work: impl FnOnce(LeaseHandle) -> F,
    ) -> Result<Option<Ran<T>>> {
        let engine = &self.engine;
        let span = tracing::debug_span!(
            "lock.with",
            namespace = engine.settings.namespace,
            key = self.key.as_ref().map(Key::name).unwrap_or_default(),
            store = engine.store().name(),
            ttl = self.ttl.as_secs_f64(),
            wait = self.wait.seconds(),
            owner = Empty,
            fencing = Empty,
            outcome = Empty,
        );
        let ran = async {
            match self.acquire_with(self.wait).await? {
                Some(guard) => scoped::run(guard, work, &span).await.map(Some),
                None => Ok(None),
            }
        };
        let ran = pin!(ran).instrument(span.clone()).await;
        span.record("outcome", scoped::outcome(&ran));
        ran
    }

    /// Who holds it, if anybody.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`], [`ErrorKind::Unavailable`], [`ErrorKind::Rejected`] or [`ErrorKind::Closed`].
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed if the future is dropped.
    pub async fn holder(&self) -> Result<Option<Holder>> {
        Ok(self.engine.inspect(self.key_for(Operation::Inspect)?).await?.holders.into_iter().next())
    }

    async fn acquire_with(&self, wait: Wait) -> Result<Option<LockGuard>> {
        let (engine, key) = (&self.engine, self.key_for(Operation::Acquire)?);
        let span = tracing::debug_span!(
            "lock.acquire",
            namespace = key.namespace(),
            key = key.name(),
            store = engine.store().name(),
            ttl = self.ttl.as_secs_f64(),
            wait = wait.seconds(),
            owner = Empty,
            fencing = Empty,
            outcome = Empty,
            waited = Empty,
            attempts = Empty,
            error = Empty,
        );
        let terms = match self.terms() {
            Ok(terms) => terms,
            Err(error) => {
                let error = engine.check_usable().err().unwrap_or(error);
                Call::begin(engine.told(), key, &span, wait).end(End::Failed(&error));
                return Err(engine.in_context(error, Operation::Acquire, Some(key)));
            }
        };
        let request = Request { engine, key, terms, holder: self.holder.as_ref() };
        // Here before the span is left or closed: a subscriber that panics then must not leave a lease without a guard.
        let mut granted = None;
        {
            // Moved once only, for it is large.
            let asked = pin!(async {
                granted = request.acquire(wait, &span).await?.map(LockGuard::new);
                Ok::<_, Error>(())
            });
            asked.instrument(span.clone()).await?;
        }
        drop(span);
        Ok(granted)
    }

    /// The key of a call. A name that makes none is in the way of its event, too: there is nothing to tell of.
    fn key_for(&self, operation: Operation) -> Result<&Key> {
        self.key().map_err(|error| self.engine.in_context(error, operation, None))
    }

    /// The ttl and the rest, checked.
    fn terms(&self) -> Result<Terms> {
        let ttl = self.engine.check_ttl(self.ttl)?;
        self.renew.check(ttl)?;
        if self.max_hold.is_some_and(|max_hold| max_hold.is_zero()) {
            return Err(Error::new(ErrorKind::InvalidInput, "invalid longest holding time: it must be positive"));
        }
        Ok(Terms { ttl, renew: self.renew, max_hold: self.max_hold, tie: self.tie, unsettled: 0 })
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("key", &self.key)
            .field("ttl", &self.ttl)
            .field("renew", &self.renew)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}
