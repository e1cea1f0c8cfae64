//! A store of one's own, written with nothing but the public interface; it passes the conformance suite.
//!
//! It keeps its leases in a table behind a mutex. Put a database in the place of the table, and the mutex becomes a
//! transaction; the decisions stay the same.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::clock::Moment;
use leasehold::store::{
    Attempt, Capabilities, Claim, Contention, Entry, Fencing, Grant, Holder, HolderInfo, Inspection, Listing, Page,
    Probe, Removed, Scope, Store,
};
use leasehold::{Clock, FencingToken, Key, LockManager, OwnerToken, Result};

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let locks = LockManager::new(TableStore::new(Clock::system()));
    let Some(guard) = locks.lock("nightly").try_acquire().await? else {
        return Ok(());
    };
    // Somebody else asks, and is refused.
    assert!(locks.lock("nightly").try_acquire().await?.is_none());
    guard.release().await
}

/// Leases in a table. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct TableStore {
    clock: Clock,
    table: Arc<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    leases: BTreeMap<String, Lease>,
    last_token: u64,
}

#[derive(Clone, Debug)]
struct Lease {
    owner: OwnerToken,
    token: FencingToken,
    ends: Moment,
    info: Arc<HolderInfo>,
}

impl TableStore {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, table: Arc::default() }
    }

    /// One decision: the table, and the one moment by which all of it is judged.
    fn decide(&self) -> (MutexGuard<'_, Table>, Moment) {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        (table, self.clock.now())
    }
}

impl Table {
    /// The lease on a key, unless it has expired.
    fn live(&mut self, key: &Key, now: Moment) -> Option<&mut Lease> {
        self.leases.get_mut(key.as_stored()).filter(|lease| lease.ends > now)
    }

    /// A new holding: a new token, the whole ttl.
    fn grant(&mut self, claim: &Claim<'_>, info: Arc<HolderInfo>, now: Moment) -> Grant {
        self.last_token += 1;
        if self.last_token.is_multiple_of(1024) {
            // Expired keys that nobody asks for again would pile up.
            self.leases.retain(|_, lease| lease.ends > now);
        }
        let token = FencingToken::new(self.last_token);
        let lease = Lease { owner: claim.owner.clone(), token, ends: now + claim.ttl, info };
        let grant = lease.as_grant(now);
        self.leases.insert(claim.key.as_stored().to_owned(), lease);
        grant
    }
}

impl Lease {
    /// The end moves out, never in; the token stays.
    fn re_arm(&mut self, ttl: Duration, now: Moment) -> Grant {
        self.ends = self.ends.max(now + ttl);
        self.as_grant(now)
    }

    /// `now` is later than the moment at which the request was sent, so what remains from here certainly does from
    /// there.
    fn as_grant(&self, now: Moment) -> Grant {
        Grant::new(self.ends.since(now)).fencing(self.token)
    }

    fn as_holder(&self, now: Moment) -> Holder {
        Holder::new(self.owner.clone()).info(Arc::clone(&self.info)).remaining(self.ends.since(now)).fencing(self.token)
    }
}

#[async_trait]
impl Store for TableStore {
    fn name(&self) -> &'static str {
        "table"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(Scope::Process).fencing(Fencing::Monotonic).hand_over().lists()
    }

    async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt> {
        let (mut table, now) = self.decide();
        Ok(match table.live(claim.key, now) {
            None => Attempt::Acquired(table.grant(claim, claim.holder.cloned().unwrap_or_default(), now)),
            Some(lease) if lease.owner == *claim.owner => Attempt::Acquired(lease.re_arm(claim.ttl, now)),
            Some(lease) => Attempt::Contended(Contention::new().retry_after(lease.ends.since(now))),
        })
    }

    async fn extend(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        let (mut table, now) = self.decide();
        let mut extend = |claim: &Claim<'_>| {
            let lease = table.live(claim.key, now).filter(|lease| lease.owner == *claim.owner)?;
            if let Some(info) = claim.holder {
                lease.info = Arc::clone(info);
            }
            Some(lease.re_arm(claim.ttl, now))
        };
        Ok(claims.iter().map(|claim| Ok(extend(claim))).collect())
    }

    async fn release(&self, key: &Key, owner: &OwnerToken) -> Result<bool> {
        let (mut table, now) = self.decide();
        let held = table.live(key, now).is_some_and(|lease| lease.owner == *owner);
        if held {
            table.leases.remove(key.as_stored());
        }
        Ok(held)
    }

    async fn transfer(&self, from: &OwnerToken, claim: &Claim<'_>) -> Result<Option<Grant>> {
        let (mut table, now) = self.decide();
        let Some(lease) = table.live(claim.key, now) else {
            return Ok(None);
        };
        if lease.owner == *claim.owner {
            return Ok(Some(lease.re_arm(claim.ttl, now)));
        }
        if lease.owner != *from {
            return Ok(None);
        }
        let info = Arc::clone(claim.holder.unwrap_or(&lease.info));
        Ok(Some(table.grant(claim, info, now)))
    }

    async fn force_release(&self, key: &Key, expected: Option<&OwnerToken>) -> Result<Option<Removed>> {
        let (mut table, now) = self.decide();
        let Some(lease) = table.live(key, now) else {
            return Ok(None);
        };
        if expected.is_some_and(|expected| lease.owner != *expected) {
            return Ok(None);
        }
        let holder = lease.as_holder(now);
        table.leases.remove(key.as_stored());
        // One counter for the whole table: every later grant is above it.
        let floor = FencingToken::new(table.last_token);
        Ok(Some(Removed::new(vec![holder]).fence_floor(floor)))
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        let (mut table, now) = self.decide();
        Ok(Inspection::new(table.live(key, now).map(|lease| lease.as_holder(now)).into_iter().collect()))
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<Listing> {
        let (table, now) = self.decide();
        let after = page.after.as_deref().filter(|after| *after >= prefix);
        let start = after.map_or(Bound::Included(prefix), Bound::Excluded);
        let mut held = table
            .leases
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .filter(|(_, lease)| lease.ends > now)
            .map(|(key, lease)| Entry::new(key.clone(), vec![lease.as_holder(now)]));
        let listing = Listing::new(held.by_ref().take(page.limit).collect());
        let last = listing.entries.last().map(|entry| entry.key.clone());
        Ok(match (held.next(), last) {
            (Some(_), Some(last)) => listing.next(last),
            _ => listing,
        })
    }

    async fn probe(&self) -> Result<Probe> {
        Ok(Probe::new())
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}
