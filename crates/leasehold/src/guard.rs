//! A held lease.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use tracing::Instrument;
use tracing::field::Empty;

use crate::engine::log;
use crate::error::{Error, ErrorKind, LostReason, Operation, Result};
use crate::extend::extend;
use crate::lease::{Lease, Use};
use crate::observe::{Dropped, Event, outcome};
use crate::release::{Ended, end_by_holder, release, target};
use crate::store::{Claim, Tie};
use crate::types::{FencingToken, Key, OwnerToken};
use crate::undo::late_requests;

/// A held lease: valid until [`remaining`](LeaseHandle::remaining) is zero, renewed in the background, given back by
/// [`release`](Self::release).
///
/// Dropping the guard also gives the lease back, in the background and at best effort: nobody is told how that went,
/// and without a runtime the ttl has to end the lease. Prefer `release`, or work scoped by
/// [`with_lock`](crate::LockManager::with_lock). A guard that is leaked (`std::mem::forget`) goes on being renewed as
/// long as its process lives, unless [`max_hold`](crate::Lock::max_hold) bounds it. In a forked child it gives nothing back
/// and cannot be used; `check` there answers from the memory it inherited and means nothing.
#[must_use = "dropping the guard gives the lease back at once"]
pub struct LockGuard {
    handle: LeaseHandle,
}

impl LockGuard {
    pub(crate) fn new(lease: Arc<Lease>) -> Self {
        Self { handle: LeaseHandle { lease } }
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.handle.lease
    }

