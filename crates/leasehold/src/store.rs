//! The store interface: what a place that keeps leases has to do.
//!
//! A store makes *one atomic decision* per call. It never validates input, sleeps, retries contention, logs or
//! measures: the engine does all of that, once, for every store. `docs/writing-a-store.md` tells the contract as a
//! whole, and the `testkit` feature holds the suite that checks it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::error::{LostReason, Result};
use crate::types::{FencingToken, Key, OwnerToken};

mod capabilities;
mod inspection;
mod owned;
pub use self::capabilities::{Capabilities, Expiry, Fencing, Scope, TimeAuthority, Waiting};
pub use self::inspection::{Entry, Finding, Holder, HolderInfo, Inspection, Level, Listing, Page, Probe, Removed};

pub(crate) use self::hosted::Hosted;
pub(crate) use self::owned::OwnedClaim;

pub mod breaker;
pub mod cache;
mod hosted;
pub mod memory;
pub mod noop;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod note;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod quorum;
#[cfg(feature = "redis")]
pub mod redis;
pub mod retry;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod watches;

/// A place that keeps leases.
///
/// Every method is one atomic decision by the store and answers without waiting for another owner. A store works from
/// key and owner alone; private handles are a cache.
///
/// Errors carry a kind and a message; the engine adds operation, store and key. Contention is an answer, never an error,
/// and an error is never told as contention. The kinds, where a method says no more:
/// [`Unavailable`](crate::ErrorKind::Unavailable) = surely not applied, [`Indeterminate`](crate::ErrorKind::Indeterminate)
/// = unknown, [`Rejected`](crate::ErrorKind::Rejected) = refused for good, [`Unsupported`](crate::ErrorKind::Unsupported)
/// = this store cannot do that, [`Closed`](crate::ErrorKind::Closed) = after [`close`](Self::close).
///
/// Each call may be dropped at any await: what was sent may still be applied, which the engine mends with `release`,
/// `transfer` or a repeat by the same owner.
///
/// No method has a default, so that what stands in front of a store cannot forget to pass one on: this lacks
/// `capabilities`, and does not compile.
///
/// ```compile_fail,E0046
/// # use leasehold::{Key, OwnerToken, Result};
/// # use leasehold::store::*;
/// #[derive(Debug)]
/// struct Prefixed(memory::MemoryStore);
///
/// #[async_trait::async_trait]
/// impl Store for Prefixed {
///     fn name(&self) -> &'static str { self.0.name() }
///     async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt> { self.0.acquire(claim).await }
///     async fn extend(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> { self.0.extend(claims).await }
/// #   async fn release(&self, key: &Key, owner: &OwnerToken) -> Result<bool> { self.0.release(key, owner).await }
/// #   async fn transfer(&self, from: &OwnerToken, claim: &Claim<'_>) -> Result<Option<Grant>> { self.0.transfer(from, claim).await }
/// #   async fn force_release(&self, key: &Key, owner: Option<&OwnerToken>) -> Result<Option<Removed>> { self.0.force_release(key, owner).await }
/// #   async fn inspect(&self, key: &Key) -> Result<Inspection> { self.0.inspect(key).await }
/// #   async fn list(&self, prefix: &str, page: Page) -> Result<Listing> { self.0.list(prefix, page).await }
/// #   async fn probe(&self) -> Result<Probe> { self.0.probe().await }
/// #   async fn close(&self) -> Result<()> { self.0.close().await }
///     // .. and the rest
/// }
/// ```
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// The store's name in errors, events and URLs.
    fn name(&self) -> &'static str;

    /// What this store can promise.
    fn capabilities(&self) -> Capabilities;

    /// Takes the lease if it is free; never blocks on contention.
    ///
    /// The same owner again while it holds: the same fencing token, and the lease stands for at least `claim.ttl` from
    /// now. The same owner again while it waits: keeps its place. `claim.waits` says that the caller will wait if
    /// refused, so that a wake-up is worth arming; it must be armed by this very call.
    ///
    /// # Errors
    ///
    /// The kinds above.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease may be granted, at once or late; the engine releases by owner.
    async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt>;

    /// Pushes the ends of leases out to at least `ttl` from now: one answer per claim, in order.
    ///
    /// `None` = not held by this owner. Never recreates a lease and never shortens one. Writes a tie or a holder only
    /// where the claim gives one.
    ///
    /// # Errors
    ///
    /// The kinds above. The outer error means that nothing is known about any of the claims, an inner one concerns its
    /// claim alone.
    ///
    /// # Cancel safety
    ///
    /// If dropped, any of the leases may stand longer.
    async fn extend(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>>;

    /// Gives back the lease, or the place in line, of this owner.
    ///
    /// `false` = this owner held no live lease; nothing of anybody else was touched.
    ///
    /// # Errors
    ///
    /// The kinds above.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease may or may not be given back; asking again is harmless.
    async fn release(&self, key: &Key, owner: &OwnerToken) -> Result<bool>;

    /// Passes a lease from one owner token to another, in one step.
    ///
    /// Held by `from`: `claim`'s owner, ttl, holder and tie, and a higher fencing token. Already held by `claim.owner`
    /// (a repeat): the same fencing token, the ttl re-armed, nothing else. `None` = neither.
    ///
    /// # Errors
    ///
    /// The kinds above.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease may pass on, at once or late; the engine passes it back.
    async fn transfer(&self, from: &OwnerToken, claim: &Claim<'_>) -> Result<Option<Grant>>;

    /// Removes a lease, whoever holds it; with `expected` only if that owner does.
    ///
    /// `None` = nothing was removed. No later grant has a fencing token at or below `fence_floor`.
    ///
    /// # Errors
    ///
    /// The kinds above.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease may or may not be removed.
    async fn force_release(&self, key: &Key, expected: Option<&OwnerToken>) -> Result<Option<Removed>>;

    /// Tells who holds a key; never takes the lease, and reads as free what an acquire could take over at once: an
    /// expired lease, or one whose [`Tie`] is dead.
    ///
    /// # Errors
    ///
    /// The kinds above, but for `Indeterminate`.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed if the future is dropped.
    async fn inspect(&self, key: &Key) -> Result<Inspection>;

    /// Tells which keys that start with `prefix` (as stored, compared as bytes) are held, in byte order.
    ///
    /// # Errors
    ///
    /// The kinds above, but for `Indeterminate`.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed if the future is dropped.
    async fn list(&self, prefix: &str, page: Page) -> Result<Listing>;

    /// Asks the store, on the path that leases use, whether it is reachable, and for what it knows of itself.
    ///
    /// # Errors
    ///
    /// The kinds above, but for `Indeterminate`.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed if the future is dropped.
    async fn probe(&self) -> Result<Probe>;

    /// Ends connections and threads; leases stand. May be called twice.
    ///
    /// # Errors
    ///
    /// The kinds above, if the end could not be made sure of.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the store may or may not be closed; calling it again is harmless.
    async fn close(&self) -> Result<()>;
}

/// One request for a lease.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// What is asked for.
    pub key: &'a Key,
    /// The token that will hold it.
    pub owner: &'a OwnerToken,
    /// How long the lease stands without renewal. Valid for the store: the engine has checked and rounded it.
    pub ttl: Duration,
    /// Whether the caller will wait if refused.
    pub waits: bool,
    /// Whether a free lease may be refused to it once, for some milliseconds, so that somebody who has waited for longer
    /// comes first. Only of one that waits, and not of one that asks several stores at once.
    pub takes_turns: bool,
    /// In what way the key is shared.
    pub share: Share,
    /// Who has to be alive for the lease to stand; `None` = leave it as it is (a first grant without one is tied to
    /// nothing).
    pub tie: Option<Tie>,
    /// Who asks, for people to read; `None` = leave it as it is.
    pub holder: Option<&'a Arc<HolderInfo>>,
}

