//! Who holds what, and who waits for it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::place::Fired;
use crate::clock::Moment;
use crate::store::{Claim, Grant, HolderInfo};
use crate::types::{FencingToken, Key, OwnerToken};

/// So many new leases pass at least between two sweeps.
const SWEEP_INTERVAL: usize = 64;

/// All leases and lines. Invariant between calls: every spot has a lease, perhaps one that has expired.
#[derive(Debug, Default)]
pub(super) struct Table {
    spots: HashMap<Key, Spot>,
    last_fence: u64,
    last_ticket: u64,
    grants_since_sweep: usize,
    spots_after_sweep: usize,
}

#[derive(Debug)]
struct Spot {
    lease: Lease,
    line: VecDeque<Waiter>,
}

#[derive(Debug)]
pub(super) struct Lease {
    pub(super) owner: OwnerToken,
    pub(super) info: Arc<HolderInfo>,
    pub(super) fencing: FencingToken,
    pub(super) since: Moment,
    pub(super) renewed: Moment,
    pub(super) ends: Moment,
    /// The place through which it was granted, until its owner asked again.
    unseen: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Waiter {
    ticket: u64,
    owner: OwnerToken,
    info: Arc<HolderInfo>,
    ttl: Duration,
    /// Held for its drop, which makes the place fire.
    _signal: oneshot::Sender<()>,
}

impl Table {
    /// The live lease of a key. One that has expired passes to the head of the line first, or goes.
    pub(super) fn settled(&mut self, key: &Key, now: Moment, fired: &mut Fired) -> Option<&mut Lease> {
        if self.spots.get(key)?.lease.is_over(now) {
            self.remove_lease(key, now, fired);
        }
        self.spots.get_mut(key).map(|spot| &mut spot.lease)
    }

    /// The live lease of a key, if it has not expired; changes nothing.
    pub(super) fn live(&self, key: &Key, now: Moment) -> Option<&Lease> {
        self.spots.get(key).map(|spot| &spot.lease).filter(|lease| !lease.is_over(now))
    }

    pub(super) fn live_keys(&self, now: Moment) -> impl Iterator<Item = (&Key, &Lease)> {
        self.spots.iter().map(|(key, spot)| (key, &spot.lease)).filter(move |(_, lease)| !lease.is_over(now))
    }

    pub(super) const fn last_fence(&self) -> u64 {
        self.last_fence
    }

    /// Grants a key that is known to be free.
    pub(super) fn grant(&mut self, claim: &Claim<'_>, now: Moment) -> Grant {
        self.sweep_now_and_then(now);
        let mut lease = Lease::new(claim.owner.clone(), Arc::default(), claim.ttl, self.next_fence(), now);
        lease.describe(claim.holder);
        let grant = lease.grant(now);
        self.spots.insert(claim.key.clone(), Spot { lease, line: VecDeque::new() });
        grant
    }

    /// Puts an owner at the end of the line for a held key; `None` if it stands there already.
    pub(super) fn stand_in_line(&mut self, claim: &Claim<'_>) -> Option<(u64, oneshot::Receiver<()>)> {
        let line = &mut self.spots.get_mut(claim.key)?.line;
        if line.iter().any(|waiter| waiter.owner == *claim.owner) {
            return None;
        }
        self.last_ticket += 1;
        let (sender, signal) = oneshot::channel();
        line.push_back(Waiter {
            ticket: self.last_ticket,
            owner: claim.owner.clone(),
            info: claim.holder.cloned().unwrap_or_default(),
            ttl: claim.ttl,
            _signal: sender,
        });
        Some((self.last_ticket, signal))
    }

    /// Whether the owner held the lease. If it waits instead, it leaves the line.
    pub(super) fn release(&mut self, key: &Key, owner: &OwnerToken, now: Moment, fired: &mut Fired) -> bool {
        let held = self.settled(key, now, fired).is_some_and(|lease| lease.owner == *owner);
        if held {
            self.remove_lease(key, now, fired);
        } else {
            self.leave_line(key, |waiter| waiter.owner == *owner, fired);
        }
        held
    }