    /// The secret that names this acquisition, for another process that is to act on the lease while this guard holds
    /// it: with [`Lock::release_by`](crate::Lock::release_by), [`Lock::extend_by`](crate::Lock::extend_by) or
    /// [`Lock::resume`](crate::Lock::resume).
    ///
    /// Keep it out of logs, arguments and environments. Whoever uses it to release or take on the lease ends it behind
    /// the back of this guard, which learns of that by its next renewal. To pass the lease on for good, use
    /// [`hand_over`](Self::hand_over).
    ///
    /// ```
    /// # use leasehold::{LockManager, store::memory::MemoryStore};
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let locks = LockManager::new(MemoryStore::new());
    /// let guard = locks.lock("deploy").acquire().await?;
    /// let holder = locks.holder("deploy").await?;
    /// assert_eq!(holder.map(|holder| holder.owner).as_ref(), Some(guard.owner_token()));
    /// # Ok::<(), leasehold::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn owner_token(&self) -> &OwnerToken {
        &self.lease.owner
    }

    /// When the lease was acquired, by the wall clock.
    pub fn acquired_at(&self) -> SystemTime {
        self.handle.lease.acquired_at
    }

    /// A cheap, cloneable view of this lease, for tasks that check it.
    pub fn handle(&self) -> LeaseHandle {
        self.handle.clone()
    }

    /// Stops the background renewal: the lease ends at its present deadline unless extended by hand.
    pub fn stop_renewal(&self) {
        self.handle.lease.stop_renewing();
        self.handle.lease.engine.renewals.reschedule(&self.handle.lease, self.handle.lease.acquired);
    }

    /// Pushes the end out to at least `ttl` from now, and renews with this ttl from then on.
    ///
    /// Never recreates a lost lease and never shortens one. The longest holding time, if set, still holds, and renewal
    /// that was stopped stays so.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for a ttl out of range; [`ErrorKind::NotHeld`] if the lease is lost;
    /// [`ErrorKind::Unavailable`], [`ErrorKind::Indeterminate`] or [`ErrorKind::Rejected`] if the store gave no answer:
    /// the lease is then valid as long as it was before.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease may stand longer in the store than this guard assumes; nothing else. One that is begun and
    /// neither polled nor dropped keeps later ones, and [`hand_over`](Self::hand_over), waiting.
    pub async fn extend(&self, ttl: Duration) -> Result<()> {
        let lease = &self.handle.lease;
        let engine = &lease.engine;
        let ttl = engine.reported(engine.check_ttl(ttl), Operation::Extend, Some(&lease.key))?;
        self.prolong(Use::Extend, Some(ttl), None, || {
            lease.use_ttl(ttl);
            Ok(())
        })
        .await
    }

    /// Ties the lease to whoever has to be alive for it to stand, and pushes its end out by the full ttl.
    ///
    /// A fresh lease is tied to this process, unless [`Lock::tie`](crate::Lock::tie) says otherwise. Only stores that can tell who is alive
    /// ([`Capabilities::liveness`](crate::store::Capabilities::liveness)) heed a tie; to others this is an extend.
    ///
    /// # Errors
    ///
    /// As [`extend`](Self::extend).
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease may or may not be tied anew; it is held as before.
    pub async fn tie_to(&self, tie: Tie) -> Result<()> {
        self.prolong(Use::Extend, None, Some(tie), || Ok(())).await
    }

    /// Gives the lease back.
    ///
    /// From the first poll on the lease counts as lost, before the request is sent.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotHeld`] if the lease was lost before, so that what was done under it may have overlapped with
    /// another holder; [`ErrorKind::Unavailable`], [`ErrorKind::Indeterminate`] or [`ErrorKind::Rejected`] if the store
    /// gave no answer: the request is then repeated in the background, and the ttl ends the lease at the latest.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease is given back in the background.
    pub async fn release(self) -> Result<()> {
        release(&self.handle.lease).await
    }

    /// Leaves the lease standing until its ttl, whatever becomes of this process; the guard ends.
    ///
    /// # Errors
    ///
    /// As [`hand_over`](Self::hand_over).
    ///
    /// # Cancel safety
    ///
    /// As [`hand_over`](Self::hand_over).
    pub async fn keep(&self) -> Result<()> {
        self.hand_over().await.map(drop)
    }

    /// Leaves the lease, with its full ttl, to whoever has the owner token; the guard ends.
    ///
    /// Another process takes it on with [`Lock::resume`](crate::Lock::resume), or acts on it with
    /// [`Lock::release_by`](crate::Lock::release_by) and [`Lock::extend_by`](crate::Lock::extend_by). The token is a
    /// secret.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] on stores whose leases are bound to a connection; [`ErrorKind::NotHeld`] if the lease
    /// is lost; [`ErrorKind::Unavailable`], [`ErrorKind::Indeterminate`] or [`ErrorKind::Rejected`] if the store did not
    /// confirm it. On every error the guard holds as it did before; after one of these three the store may no longer
    /// free the lease early if this process dies.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the guard is as it was before; the store may no longer free the lease early if this process dies.
    pub async fn hand_over(&self) -> Result<OwnerToken> {
        let lease = &self.handle.lease;
        let engine = &lease.engine;
        engine.reported(engine.check_hand_over(), Operation::Transfer, Some(&lease.key))?;
        self.prolong(Use::HandOver, None, Some(Tie::Nothing), || {
            lease.end(LostReason::HandedOver).map_err(|reason| lease.not_held(reason))?;
            engine.renewals.leave(lease);
            Ok(())
        })
        .await?;
        Ok(lease.owner.clone())
    }

    /// Ends the guard and leaves the lease as it stands, without asking the store: for leases that are tied to nothing and
    /// not renewed from the grant on.
    #[cfg(feature = "schedule")]
    pub(crate) fn leave_standing(self) -> OwnerToken {
        let lease = &self.handle.lease;
        lease.given_back.store(true, Ordering::Release);
        // Lost already: its end is the store's to tell.
        lease.end(LostReason::HandedOver).ok();
        lease.engine.renewals.leave(lease);
        lease.engine.teller.tell();
        lease.owner.clone()
    }

    /// One confirmed extend by `ttl`, or by the lease's own; `then` runs before any other operation on this lease can.
    async fn prolong(
        &self,
        operation: Use,
        ttl: Option<Duration>,
        tie: Option<Tie>,
        then: impl FnOnce() -> Result<()> + Send,
    ) -> Result<()> {
        let lease = &self.handle.lease;
        let span = tracing::debug_span!(
            "lock.extend",
            namespace = lease.key.namespace(),
            key = lease.key.name(),
            store = lease.engine.store().name(),
            ttl = ttl.unwrap_or_else(|| lease.ttl()).as_secs_f64(),
            owner = Empty,
            fencing = Empty,
            outcome = Empty,
        );
        let prolonged = self.confirm_extend(operation, ttl, tie, then).instrument(span.clone()).await;
        if !span.is_disabled() {
            lease.record_on(&span);
            span.record("outcome", prolonged.as_ref().err().map_or(outcome::OK, |error| error.kind().as_str()));
        }
        lease.engine.reported(prolonged, Operation::Extend, Some(&lease.key))
    }

    async fn confirm_extend(
        &self,
        operation: Use,
        ttl: Option<Duration>,
        tie: Option<Tie>,
        then: impl FnOnce() -> Result<()> + Send,
    ) -> Result<()> {
        let lease = &self.handle.lease;
        let engine = &lease.engine;
        lease.check()?;
        if engine.is_forked() {
            return Err(Error::new(ErrorKind::NotHeld, "the lease belongs to the parent process"));
        }
        let reserved = tokio::select! {
            reserved = lease.reserve(operation) => reserved,
            reason = lease.until_lost() => return Err(lease.not_held(reason)),
        };
        // It may have been lost while an earlier operation was under way.
        lease.check()?;
        let ttl = ttl.unwrap_or_else(|| lease.ttl());
        let mut claim = Claim::new(&lease.key, &lease.owner, ttl);
        claim.tie = tie;
        // No renewal is sent meanwhile but a late one, so there has to be time for another attempt before the deadline.
        let limit = engine.limit(ttl).min(lease.limit()).min(lease.remaining() / 3);
        let (sent, grant) = tokio::select! {
            biased;
            answer = extend(engine, &claim, limit) => answer,
            reason = lease.until_lost() => return Err(lease.not_held(reason)),
        };
        let Some(grant) = grant? else {
            // If the lease ended otherwise meanwhile, that reason stays.
            let reason = lease.end(LostReason::NotHeld).err().unwrap_or(LostReason::NotHeld);
            engine.renewals.leave(lease);
            return Err(lease.not_held(reason));
        };
        if !lease.confirm(sent, ttl, &grant) {
            lease.check()?;
        }
        then()?;
        engine.renewals.reschedule(lease, sent);
        drop(reserved);
        Ok(())
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        let lease = &self.handle.lease;
        if lease.given_back.load(Ordering::Acquire) || lease.engine.is_forked() {
            return;
        }
        // Taken before the lease leaves the registry: closing knows of the one or of the other.
        let _ticket = lease.engine.background.ticket();
        if end_by_holder(lease) == Ended::Nothing {
            lease.engine.teller.tell();
            return;
        }
        let release_sent = target(lease).undo_in_background(late_requests(lease.unsettled, true));
        log(|| tracing::debug!(key = lease.key.name(), release_sent, "guard dropped without release"));
        let teller = &lease.engine.teller;
        teller.note(|store| Event::Dropped(Dropped { store, key: lease.key.clone(), release_sent }));
        teller.tell();
    }
}

