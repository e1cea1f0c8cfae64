//! What a store can promise.

use std::fmt;
use std::time::Duration;

/// What a store can promise.
///
/// [`Capabilities::new`] promises nothing but exclusion within the given scope; every other promise is made by name.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether it can lock at all. A store that cannot answers every call with
    /// [`Unsupported`](crate::ErrorKind::Unsupported).
    pub locks: bool,
    /// How far exclusion reaches.
    pub scope: Scope,
    /// What ends a lease whose holder is silent.
    pub expiry: Expiry,
    /// By whose clock.
    pub time: TimeAuthority,
    /// How waiters learn of a release.
    pub waiting: Waiting,
    /// How far fencing tokens can be trusted.
    pub fencing: Fencing,
    /// Whether a lease can pass to another process by its owner token.
    pub hand_over: bool,
    /// Whether held keys can be listed.
    pub lists: bool,
    /// Whether the store can tell that a tied process is gone.
    pub liveness: bool,
    /// Whether leases survive a restart of the store.
    pub survives_restart: bool,
    /// Whether leases survive a failover of the store.
    pub survives_failover: bool,
    /// The shortest ttl.
    pub min_ttl: Duration,
    /// Ttls are rounded up to a multiple of this.
    pub ttl_step: Duration,
}

impl Capabilities {
    /// A store that cannot lock: it promises nothing and refuses every call.
    pub const fn none() -> Self {
        let mut none = Self::new(Scope::None);
        none.locks = false;
        none
    }

    /// Exclusion within `scope` by ttls of the store's own clock, in steps of a millisecond; nothing else promised.
    pub const fn new(scope: Scope) -> Self {
        Self {
            locks: true,
            scope,
            expiry: Expiry::Ttl,
            time: TimeAuthority::Store,
            waiting: Waiting::Poll,
            fencing: Fencing::None,
            hand_over: false,
            lists: false,
            liveness: false,
            survives_restart: false,
            survives_failover: false,
            min_ttl: Duration::from_millis(1),
            ttl_step: Duration::from_millis(1),
        }
    }

    /// Sets what ends a lease whose holder is silent.
    pub const fn expiry(mut self, expiry: Expiry) -> Self {
        self.expiry = expiry;
        self
    }

    /// Sets by whose clock leases end.
    pub const fn time(mut self, time: TimeAuthority) -> Self {
        self.time = time;
        self
    }

    /// Sets how waiters learn of a release.
    pub const fn waiting(mut self, waiting: Waiting) -> Self {
        self.waiting = waiting;
        self
    }

    /// Sets how far fencing tokens can be trusted.
    pub const fn fencing(mut self, fencing: Fencing) -> Self {
        self.fencing = fencing;
        self
    }

    /// Promises that a lease can pass to another process by its owner token.
    pub const fn hand_over(mut self) -> Self {
        self.hand_over = true;
        self
    }

    /// Promises that held keys can be listed.
    pub const fn lists(mut self) -> Self {
        self.lists = true;
        self
    }

    /// Promises that a lease tied to a dead process is free.
    pub const fn liveness(mut self) -> Self {
        self.liveness = true;
        self
    }

    /// Promises that leases survive a restart of the store.
    pub const fn survives_restart(mut self) -> Self {
        self.survives_restart = true;
        self
    }

    /// Promises that leases survive a failover of the store.
    pub const fn survives_failover(mut self) -> Self {
        self.survives_failover = true;
        self
    }

    /// Sets the shortest ttl and the step to which ttls are rounded up.
    pub const fn ttl_limits(mut self, min: Duration, step: Duration) -> Self {
        self.min_ttl = min;
        self.ttl_step = step;
        self
    }

    /// Whether exclusion reaches beyond the calling process.
    pub const fn is_shared(&self) -> bool {
        matches!(self.scope, Scope::Host | Scope::Network)
    }
}

/// How far exclusion reaches.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Not at all: everybody is granted.
    None,
    /// Within one process.
    Process,
    /// Between the processes of one machine.
    Host,
    /// Between machines.
    Network,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Process => "process",
            Self::Host => "host",
            Self::Network => "network",
        })
    }
}

/// What ends a lease whose holder is silent.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expiry {
    /// Its ttl.
    Ttl,
    /// The end of the connection that carries it; the ttl is advisory.
    Session,
}

/// By whose clock a lease ends.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeAuthority {
    /// One clock, that of the store or of the machine that all clients share.
    Store,
    /// The clocks of the clients.
    Client,
    /// There is no clock.
    None,
}

/// How waiters learn of a release.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Waiting {
    /// By asking again.
    Poll,
    /// By a wake-up that may be early or lost.
    Hint,
    /// By a place in the store's own line.
    Place,
}

/// How far fencing tokens can be trusted.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fencing {
    /// There are none.
    None,
    /// They grow, unless the store loses data.
    BestEffort,
    /// They grow, over restart, expiry and removal.
    Monotonic,
}
