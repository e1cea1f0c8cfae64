//! Retries in front of a store: what surely was not applied is asked again after a pause, for a short while.
//!
//! It bridges what passes by itself, such as a failover in which connections are refused for a second. Contention is
//! never retried here: that is an answer, and waiting is the engine's.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Backoff;
use crate::store::{Attempt, Capabilities, Claim, Grant, Inspection, Listing, Page, Probe, Removed, Store};
use crate::types::{Key, OwnerToken};

/// How long a request is retried unless it is set: less than the longest operation limit of 5 s.
pub const DEFAULT_WITHIN: Duration = Duration::from_secs(3);

/// The first and the longest pause unless set: as long as a server takes to accept connections again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Stands in front of a store and repeats requests that are [`Unavailable`](ErrorKind::Unavailable), which says that
/// they were surely not applied; the same claim with the same owner, so that a repeat finds what it may have been granted
/// after all.
///
/// An answer that was lost ([`Indeterminate`](ErrorKind::Indeterminate)) is passed on where a late request could do
/// harm: the engine asks again by itself, with the same owner, finds its own lease, and remembers that a request may
/// still come late and has to be undone. That knowledge would be lost here. An extend, whose repeat
/// is harmless whenever it comes, is retried after both, as long as none of its claims is answered: where one is, the
/// engine hears of it at once, and renews the others again by itself.
///
/// Requests for a lease are retried for an eighth of its ttl at most, since the engine gives up after a sixth; a release,
/// which says no ttl, for an eighth of the shortest that was asked for. Closing is not retried.
///
/// ```
/// # use leasehold::LockManager;
/// # use leasehold::store::{breaker::Breaker, memory::MemoryStore, retry::Retry};
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let locks = LockManager::new(Breaker::new(Retry::new(MemoryStore::new())));
/// locks.lock("import").acquire().await?.release().await?;
/// # Ok::<(), leasehold::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Retry {
    store: Arc<dyn Store>,
    clock: Clock,
    within: Duration,
    backoff: Backoff,
    /// The shortest ttl that was asked for, in nanoseconds: a release does not say for how long its engine listens.
    shortest_ttl: Arc<AtomicU64>,
}

impl Retry {
    /// Stands in front of `store`.
    pub fn new(store: impl Store) -> Self {
        Self::from_arc(Arc::new(store))
    }

    /// Stands in front of a store that is behind a pointer already.
    pub fn from_arc(store: Arc<dyn Store>) -> Self {
        let backoff = Backoff::default().between(PAUSES.0, PAUSES.1);
        let shortest_ttl = Arc::new(AtomicU64::new(u64::MAX));
        Self { store, clock: Clock::system(), within: DEFAULT_WITHIN, backoff, shortest_ttl }
    }

    /// Sets for how long a request is retried. It has to be shorter than the operation limit, or the last answer is not
    /// heard any more.
    pub fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    /// Sets the pauses; from 20 ms to 500 ms, doubled, half of each random, unless set.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets the clock by which it counts.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// For how long a request for a lease of `ttl` is retried.
    fn within_ttl(&self, ttl: Duration) -> Duration {
        self.shortest_ttl.fetch_min(u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.within.min(ttl / 8)
    }

    /// For how long a release is retried.
    fn within_shortest_ttl(&self) -> Duration {
        self.within.min(Duration::from_nanos(self.shortest_ttl.load(Ordering::Relaxed)) / 8)
    }

    /// Repeats the call while `is_harmless` says so of its error, and the next pause ends in time.
    async fn ask<T, F: Future<Output = Result<T>> + Send>(
        &self,
        within: Duration,
        is_harmless: fn(&Error) -> bool,
        call: impl Fn() -> F + Send,
    ) -> Result<T> {
        let until = self.clock.now() + within;
        let mut pauses = self.backoff.pauses();
        loop {
            let error = match call().await {
                Err(error) if is_harmless(&error) => error,
                answer => return answer,
            };
            let pause = pauses.next();
            if self.clock.now() + pause >= until {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
        }
    }
}

fn surely_not_applied(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable
}

fn transient(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate)
}

/// Whether nothing came of any claim that asking again could not mend.
fn is_unanswered(answers: &Result<Vec<Result<Option<Grant>>>>) -> bool {
    match answers {
        Ok(answers) => !answers.is_empty() && answers.iter().all(|answer| answer.as_ref().is_err_and(transient)),
        Err(error) => transient(error),
    }
}

/// What may have been applied by an earlier request is not told as surely not applied.
fn as_far_as_known(
    answers: Result<Vec<Result<Option<Grant>>>>,
    unknown: &[bool],
) -> Result<Vec<Result<Option<Grant>>>> {
    let known = |error: Error, is_unknown: bool| match error.kind() {
        ErrorKind::Unavailable if is_unknown => error.into_kind(ErrorKind::Indeterminate),
        _ => error,
    };
    let answers = answers.map_err(|error| known(error, unknown.contains(&true)))?;
    let all = unknown.iter().copied().chain(std::iter::repeat(false));
    Ok(answers
        .into_iter()
        .zip(all)
        .map(|(answer, is_unknown)| answer.map_err(|error| known(error, is_unknown)))
        .collect())
}

#[async_trait]
impl Store for Retry {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt> {
        self.ask(self.within_ttl(claim.ttl), surely_not_applied, || self.store.acquire(claim)).await
    }

    async fn extend(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or(Duration::MAX);
        let until = self.clock.now() + self.within_ttl(shortest);
        let mut pauses = self.backoff.pauses();
        let mut unknown = vec![false; claims.len()];
        loop {
            let answers = self.store.extend(claims).await;
            let pause = pauses.next();
            if !is_unanswered(&answers) || self.clock.now() + pause >= until {
                return as_far_as_known(answers, &unknown);
            }
            for (index, unknown) in unknown.iter_mut().enumerate() {
                let answer = answers.as_ref().map(|answers| answers.get(index));
                *unknown |=
                    matches!(answer, Err(error) | Ok(Some(Err(error))) if error.kind() == ErrorKind::Indeterminate);
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn release(&self, key: &Key, owner: &OwnerToken) -> Result<bool> {
        self.ask(self.within_shortest_ttl(), surely_not_applied, || self.store.release(key, owner)).await
    }

    async fn transfer(&self, from: &OwnerToken, claim: &Claim<'_>) -> Result<Option<Grant>> {
        self.ask(self.within_ttl(claim.ttl), surely_not_applied, || self.store.transfer(from, claim)).await
    }

    async fn force_release(&self, key: &Key, expected: Option<&OwnerToken>) -> Result<Option<Removed>> {
        self.ask(self.within, surely_not_applied, || self.store.force_release(key, expected)).await
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        self.ask(self.within, transient, || self.store.inspect(key)).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<Listing> {
        self.ask(self.within, transient, || self.store.list(prefix, page.clone())).await
    }

    /// Asked once: a health check wants to know of now.
    async fn probe(&self) -> Result<Probe> {
        self.store.probe().await
    }

    async fn close(&self) -> Result<()> {
        self.store.close().await
    }
}
