//! What it takes to test a store, or a program that holds leases.
//!
//! - [`conformance`]: the suite that every store has to pass, also yours: see [`conformance!`](crate::conformance).
//! - [`FaultStore`] stands in front of a store and delays, fails, loses or repeats late what passes through it.
//! - [`ScriptedStore`] expects a list of calls and answers each as it was told.
//! - [`Proxy`] is a network in front of a server that delays, holds, cuts or loses what passes through it.
//! - [`Server`] is a server of the test's own: it can be stopped, killed and started again, and dies with the test.
//! - [`Residue`] tells what a manager still holds on to.
//! - [`TestClock`] is a clock that a test can suspend, and let run fast or slow.
//! - [`History`] proves from what holders recorded that at most one of them was valid at a time.
//!
//! ```
//! use std::time::Duration;
//!
//! use leasehold::store::memory::MemoryStore;
//! use leasehold::store::{Claim, Store};
//! use leasehold::testkit::{Fault, FaultStore, TestClock};
//! use leasehold::{ErrorKind, Key, Operation, OwnerToken};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> leasehold::Result<()> {
//! let store = FaultStore::new(MemoryStore::with_clock(TestClock::start().into()));
//! store.once(Operation::Acquire, Fault::lose_reply());
//!
//! let (key, owner) = (Key::new("docs", "nightly")?, OwnerToken::mint()?);
//! let claim = Claim::new(&key, &owner, Duration::from_secs(30));
//! assert_eq!(store.acquire(&claim).await.unwrap_err().kind(), ErrorKind::Indeterminate);
//! assert_eq!(store.inspect(&key).await?.holders[0].owner, owner);
//! # Ok(())
//! # }
//! ```

mod clock;
pub mod conformance;
mod fault;
mod history;
mod port;
mod proxy;
mod residue;
mod scripted;
#[cfg(unix)]
mod server;

pub use self::clock::TestClock;
pub use self::fault::{Call, Fault, FaultStore};
pub use self::history::{Conflict, History, Record, Violation};
pub use self::proxy::{Accident, Direction, Proxy};
pub use self::residue::Residue;
pub use self::scripted::ScriptedStore;
#[cfg(unix)]
pub use self::server::{Server, ServerBuilder};
