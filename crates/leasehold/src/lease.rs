//! A held lease, as its guard, its renewals and its handles see it: until when it is valid, and why it no longer is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;

use crate::clock::{Moment, wall_now};
use crate::engine::{Engine, log};
use crate::error::{Error, ErrorKind, LostReason, Operation, Result};
use crate::observe::{Ended, Event, Lost};
use crate::options::Renew;
use crate::store::{Grant, Loss, Tie, reason_from_code};
use crate::types::{FencingToken, Key, OwnerToken};

/// How long a sleeper trusts a timer that does not count suspend.
pub(crate) const SUSPEND_CHECK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) engine: Arc<Engine>,
    pub(crate) key: Key,
    pub(crate) owner: OwnerToken,
    pub(crate) fencing: Option<FencingToken>,
    pub(crate) acquired: Moment,
    pub(crate) acquired_at: SystemTime,
    /// How many requests of its acquisition have no certain answer: they may still be applied after the release.
    pub(crate) unsettled: u32,
    /// Whether work runs under it that must be stopped before it is released.
    pub(crate) scoped: AtomicBool,
    /// Whether somebody has seen to giving it back, or to leaving it standing.
    pub(crate) given_back: AtomicBool,
    /// Whether a failed batch sent it to be renewed by itself.
    pub(crate) alone: AtomicBool,
    /// When the renewal task looks at it next; 0 = it does not. Kept by the registry under its lock.
    pub(crate) due: AtomicU64,
    /// Tells it apart from others that are due at the same moment.
    pub(crate) number: AtomicU64,
    renew: Renew,
    renewing: AtomicBool,
    ttl: AtomicU64,
    valid_until: AtomicU64,
    hold_until: Moment,
    loss: Option<Loss>,
    reason: AtomicU8,
    ended: Notify,
    /// The operations in flight, as bits of [`Use`].
    busy: AtomicU8,
    idle: Notify,
}

/// What a lease is made of, apart from the grant.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) renew: Renew,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) tie: Tie,
    pub(crate) unsettled: u32,
}

impl Terms {
    /// Whether a grant that was asked for at `sent` came too late to be one.
    pub(crate) fn is_over(&self, engine: &Engine, sent: Moment, grant: &Grant) -> bool {
        let until = deadline(engine, sent, self.ttl, grant.validity);
        engine.clock.now() >= until.min(self.hold_until(sent))
    }

    fn hold_until(&self, sent: Moment) -> Moment {
        self.max_hold.map_or(Moment::FAR, |max_hold| sent + max_hold)
    }
}

