//! The handle on a store that everything starts from.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock::Clock;
use crate::engine::{DEFAULT_OPERATION_LIMIT, Engine, Settings};
use crate::error::{Error, ErrorKind, LostReason, Operation, Result};
use crate::guard::{LeaseHandle, target};
use crate::holder;
use crate::lock::Lock;
use crate::observe::{Observer, Silent};
use crate::options::{Backoff, Close, DEFAULT_MAX_WAITERS, DEFAULT_TTL, Margin, Renew, Wait};
use crate::scoped::Ran;
use crate::store::{
    Capabilities, Fencing, Holder, HolderInfo, Inspection, Listing, Page, Probe, Removed, Scope, SharedStore,
};
use crate::types::{DEFAULT_NAMESPACE, Key, OwnerToken, check_namespace};
use crate::undo::late_requests;

/// How long closing waits for running work to stop and for releases to be answered.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Named locks over one store.
///
/// A cheap handle: clones share everything, one renewal task included. Build it inside the runtime that lives longest:
/// background work runs there. It needs a tokio runtime with time enabled, and one that is driven: on a current-thread
/// runtime nothing is renewed or given back while no `block_on` runs.
///
/// ```
/// # use leasehold::{LockManager, store::memory::MemoryStore};
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let locks = LockManager::new(MemoryStore::new());
/// let ran = locks.with_lock("migrate", async |lease| lease.fencing_token()).await?;
/// assert!(ran.value.is_some());
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct LockManager {
    engine: Arc<Engine>,
}

impl LockManager {
    /// A manager with every default.
    pub fn new(store: impl Into<SharedStore>) -> Self {
        Self::builder(store).assemble()
    }

    /// A manager with options.
    pub fn builder(store: impl Into<SharedStore>) -> LockManagerBuilder {
        LockManagerBuilder {
            store: store.into(),
            clock: Clock::system(),
            observer: Arc::new(Silent),
            settings: Settings {
                namespace: DEFAULT_NAMESPACE.to_owned(),
                ttl: DEFAULT_TTL,
                renew: Renew::Automatic,
                wait: Wait::Forever,
                backoff: Backoff::default(),
                margin: Margin::default(),
                operation_limit: DEFAULT_OPERATION_LIMIT,
                max_hold: None,
                max_waiters: DEFAULT_MAX_WAITERS,
                holder: Some(Arc::new(holder::this_process())),
            },
            scope: Scope::None,
            fencing: Fencing::None,
        }
    }

    /// A manager on the store that a URL names: `sqlite:///path`, `memory:`, ...
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for an unknown scheme or option, with a list of those there are;
    /// [`ErrorKind::Rejected`] or [`ErrorKind::Unavailable`] if the store cannot be opened.
    ///
    /// # Cancel safety
    ///
    /// If dropped, nothing stays open.
    pub async fn connect(url: &str) -> Result<Self> {
        crate::config::open(url).await?.build()
    }

    /// A named lock, with the defaults of this manager. A bad name is reported by the first call on it.
    pub fn lock(&self, name: &str) -> Lock {
        Lock::new(&self.engine, name)
    }

