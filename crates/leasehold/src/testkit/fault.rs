//! A store that misbehaves on demand.

use std::future::{self, Future};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::error::{Error, ErrorKind, Operation, Result};
use crate::store::{Attempt, Capabilities, Claim, Grant, Inspection, Listing, OwnedClaim, Page, Probe, Removed, Store};
use crate::types::{Key, OwnerToken};

mod plan;

pub use self::plan::{Call, Fault};
use self::plan::{Effect, Plan};

/// Stands in front of a store and does to the calls what it was told to.
///
/// Without a fault it passes everything on unchanged. Clones are the same store. Everything it is asked for is
/// recorded, see [`calls`](Self::calls) and [`log`](Self::log).
#[derive(Clone, Debug)]
pub struct FaultStore {
    store: Arc<dyn Store>,
    plan: Arc<Mutex<Plan>>,
}

impl FaultStore {
    /// Stands in front of `store`.
    pub fn new(store: impl Store) -> Self {
        Self::from_arc(Arc::new(store))
    }

    /// Stands in front of a store that is behind a pointer already.
    pub fn from_arc(store: Arc<dyn Store>) -> Self {
        Self { store, plan: Arc::default() }
    }

    /// Does this to the next call of that operation, or to the next one that no earlier fault was waiting for.
    pub fn once(&self, operation: Operation, fault: Fault) {
        self.plan.lock().once.push((operation, fault));
    }

    /// Does this to every call of that operation for which no single fault waits, until [`heal`](Self::heal).
    pub fn always(&self, operation: Operation, fault: Fault) {
        self.plan.lock().always.push((Some(operation), fault));
    }

    /// Does this to every call for which no single fault waits, until [`heal`](Self::heal).
    pub fn outage(&self, fault: Fault) {
        self.plan.lock().always.push((None, fault));
    }

    /// Forgets all faults, and lets starved calls go on. What is hanging or delayed stays so.
    pub fn heal(&self) {
        let opened = {
            let mut plan = self.plan.lock();
            plan.once.clear();
            plan.always.clear();
            std::mem::replace(&mut plan.gate, plan::gate())
        };
        opened.close();
    }

    /// How often the operation was called. A batch is one call.
    pub fn calls(&self, operation: Operation) -> usize {
        let plan = self.plan.lock();
        let mut numbers: Vec<_> =
            plan.log.iter().filter(|call| call.operation == operation).map(|call| call.number).collect();
        numbers.dedup();
        numbers.len()
    }

    /// How often anything was called.
    pub fn total_calls(&self) -> usize {
        self.plan.lock().count
    }

    /// What was asked for, in order; one entry per claim.
    pub fn log(&self) -> Vec<Call> {
        self.plan.lock().log.clone()
    }

    /// Forgets what was asked for so far.
    pub fn clear_log(&self) {
        let mut plan = self.plan.lock();
        plan.log.clear();
        plan.count = 0;
    }

    /// Carries a call out, or not, as its fault demands. `request` owns what it needs, so that it can outlive its caller.
    async fn pass<T: Send + 'static>(
        &self,
        fault: Option<Fault>,
        request: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let Some(Fault { effect, silent, .. }) = fault else {
            return request.await;
        };
        match effect {
            Effect::Delay(duration) => {
                let (reply, answer) = oneshot::channel();
                tokio::spawn(async move {
                    tokio::time::sleep(duration).await;
                    // Nobody may be waiting any more; the request counts all the same.
                    drop(reply.send(request.await));
                });
                return answer.await.unwrap_or_else(|_| Err(unknown()));
            }
            Effect::DelayReply(duration) => {
                let answer = request.await;
                tokio::time::sleep(duration).await;
                return answer;
            }
            Effect::Fail(kind) => return Err(Error::new(kind, "injected fault")),
            Effect::Starve(gate) => {
                drop(gate.acquire().await);
                return request.await;
            }
            Effect::LoseReply => drop(request.await),
            Effect::ApplyLate(duration) => {
                tokio::spawn(async move {
                    tokio::time::sleep(duration).await;
                    drop(request.await);
                });
            }
            Effect::Hang => drop(request),
        }
        if silent {
            future::pending::<()>().await;
        }
        Err(unknown())
    }

    fn begin(&self, operation: Operation, key: Option<&Key>, owner: Option<&OwnerToken>) -> Option<Fault> {
        self.plan.lock().begin(operation, vec![Call::new(operation, key.cloned(), owner.cloned())])
    }

    fn begin_claims(&self, operation: Operation, claims: &[OwnedClaim]) -> Option<Fault> {
        self.plan.lock().begin(operation, claims.iter().map(|claim| Call::of_claim(operation, claim)).collect())
    }
}

fn unknown() -> Error {
    Error::new(ErrorKind::Indeterminate, "injected fault: the reply was lost")
}

#[async_trait]
impl Store for FaultStore {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt> {
        let (store, claims) = (Arc::clone(&self.store), [OwnedClaim::new(claim)]);
        let fault = self.begin_claims(Operation::Acquire, &claims);
        self.pass(fault, async move { store.acquire(&claims[0].borrow()).await }).await
    }

    async fn extend(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        let store = Arc::clone(&self.store);
        let claims: Vec<_> = claims.iter().map(OwnedClaim::new).collect();
        let fault = self.begin_claims(Operation::Extend, &claims);
        self.pass(fault, async move {
            let claims: Vec<_> = claims.iter().map(OwnedClaim::borrow).collect();
            store.extend(&claims).await
        })
        .await
    }

    async fn release(&self, key: &Key, owner: &OwnerToken) -> Result<bool> {
        let fault = self.begin(Operation::Release, Some(key), Some(owner));
        let (store, key, owner) = (Arc::clone(&self.store), key.clone(), owner.clone());
        self.pass(fault, async move { store.release(&key, &owner).await }).await
    }

    async fn transfer(&self, from: &OwnerToken, claim: &Claim<'_>) -> Result<Option<Grant>> {
        let (store, from, claims) = (Arc::clone(&self.store), from.clone(), [OwnedClaim::new(claim)]);
        let fault = self.begin_claims(Operation::Transfer, &claims);
        self.pass(fault, async move { store.transfer(&from, &claims[0].borrow()).await }).await
    }

    async fn force_release(&self, key: &Key, expected: Option<&OwnerToken>) -> Result<Option<Removed>> {
        let fault = self.begin(Operation::ForceRelease, Some(key), expected);
        let (store, key, expected) = (Arc::clone(&self.store), key.clone(), expected.cloned());
        self.pass(fault, async move { store.force_release(&key, expected.as_ref()).await }).await
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        let fault = self.begin(Operation::Inspect, Some(key), None);
        let (store, key) = (Arc::clone(&self.store), key.clone());
        self.pass(fault, async move { store.inspect(&key).await }).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<Listing> {
        let fault = self.begin(Operation::List, None, None);
        let (store, prefix) = (Arc::clone(&self.store), prefix.to_owned());
        self.pass(fault, async move { store.list(&prefix, page).await }).await
    }

    async fn probe(&self) -> Result<Probe> {
        let fault = self.begin(Operation::Probe, None, None);
        let store = Arc::clone(&self.store);
        self.pass(fault, async move { store.probe().await }).await
    }

    async fn close(&self) -> Result<()> {
        let fault = self.begin(Operation::Close, None, None);
        let store = Arc::clone(&self.store);
        self.pass(fault, async move { store.close().await }).await
    }
}

#[cfg(test)]
mod tests;