impl Deref for LockGuard {
    type Target = LeaseHandle;

    fn deref(&self) -> &LeaseHandle {
        &self.handle
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fields(f.debug_struct("LockGuard"))
    }
}

/// A cheap, cloneable view of a held lease, for the work that runs under it.
///
/// It does not hold the lease: when the guard or the scope ends, [`check`](Self::check) says so. A [`LockGuard`] has
/// all of its methods.
#[derive(Clone)]
pub struct LeaseHandle {
    lease: Arc<Lease>,
}

impl LeaseHandle {
    /// The key.
    pub fn key(&self) -> &Key {
        &self.lease.key
    }

    /// How long the lease stands without renewal: what was asked for, or what the last `extend` asked for.
    pub fn ttl(&self) -> Duration {
        self.lease.ttl()
    }

    /// The number to pass along with every write; `None` if the store keeps none.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.lease.fencing
    }

    /// How long the lease may still be assumed if no renewal is confirmed; zero once it is lost.
    ///
    /// Local and exact: some tens of nanoseconds, no store is asked.
    pub fn remaining(&self) -> Duration {
        let remaining = self.lease.remaining();
        if remaining.is_zero() {
            self.lease.engine.teller.tell();
        }
        remaining
    }

    /// Whether the lease may be assumed at this moment.
    ///
    /// Local and exact, as [`remaining`](Self::remaining). Call it before each step that must not overlap.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotHeld`], with [`Error::lost_reason`].
    pub fn check(&self) -> Result<()> {
        let checked = self.lease.check();
        if checked.is_err() {
            self.lease.engine.teller.tell();
        }
        checked
    }

    /// Resolves when the lease is lost, whatever the network does: at the local deadline at the latest, and within a
    /// second after the machine was suspended beyond it.
    ///
    /// # Errors
    ///
    /// None: it answers with the reason.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub async fn lost(&self) -> LostReason {
        let reason = self.lease.until_lost().await;
        self.lease.engine.teller.tell();
        reason
    }

    fn fields(&self, mut debug: fmt::DebugStruct<'_, '_>) -> fmt::Result {
        let Lease { key, fencing, .. } = &*self.lease;
        debug.field("key", key).field("fencing", fencing).field("ttl", &self.ttl());
        debug.field("lost", &self.lease.known_lost()).finish_non_exhaustive()
    }
}

impl fmt::Debug for LeaseHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fields(f.debug_struct("LeaseHandle"))
    }
}
