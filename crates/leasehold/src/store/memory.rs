//! Leases in this process's memory: for tests, and for programs that run once.
//!
//! One [`MemoryStore`] value with its clones is one exclusion domain. It dies with the process, so it guards nothing
//! between processes. Waiters stand in one line per key and are granted the lease directly, in the order in which they
//! came. Fencing tokens come from one counter for the whole store, so a key that is forgotten never repeats one.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::clock::{Clock, Moment, wall_now};
use crate::error::Result;
use crate::store::{
    Attempt, Capabilities, Claim, Contention, Entry, Fencing, Grant, Holder, Inspection, Listing, Page, Probe, Removed,
    Scope, Store, Waiting, Wake,
};
use crate::types::{FencingToken, Key, OwnerToken};

mod place;
mod table;

use self::place::{Fired, Place};
use self::table::{Lease, Table};

/// A store in memory: a handle, whose clones share their leases.
///
/// ```
/// # use leasehold::store::{Attempt, Claim, Store, memory::MemoryStore};
/// # use leasehold::{Key, OwnerToken, Result};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let store = MemoryStore::new();
/// let (key, owner) = (Key::new("docs", "nightly")?, OwnerToken::mint()?);
/// let attempt = store.acquire(&Claim::new(&key, &owner, Duration::from_secs(30))).await?;
/// assert!(matches!(attempt, Attempt::Acquired(_)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MemoryStore(Arc<Shared>);

/// What the clones of a store, and the places in its lines, have in common.
#[derive(Debug)]
struct Shared {
    clock: Clock,
    started: Moment,
    identity: u64,
    table: Mutex<Table>,
}

impl MemoryStore {
    /// An empty store by the system's clock.
    pub fn new() -> Self {
        Self::with_clock(Clock::system())
    }

    /// An empty store whose leases end by `clock`; [`Clock::tokio`] makes them end in paused time.
    pub fn with_clock(clock: Clock) -> Self {
        let started = clock.now();
        Self(Arc::new(Shared { clock, started, identity: fastrand::u64(..), table: Mutex::default() }))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        // Monotonic for its life, which is that of everybody who can hold one of its leases.
        Capabilities::new(Scope::Process).waiting(Waiting::Place).fencing(Fencing::Monotonic).hand_over().lists()
    }

    async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt> {
        let mut fired = Fired::default();
        Ok(self.acquire_now(claim, &mut fired))
    }

    async fn extend(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        let mut fired = Fired::default();
        let now = self.0.clock.now();
        let mut table = self.0.table.lock();
        Ok(claims
            .iter()
            .map(|claim| {
                let lease = table.settled(claim.key, now, &mut fired);
                Ok(lease.filter(|lease| lease.owner == *claim.owner).map(|lease| {
                    lease.stand_until(now + claim.ttl, now);
                    lease.describe(claim.holder);
                    lease.seen();
                    lease.grant(now)
                }))
            })
            .collect())
    }

    async fn release(&self, key: &Key, owner: &OwnerToken) -> Result<bool> {
        let mut fired = Fired::default();
        let now = self.0.clock.now();
        Ok(self.0.table.lock().release(key, owner, now, &mut fired))
    }

    async fn transfer(&self, from: &OwnerToken, claim: &Claim<'_>) -> Result<Option<Grant>> {
        let mut fired = Fired::default();
        let now = self.0.clock.now();
        Ok(self.0.table.lock().transfer(from, claim, now, &mut fired))
    }

    async fn force_release(&self, key: &Key, expected: Option<&OwnerToken>) -> Result<Option<Removed>> {
        let mut fired = Fired::default();
        let now = self.0.clock.now();
        let wall = wall_now();
        let mut table = self.0.table.lock();
        let Some(lease) = table.settled(key, now, &mut fired) else {
            return Ok(None);
        };
        if expected.is_some_and(|expected| lease.owner != *expected) {
            return Ok(None);
        }
        let holder = holder(lease, now, wall);
        // Every later grant counts on from here.
        let floor = FencingToken::new(table.last_fence());
        table.remove_lease(key, now, &mut fired);
        Ok(Some(Removed::new(vec![holder]).fence_floor(floor)))
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        let now = self.0.clock.now();
        let wall = wall_now();
        let table = self.0.table.lock();
        Ok(Inspection::new(table.live(key, now).map(|lease| holder(lease, now, wall)).into_iter().collect()))
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<Listing> {
        let now = self.0.clock.now();
        let wall = wall_now();
        let mut entries: Vec<_> = {
            let table = self.0.table.lock();
            table
                .live_keys(now)
                .filter(|(key, _)| key.as_stored().starts_with(prefix))
                .filter(|(key, _)| page.after.as_deref().is_none_or(|after| key.as_stored() > after))
                .map(|(key, lease)| Entry::new(key.as_stored().to_owned(), vec![holder(lease, now, wall)]))
                .collect()
        };
        entries.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        let more = entries.len() > page.limit;
        entries.truncate(page.limit);
        let next = entries.last().filter(|_| more).map(|last| last.key.clone());
        let listing = Listing::new(entries);
        Ok(match next {
            Some(next) => listing.next(next),
            None => listing,
        })
    }

    async fn probe(&self) -> Result<Probe> {
        let uptime = self.0.clock.now().since(self.0.started);
        Ok(Probe::new().server_time(wall_now()).identity(format!("{:016x}", self.0.identity)).uptime(uptime))
    }

    /// There is nothing to end; leases stand and later calls succeed.
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

impl MemoryStore {
    fn acquire_now(&self, claim: &Claim<'_>, fired: &mut Fired) -> Attempt {
        let now = self.0.clock.now();
        let mut table = self.0.table.lock();
        let Some(lease) = table.settled(claim.key, now, fired) else {
            return Attempt::Acquired(table.grant(claim, now));
        };
        if lease.owner == *claim.owner {
            lease.stand_until(now + claim.ttl, now);
            lease.seen();
            return Attempt::Acquired(lease.grant(now));
        }
        let mut contention =
            Contention::new().retry_after(lease.ends.since(now)).holder(holder(lease, now, wall_now()));
        if claim.waits
            && let Some((ticket, signal)) = table.stand_in_line(claim)
        {
            let place = Place::new(Arc::clone(&self.0), claim.key.clone(), ticket, signal);
            contention = contention.wake(Wake::Place(Box::pin(place)));
        }
        Attempt::Contended(contention)
    }
}

/// A lease for people to read. The wall clock is counted back from the present, so that granting need not read it.
fn holder(lease: &Lease, now: Moment, wall: SystemTime) -> Holder {
    let before = |moment: Moment| wall.checked_sub(now.since(moment)).unwrap_or(wall);
    Holder::new(lease.owner.clone())
        .info(Arc::clone(&lease.info))
        .since(before(lease.since))
        .renewed(before(lease.renewed))
        .remaining(lease.ends.since(now))
        .fencing(lease.fencing)
}

#[cfg(test)]
mod tests;