    /// Waits until the lease is granted, runs `work` under it, and gives it back. See [`Lock::run`].
    ///
    /// # Errors
    ///
    /// As [`Lock::run`].
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::run`].
    pub async fn with_lock<T>(&self, name: &str, work: impl AsyncFnOnce(LeaseHandle) -> T) -> Result<Ran<T>> {
        let ran = self.lock(name).wait(Wait::Forever).run(work).await?;
        // Without a deadline there is no end to the wait but a grant or an error.
        ran.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the wait ended without an answer"))
    }

    /// Asks once; if the lease is granted, runs `work` under it, and gives it back. `None` = not run. See [`Lock::run`].
    ///
    /// # Errors
    ///
    /// As [`Lock::run`].
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::run`].
    pub async fn try_with_lock<T>(
        &self,
        name: &str,
        work: impl AsyncFnOnce(LeaseHandle) -> T,
    ) -> Result<Option<Ran<T>>> {
        self.lock(name).wait(Wait::No).run(work).await
    }

    /// Who holds the lock of this name, if anybody.
    ///
    /// # Errors
    ///
    /// As [`Lock::holder`].
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed if the future is dropped.
    pub async fn holder(&self, name: &str) -> Result<Option<Holder>> {
        Ok(self.inspect(name).await?.holders.into_iter().next())
    }

    /// Who holds the lock of this name; empty = free.
    ///
    /// # Errors
    ///
    /// As [`Lock::holder`].
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed if the future is dropped.
    pub async fn inspect(&self, name: &str) -> Result<Inspection> {
        let (engine, key) = (&self.engine, self.key(name)?);
        engine.check_open()?;
        engine.ask(Operation::Inspect, Some(&key), engine.read_limit(), engine.store().inspect(&key)).await
    }

    /// Which locks of this namespace, with names that start with `prefix`, are held.
    ///
    /// The entries and [`Page::after`] bear keys as stored; [`Key::from_stored`] takes the namespace off.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the store cannot list; [`ErrorKind::Unavailable`], [`ErrorKind::Rejected`] or
    /// [`ErrorKind::Closed`].
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed if the future is dropped.
    pub async fn list(&self, prefix: &str, page: Page) -> Result<Listing> {
        let engine = &self.engine;
        engine.check_open()?;
        let prefix = match self.namespace() {
            "" => prefix.to_owned(),
            namespace => format!("{namespace}:{prefix}"),
        };
        engine.ask(Operation::List, None, engine.read_limit(), engine.store().list(&prefix, page)).await
    }

    /// Removes a lease, whoever holds it; with `expected` only if that owner does. For operators: the holder may still
    /// be at work, until its next renewal fails.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the store cannot; else as [`Lock::try_acquire`].
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease may or may not be removed.
    pub async fn force_release(&self, name: &str, expected: Option<&OwnerToken>) -> Result<Option<Removed>> {
        let (engine, key) = (&self.engine, self.key(name)?);
        engine.check_open()?;
        let removal = engine.store().force_release(&key, expected);
        let removed = engine.ask(Operation::ForceRelease, Some(&key), engine.read_limit(), removal).await?;
        tracing::warn!(key = key.name(), removed = removed.is_some(), "force release");
        engine.lines.ring(&key);
        Ok(removed)
    }

    /// Asks the store, on the path that leases use, whether it is reachable; answers with the round trip.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`], [`ErrorKind::Rejected`] or [`ErrorKind::Closed`].
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed if the future is dropped.
    pub async fn ping(&self) -> Result<Duration> {
        let sent = self.engine.clock.now();
        self.probe().await?;
        Ok(self.engine.clock.now().since(sent))
    }

    /// What the store knows of itself.
    ///
    /// # Errors
    ///
    /// As [`ping`](Self::ping).
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed if the future is dropped.
    pub async fn probe(&self) -> Result<Probe> {
        let engine = &self.engine;
        engine.check_open()?;
        engine.ask(Operation::Probe, None, engine.read_limit(), engine.store().probe()).await
    }

    /// Closes this manager and all its clones: waiters and new calls get [`ErrorKind::Closed`], held leases are lost
    /// with reason [`LostReason::Closed`] and then given back or left standing, work under a lease is stopped first.
    /// Waits, for some seconds at most, for what goes on in the background. The store is closed with its last manager.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if not everything was given back, or answered in time; its ttl ends what was not.
    /// [`ErrorKind::Closed`] in a forked child, where nothing is done.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the manager is closed all the same; only nobody waits for the background work.
    pub async fn close(&self, mode: Close) -> Result<()> {
        let engine = &self.engine;
        if engine.is_forked() {
            // The leases and the store's connections are the parent's.
            return engine.check_open();
        }
        let given_up = engine.background.given_up();
        engine.start_closing(mode);
        for lease in engine.renewals.close() {
            let ended = lease.end(LostReason::Closed);
            let scoped = lease.scoped.load(Ordering::Acquire);
            // Work is stopped by its scope, which gives the lease back afterwards.
            if ended.is_ok()
                && !scoped
                && engine.closing() == Some(Close::Release)
                && !lease.given_back.swap(true, Ordering::AcqRel)
            {
                target(&lease).undo_in_background(late_requests(lease.unsettled, true));
            }
            engine.renewals.leave(&lease);
        }
        let idle = tokio::time::timeout(CLOSE_LIMIT, engine.background.idle()).await;
        if engine.leave_store() {
            engine.ask(Operation::Close, None, engine.read_limit(), engine.store().close()).await?;
        }
        if idle.is_ok() && engine.background.given_up() == given_up {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Unavailable, "not every lease could be given back: its ttl ends it");
        Err(engine.in_context(error, Operation::Close, None))
    }

    /// The namespace of all keys of this manager.
    pub fn namespace(&self) -> &str {
        &self.engine.settings.namespace
    }

    /// The ttl of locks that set none.
    pub fn ttl(&self) -> Duration {
        self.engine.settings.ttl
    }

    /// What the store can promise.
    pub fn capabilities(&self) -> Capabilities {
        *self.engine.capabilities()
    }

    /// How far exclusion reaches.
    pub fn scope(&self) -> Scope {
        self.engine.capabilities().scope
    }

    /// Whether exclusion reaches beyond this process.
    pub fn is_shared(&self) -> bool {
        self.engine.capabilities().is_shared()
    }

    /// The store's name.
    pub fn store_name(&self) -> &'static str {
        self.engine.store().name()
    }

    #[cfg(feature = "testkit")]
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    fn key(&self, name: &str) -> Result<Key> {
        Key::new(self.namespace(), name)
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("store", &self.store_name())
            .field("namespace", &self.namespace())
            .finish_non_exhaustive()
    }
}