impl<'a> Claim<'a> {
    /// An exclusive claim that does not wait, ties to nothing and tells nothing about its holder.
    pub const fn new(key: &'a Key, owner: &'a OwnerToken, ttl: Duration) -> Self {
        Self { key, owner, ttl, waits: false, takes_turns: false, share: Share::Exclusive, tie: None, holder: None }
    }

    /// Sets whether the caller will wait if refused.
    pub const fn waits(mut self, waits: bool) -> Self {
        self.waits = waits;
        self
    }

    /// Sets whether somebody who has waited for longer may come first.
    pub const fn takes_turns(mut self, takes_turns: bool) -> Self {
        self.takes_turns = takes_turns;
        self
    }

    /// Sets who has to be alive for the lease to stand.
    pub const fn tie(mut self, tie: Tie) -> Self {
        self.tie = Some(tie);
        self
    }

    /// Sets what people may read about the holder.
    pub const fn holder(mut self, holder: &'a Arc<HolderInfo>) -> Self {
        self.holder = Some(holder);
        self
    }
}

/// In what way a key is shared. One way for now; the enum is open for readers and permits.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Share {
    /// One holder at a time.
    Exclusive,
}

/// Who has to be alive for a lease to stand, for stores that can tell ([`Capabilities::liveness`]).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tie {
    /// The calling process.
    Process,
    /// A process group on this host, by its number.
    Group(u32),
    /// Nobody: the lease stands until its ttl, whatever dies.
    Nothing,
}

