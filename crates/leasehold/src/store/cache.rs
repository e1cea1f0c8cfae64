//! Locks over any cache that can add an entry only if there is none.
//!
//! Implement [`Cache`] for the cache that a program has anyway, and [`CacheStore`] makes a store of it. An entry's key is
//! that of the lock, as stored, its value the owner token, and nothing else. So there are no fencing tokens, and a lease
//! cannot pass on by its token: that takes a store of its own, see [`Store`].
//!
//! `examples/cache_moka.rs` does it for an in-process cache.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, ErrorKind, Result};
use crate::store::{
    Attempt, Capabilities, Claim, Contention, Grant, Holder, Inspection, Listing, Page, Probe, Removed, Scope, Store,
};
use crate::types::{Key, OwnerToken};

mod prefixed;

pub use self::prefixed::Prefixed;

/// How often a call looks again when the entry that refused it has ended meanwhile.
const LOOKS: u32 = 3;

/// How many entries are extended at the same time: the engine renews hundreds of leases in one go, and a cache may be
/// reached over a network, by a few connections.
const AT_ONCE: usize = 32;

/// Read by a probe; no lock can have this name, which has no namespace and a control character.
const PROBED: &str = "leasehold\u{7f}probe";

/// What a cache has to do so that locks can stand on it.
///
/// No method has a default, so that a wrapper cannot forget to pass one on. Every change is one atomic step of the cache
/// itself. Values are compared exactly; keys are any UTF-8 of up to 577 bytes (a namespace of 64, a colon, a name of 512),
/// and what [`Prefixed`] puts in front comes on top. They have to be told apart byte by byte: hash those that the cache
/// cannot take. Entries are not to be evicted before their end: a lease that is, is lost, and its holder learns of it by
/// the next renewal.
///
/// The kinds of errors are those of a [`Store`]; "there is one" and "it is another value" are answers, never errors.
#[async_trait]
pub trait Cache: fmt::Debug + Send + Sync + 'static {
    /// The cache's name in errors and events.
    fn name(&self) -> &'static str;

    /// Who sees the same entries: how far exclusion reaches.
    fn reach(&self) -> Scope;

    /// Whether locks can stand on it.
    fn locking(&self) -> Locking;

    /// Stores an entry that ends after `ttl`, rounded up, unless there is one under this key. `false` = there is one.
    ///
    /// # Errors
    ///
    /// As a [`Store`].
    ///
    /// # Cancel safety
    ///
    /// If dropped, the entry may be stored, at once or late.
    async fn add(&self, key: &str, value: &[u8], ttl: Duration) -> Result<bool>;

    /// Removes the entry if it has this value. `false` = there is none, or it has another.
    ///
    /// # Errors
    ///
    /// As a [`Store`].
    ///
    /// # Cancel safety
    ///
    /// If dropped, the entry may be removed, at once or late.
    async fn forget_if(&self, key: &str, value: &[u8]) -> Result<bool>;

    /// Has the entry end no earlier than after `ttl`, if it has this value; never creates one and never brings an end
    /// forward. `false` = there is none, or it has another value.
    ///
    /// # Errors
    ///
    /// As a [`Store`].
    ///
    /// # Cancel safety
    ///
    /// If dropped, the entry may stand longer.
    async fn extend_if(&self, key: &str, value: &[u8], ttl: Duration) -> Result<bool>;

    /// The value of the entry; `None` = there is none, or it has ended.
    ///
    /// # Errors
    ///
    /// As a [`Store`].
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed if the future is dropped.
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>>;
}

/// Whether locks can stand on a [`Cache`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Locking {
    /// Its `add`, `forget_if` and `extend_if` are atomic.
    Atomic,
    /// Its entries bear a tag, and whoever flushes the tag removes them.
    Tagged,
    /// It cannot add an entry only if there is none, in one step.
    NoAtomicAdd,
}

/// A store over a [`Cache`].
///
/// On a cache that cannot lock every call is [`Unsupported`](ErrorKind::Unsupported), and says so by the cache's name.
///
/// ```
/// # use leasehold::store::{Scope, Store, cache::{Cache, CacheStore}};
/// # fn over(cache: impl Cache) {
/// // The operator knows that all hosts use the one cache behind this process's.
/// let store = CacheStore::new(cache).declare_scope(Scope::Network);
/// assert!(store.capabilities().is_shared());
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CacheStore {
    cache: Arc<dyn Cache>,
    scope: Scope,
    ttl_step: Duration,
}

impl CacheStore {
    /// Makes a store of a cache that keeps ttls to the millisecond.
    pub fn new(cache: impl Cache) -> Self {
        Self::from_arc(Arc::new(cache))
    }

    /// Makes a store of a cache that is behind a pointer already.
    pub fn from_arc(cache: Arc<dyn Cache>) -> Self {
        Self { scope: cache.reach(), cache, ttl_step: Duration::from_millis(1) }
    }