/// Options of a [`LockManager`].
#[derive(Debug)]
#[must_use = "nothing happens until `build`"]
pub struct LockManagerBuilder {
    store: SharedStore,
    clock: Clock,
    observer: Arc<dyn Observer>,
    settings: Settings,
    scope: Scope,
    fencing: Fencing,
}

impl LockManagerBuilder {
    /// Sets the namespace of all keys: at most 64 of `A-Z a-z 0-9 . _ -`; empty = keys are stored as they are.
    pub fn namespace(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.settings.namespace);
        self
    }

    /// Sets the ttl of locks that set none.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// Sets when leases are renewed whose lock does not say so.
    pub fn renew(mut self, renew: Renew) -> Self {
        self.settings.renew = renew;
        self
    }

    /// Sets how long [`Lock::run`] waits on locks that do not say so.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.settings.wait = wait;
        self
    }

    /// Sets how polling slows down.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.settings.backoff = backoff;
        self
    }

    /// Sets what is taken off local deadlines.
    pub fn margin(mut self, margin: Margin) -> Self {
        self.settings.margin = margin;
        self
    }

    /// Sets the longest time of a single store operation; a sixth of the ttl limits it further.
    pub fn operation_limit(mut self, limit: Duration) -> Self {
        self.settings.operation_limit = limit;
        self
    }

    /// Sets how many waiters may stand in line for one key.
    pub fn max_waiters(mut self, max_waiters: usize) -> Self {
        self.settings.max_waiters = max_waiters;
        self
    }

    /// Sets after which time a lease counts as lost even though it could be renewed.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.settings.max_hold = Some(max_hold);
        self
    }

    /// Sets the clock by which leases are judged.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets who is told of every event.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Arc::new(observer);
        self
    }

    /// Sets what people may read about the holder, in place of host, process id and program name.
    pub fn holder_info(mut self, info: HolderInfo) -> Self {
        self.settings.holder = Some(Arc::new(holder::tidied(info)));
        self
    }

    /// Tells nothing about the holder, not even a reason or label given later.
    pub fn without_holder_info(mut self) -> Self {
        self.settings.holder = None;
        self
    }

    /// Refuses a store whose exclusion does not reach as far as `scope`.
    pub fn require_scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// Refuses a store whose fencing tokens cannot be trusted as far as `fencing`.
    pub fn require_fencing(mut self, fencing: Fencing) -> Self {
        self.fencing = fencing;
        self
    }

    /// The manager.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the store does not reach or fence as far as required;
    /// [`ErrorKind::InvalidConfig`] for a malformed namespace or an operation limit or number of waiters of zero;
    /// [`ErrorKind::InvalidInput`] for a ttl or renewal interval out of range.
    pub fn build(self) -> Result<LockManager> {
        let store = self.store.store();
        let capabilities = store.capabilities();
        let refuse =
            |kind, message: String| Err(Error::new(kind, message).during(Operation::Connect).on_store(store.name()));
        if capabilities.scope < self.scope {
            return refuse(
                ErrorKind::Unsupported,
                format!("its exclusion reaches as far as \"{}\", required is \"{}\"", capabilities.scope, self.scope),
            );
        }
        if capabilities.fencing < self.fencing {
            return refuse(
                ErrorKind::Unsupported,
                format!("its fencing is {:?}, required is {:?}", capabilities.fencing, self.fencing),
            );
        }
        check_namespace(&self.settings.namespace)?;
        if self.settings.operation_limit.is_zero() || self.settings.max_waiters == 0 {
            return refuse(
                ErrorKind::InvalidConfig,
                "operation limit and number of waiters must be positive".to_owned(),
            );
        }
        let manager = self.assemble();
        let ttl = manager.engine.check_ttl(manager.ttl())?;
        manager.engine.settings.renew.check(ttl)?;
        Ok(manager)
    }

    fn assemble(self) -> LockManager {
        LockManager { engine: Engine::new(self.store, self.clock, self.observer, self.settings) }
    }
}

#[cfg(all(test, feature = "testkit"))]
mod tests;
