//! Locks over the stores you already run, treated as what they are: leases.

pub mod clock;
mod error;
pub mod observe;
mod options;
pub mod store;
#[cfg(feature = "testkit")]
pub mod testkit;
mod types;

pub use crate::clock::Clock;
pub use crate::error::{Error, ErrorKind, LostReason, Operation, Result};
pub use crate::options::*;
pub use crate::types::*;
