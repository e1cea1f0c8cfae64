//! Locks over the stores you already run, treated as what they are: leases.

mod background;
mod call;
pub mod clock;
pub mod config;
mod diagnose;
mod engine;
mod error;
mod extend;
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
mod scoped;
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