    pub(super) fn transfer(
        &mut self,
        from: &OwnerToken,
        claim: &Claim<'_>,
        now: Moment,
        fired: &mut Fired,
    ) -> Option<Grant> {
        let fencing = FencingToken::new(self.last_fence + 1);
        let lease = self.settled(claim.key, now, fired)?;
        if lease.owner == *claim.owner {
            lease.stand_until(now + claim.ttl, now);
            return Some(lease.grant(now));
        }
        if lease.owner != *from {
            return None;
        }
        let info = Arc::clone(&lease.info);
        *lease = Lease::new(claim.owner.clone(), info, claim.ttl, fencing, now);
        lease.describe(claim.holder);
        let grant = lease.grant(now);
        self.last_fence += 1;
        self.leave_line(claim.key, |waiter| waiter.owner == *claim.owner, fired);
        Some(grant)
    }

    /// A place was dropped before it fired: it leaves the line, or gives back the grant that nobody saw.
    pub(super) fn abandon(&mut self, key: &Key, ticket: u64, now: Moment, fired: &mut Fired) {
        let unseen = self.spots.get(key).is_some_and(|spot| spot.lease.unseen == Some(ticket));
        if unseen {
            self.remove_lease(key, now, fired);
        } else {
            self.leave_line(key, |waiter| waiter.ticket == ticket, fired);
        }
    }

    /// Ends the lease of a key and grants it to the head of the line.
    pub(super) fn remove_lease(&mut self, key: &Key, now: Moment, fired: &mut Fired) {
        let fencing = FencingToken::new(self.last_fence + 1);
        let Some(spot) = self.spots.get_mut(key) else {
            return;
        };
        let Some(waiter) = spot.line.pop_front() else {
            self.spots.remove(key);
            return;
        };
        let info = Arc::clone(&waiter.info);
        spot.lease = Lease::new(waiter.owner.clone(), info, waiter.ttl, fencing, now);
        spot.lease.unseen = Some(waiter.ticket);
        self.last_fence += 1;
        fired.push(waiter);
    }

    fn leave_line(&mut self, key: &Key, is: impl Fn(&Waiter) -> bool, fired: &mut Fired) {
        let Some(spot) = self.spots.get_mut(key) else {
            return;
        };
        if let Some(waiter) = spot.line.iter().position(is).and_then(|at| spot.line.remove(at)) {
            fired.push(waiter);
        }
    }

    fn next_fence(&mut self) -> FencingToken {
        self.last_fence += 1;
        FencingToken::new(self.last_fence)
    }

    /// Forgets expired leases that nobody asks for again: one pass over all after as many grants as there were spots.
    fn sweep_now_and_then(&mut self, now: Moment) {
        self.grants_since_sweep += 1;
        if self.grants_since_sweep < self.spots_after_sweep.max(SWEEP_INTERVAL) {
            return;
        }
        self.spots.retain(|_, spot| !spot.line.is_empty() || !spot.lease.is_over(now));
        // A pass costs what the map could hold, not what it holds.
        self.spots.shrink_to(2 * self.spots.len() + SWEEP_INTERVAL);
        self.grants_since_sweep = 0;
        self.spots_after_sweep = self.spots.len();
    }

    #[cfg(test)]
    pub(super) fn spots(&self) -> usize {
        self.spots.len()
    }
}

impl Lease {
    fn new(owner: OwnerToken, info: Arc<HolderInfo>, ttl: Duration, fencing: FencingToken, now: Moment) -> Self {
        Self { owner, info, fencing, since: now, renewed: now, ends: now + ttl, unseen: None }
    }

    pub(super) fn stand_until(&mut self, ends: Moment, now: Moment) {
        self.ends = self.ends.max(ends);
        self.renewed = now;
    }

    pub(super) fn describe(&mut self, holder: Option<&Arc<HolderInfo>>) {
        if let Some(holder) = holder {
            self.info = Arc::clone(holder);
        }
    }

    /// The owner knows that it holds: a dropped place no longer gives the lease back.
    pub(super) const fn seen(&mut self) {
        self.unseen = None;
    }

    pub(super) fn grant(&self, now: Moment) -> Grant {
        Grant::new(self.ends.since(now)).fencing(self.fencing)
    }

    fn is_over(&self, now: Moment) -> bool {
        self.ends <= now
    }
}
