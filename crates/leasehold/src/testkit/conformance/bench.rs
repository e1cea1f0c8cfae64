//! What cases are written with.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::{Failure, Fixture, Outcome};
use crate::clock::{Clock, Moment};
use crate::error::{ErrorKind, Result};
use crate::store::{
    Attempt, BoxFuture, Capabilities, Claim, Contention, Expiry, Fencing, Grant, Holder, Listing, Page, Store, Wake,
};
use crate::types::{FencingToken, Key, OwnerToken};

/// Fails the case unless the condition holds.
macro_rules! check {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::testkit::conformance::Failure::new(format!($($message)+)));
        }
    };
}
pub(super) use check;

/// A ttl that does not pass while a case runs.
pub(super) const LONG: Duration = Duration::from_secs(600);

/// Far more than a healthy store needs on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A fresh place and names on it.
pub(super) struct Bench<'a> {
    fixture: &'a dyn Fixture,
    capabilities: Capabilities,
    clock: Clock,
    namespace: String,
}

impl<'a> Bench<'a> {
    pub(super) fn new(fixture: &'a dyn Fixture, capabilities: Capabilities) -> Self {
        // Places of real servers may be less fresh than they should be.
        let namespace = format!("conformance-{:016x}", fastrand::u64(..));
        Self { fixture, capabilities, clock: fixture.clock(), namespace }
    }

    pub(super) async fn client(&self) -> Result<Client, Failure> {
        Ok(Client(self.fixture.client().await?))
    }

    pub(super) const fn fixture(&self) -> &dyn Fixture {
        self.fixture
    }

    pub(super) const fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    pub(super) fn clock(&self) -> Clock {
        self.clock.clone()
    }

    pub(super) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// A ttl that is worth waiting for, in whole steps of the store.
    pub(super) fn ttl(&self) -> Duration {
        let Capabilities { min_ttl, ttl_step, .. } = self.capabilities;
        let wanted = self.fixture.ttl().max(min_ttl);
        let steps = wanted.as_nanos().div_ceil(ttl_step.as_nanos().max(1));
        ttl_step * u32::try_from(steps).unwrap_or(u32::MAX)
    }

    /// A ttl that passes while a case waits for it, but not because the machine is slow.
    pub(super) fn ample_ttl(&self) -> Duration {
        self.ttl() * 4
    }

    /// Fails unless a lease that was refused to its owner may have ended by now, since the machine stood still: then the
    /// case may be tried again, though not for ever.
    pub(super) fn check_over(&self, valid_until: Moment, attempt: usize) -> Outcome {
        check!(self.now() >= valid_until, "a lease that stands was refused to its owner");
        check!(attempt < 20, "the machine is too slow for this ttl");
        Ok(())
    }

    pub(super) fn key(&self, name: &str) -> Result<Key, Failure> {
        Ok(Key::new(&self.namespace, name)?)
    }

    /// What stored keys of this bench start with.
    pub(super) fn prefix(&self) -> String {
        format!("{}:", self.namespace)
    }

    pub(super) async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    /// Waits until a lease of the case's ttl must have ended, and then until the store says so.
    pub(super) async fn until_free(&self, client: &Client, key: &Key) -> Outcome {
        let limit = self.now() + self.ttl() * 5 + Duration::from_secs(5);
        while client.holder(key).await?.is_some() {
            check!(self.now() < limit, "{key} was still held long after its ttl");
            self.sleep(self.ttl() / 20).await;
        }
        Ok(())
    }