/// What a store answers to a claim.
#[non_exhaustive]
#[derive(Debug)]
pub enum Attempt {
    /// The owner holds the lease.
    Acquired(Grant),
    /// The store positively said that somebody else does.
    Contended(Contention),
}

/// A lease as the store granted it.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Grant {
    /// How long the lease surely stands, counted from the moment the request was sent.
    pub validity: Duration,
    /// Strictly greater than that of every earlier grant of this key; `None` if the store keeps none.
    pub fencing: Option<FencingToken>,
    /// Raised by the store when it learns that this lease is gone. The flag of the first grant of an owner counts; later
    /// ones, of renewals, are not looked at.
    pub loss: Option<Loss>,
    /// Over which connection it came, counted by the store: with another number the place may have been restarted, or be
    /// another one, since. `None` = the store does not tell.
    pub connection: Option<u64>,
}

impl Grant {
    /// A grant without fencing token and without a loss flag.
    pub const fn new(validity: Duration) -> Self {
        Self { validity, fencing: None, loss: None, connection: None }
    }

    /// Sets the fencing token.
    pub const fn fencing(mut self, token: FencingToken) -> Self {
        self.fencing = Some(token);
        self
    }

    /// Sets the flag that the store will raise when it learns that the lease is gone.
    pub fn loss(mut self, loss: Loss) -> Self {
        self.loss = Some(loss);
        self
    }

    /// Sets over which connection it came.
    pub const fn connection(mut self, number: u64) -> Self {
        self.connection = Some(number);
        self
    }
}

/// A flag that a store raises when it learns that a lease is gone: its session died, its key was removed.
///
/// Shared by the store and the guard; raised once, for good.
#[derive(Clone, Debug, Default)]
pub struct Loss(Arc<(AtomicU8, Notify)>);

impl Loss {
    /// A flag that is not raised.
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises the flag; the first reason stays.
    pub fn raise(&self, reason: LostReason) {
        let code = reason as u8 + 1;
        if self.0.0.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.0.1.notify_waiters();
        }
    }

    /// Why the lease is gone, if the flag was raised. One load.
    pub fn raised(&self) -> Option<LostReason> {
        reason_from_code(self.0.0.load(Ordering::Acquire))
    }

    /// Whether anybody beside this handle still looks at the flag; a store need not keep one that nobody does.
    pub fn is_watched(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Resolves once the flag is raised.
    ///
    /// # Errors
    ///
    /// None.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub async fn wait(&self) -> LostReason {
        loop {
            let notified = self.0.1.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if let Some(reason) = self.raised() {
                return reason;
            }
            notified.await;
        }
    }
}

