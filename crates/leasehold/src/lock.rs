//! A named lock that is not held yet.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use crate::engine::Engine;
use crate::error::{Error, ErrorKind, LostReason, Operation, Result};
use crate::guard::{LeaseHandle, LockGuard, extend};
use crate::holder;
use crate::lease::{Lease, Terms, deadline};
use crate::options::{Renew, Wait};
use crate::scoped::{self, Ran};
use crate::store::{Claim, Expiry, Holder, HolderInfo, Tie};
use crate::types::{Key, OwnerToken};
use crate::undo::{Target, Undo};
use crate::wait::{Request, adopt};

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
    /// Waiters for one key in one manager are served in the order of their calls, and only the first of them asks the
    /// store; one behind it that has an answer of those times out without asking. Only contention is waited for. A
    /// store that does not answer can take up to two operation limits longer (5 s each, or a sixth of the ttl).
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
        match self.acquire_lease(self.wait).await? {
            Some(lease) => scoped::run(lease, work).await.map(Some),
            None => Ok(None),
        }
    }

    /// Takes on a lease that was handed over, under a new owner token and a higher fencing token: the token it came
    /// with is dead from then on, and exactly one of two resumers wins.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotHeld`] if the token does not hold the lease (any more); [`ErrorKind::Unsupported`] on stores whose
    /// leases cannot be handed over; else as [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease goes back, in the background, to the token it came with, for the ttl of this lock.
    pub async fn resume(&self, owner: &OwnerToken) -> Result<LockGuard> {
        let key = self.key()?;
        let resumed = self.transfer_from(key, owner).await.map(LockGuard::new);
        resumed.map_err(|error| {
            self.engine.failed(Operation::Transfer, Some(key), &error);
            self.engine.in_context(error, Operation::Transfer, Some(key))
        })
    }

    /// Gives back the lease that `owner` holds, without taking it on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotHeld`] if the token does not hold the lease (any more); [`ErrorKind::Indeterminate`] also if it
    /// does not hold it now, but an earlier request of this call got no answer; else as
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease may or may not be given back.
    pub async fn release_by(&self, owner: &OwnerToken) -> Result<()> {
        let (engine, key) = (&self.engine, self.key()?);
        engine.check_open()?;
        let limit = engine.limit(engine.check_ttl(self.ttl)?);
        let mut unanswered = 0;
        let release = || engine.store().release(key, owner);
        let (_, found) = engine.settle(Operation::Release, key, limit, &mut unanswered, release).await;
        if found? {
            engine.lines.ring(key);
            return Ok(());
        }
        if unanswered > 0 {
            // The first request may have given it back, or the token never held it.
            let error = Error::new(ErrorKind::Indeterminate, "the first answer was lost, and now it is not held");
            return Err(engine.in_context(error, Operation::Release, Some(key)));
        }
        Err(self.not_held(key, Operation::Release))
    }

    /// Pushes the end of the lease that `owner` holds out to at least `ttl` from now, without taking it on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotHeld`] if the token does not hold the lease (any more); else as
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease may or may not be extended.
    pub async fn extend_by(&self, owner: &OwnerToken, ttl: Duration) -> Result<()> {
        let (engine, key) = (&self.engine, self.key()?);
        engine.check_open()?;
        let ttl = engine.check_ttl(ttl)?;
        match extend(engine, &Claim::new(key, owner, ttl)).await.1? {
            Some(_) => Ok(()),
            None => Err(self.not_held(key, Operation::Extend)),
        }
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
        let (engine, key) = (&self.engine, self.key()?);
        engine.check_open()?;
        let asked = engine.ask(Operation::Inspect, Some(key), engine.read_limit(), engine.store().inspect(key)).await;
        asked.map(|inspection| inspection.holders.into_iter().next())
    }

    async fn acquire_with(&self, wait: Wait) -> Result<Option<LockGuard>> {
        Ok(self.acquire_lease(wait).await?.map(LockGuard::new))
    }

    async fn acquire_lease(&self, wait: Wait) -> Result<Option<Arc<Lease>>> {
        let (engine, key) = (&self.engine, self.key()?);
        let ttl = engine.check_ttl(self.ttl)?;
        self.renew.check(ttl)?;
        let request =
            Request { engine, key, ttl, renew: self.renew, max_hold: self.max_hold, holder: self.holder.as_ref() };
        let span = tracing::debug_span!("lock.acquire", key = key.name(), store = engine.store().name());
        request.acquire(wait).instrument(span).await
    }

    async fn transfer_from(&self, key: &Key, from: &OwnerToken) -> Result<Arc<Lease>> {
        let engine = &self.engine;
        // Closing waits until the request is answered or undone.
        let _ticket = engine.background.ticket();
        engine.check_open()?;
        let ttl = engine.check_ttl(self.ttl)?;
        self.renew.check(ttl)?;
        let capabilities = engine.capabilities();
        if !capabilities.hand_over || capabilities.expiry == Expiry::Session {
            return Err(Error::new(ErrorKind::Unsupported, "its leases cannot be handed over"));
        }
        let owner = OwnerToken::mint()?;
        let mut undo = Undo::new(Target {
            engine: Arc::clone(engine),
            key: key.clone(),
            owner: owner.clone(),
            ttl,
            back_to: Some(from.clone()),
            ticket: None,
        });
        let mut claim = Claim::new(key, &owner, ttl).tie(Tie::Process);
        claim.holder = self.holder.as_ref();
        let limit = engine.limit(ttl);
        let unsettled = &mut undo.unsettled;
        let (sent, grant) = engine
            .settle_while_open(Operation::Transfer, key, limit, unsettled, || engine.store().transfer(from, &claim))
            .await;
        let Some(grant) = grant? else {
            return Err(self.not_held(key, Operation::Transfer));
        };
        undo.stands = true;
        if engine.clock.now() >= deadline(engine, sent, ttl, grant.validity) {
            return Err(Error::new(ErrorKind::Indeterminate, "the grant came after its own deadline and goes back"));
        }
        let unsettled = undo.unsettled;
        adopt(undo, sent, grant, &Terms { ttl, renew: self.renew, max_hold: self.max_hold, unsettled })
    }

    fn not_held(&self, key: &Key, operation: Operation) -> Error {
        let error = Error::lost(ErrorKind::NotHeld, LostReason::NotHeld);
        self.engine.in_context(error, operation, Some(key))
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
