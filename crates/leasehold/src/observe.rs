//! What happens in a manager, for logs, metrics and tests: [`Observer`]s, told of one [`Event`] at a time.
//!
//! Every event comes from the engine, so that it means the same on every store.
//!
//! A call for a lease tells [`Acquiring`], then, if it has to wait, once [`Waiting`], [`Polled`] for each further
//! question to the store, and [`WaitEnded`]; and it ends with exactly one of [`Acquired`], [`Contended`], [`TimedOut`],
//! [`Failed`] and [`Cancelled`]. So contention is `Waiting` and `Contended` together, once per call. A call whose name
//! makes no [`Key`] has nothing to tell of: it ends with its error and no event.
//!
//! Each lease, whether [`Acquired`] or [`Resumed`], tells [`Ended`] once, when it may not be assumed any more; if that
//! was not its holder's will also [`Lost`]. No release and no failed call that follows
//! from the end is told before it, and no renewal after it.
//!
//! # What observers may do
//!
//! Observers are told in order and by one thread at a time, mostly by the call at hand, before it returns. What the
//! renewal task has to tell is told on a thread for blocking work, after the leases are seen to. One that panics is
//! caught, which is logged once, and is told of the next event as if nothing had happened. One that blocks holds up the
//! thread that tells it and nobody else: meanwhile up to 10,000 events are kept for it, and what goes beyond is
//! [`Missed`]. So neither costs a lease, with one exception: on a runtime that has no other worker free, above all one with
//! a single thread, a call that tells an observer that blocks blocks everything, renewals included, as blocking code always
//! does there. Have such an observer pass the events on, to a thread of its own:
//!
//! ```
//! # use leasehold::observe::{Event, Observer};
//! #[derive(Debug)]
//! struct PassOn(std::sync::mpsc::SyncSender<Event>);
//!
//! impl Observer for PassOn {
//!     fn observe(&self, event: &Event) {
//!         // Full: rather miss an event than wait.
//!         self.0.try_send(event.clone()).ok();
//!     }
//! }
//! ```

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind, LostReason, Operation};
use crate::options::Wait;
use crate::types::{FencingToken, Key};

#[cfg(any(feature = "metrics", feature = "otel"))]
mod measure;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "otel")]
pub mod otel;
mod teller;

pub(crate) use self::teller::Teller;

/// How calls end, in spans and metrics, beside the names of errors.
pub(crate) mod outcome {
    pub(crate) const CANCELLED: &str = "cancelled";
    pub(crate) const CONTENDED: &str = "contended";
    pub(crate) const GRANTED: &str = "granted";
    pub(crate) const NOT_RUN: &str = "not run";
    pub(crate) const OK: &str = "ok";
    pub(crate) const PARTLY: &str = "partly";
    pub(crate) const PANICKED: &str = "panicked";
    pub(crate) const RAN: &str = "ran";
    pub(crate) const RAN_UNRELEASED: &str = "ran, not released";
    pub(crate) const RESUMED: &str = "resumed";
    pub(crate) const TIMED_OUT: &str = "timed out";
}

/// Is told of every event of a manager.
pub trait Observer: fmt::Debug + Send + Sync + 'static {
    /// Told of each event; see the [module](self) for what it may do.
    fn observe(&self, event: &Event);
}

/// Something that happened.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum Event {
    /// A call for a lease began.
    Acquiring(Acquiring),
    /// A call does not get the lease at once, and waits. At most once per call.
    Waiting(Waiting),
    /// A call that waits asked the store again.
    Polled(Polled),
    /// A call waits no more, however it ends.
    WaitEnded(WaitEnded),
    /// A lease was granted.
    Acquired(Acquired),
    /// A call that did not wait found that somebody else holds the lease.
    Contended(Contended),
    /// The wait of a call ended, and somebody else still held the lease.
    TimedOut(TimedOut),
    /// A call for a lease was dropped before it ended.
    Cancelled(Cancelled),
    /// A lease that was handed over was taken on.
    Resumed(Resumed),
    /// A call ended with an error.
    Failed(Failed),
    /// A lease was renewed in the background.
    Renewed(Renewed),
    /// A renewal failed and will be tried again until the deadline.
    RenewalFailed(RenewalFailed),
    /// A lease may not be assumed any more, for whatever reason. Once per lease.
    Ended(Ended),
    /// A lease was lost while it was held.
    Lost(Lost),
    /// A lease was given back, or could not be.
    Released(Released),
    /// A guard was dropped without being released; a release is sent in the background if that is possible.
    Dropped(Dropped),
    /// The store was asked.
    StoreCall(StoreCall),
    /// A scheduled run was skipped.
    Skipped(Skipped),
    /// A scheduled run whose holder is gone was found unfinished.
    TickLost(TickLost),
    /// Events could not be told, because an observer blocked for too long.
    Missed(Missed),
}

