//! The suite that every store has to pass.
//!
//! A store is tested through a [`Fixture`], which makes clients of one fresh place. The macro
//! [`conformance!`](crate::conformance) makes one `#[test]` of each case, with a name like
//! `sqlite::release_needs_owner`. What a store cannot do by its [`Capabilities`] is
//! declared, and its cases show as ignored, with the reason:
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use async_trait::async_trait;
//! use leasehold::Result;
//! use leasehold::store::{Store, memory::MemoryStore};
//! use leasehold::testkit::conformance::Fixture;
//!
//! struct MemoryFixture(MemoryStore);
//!
//! #[async_trait]
//! impl Fixture for MemoryFixture {
//!     async fn client(&self) -> Result<Arc<dyn Store>> {
//!         Ok(Arc::new(self.0.clone()))
//!     }
//!
//!     fn ttl(&self) -> Duration {
//!         Duration::from_millis(300)
//!     }
//! }
//!
//! leasehold::conformance! { memory, MemoryFixture(MemoryStore::new()), without: [outages] }
//! ```
//!
//! Where a harness of your own is wanted, [`cases`] gives the table.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{BoxFuture, Capabilities, Expiry, Fencing, Store, Waiting};

#[macro_use]
mod table;
mod bench;
mod cancel;
mod ending;
mod exclusion;
mod expiry;
mod extend;
mod fencing;
mod keys;
mod lease;
mod operator;
mod outage;
mod place;
mod transfer;
mod wake;

use self::bench::Bench;

/// A case that hangs has failed after this long.
const CASE_LIMIT: Duration = Duration::from_secs(120);

/// Makes clients of one fresh place: a new fixture, another place.
#[async_trait]
pub trait Fixture: Send + Sync + 'static {
    /// A new client of this place, as another process would have it.
    ///
    /// # Errors
    ///
    /// Whatever the store says; the case then fails.
    ///
    /// # Cancel safety
    ///
    /// Not asked for: it is never dropped before it ends.
    async fn client(&self) -> Result<Arc<dyn Store>>;

    /// A ttl that is worth waiting for: cases about expiry last a few of them.
    ///
    /// 300 ms is a good choice for a store in real time. In paused time anything is.
    fn ttl(&self) -> Duration;

    /// The clock by which the cases judge; the system's unless the place is in paused time.
    fn clock(&self) -> Clock {
        Clock::system()
    }

    /// Makes every call on this place fail until the outage is dropped; `None` = there is no way to do that.
    ///
    /// # Errors
    ///
    /// None.
    ///
    /// # Cancel safety
    ///
    /// Not asked for: it is never dropped before it ends.
    async fn outage(&self) -> Option<Outage> {
        None
    }
}

/// Something that heals a place when it is dropped.
pub type Outage = Box<dyn Send>;

/// What a store must be capable of for a case to make sense.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Needs {
    /// Nothing: holds for every store.
    Nothing,
    /// Leases end by their ttl: [`Expiry::Ttl`].
    Expiry,
    /// There are fencing tokens: not [`Fencing::None`].
    Fencing,
    /// Both [`Fencing`](Self::Fencing) and [`Removal`](Self::Removal).
    FencingAndRemoval,
    /// A lease can pass on by its owner token: [`Capabilities::hand_over`].
    HandOver,
    /// Keys can be listed: [`Capabilities::lists`].
    Lists,
    /// The fixture can make the place fail: [`Fixture::outage`].
    Outages,
    /// There are places in line: [`Waiting::Place`].
    Places,
    /// Both [`Places`](Self::Places) and [`Expiry`](Self::Expiry).
    PlacesAndExpiry,
    /// Both [`Places`](Self::Places) and [`Removal`](Self::Removal).
    PlacesAndRemoval,
    /// An operator can remove a lease: not where it ends with its client ([`Expiry::Session`]), which alone can give it
    /// back.
    Removal,
    /// There are wake-ups: not [`Waiting::Poll`].
    Wakes,
}

impl Needs {
    const ALL: [Self; 8] = [
        Self::Expiry,
        Self::Fencing,
        Self::HandOver,
        Self::Lists,
        Self::Outages,
        Self::Places,
        Self::Removal,
        Self::Wakes,
    ];