    /// Waits until those who have gone have left, which a distant place may hear of late.
    pub(super) async fn soon_free(&self, client: &Client, key: &Key) -> Outcome {
        let limit = self.now() + PATIENCE;
        while client.holder(key).await?.is_some() {
            check!(self.now() < limit, "somebody who is gone holds {key}");
            self.sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Whether the wake-up fires while a healthy store has time enough.
    pub(super) async fn fires(&self, wake: &mut BoxFuture) -> bool {
        tokio::time::timeout(PATIENCE, wake).await.is_ok()
    }

    pub(super) async fn is_quiet(&self, wake: &mut BoxFuture) -> bool {
        tokio::time::timeout(Duration::from_millis(50), wake).await.is_err()
    }

    /// Checks what another client than the holder's sees. Of a lease that ends with its client it may see no more than that
    /// somebody holds it.
    pub(super) async fn check_seen(&self, other: &Client, key: &Key, owner: &OwnerToken) -> Outcome {
        if self.capabilities.expiry == Expiry::Ttl {
            return other.check_held(key, owner).await;
        }
        check!(other.holder(key).await?.is_some(), "{key} should be held, but another client sees nobody");
        Ok(())
    }

    /// Checks two tokens of the same key, the second of a later holder.
    pub(super) fn check_grew(&self, earlier: &Grant, later: &Grant) -> Outcome {
        let (earlier, later) = (earlier.fencing, later.fencing);
        if self.capabilities.fencing == Fencing::None {
            check!(earlier.is_none() && later.is_none(), "a fencing token from a store that promises none");
        } else {
            check!(earlier.is_some() && earlier < later, "the fence went from {earlier:?} to {later:?}");
        }
        Ok(())
    }
}

pub(super) fn owner() -> Result<OwnerToken, Failure> {
    Ok(OwnerToken::mint()?)
}

pub(super) fn token(grant: &Grant) -> Option<FencingToken> {
    grant.fencing
}

/// A client of the place, with the usual questions.
#[derive(Clone)]
pub(super) struct Client(Arc<dyn Store>);

impl Client {
    /// Asks, and must be granted.
    pub(super) async fn take(&self, key: &Key, owner: &OwnerToken, ttl: Duration) -> Result<Grant, Failure> {
        match self.0.acquire(&Claim::new(key, owner, ttl)).await? {
            Attempt::Acquired(grant) => {
                check!(!grant.validity.is_zero(), "{key} was granted for no time at all");
                Ok(grant)
            }
            Attempt::Contended(contention) => {
                Err(Failure::new(format!("{key} was refused although it should be granted: {contention:?}")))
            }
        }
    }

    /// Asks without waiting, and must be refused.
    pub(super) async fn be_refused(&self, key: &Key, owner: &OwnerToken) -> Result<Contention, Failure> {
        self.refusal(&Claim::new(key, owner, LONG)).await
    }

    /// Asks and means to wait; must be refused.
    pub(super) async fn wait(
        &self,
        key: &Key,
        owner: &OwnerToken,
        ttl: Duration,
    ) -> Result<Option<BoxFuture>, Failure> {
        let contention = self.refusal(&Claim::new(key, owner, ttl).waits(true)).await?;
        Ok(contention.wake.map(|wake| match wake {
            Wake::Hint(future) | Wake::Place(future) => future,
        }))
    }

    /// Asks, means to wait, and must be refused with a new wake-up.
    pub(super) async fn line_up(&self, key: &Key, owner: &OwnerToken) -> Result<BoxFuture, Failure> {
        let wake = self.wait(key, owner, LONG).await?;
        wake.ok_or_else(|| Failure::new(format!("a first ask for {key} that waits got no wake-up")))
    }

    pub(super) async fn extend_one(
        &self,
        key: &Key,
        owner: &OwnerToken,
        ttl: Duration,
    ) -> Result<Option<Grant>, Failure> {
        let mut answers = self.0.extend(&[Claim::new(key, owner, ttl)]).await?;
        check!(answers.len() == 1, "one claim was extended with {} answers", answers.len());
        Ok(answers.remove(0)?)
    }

    pub(super) async fn pass_on(
        &self,
        key: &Key,
        from: &OwnerToken,
        to: &OwnerToken,
        ttl: Duration,
    ) -> Result<Option<Grant>, Failure> {
        Ok(self.0.transfer(from, &Claim::new(key, to, ttl)).await?)
    }

    /// Passes on, and must be granted.
    pub(super) async fn give(
        &self,
        key: &Key,
        from: &OwnerToken,
        to: &OwnerToken,
        ttl: Duration,
    ) -> Result<Grant, Failure> {
        let grant = self.pass_on(key, from, to, ttl).await?;
        grant.ok_or_else(|| Failure::new(format!("{key} did not pass on from its holder")))
    }

    pub(super) async fn holder(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        let mut holders = self.0.inspect(key).await?.holders;
        check!(holders.len() < 2, "{} owners hold {key} exclusively", holders.len());
        Ok(holders.pop())
    }

    /// Lists. A store of several servers may not wait for one that is late, but not each time.
    pub(super) async fn listing(&self, prefix: &str, page: &Page) -> Result<Listing, Failure> {
        for _ in 0..3 {
            match self.0.list(prefix, page.clone()).await {
                Err(error) if matches!(error.kind(), ErrorKind::Indeterminate | ErrorKind::Unavailable) => {}
                answer => return Ok(answer?),
            }
        }
        Ok(self.0.list(prefix, page.clone()).await?)
    }

    pub(super) async fn check_held(&self, key: &Key, owner: &OwnerToken) -> Outcome {
        match self.holder(key).await? {
            Some(holder) if holder.owner == *owner => Ok(()),
            other => Err(Failure::new(format!("{key} should be held by {owner:?}, but the store says {other:?}"))),
        }
    }

    pub(super) async fn check_free(&self, key: &Key) -> Outcome {
        match self.holder(key).await? {
            None => Ok(()),
            Some(holder) => Err(Failure::new(format!("{key} should be free, but the store says {holder:?}"))),
        }
    }

    pub(super) async fn check_released(&self, key: &Key, owner: &OwnerToken) -> Outcome {
        check!(self.0.release(key, owner).await?, "the release of {key} by its holder found nothing");
        Ok(())
    }

    async fn refusal(&self, claim: &Claim<'_>) -> Result<Contention, Failure> {
        match self.0.acquire(claim).await? {
            Attempt::Contended(contention) => Ok(contention),
            Attempt::Acquired(grant) => {
                Err(Failure::new(format!("{} was granted although another holds it: {grant:?}", claim.key)))
            }
        }
    }
}

impl Deref for Client {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}