impl Lease {
    /// The lease that `grant` is, if it is still valid.
    pub(crate) fn new(
        engine: Arc<Engine>,
        key: Key,
        owner: OwnerToken,
        sent: Moment,
        grant: Grant,
        terms: &Terms,
    ) -> Self {
        let valid_until = deadline(&engine, sent, terms.ttl, grant.validity);
        Self {
            acquired: sent,
            acquired_at: wall_now(),
            fencing: grant.fencing,
            loss: grant.loss,
            unsettled: terms.unsettled,
            scoped: AtomicBool::new(false),
            given_back: AtomicBool::new(false),
            alone: AtomicBool::new(false),
            due: AtomicU64::new(0),
            number: AtomicU64::new(0),
            renew: terms.renew,
            renewing: AtomicBool::new(terms.renew != Renew::Off),
            ttl: AtomicU64::new(nanos(terms.ttl)),
            valid_until: AtomicU64::new(valid_until.as_nanos()),
            hold_until: terms.hold_until(sent),
            reason: AtomicU8::new(0),
            ended: Notify::new(),
            busy: AtomicU8::new(0),
            idle: Notify::new(),
            engine,
            key,
            owner,
        }
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl.load(Ordering::Acquire))
    }

    /// From now on renewals ask for this ttl.
    pub(crate) fn use_ttl(&self, ttl: Duration) {
        self.ttl.store(nanos(ttl), Ordering::Release);
    }

    /// How long one store operation for this lease may take.
    pub(crate) fn limit(&self) -> Duration {
        self.engine.limit(self.ttl())
    }

    /// How long after a request was sent the next renewal is due; `None` = it is not renewed.
    pub(crate) fn renewal_interval(&self) -> Option<Duration> {
        // A renewal cannot move the end beyond the longest holding time.
        let useful = self.stands_until() < self.hold_until;
        if useful && self.renewing.load(Ordering::Acquire) { self.renew.interval(self.ttl()) } else { None }
    }

    pub(crate) fn stop_renewing(&self) {
        self.renewing.store(false, Ordering::Release);
    }

    /// The local deadline.
    pub(crate) fn valid_until(&self) -> Moment {
        self.stands_until().min(self.hold_until)
    }

    /// Until when it was confirmed, however long it may be held.
    pub(crate) fn stands_until(&self) -> Moment {
        Moment::from_nanos(self.valid_until.load(Ordering::Acquire))
    }

    /// How long the lease may still be assumed; zero once it is lost.
    pub(crate) fn remaining(&self) -> Duration {
        match self.lost() {
            Some(_) => Duration::ZERO,
            None => self.valid_until().since(self.engine.clock.now()),
        }
    }

    /// Why the lease may not be assumed any more; `None` = it may, at this moment. Whoever asks has the observers told
    /// when nothing more is to be done for any lease.
    pub(crate) fn lost(&self) -> Option<LostReason> {
        if let Some(reason) = self.known_lost() {
            return Some(reason);
        }
        if let Some(reason) = self.loss.as_ref().and_then(Loss::raised) {
            return Some(self.mark(reason));
        }
        let now = self.engine.clock.now();
        if now < self.valid_until() {
            return None;
        }
        let held_too_long = self.valid_until() == self.hold_until;
        Some(self.mark(if held_too_long { LostReason::MaxHold } else { LostReason::Expired }))
    }

    /// Why the lease is known to be lost, without looking at the clock.
    pub(crate) fn known_lost(&self) -> Option<LostReason> {
        reason_from_code(self.reason.load(Ordering::Acquire))
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.lost() {
            None => Ok(()),
            Some(reason) => Err(self.not_held(reason)),
        }
    }

    pub(crate) fn not_held(&self, reason: LostReason) -> Error {
        Error::lost(ErrorKind::NotHeld, reason).on_store(self.engine.store().name()).on_key(&self.key)
    }

    /// Ends the lease for `reason`; `Err` with the earlier reason if it was lost already.
    pub(crate) fn end(&self, reason: LostReason) -> std::result::Result<(), LostReason> {
        if let Some(earlier) = self.lost() {
            return Err(earlier);
        }
        match self.mark(reason) {
            marked if marked == reason => Ok(()),
            earlier => Err(earlier),
        }
    }

    /// Moves the deadline up after a confirmed answer; `false` if the lease is lost, which nothing revives.
    pub(crate) fn confirm(&self, sent: Moment, ttl: Duration, grant: &Grant) -> bool {
        let until = deadline(&self.engine, sent, ttl, grant.validity);
        if self.lost().is_some() {
            return false;
        }
        self.valid_until.fetch_max(until.as_nanos(), Ordering::AcqRel);
        self.known_lost().is_none()
    }

    /// Resolves when the lease is lost.
    pub(crate) async fn until_lost(&self) -> LostReason {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if let Some(reason) = self.lost() {
                return reason;
            }
            let left = self.valid_until().since(self.engine.clock.now());
            let loss = async {
                match &self.loss {
                    Some(loss) => _ = loss.wait().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = ended => {}
                () = loss => {}
                () = tokio::time::sleep(left.min(SUSPEND_CHECK)) => {}
            }
        }
    }

    /// Reserves the one store operation that may be in flight for a lease; `None` = one is.
    pub(crate) fn try_reserve(self: &Arc<Self>, operation: Use) -> Option<Reserved> {
        self.reserve_beside(0, operation)
    }

    /// Reserves a renewal beside an extend that nobody may be polling. Neither can harm the other: an extend never
    /// shortens, a renewal leaves the tie as it finds it, and only what was confirmed moves the deadline. The next
    /// operation waits for both.
    pub(crate) fn reserve_beside_extend(self: &Arc<Self>) -> Option<Reserved> {
        self.reserve_beside(Use::Extend as u8, Use::Renewal)
    }

    fn reserve_beside(self: &Arc<Self>, others: u8, operation: Use) -> Option<Reserved> {
        let both = others | operation as u8;
        let free = self.busy.compare_exchange(others, both, Ordering::AcqRel, Ordering::Acquire).is_ok();
        free.then(|| Reserved { lease: Arc::clone(self), operation })
    }

    /// Waits for the operation in flight, which its limit bounds, and reserves the next.
    pub(crate) async fn reserve(self: &Arc<Self>, operation: Use) -> Reserved {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable();
            if let Some(reserved) = self.try_reserve(operation) {
                return reserved;
            }
            idle.await;
        }
    }

    /// Marks the lease as lost, once and for all; the first reason stays.
    fn mark(&self, reason: LostReason) -> LostReason {
        if let Err(earlier) = self.set_reason(reason) {
            return reason_from_code(earlier).unwrap_or(reason);
        }
        self.ended.notify_waiters();
        if !is_wanted(reason) {
            log(|| tracing::warn!(key = self.key.name(), store = self.engine.store().name(), %reason, "lease lost"));
        }
        reason
    }

    /// Sets the reason and notes the end in one step, so that nothing that follows from it is told before it; `Err` with
    /// the code of an earlier reason.
    fn set_reason(&self, reason: LostReason) -> std::result::Result<(), u8> {
        let set = || {
            let code = reason as u8 + 1;
            self.reason.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire).map(drop)
        };
        let teller = &self.engine.teller;
        if !teller.is_heard() {
            return set();
        }
        let held = self.engine.clock.now().since(self.acquired);
        let (store, key) = (teller.store(), self.key.clone());
        let lost = (!is_wanted(reason)).then(|| Event::Lost(Lost { store, key: key.clone(), reason, held }));
        teller.note_if(set, [Event::Ended(Ended { store, key, reason, held })].into_iter().chain(lost))
    }

    /// Notes an event of a lease that stands, and nothing of one whose end is noted.
    pub(crate) fn note(&self, event: impl FnOnce(&'static str) -> Event) {
        let teller = &self.engine.teller;
        if teller.is_heard() {
            let stands = || self.known_lost().map_or(Ok(()), Err);
            _ = teller.note_if(stands, [event(teller.store())]);
        }
    }

    /// What spans may show of it.
    pub(crate) fn record_on(&self, span: &tracing::Span) {
        span.record("owner", self.owner.fingerprint());
        if let Some(fencing) = self.fencing {
            span.record("fencing", fencing.get());
        }
    }

    pub(crate) fn in_context(&self, error: Error, operation: Operation) -> Error {
        self.engine.in_context(error, operation, Some(&self.key))
    }
}

/// What a store operation is for.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Use {
    Renewal = 1,
    /// By the caller, who goes on holding; changes the end of the lease and to whom it is tied.
    Extend = 2,
    /// Leaves the lease to somebody else: a renewal must not come after it.
    HandOver = 4,
}

/// The store operation in flight for a lease: the only one, but for a renewal beside an extend.
#[derive(Debug)]
pub(crate) struct Reserved {
    lease: Arc<Lease>,
    operation: Use,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.lease.busy.fetch_and(!(self.operation as u8), Ordering::AcqRel);
        self.lease.idle.notify_waiters();
    }
}

/// Whether a lease ends in this way by the will of its holder.
fn is_wanted(reason: LostReason) -> bool {
    matches!(reason, LostReason::Released | LostReason::HandedOver)
}

/// Until when a lease may be assumed: counted from before the request was sent, never from the reply.
pub(crate) fn deadline(engine: &Engine, sent: Moment, ttl: Duration, validity: Duration) -> Moment {
    sent + ttl.min(validity) - engine.settings.margin.of(ttl)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
