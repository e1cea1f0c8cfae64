//! The handle on a store that everything starts from.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::config::Config;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, LostReason, Operation, Result};
use crate::guard::LeaseHandle;
use crate::lock::Lock;
use crate::options::{Close, Wait};
use crate::release::target;
use crate::scoped::Ran;
use crate::store::{Capabilities, Holder, Inspection, Listing, Page, Probe, Removed, Scope, SharedStore};
use crate::types::{Key, OwnerToken};
use crate::undo::late_requests;

mod builder;

pub use self::builder::LockManagerBuilder;

/// How long closing waits for running work to stop and for releases to be answered.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// The most entries of one page of a listing; a larger limit means this one.
const MAX_PAGE: usize = 10_000;

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
        LockManagerBuilder::new(store.into())
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

    /// A manager on the store that these settings name, with everything else that they say.
    ///
    /// ```
    /// # use leasehold::{LockManager, config::Config};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// // MY_APP_STORE and the others, else this.
    /// let config = Config::from_env("MY_APP").or(Config::from_url("memory:").namespace("my-app"));
    /// let locks = LockManager::from_config(&config).await?;
    /// # drop(locks);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Config::connect`].
    ///
    /// # Cancel safety
    ///
    /// As [`connect`](Self::connect).
    pub async fn from_config(config: &Config) -> Result<Self> {
        config.connect().await
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
        self.engine.inspect(&self.key(name, Operation::Inspect)?).await
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
        engine.reported(self.list_page(prefix, page).await, Operation::List, None)
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
        let (engine, key) = (&self.engine, self.key(name, Operation::ForceRelease)?);
        let removed = match engine.check_usable() {
            Ok(()) => {
                let removal = engine.store().force_release(&key, expected);
                engine.ask(Operation::ForceRelease, Some(&key), engine.read_limit(), removal).await
            }
            Err(error) => Err(error),
        };
        let removed = engine.reported(removed, Operation::ForceRelease, Some(&key))?;
        match removed {
            Some(_) => tracing::warn!(key = key.name(), store = self.store_name(), "force release"),
            None => tracing::debug!(key = key.name(), store = self.store_name(), "force release: nothing was held"),
        }
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
        let probed = match engine.check_usable() {
            Ok(()) => engine.ask(Operation::Probe, None, engine.read_limit(), engine.store().probe()).await,
            Err(error) => Err(error),
        };
        engine.reported(probed, Operation::Probe, None)
    }

    /// Closes this manager and all its clones: waiters and new calls get [`ErrorKind::Closed`], held leases are lost
    /// with reason [`LostReason::Closed`] and then given back or left standing, work under a lease is stopped first.
    /// Waits, for some seconds at most, for what goes on in the background. The store is closed with its last manager.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Indeterminate`] if not everything was given back, or answered in time; its ttl ends what was not.
    /// What the store says if it could not be closed; [`ErrorKind::Closed`] in a forked child, where nothing is done.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the manager is closed all the same, but nobody waits for the background work, and the store may stay
    /// open until it is called again. Called from within work under a lease it ends that work, and so itself.
    pub async fn close(&self, mode: Close) -> Result<()> {
        let engine = &self.engine;
        if engine.is_forked() {
            // The leases and the store's connections are the parent's.
            return engine.check_usable();
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
        engine.teller.tell();
        let idle = tokio::time::timeout(CLOSE_LIMIT, engine.background.idle()).await;
        let left = engine.leave_store().await;
        engine.teller.tell();
        left?;
        if idle.is_ok() && engine.background.given_up() == given_up {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Indeterminate, "not every lease could be given back: its ttl ends it");
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

    /// Whether the store can lock at all; one that cannot refuses every call as [`ErrorKind::Unsupported`].
    pub fn can_lock(&self) -> bool {
        self.engine.capabilities().locks
    }

    /// The store's name.
    pub fn store_name(&self) -> &'static str {
        self.engine.store().name()
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    async fn list_page(&self, prefix: &str, mut page: Page) -> Result<Listing> {
        let engine = &self.engine;
        engine.check_usable()?;
        if page.limit == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "invalid page: its limit must be at least 1"));
        }
        page.limit = page.limit.min(MAX_PAGE);
        let prefix = match self.namespace() {
            "" => prefix.to_owned(),
            namespace => format!("{namespace}:{prefix}"),
        };
        engine.ask(Operation::List, None, engine.read_limit(), engine.store().list(&prefix, page)).await
    }

    fn key(&self, name: &str, operation: Operation) -> Result<Key> {
        Key::new(self.namespace(), name).map_err(|error| self.engine.in_context(error, operation, None))
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

#[cfg(all(test, feature = "testkit"))]
mod tests;