    /// Declares how far exclusion reaches, on the responsibility of whoever knows better than the cache's own answer.
    ///
    /// What does not hold is not noticed: two processes that do not share the cache do not exclude each other. It does
    /// not make a cache lock that cannot.
    pub fn declare_scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// Sets the step to which the cache keeps ttls, such as a second; also the shortest ttl.
    pub fn ttl_step(mut self, step: Duration) -> Self {
        self.ttl_step = step;
        self
    }

    /// The cache, if locks can stand on it.
    fn cache(&self) -> Result<&dyn Cache> {
        let why = match self.cache.locking() {
            Locking::Atomic => return Ok(&*self.cache),
            Locking::Tagged => "is tagged, and whoever flushes its tag removes locks that are held",
            Locking::NoAtomicAdd => "cannot add an entry only if there is none, in one step",
        };
        let message = format!("the cache {:?} cannot lock: it {why}", self.cache.name());
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

#[async_trait]
impl Store for CacheStore {
    fn name(&self) -> &'static str {
        self.cache.name()
    }

    fn capabilities(&self) -> Capabilities {
        match self.cache.locking() {
            Locking::Atomic => Capabilities::new(self.scope).ttl_limits(self.ttl_step, self.ttl_step),
            _ => Capabilities::none(),
        }
    }

    async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt> {
        let cache = self.cache()?;
        let (key, owner) = (claim.key.as_stored(), claim.owner.as_bytes());
        for _ in 0..LOOKS {
            if cache.add(key, owner, claim.ttl).await? {
                return Ok(Attempt::Acquired(Grant::new(claim.ttl)));
            }
            let Some(value) = cache.get(key).await? else {
                // It has ended between the two.
                continue;
            };
            if value != owner {
                return Ok(Attempt::Contended(Contention::new().holder(holder(&value)?)));
            }
            if cache.extend_if(key, owner, claim.ttl).await? {
                return Ok(Attempt::Acquired(Grant::new(claim.ttl)));
            }
        }
        // Each time somebody else came first.
        Ok(Attempt::Contended(Contention::new()))
    }

    async fn extend(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        let cache = self.cache()?;
        let mut answers = Vec::with_capacity(claims.len());
        for claims in claims.chunks(AT_ONCE) {
            let asked = claims.iter().map(|claim| {
                let (key, owner) = (claim.key.as_stored(), claim.owner.as_bytes());
                cache.extend_if(key, owner, claim.ttl)
            });
            for (claim, is_ours) in claims.iter().zip(all(asked.collect()).await) {
                answers.push(is_ours.map(|is_ours| is_ours.then(|| Grant::new(claim.ttl))));
            }
        }
        Ok(answers)
    }

    async fn release(&self, key: &Key, owner: &OwnerToken) -> Result<bool> {
        self.cache()?.forget_if(key.as_stored(), owner.as_bytes()).await
    }

    /// An entry's value cannot be exchanged.
    async fn transfer(&self, _from: &OwnerToken, _claim: &Claim<'_>) -> Result<Option<Grant>> {
        self.cache()?;
        Err(Error::new(ErrorKind::Unsupported, "a lease on a cache cannot pass to another owner token"))
    }

    async fn force_release(&self, key: &Key, expected: Option<&OwnerToken>) -> Result<Option<Removed>> {
        let cache = self.cache()?;
        let key = key.as_stored();
        for _ in 0..LOOKS {
            let value = match expected {
                Some(expected) => expected.as_bytes().to_vec(),
                None => match cache.get(key).await? {
                    Some(value) => value,
                    None => return Ok(None),
                },
            };
            let holder = holder(&value)?;
            if cache.forget_if(key, &value).await? {
                return Ok(Some(Removed::new(vec![holder])));
            }
            if expected.is_some() {
                return Ok(None);
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the lease changed hands while it was being removed: look again"))
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        let value = self.cache()?.get(key.as_stored()).await?;
        let holders = value.map(|value| holder(&value)).transpose()?;
        Ok(Inspection::new(holders.into_iter().collect()))
    }

    /// A cache does not tell its keys.
    async fn list(&self, _prefix: &str, _page: Page) -> Result<Listing> {
        self.cache()?;
        Err(Error::new(ErrorKind::Unsupported, "a cache does not tell which keys it has"))
    }

    async fn probe(&self) -> Result<Probe> {
        self.cache()?.get(PROBED).await?;
        Ok(Probe::new())
    }

    /// The cache is its owner's to close.
    async fn close(&self) -> Result<()> {
        self.cache().map(drop)
    }
}

/// All answers, in order.
async fn all<T>(mut asked: Vec<Pin<Box<dyn Future<Output = T> + Send + '_>>>) -> Vec<T> {
    let mut answers: Vec<Option<T>> = asked.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (asked, answer) in asked.iter_mut().zip(&mut answers).filter(|(_, answer)| answer.is_none()) {
            if let Poll::Ready(ready) = asked.as_mut().poll(context) {
                *answer = Some(ready);
            }
        }
        if answers.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    answers.into_iter().flatten().collect()
}

fn holder(value: &[u8]) -> Result<Holder> {
    let owner = OwnerToken::from_bytes(value).map_err(|_| {
        Error::new(ErrorKind::Rejected, "the entry under this key is not a lease: use another namespace")
    })?;
    Ok(Holder::new(owner))
}
