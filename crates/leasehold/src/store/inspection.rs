//! What a store tells about its leases and about itself.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::types::{FencingToken, OwnerToken};

/// What people may read about a holder. Advisory: nothing is ever decided by it.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HolderInfo {
    /// The host's name.
    pub host: Option<String>,
    /// The process id on that host.
    pub pid: Option<u32>,
    /// The base name of the program, never its arguments.
    pub command: Option<String>,
    /// A name that the holder gave itself.
    pub label: Option<String>,
    /// Why it holds the lease.
    pub reason: Option<String>,
}

/// Somebody who holds a lease, as far as the store knows.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Holder {
    /// The owner token; may be that of a foreign client. Shown as a fingerprint only.
    pub owner: OwnerToken,
    /// What the holder told about itself.
    pub info: Arc<HolderInfo>,
    /// Since when it holds the lease, by the wall clock of whoever wrote it.
    pub since: Option<SystemTime>,
    /// When the lease was last renewed, by the same clock.
    pub renewed: Option<SystemTime>,
    /// How long the lease still stands unless renewed; `None` = no ttl.
    pub remaining: Option<Duration>,
    /// The fencing token of this holding.
    pub fencing: Option<FencingToken>,
}

impl Holder {
    /// A holder of whom nothing but the token is known.
    pub fn new(owner: OwnerToken) -> Self {
        Self { owner, info: Arc::default(), since: None, renewed: None, remaining: None, fencing: None }
    }

    /// Sets what the holder told about itself.
    pub fn info(mut self, info: impl Into<Arc<HolderInfo>>) -> Self {
        self.info = info.into();
        self
    }

    /// Sets since when it holds the lease.
    pub const fn since(mut self, since: SystemTime) -> Self {
        self.since = Some(since);
        self
    }

    /// Sets when the lease was last renewed.
    pub const fn renewed(mut self, renewed: SystemTime) -> Self {
        self.renewed = Some(renewed);
        self
    }

    /// Sets how long the lease still stands.
    pub const fn remaining(mut self, remaining: Duration) -> Self {
        self.remaining = Some(remaining);
        self
    }

    /// Sets the fencing token.
    pub const fn fencing(mut self, token: FencingToken) -> Self {
        self.fencing = Some(token);
        self
    }
}

/// What an operator removed.
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
pub struct Removed {
    /// Who held the lease.
    pub holders: Vec<Holder>,
    /// Every later grant of the key has a higher token: the resource should refuse all up to this one.
    pub fence_floor: Option<FencingToken>,
}

impl Removed {
    /// The removal of these holders.
    pub const fn new(holders: Vec<Holder>) -> Self {
        Self { holders, fence_floor: None }
    }

    /// Sets the token up to which the resource should refuse.
    pub const fn fence_floor(mut self, token: FencingToken) -> Self {
        self.fence_floor = Some(token);
        self
    }
}

/// Who holds a key.
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// The holders; empty = free. At most one for exclusive leases.
    pub holders: Vec<Holder>,
}

impl Inspection {
    /// An inspection that found these holders.
    pub const fn new(holders: Vec<Holder>) -> Self {
        Self { holders }
    }
}

/// Which part of a listing is wanted.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Page {
    /// Only keys after this stored key, in byte order.
    pub after: Option<String>,
    /// At most this many entries, 1 or more.
    pub limit: usize,
}

impl Page {
    /// The first `limit` entries.
    pub const fn first(limit: usize) -> Self {
        Self { after: None, limit }
    }

    /// The next `limit` entries after this stored key.
    pub const fn after(key: String, limit: usize) -> Self {
        Self { after: Some(key), limit }
    }
}

/// Part of the held keys, in byte order.
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The held keys.
    pub entries: Vec<Entry>,
    /// Where the next page starts ([`Page::after`]); `None` = this was the last one.
    pub next: Option<String>,
}

impl Listing {
    /// The last page, with these entries.
    pub const fn new(entries: Vec<Entry>) -> Self {
        Self { entries, next: None }
    }

    /// Says where the next page starts.
    pub fn next(mut self, next: String) -> Self {
        self.next = Some(next);
        self
    }
}

/// A held key in a listing.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Entry {
    /// The key as stored, with its namespace.
    pub key: String,
    /// Who holds it.
    pub holders: Vec<Holder>,
}

impl Entry {
    /// A key with its holders.
    pub const fn new(key: String, holders: Vec<Holder>) -> Self {
        Self { key, holders }
    }
}

/// What a store knows of itself.
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
pub struct Probe {
    /// The store's wall clock.
    pub server_time: Option<SystemTime>,
    /// What tells this store from a successor that started empty.
    pub identity: Option<String>,
    /// How long it has been up.
    pub uptime: Option<Duration>,
    /// Over which connection it answered, counted as for [`Grant::connection`](crate::store::Grant::connection).
    pub connection: Option<u64>,
    /// What an operator should know.
    pub findings: Vec<Finding>,
}

impl Probe {
    /// A store that answered.
    pub const fn new() -> Self {
        Self { server_time: None, identity: None, uptime: None, connection: None, findings: Vec::new() }
    }

    /// Sets the store's wall clock.
    pub const fn server_time(mut self, time: SystemTime) -> Self {
        self.server_time = Some(time);
        self
    }

    /// Sets the identity.
    pub fn identity(mut self, identity: String) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Sets how long the store has been up.
    pub const fn uptime(mut self, uptime: Duration) -> Self {
        self.uptime = Some(uptime);
        self
    }

    /// Sets over which connection it answered.
    pub const fn connection(mut self, number: u64) -> Self {
        self.connection = Some(number);
        self
    }

    /// Adds something an operator should know.
    pub fn finding(mut self, finding: Finding) -> Self {
        self.findings.push(finding);
        self
    }
}

/// Something an operator should know about a store.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What is the case.
    pub what: String,
    /// What to do about it.
    pub fix: String,
}

impl Finding {
    /// A finding: how bad, what is the case, what to do.
    pub fn new(level: Level, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level, what: what.into(), fix: fix.into() }
    }
}

/// How bad a [`Finding`] is.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// As it should be.
    Ok,
    /// Works, with a risk.
    Warn,
    /// Does not work, or does not exclude.
    Fail,
}
