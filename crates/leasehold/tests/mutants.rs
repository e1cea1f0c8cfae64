//! Broken stores, each of which the suite has to catch.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::collections::HashMap;
use std::fmt::Write;
use std::future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::store::memory::MemoryStore;
use leasehold::store::{
    Attempt, Capabilities, Claim, Contention, Grant, Inspection, Listing, Page, Probe, Removed, Store, Wake,
};
use leasehold::testkit::conformance::{Fixture, Outage, cases};
use leasehold::testkit::{Fault, FaultStore, TestClock};
use leasehold::{Clock, ErrorKind, FencingToken, Key, OwnerToken, Result};
use parking_lot::Mutex;

/// Each flaw with a case that is made for it.
const MUTANTS: [(Flaw, &str); 10] = [
    (Flaw::ReleaseWithoutComparing, "release_needs_owner"),
    (Flaw::ReleaseThatLooksFirst, "a_release_at_the_end_spares_the_next_holder"),
    (Flaw::ExtendThatLooksFirst, "an_extend_at_the_end_spares_the_next_holder"),
    (Flaw::ExtendThatRecreates, "extend_never_recreates_an_expired_lease"),
    (Flaw::ExtendThatShortens, "extend_never_shortens"),
    (Flaw::DeadlineFromTheReply, "the_validity_of_a_grant_is_kept"),
    (Flaw::FenceThatResets, "the_fence_grows_over_release"),
    (Flaw::ContentionForAnError, "an_outage_is_not_contention"),
    (Flaw::WakeUpLost, "a_wake_is_armed_by_the_attempt_that_failed"),
    (Flaw::PlaceLostOnReAsk, "asking_again_keeps_the_place"),
];

#[tokio::test(start_paused = true)]
async fn every_mutant_is_caught() {
    let mut table = String::new();
    let mut escaped = Vec::new();
    for (flaw, made_for_it) in MUTANTS {
        let caught_by = failures(Some(flaw)).await;
        writeln!(table, "{flaw:?}: {}", caught_by.join(", ")).unwrap();
        if !caught_by.contains(&made_for_it) {
            escaped.push((flaw, made_for_it));
        }
    }
    println!("{table}");
    assert!(escaped.is_empty(), "not caught by the case made for it: {escaped:?}; caught were\n{table}");
}

#[tokio::test(start_paused = true)]
async fn the_unbroken_store_is_not_caught() {
    assert_eq!(failures(None).await, [""; 0]);
}

async fn failures(flaw: Option<Flaw>) -> Vec<&'static str> {
    let mut failed = Vec::new();
    for case in cases() {
        if case.run(&MutantFixture::new(flaw)).await.is_err() {
            failed.push(case.name());
        }
    }
    failed
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// A release deletes the lease, whoever asks.
    ReleaseWithoutComparing,
    /// A release looks whose lease it is, and deletes what is there a moment later.
    ReleaseThatLooksFirst,
    /// An extend looks whose lease it is, and writes its own over what is there a moment later.
    ExtendThatLooksFirst,
    /// An extend of a lease that is gone takes the key again.
    ExtendThatRecreates,
    /// An extend sets the end, also to an earlier one.
    ExtendThatShortens,
    /// The validity is told as if it counted from the reply, which takes a quarter of the ttl.
    DeadlineFromTheReply,
    /// Tokens of a key start at one again after a clean release.
    FenceThatResets,
    /// Who cannot reach the store is told that another holds the lease.
    ContentionForAnError,
    /// The wake-up never fires.
    WakeUpLost,
    /// Who asks again goes to the end of the line.
    PlaceLostOnReAsk,
}

/// A sound store with at most one flaw.
#[derive(Debug)]
struct Mutant {
    flaw: Option<Flaw>,
    sound: FaultStore,
    /// By key: what tokens are counted from.
    bases: Arc<Mutex<HashMap<Key, (u64, u64)>>>,
}

impl Mutant {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Whether that owner holds the key: so it was a moment ago.
    async fn held_a_moment_ago(&self, key: &Key, owner: &OwnerToken) -> Result<bool> {
        let holders = self.sound.inspect(key).await?.holders;
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok(holders.iter().any(|holder| holder.owner == *owner))
    }

    /// What the sound store is asked for, and what is told of its answer.
    fn stands<'a>(&self, claim: &Claim<'a>) -> Claim<'a> {
        let mut claim = *claim;
        if self.has(Flaw::DeadlineFromTheReply) {
            claim.ttl = claim.ttl * 3 / 4;
        }
        claim
    }

    fn told(&self, claim: &Claim<'_>, mut grant: Grant) -> Grant {
        if self.has(Flaw::DeadlineFromTheReply) {
            grant.validity = claim.ttl;
        }
        if self.has(Flaw::FenceThatResets)
            && let Some(token) = grant.fencing
        {
            let mut bases = self.bases.lock();
            let (base, last) = bases.entry(claim.key.clone()).or_insert((token.get() - 1, 0));
            *last = token.get();
            grant = grant.fencing(FencingToken::new(token.get() - *base));
        }
        grant
    }
}