/// The reason that stands behind a code of `reason as u8 + 1`; 0 = none.
pub(crate) fn reason_from_code(code: u8) -> Option<LostReason> {
    LostReason::ALL.get(usize::from(code).checked_sub(1)?).copied()
}

/// What a store says when somebody else holds the lease.
#[non_exhaustive]
#[derive(Debug, Default)]
pub struct Contention {
    /// How long the present lease still stands unless renewed: there is no point in asking much earlier or later.
    pub retry_after: Option<Duration>,
    /// Who holds it, where the answer tells it for free.
    pub holder: Option<Holder>,
    /// A wake-up armed by this very attempt, if the claim waits. `None` = the one given earlier stays armed.
    pub wake: Option<Wake>,
    /// Nobody holds it: it is kept for somebody who has waited for longer, for as long as `retry_after` says.
    pub put_off: bool,
}

impl Contention {
    /// Contention of which nothing more is known.
    pub const fn new() -> Self {
        Self { retry_after: None, holder: None, wake: None, put_off: false }
    }

    /// Sets how long the present lease still stands.
    pub const fn retry_after(mut self, remaining: Duration) -> Self {
        self.retry_after = Some(remaining);
        self
    }

    /// Sets who holds the lease.
    pub fn holder(mut self, holder: Holder) -> Self {
        self.holder = Some(holder);
        self
    }

    /// Sets the wake-up.
    pub fn wake(mut self, wake: Wake) -> Self {
        self.wake = Some(wake);
        self
    }
}

/// A future that outlives the call that made it.
pub type BoxFuture<T = ()> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// How a waiter learns that it is worth asking again.
///
/// Write futures that act on drop as structs that implement `Future` and `Drop`: an `async` block captures single
/// fields and drops them when you least expect it.
#[non_exhaustive]
pub enum Wake {
    /// May fire early and may never fire: the engine polls as well.
    Hint(BoxFuture),
    /// Owns a place in the store's own line, and fires when the lease was granted to this owner or the place is broken
    /// (at the latest after the claim's ttl if its connection died in silence). The engine then asks again with the
    /// same owner. Dropped before it fired, it leaves the line and gives back a grant that nobody has seen; dropped
    /// after it fired, it does nothing. An answer to a later acquire or extend of that owner counts as seen, so leaving
    /// has to go by the place, not by the owner: a place may be dropped after its owner was granted otherwise.
    Place(BoxFuture),
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hint(_) => "Hint",
            Self::Place(_) => "Place",
        })
    }
}

/// A store shared by several managers: the last one that is closed closes it.
///
/// Everything that takes a store takes this: a store by value turns into it. To share, clone this value: each conversion
/// counts its managers by itself. A manager that is dropped without being closed leaves the store to its own drop.
#[derive(Clone, Debug)]
pub struct SharedStore {
    store: Arc<dyn Store>,
    managers: Arc<std::sync::atomic::AtomicUsize>,
}

impl SharedStore {
    /// Shares `store`.
    pub fn new(store: impl Store) -> Self {
        Self::from_arc(Arc::new(store))
    }

    /// Shares a store that stands behind a pointer already.
    pub fn from_arc(store: Arc<dyn Store>) -> Self {
        Self { store, managers: Arc::default() }
    }

    /// The same store with something in front of it, shared by the same managers.
    pub(crate) fn through(self, wrap: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>) -> Self {
        Self { store: wrap(self.store), managers: self.managers }
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    pub(crate) fn enter(&self) {
        self.managers.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the one that leaves was the last manager.
    pub(crate) fn leave(&self) -> bool {
        self.managers.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl<S: Store> From<S> for SharedStore {
    fn from(store: S) -> Self {
        Self::new(store)
    }
}

impl From<Arc<dyn Store>> for SharedStore {
    fn from(store: Arc<dyn Store>) -> Self {
        Self::from_arc(store)
    }
}
