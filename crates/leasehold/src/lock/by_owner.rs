//! Acting on a lease by its owner token: taking it on, giving it back, extending it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;
use tracing::field::Empty;

use super::Lock;
use crate::clock::Moment;
use crate::engine::log;
use crate::error::{Error, ErrorKind, LostReason, Operation, Result};
use crate::extend::extend;
use crate::guard::LockGuard;
use crate::lease::{Lease, deadline};
use crate::observe::{Event, Resumed, outcome};
use crate::store::Claim;
use crate::types::{Key, OwnerToken};
use crate::undo::{Target, Undo};
use crate::wait::hold;

impl Lock {
    /// Takes on a lease that was handed over, under a new owner token and a higher fencing token: the token it came
    /// with is dead from then on, and exactly one of two resumers wins.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotHeld`] if the token does not hold the lease (any more); [`ErrorKind::Unsupported`] on stores whose
    /// leases cannot be handed over; else as [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease goes back, in the background, to the token it came with, for the ttl of this lock.
    pub async fn resume(&self, owner: &OwnerToken) -> Result<LockGuard> {
        let (engine, key) = (&self.engine, self.key_for(Operation::Transfer)?);
        let span = tracing::debug_span!(
            "lock.resume",
            namespace = key.namespace(),
            key = key.name(),
            store = engine.store().name(),
            ttl = self.ttl.as_secs_f64(),
            owner = Empty,
            fencing = Empty,
            outcome = Empty,
        );
        let called = engine.clock.now();
        // Here before the span is left or closed: a subscriber that panics then must not leave a lease without a guard.
        let mut taken = None;
        let asked = async {
            taken = Some(LockGuard::new(self.transfer_from(key, owner).await?));
            Ok(())
        };
        let asked: Result<()> = pin!(asked).instrument(span.clone()).await;
        if let Some(guard) = &taken {
            let (waited, fencing) = (engine.clock.now().since(called), guard.lease().fencing);
            engine.teller.note(|store| Event::Resumed(Resumed { store, key: key.clone(), waited, fencing }));
        }
        if !span.is_disabled() {
            log(|| {
                taken.iter().for_each(|guard| guard.lease().record_on(&span));
                span.record("outcome", asked.as_ref().err().map_or(outcome::RESUMED, |error| error.kind().as_str()));
            });
        }
        drop(span);
        engine.reported(asked.and_then(|()| taken.ok_or_else(not_held)), Operation::Transfer, Some(key))
    }

    /// Gives back the lease that `owner` holds, without taking it on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotHeld`] if the token does not hold the lease (any more); [`ErrorKind::Indeterminate`] also if it
    /// does not hold it now, but an earlier request of this call got no answer; else as
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease may or may not be given back.
    pub async fn release_by(&self, owner: &OwnerToken) -> Result<()> {
        let key = self.key_for(Operation::Release)?;
        self.engine.reported(self.release_of(key, owner).await, Operation::Release, Some(key))
    }

    /// Pushes the end of the lease that `owner` holds out to at least `ttl` from now, without taking it on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotHeld`] if the token does not hold the lease (any more); else as
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease may or may not be extended.
    pub async fn extend_by(&self, owner: &OwnerToken, ttl: Duration) -> Result<()> {
        let key = self.key_for(Operation::Extend)?;
        self.engine.reported(self.extend_of(key, owner, ttl).await.map(drop), Operation::Extend, Some(key))
    }

    /// As [`extend_by`](Self::extend_by), by the ttl of this lock; answers with the moment until which the lease may be
    /// assumed.
    #[cfg(feature = "schedule")]
    pub(crate) async fn extend_for(&self, owner: &OwnerToken) -> Result<Moment> {
        let key = self.key_for(Operation::Extend)?;
        self.engine.reported(self.extend_of(key, owner, self.ttl).await, Operation::Extend, Some(key))
    }

    async fn transfer_from(&self, key: &Key, from: &OwnerToken) -> Result<Arc<Lease>> {
        let engine = &self.engine;
        engine.check_usable()?;
        engine.check_hand_over()?;
        let mut terms = self.terms()?;
        let ttl = terms.ttl;
        let owner = OwnerToken::mint()?;
        let mut undo = Undo::new(Target {
            engine: Arc::clone(engine),
            key: key.clone(),
            owner: owner.clone(),
            ttl,
            back_to: Some(from.clone()),
            ticket: None,
        });
        // Closing waits until the request is answered or undone.
        undo.hold_up_closing();
        let mut claim = Claim::new(key, &owner, ttl).tie(terms.tie);
        claim.holder = self.holder.as_ref();
        let unsettled = &mut undo.unsettled;
        let transfer = || engine.store().transfer(from, &claim);
        let (sent, grant) =
            engine.settle_while_open(Operation::Transfer, key, engine.limit(ttl), unsettled, transfer).await;
        let grant = grant?.ok_or_else(not_held)?;
        undo.stands = true;
        if terms.is_over(engine, sent, &grant) {
            return Err(Error::new(ErrorKind::Indeterminate, "the grant came after its own deadline and goes back"));
        }
        terms.unsettled = undo.unsettled;
        hold(undo, sent, grant, &terms)
    }

    async fn release_of(&self, key: &Key, owner: &OwnerToken) -> Result<()> {
        let engine = &self.engine;
        engine.check_usable()?;
        let limit = engine.limit(engine.check_ttl(self.ttl)?);
        let mut unanswered = 0;
        let release = || engine.store().release(key, owner);
        let (_, found) = engine.settle(Operation::Release, key, limit, &mut unanswered, release).await;
        if found? {
            engine.lines.ring(key);
            return Ok(());
        }
        if unanswered > 0 {
            // The first request may have given it back, or the token never held it.
            return Err(Error::new(ErrorKind::Indeterminate, "the first answer was lost, and now it is not held"));
        }
        Err(not_held())
    }

    async fn extend_of(&self, key: &Key, owner: &OwnerToken, ttl: Duration) -> Result<Moment> {
        let engine = &self.engine;
        engine.check_usable()?;
        let ttl = engine.check_ttl(ttl)?;
        let (sent, grant) = extend(engine, &Claim::new(key, owner, ttl), engine.limit(ttl)).await;
        let grant = grant?.ok_or_else(not_held)?;
        Ok(deadline(engine, sent, ttl, grant.validity))
    }
}

fn not_held() -> Error {
    Error::lost(ErrorKind::NotHeld, LostReason::NotHeld)
}
