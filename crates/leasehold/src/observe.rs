//! What happens in a manager, for logs, metrics and tests: one [`Observer`], called with one [`Event`] at a time.
//!
//! Every event comes from the engine, so that it means the same on every store. Observers are called on the path of
//! the work: they must be quick and must not block.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind, LostReason, Operation};
use crate::types::{FencingToken, Key};

/// Receives every event of a manager.
pub trait Observer: fmt::Debug + Send + Sync + 'static {
    /// Called with each event, on the path of the work.
    fn observe(&self, event: &Event<'_>);
}

/// An observer that does nothing; the default.
#[derive(Debug)]
pub(crate) struct Silent;

impl Observer for Silent {
    fn observe(&self, _: &Event<'_>) {}
}

/// Something that happened.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A lease was granted.
    Acquired(Acquired<'a>),
    /// A call ended because somebody else holds the lease. Once per call, however often it asked.
    Contended(Contended<'a>),
    /// A call ended with an error.
    Failed(Failed<'a>),
    /// A lease was given back, or could not be.
    Released(Released<'a>),
    /// A lease was renewed in the background.
    Renewed(Renewed<'a>),
    /// A renewal failed and will be tried again until the deadline.
    RenewalFailed(RenewalFailed<'a>),
    /// A lease was lost while it was held.
    Lost(Lost<'a>),
    /// A guard was dropped without being released; a release is sent in the background if that is possible.
    Dropped(Dropped<'a>),
    /// The store was asked.
    StoreCall(StoreCall),
    /// A scheduled run was skipped.
    Skipped(Skipped<'a>),
    /// A scheduled run whose holder is gone was found unfinished.
    TickLost(TickLost<'a>),
}

macro_rules! event {
    ($(#[$meta:meta])* $name:ident $(<$life:lifetime>)? { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[non_exhaustive]
        #[derive(Clone, Copy, Debug)]
        pub struct $name $(<$life>)? {
            $($(#[$field_meta])* pub $field: $type,)*
        }
    };
}

event! {
    /// A lease was granted.
    Acquired<'a> {
        /// The key.
        key: &'a Key,
        /// From the call to the grant.
        waited: Duration,
        /// How often this call asked, repeats after an unknown outcome not counted.
        attempts: u32,
        /// The fencing token.
        fencing: Option<FencingToken>,
    }
}

event! {
    /// A call ended because somebody else holds the lease.
    Contended<'a> {
        /// The key.
        key: &'a Key,
        /// From the call to its end.
        waited: Duration,
        /// How often the store was asked by this call; 0 for one that stood behind others in line.
        attempts: u32,
    }
}

event! {
    /// A call ended with an error.
    Failed<'a> {
        /// What was tried.
        operation: Operation,
        /// The key, if it was about one.
        key: Option<&'a Key>,
        /// What kind of failure.
        kind: ErrorKind,
    }
}

event! {
    /// A lease was given back, or could not be.
    Released<'a> {
        /// The key.
        key: &'a Key,
        /// From the grant to the release.
        held: Duration,
        /// `None` = given back in time; [`ErrorKind::NotHeld`] = it was gone already; else it was left to its ttl.
        failed: Option<ErrorKind>,
    }
}

event! {
    /// A lease was renewed in the background.
    Renewed<'a> {
        /// The key.
        key: &'a Key,
        /// How much validity was left when the renewal was confirmed: the slack before a loss.
        slack: Duration,
    }
}

event! {
    /// A renewal failed and will be tried again until the deadline.
    RenewalFailed<'a> {
        /// The key.
        key: &'a Key,
        /// What kind of failure.
        kind: ErrorKind,
        /// The failure, for people to read.
        error: &'a Error,
        /// How much validity is left.
        remaining: Duration,
    }
}

event! {
    /// A lease was lost while it was held.
    Lost<'a> {
        /// The key.
        key: &'a Key,
        /// Why.
        reason: LostReason,
        /// From the grant to the loss.
        held: Duration,
    }
}

event! {
    /// A guard was dropped without being released.
    Dropped<'a> {
        /// The key.
        key: &'a Key,
        /// Whether a release could be sent in the background; if not (there is no runtime), the ttl ends the lease.
        release_sent: bool,
    }
}

event! {
    /// The store was asked.
    StoreCall {
        /// What was asked.
        operation: Operation,
        /// How long it took.
        duration: Duration,
        /// What kind of failure, if it failed; contention is none.
        failed: Option<ErrorKind>,
    }
}

event! {
    /// A scheduled run was skipped.
    Skipped<'a> {
        /// The task.
        task: &'a str,
        /// Why, in one word: `condition`, `still_running`, `other_server`, `too_late`, `given_up`.
        reason: &'static str,
    }
}

event! {
    /// A scheduled run whose holder is gone was found unfinished. Told by exactly one of those who look.
    TickLost<'a> {
        /// The task.
        task: &'a str,
        /// The tick, as UTC date and time.
        tick: &'a str,
    }
}
