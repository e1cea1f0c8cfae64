//! Locks over the stores you already run, treated as what they are: leases.
//!
//! | I want to | call |
//! |---|---|
//! | run something once at a time, and wait for my turn | [`LockManager::with_lock`] |
//! | run it only if nobody else is at it | [`LockManager::try_with_lock`] |
//! | wait, but not for ever | [`Lock::wait`] and [`Lock::run`], or [`Lock::acquire_within`] |
//! | hold a lease by hand | [`Lock::acquire`], [`Lock::try_acquire`], [`LockGuard::release`] |
//! | run a job while its last run does not last, or once per tick in the fleet | `without_overlapping`, `on_one_server` (feature `schedule`) |
//! | have one leader among replicas | [`Candidate::campaign`](election::Candidate::campaign) |
//! | know whether I still hold it | [`LeaseHandle::check`], before each step; [`LeaseHandle::lost`], to be told |
//! | have the resource refuse whoever comes late | [`LeaseHandle::fencing_token`], with each write; the resource's side is [`fence`] |
//! | have it live and die with my own PostgreSQL transaction | `store::postgres::with_lock_in_transaction`, `TransactionLocks` (feature `postgres`) |
//! | hold it longer | nothing: it is renewed; by hand [`LockGuard::extend`] |
//! | bound how long it is held | [`Lock::max_hold`] |
//! | pass it on to another process | [`LockGuard::hand_over`], there [`Lock::resume`] |
//! | act on it from another process without taking it on | [`Lock::release_by`], [`Lock::extend_by`] |
//! | leave it standing until its ttl | [`LockGuard::keep`] |
//! | see who holds what | [`LockManager::holder`], [`LockManager::list`] |
//! | free a lock that is stuck | [`LockManager::force_release`] |
//! | choose the store by a URL, the environment or, with the feature `config`, a file | [`LockManager::connect`], [`LockManager::from_config`] |
//! | be sure that it reaches other hosts | [`LockManagerBuilder::require_scope`] |
//! | tell my health | [`LockManager::ping`]; [`LockManager::diagnose`] for operators |
//! | not wait for a store that is out | [`Breaker`](store::breaker::Breaker), [`Retry`](store::retry::Retry) |
//! | keep leases while code blocks the runtime | [`OwnRuntime`] |
//! | lock over the cache that I have | [`Cache`](store::cache::Cache) |
//! | count and trace what happens | [`Observer`](observe::Observer) |
//! | write a store | [`Store`](store::Store), and the suite in `testkit` |
//! | stop in order | [`LockManager::close`] |
//!
//! ```
//! # use std::time::Duration;
//! # use leasehold::{LockManager, Wait, store::memory::MemoryStore};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> leasehold::Result<()> {
//! // Or LockManager::connect("redis://localhost").await?
//! let locks = LockManager::new(MemoryStore::new());
//! let deploy = locks.lock("deploy").ttl(Duration::from_secs(60)).wait(Wait::UpTo(Duration::from_secs(5)));
//! match deploy.run(async |lease| lease.fencing_token()).await? {
//!     Some(ran) => assert!(ran.value.is_some()),
//!     None => println!("somebody else is at it"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Examples to run stand in `examples/`: `scoped_work`, `bounded_wait`, `hand_over` between processes, `leader` (one among
//! replicas), `cron` (each tick on one of them), `fenced_write` and `postgres_fencing` (whoever comes late is refused),
//! `service` (a web service), `custom_store`, `cache_moka` and `cache_over_store`.

mod background;
mod call;
pub mod clock;
pub mod config;
mod diagnose;
pub mod election;
mod engine;
mod error;
mod extend;
pub mod fence;
mod guard;
mod holder;
mod lease;
mod line;
mod lock;
mod manager;
pub mod observe;
mod options;
mod own_runtime;
mod release;
mod renew;
#[cfg(feature = "schedule")]
pub mod schedule;
mod scoped;
mod stealable;
pub mod store;
#[cfg(feature = "testkit")]
pub mod testkit;
mod types;
mod undo;
mod wait;

pub use crate::clock::Clock;
pub use crate::diagnose::{Check, Diagnosis, RoundTrips};
pub use crate::error::{Error, ErrorKind, LostReason, Operation, Result};
pub use crate::guard::{LeaseHandle, LockGuard};
pub use crate::lock::Lock;
pub use crate::manager::{LockManager, LockManagerBuilder};
pub use crate::options::{
    Backoff, Close, DEFAULT_MAX_WAITERS, DEFAULT_TTL, Jitter, MAX_OPERATION_LIMIT, MAX_TTL, MIN_TTL, Margin, Renew,
    Wait,
};
pub use crate::own_runtime::OwnRuntime;
pub use crate::scoped::Ran;
pub use crate::types::{
    DEFAULT_NAMESPACE, FencingToken, Key, MAX_KEY_LEN, MAX_NAMESPACE_LEN, MAX_OWNER_LEN, OwnerToken,
};