    /// The words for it in the macro's list `without`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Expiry => "expiry",
            Self::Fencing => "fencing",
            Self::FencingAndRemoval => "fencing or removal",
            Self::HandOver => "hand_over",
            Self::Lists => "lists",
            Self::Outages => "outages",
            Self::Places => "places",
            Self::PlacesAndExpiry => "places or expiry",
            Self::PlacesAndRemoval => "places or removal",
            Self::Removal => "removal",
            Self::Wakes => "wakes",
        }
    }

    async fn are_met(self, capabilities: &Capabilities, fixture: &dyn Fixture) -> bool {
        match self {
            Self::Nothing => true,
            Self::Expiry => capabilities.expiry == Expiry::Ttl,
            Self::Fencing => capabilities.fencing != Fencing::None,
            Self::FencingAndRemoval => capabilities.fencing != Fencing::None && capabilities.expiry == Expiry::Ttl,
            Self::HandOver => capabilities.hand_over,
            Self::Lists => capabilities.lists,
            Self::Outages => fixture.outage().await.is_some(),
            Self::Places => capabilities.waiting == Waiting::Place,
            Self::PlacesAndExpiry | Self::PlacesAndRemoval => {
                capabilities.waiting == Waiting::Place && capabilities.expiry == Expiry::Ttl
            }
            Self::Removal => capabilities.expiry == Expiry::Ttl,
            Self::Wakes => capabilities.waiting != Waiting::Poll,
        }
    }
}

/// How a case ended.
pub type Outcome = Result<(), Failure>;

/// What a store did that it must not do.
#[derive(Clone, Debug)]
pub struct Failure(String);

impl Failure {
    fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(format!("the store failed with {error:?}"))
    }
}

/// One rule of the store interface, as a test.
#[derive(Clone, Copy)]
pub struct Case {
    name: &'static str,
    needs: Needs,
    run: for<'a> fn(&'a Bench<'a>) -> CaseFuture<'a>,
}

type CaseFuture<'a> = std::pin::Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

impl Case {
    /// The rule, as an identifier.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// What the store must be capable of.
    pub const fn needs(&self) -> Needs {
        self.needs
    }

    /// Tries the rule on a fresh place.
    ///
    /// # Errors
    ///
    /// What the store did against the rule; also if it is not capable of what the case [needs](Self::needs), or if
    /// the case has not ended after two minutes.
    ///
    /// # Cancel safety
    ///
    /// The place is left as it is.
    pub async fn run(&self, fixture: &dyn Fixture) -> Outcome {
        let capabilities = fixture.client().await?.capabilities();
        if !self.needs.are_met(&capabilities, fixture).await {
            return Err(Failure::new(format!("this store is without {}: declare it", self.needs.as_str())));
        }
        let bench = Bench::new(fixture, capabilities);
        tokio::time::timeout(CASE_LIMIT, (self.run)(&bench))
            .await
            .unwrap_or_else(|_| Err(Failure::new(format!("the case did not end within {CASE_LIMIT:?}"))))
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).field("needs", &self.needs).finish_non_exhaustive()
    }
}

macro_rules! case_table {
    ([] $($needs:ident $group:ident { $($module:ident: $($case:ident)*;)* })*) => {
        &[$($($(Case {
            name: stringify!($case),
            needs: Needs::$needs,
            run: |bench| Box::pin(self::$module::$case(bench)),
        },)*)*)*]
    };
}

/// All cases.
pub fn cases() -> &'static [Case] {
    const CASES: &[Case] = __conformance_table! { [case_table] [] };
    CASES
}

/// Checks that exactly that is declared as missing which is.
///
/// # Errors
///
/// The difference.
///
/// # Cancel safety
///
/// Nothing is lost if the future is dropped.
pub async fn check_declared(fixture: &dyn Fixture, without: &[&str]) -> Outcome {
    let capabilities = fixture.client().await?.capabilities();
    for needs in Needs::ALL {
        let declared = without.contains(&needs.as_str());
        if declared == needs.are_met(&capabilities, fixture).await {
            let verb = if declared { "has" } else { "is without" };
            return Err(Failure::new(format!("this store {verb} {}: correct the list `without`", needs.as_str())));
        }
    }
    match without.iter().find(|word| Needs::ALL.iter().all(|needs| needs.as_str() != **word)) {
        Some(word) => Err(Failure::new(format!("nothing needs {word}: remove it from the list `without`"))),
        None => Ok(()),
    }
}

/// Runs a case, or the check of what is declared, in a runtime of its own; for the macro.
#[doc(hidden)]
pub fn run_test<F: Fixture>(name: &str, without: &[&str], fixture: impl Future<Output = F>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        Failure::from(Error::new(ErrorKind::Unavailable, "the runtime did not start").with_source(error))
    })?;
    runtime.block_on(async {
        let fixture = fixture.await;
        match cases().iter().find(|case| case.name == name) {
            Some(case) => case.run(&fixture).await,
            None => check_declared(&fixture, without).await,
        }
    })
}

/// A future that a case hands to a task.
type Task = BoxFuture<Outcome>;