macro_rules! events {
    ($($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[non_exhaustive]
            #[derive(Clone, Debug)]
            pub struct $name {
                /// The name of the manager's store.
                pub store: &'static str,
                $($(#[$field_meta])* pub $field: $type,)*
            }
        )*
    };
}

events! {
    /// A call for a lease began.
    Acquiring {
        /// The key.
        key: Key,
        /// How long it may wait.
        wait: Wait,
    }

    /// A call does not get the lease at once, because somebody else holds it or waits for it before, and waits.
    Waiting {
        /// The key.
        key: Key,
    }

    /// A call that waits asked the store again: its pause was over, or it was woken.
    Polled {
        /// The key.
        key: Key,
    }

    /// A call waits no more, however it ends.
    WaitEnded {
        /// The key.
        key: Key,
        /// For how long it waited.
        waited: Duration,
    }

    /// A lease was granted.
    Acquired {
        /// The key.
        key: Key,
        /// From the call to the grant.
        waited: Duration,
        /// How often this call asked, repeats after an unknown outcome not counted.
        attempts: u32,
        /// The fencing token.
        fencing: Option<FencingToken>,
    }

    /// A call that did not wait found that somebody else holds the lease.
    Contended {
        /// The key.
        key: Key,
        /// From the call to its end.
        waited: Duration,
        /// How often this call asked.
        attempts: u32,
    }

    /// The wait of a call ended, and somebody else still held the lease.
    TimedOut {
        /// The key.
        key: Key,
        /// From the call to its end.
        waited: Duration,
        /// How often the store was asked by this call; 0 for one that stood behind others in line.
        attempts: u32,
    }

    /// A call for a lease was dropped before it ended. What it may have been granted is given back.
    Cancelled {
        /// The key.
        key: Key,
        /// From the call to its end.
        waited: Duration,
        /// How often the store was asked by this call.
        attempts: u32,
    }

    /// A lease that was handed over was taken on.
    Resumed {
        /// The key.
        key: Key,
        /// From the call to the grant.
        waited: Duration,
        /// The fencing token.
        fencing: Option<FencingToken>,
    }

    /// A call ended with an error.
    Failed {
        /// What was tried.
        operation: Operation,
        /// The key, if it was about one.
        key: Option<Key>,
        /// What kind of failure.
        kind: ErrorKind,
        /// From the call to its end, of calls for a lease.
        waited: Option<Duration>,
    }

    /// A lease was renewed in the background.
    Renewed {
        /// The key.
        key: Key,
        /// How much validity was left when the renewal was confirmed: the slack before a loss.
        slack: Duration,
    }

    /// A renewal failed and will be tried again until the deadline.
    RenewalFailed {
        /// The key.
        key: Key,
        /// What kind of failure.
        kind: ErrorKind,
        /// The failure, for people to read.
        error: Error,
        /// How much validity is left.
        remaining: Duration,
    }

    /// A lease may not be assumed any more, for whatever reason.
    Ended {
        /// The key.
        key: Key,
        /// Why.
        reason: LostReason,
        /// From the grant to the end.
        held: Duration,
    }

    /// A lease was lost while it was held.
    Lost {
        /// The key.
        key: Key,
        /// Why.
        reason: LostReason,
        /// From the grant to the loss.
        held: Duration,
    }

    /// A lease was given back, or could not be.
    Released {
        /// The key.
        key: Key,
        /// From the grant to the answer.
        held: Duration,
        /// `None` = given back in time; [`ErrorKind::NotHeld`] = it was gone already; else it was left to its ttl.
        failed: Option<ErrorKind>,
    }

    /// A guard was dropped without being released.
    Dropped {
        /// The key.
        key: Key,
        /// Whether a release could be sent in the background; if not (there is no runtime), the ttl ends the lease.
        release_sent: bool,
    }

    /// The store was asked. A request whose call was dropped before the answer is not told. What stands in front of the
    /// store belongs to it: a retry answers once for all its tries, a breaker that is open answers for the store.
    StoreCall {
        /// What was asked.
        operation: Operation,
        /// How long it took.
        duration: Duration,
        /// What kind of failure, if it failed; contention is none.
        failed: Option<ErrorKind>,
    }

    /// Events could not be told, because an observer blocked for too long. What adds them up is off by these.
    Missed {
        /// How many.
        events: u64,
    }

    /// A scheduled run was skipped.
    Skipped {
        /// The task.
        task: String,
        /// Why, in one word: `condition`, `still_running`, `other_server`, `too_late`, `given_up`.
        reason: &'static str,
    }

    /// A scheduled run whose holder is gone was found unfinished. Told by exactly one of those who look.
    TickLost {
        /// The task.
        task: String,
        /// The tick, as UTC date and time.
        tick: String,
    }
}