#[async_trait]
impl Store for Mutant {
    fn name(&self) -> &'static str {
        "mutant"
    }

    fn capabilities(&self) -> Capabilities {
        self.sound.capabilities()
    }

    async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt> {
        let mut answer = self.sound.acquire(&self.stands(claim)).await;
        if self.has(Flaw::PlaceLostOnReAsk)
            && claim.waits
            && matches!(answer, Ok(Attempt::Contended(Contention { wake: None, .. })))
        {
            self.sound.release(claim.key, claim.owner).await?;
            answer = self.sound.acquire(claim).await;
        }
        match answer {
            Err(_) if self.has(Flaw::ContentionForAnError) => Ok(Attempt::Contended(Contention::new())),
            Ok(Attempt::Acquired(grant)) => Ok(Attempt::Acquired(self.told(claim, grant))),
            Ok(Attempt::Contended(mut contention)) if self.has(Flaw::WakeUpLost) => {
                contention.wake = contention.wake.map(|place| {
                    Wake::Place(Box::pin(async move {
                        future::pending::<()>().await;
                        drop(place);
                    }))
                });
                Ok(Attempt::Contended(contention))
            }
            other => other,
        }
    }

    async fn extend(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        let stands: Vec<_> = claims.iter().map(|claim| self.stands(claim)).collect();
        let mut seen = vec![false; claims.len()];
        if self.has(Flaw::ExtendThatLooksFirst) {
            for (seen, claim) in seen.iter_mut().zip(claims) {
                *seen = self.held_a_moment_ago(claim.key, claim.owner).await?;
            }
        }
        let mut answers = self.sound.extend(&stands).await?;
        for ((answer, claim), seen) in answers.iter_mut().zip(claims).zip(seen) {
            match answer {
                Ok(None) if seen => {
                    self.sound.force_release(claim.key, None).await?;
                    if let Attempt::Acquired(grant) = self.sound.acquire(claim).await? {
                        *answer = Ok(Some(grant));
                    }
                }
                Ok(None) if self.has(Flaw::ExtendThatRecreates) => {
                    if let Attempt::Acquired(grant) = self.sound.acquire(claim).await? {
                        *answer = Ok(Some(grant));
                    }
                }
                Ok(Some(grant)) => {
                    *grant = self.told(claim, grant.clone());
                    if self.has(Flaw::ExtendThatShortens) {
                        let (sound, key, owner) = (self.sound.clone(), claim.key.clone(), claim.owner.clone());
                        let end = tokio::time::sleep(claim.ttl);
                        tokio::spawn(async move {
                            end.await;
                            sound.release(&key, &owner).await
                        });
                    }
                }
                _ => {}
            }
        }
        Ok(answers)
    }

    async fn release(&self, key: &Key, owner: &OwnerToken) -> Result<bool> {
        if self.has(Flaw::ReleaseWithoutComparing) {
            return Ok(self.sound.force_release(key, None).await?.is_some());
        }
        if self.has(Flaw::ReleaseThatLooksFirst) {
            let is_ours = self.held_a_moment_ago(key, owner).await?;
            return Ok(is_ours && self.sound.force_release(key, None).await?.is_some());
        }
        let released = self.sound.release(key, owner).await?;
        if released && let Some((base, last)) = self.bases.lock().get_mut(key) {
            *base = *last;
        }
        Ok(released)
    }

    async fn transfer(&self, from: &OwnerToken, claim: &Claim<'_>) -> Result<Option<Grant>> {
        let grant = self.sound.transfer(from, &self.stands(claim)).await?;
        Ok(grant.map(|grant| self.told(claim, grant)))
    }

    async fn force_release(&self, key: &Key, expected: Option<&OwnerToken>) -> Result<Option<Removed>> {
        self.sound.force_release(key, expected).await
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        self.sound.inspect(key).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<Listing> {
        self.sound.list(prefix, page).await
    }

    async fn probe(&self) -> Result<Probe> {
        self.sound.probe().await
    }

    async fn close(&self) -> Result<()> {
        self.sound.close().await
    }
}

struct MutantFixture {
    flaw: Option<Flaw>,
    clock: TestClock,
    sound: FaultStore,
    bases: Arc<Mutex<HashMap<Key, (u64, u64)>>>,
}

impl MutantFixture {
    fn new(flaw: Option<Flaw>) -> Self {
        let clock = TestClock::start();
        let sound = FaultStore::new(MemoryStore::with_clock(clock.clone().into()));
        Self { flaw, clock, sound, bases: Arc::default() }
    }
}

#[async_trait]
impl Fixture for MutantFixture {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Mutant { flaw: self.flaw, sound: self.sound.clone(), bases: Arc::clone(&self.bases) }))
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn clock(&self) -> Clock {
        self.clock.clone().into()
    }

    async fn outage(&self) -> Option<Outage> {
        self.sound.outage(Fault::fail(ErrorKind::Unavailable));
        Some(Box::new(Heal(self.sound.clone())))
    }
}

struct Heal(FaultStore);

impl Drop for Heal {
    fn drop(&mut self) {
        self.0.heal();
    }
}
