//! A store in memory whose answers a test bends.
#![allow(dead_code, reason = "every test crate uses its own part")]

use std::fmt;

use async_trait::async_trait;
use leasehold::store::memory::MemoryStore;
use leasehold::store::{
    Attempt, Capabilities, Claim, Grant, Inspection, Listing, Page, Probe, Removed, Store, Waiting,
};
use leasehold::{Key, OwnerToken, Result};

type Answers = Result<Vec<Result<Option<Grant>>>>;
type BendAcquire = Box<dyn Fn(&Claim<'_>, Attempt) -> Attempt + Send + Sync>;
type BendExtend = Box<dyn Fn(&[Claim<'_>], Answers) -> Answers + Send + Sync>;

pub(crate) struct BentStore {
    memory: MemoryStore,
    wakes: bool,
    acquire: BendAcquire,
    extend: BendExtend,
}

impl BentStore {
    pub(crate) fn new(memory: MemoryStore) -> Self {
        Self { memory, wakes: true, acquire: Box::new(|_, attempt| attempt), extend: Box::new(|_, answers| answers) }
    }

    /// Nobody stands in the store's line, and nobody is woken.
    pub(crate) fn without_wakes(mut self) -> Self {
        self.wakes = false;
        self
    }

    pub(crate) fn acquire(mut self, bend: impl Fn(&Claim<'_>, Attempt) -> Attempt + Send + Sync + 'static) -> Self {
        self.acquire = Box::new(bend);
        self
    }

    pub(crate) fn extend(mut self, bend: impl Fn(&[Claim<'_>], Answers) -> Answers + Send + Sync + 'static) -> Self {
        self.extend = Box::new(bend);
        self
    }
}

impl fmt::Debug for BentStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BentStore")
    }
}

#[async_trait]
impl Store for BentStore {
    fn name(&self) -> &'static str {
        "bent"
    }

    fn capabilities(&self) -> Capabilities {
        let capabilities = self.memory.capabilities();
        if self.wakes { capabilities } else { capabilities.waiting(Waiting::Poll) }
    }

    async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt> {
        let attempt = self.memory.acquire(&claim.waits(claim.waits && self.wakes)).await?;
        Ok((self.acquire)(claim, attempt))
    }

    async fn extend(&self, claims: &[Claim<'_>]) -> Answers {
        let answers = self.memory.extend(claims).await;
        (self.extend)(claims, answers)
    }

    async fn release(&self, key: &Key, owner: &OwnerToken) -> Result<bool> {
        self.memory.release(key, owner).await
    }

    async fn transfer(&self, from: &OwnerToken, claim: &Claim<'_>) -> Result<Option<Grant>> {
        self.memory.transfer(from, claim).await
    }

    async fn force_release(&self, key: &Key, expected: Option<&OwnerToken>) -> Result<Option<Removed>> {
        self.memory.force_release(key, expected).await
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        self.memory.inspect(key).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<Listing> {
        self.memory.list(prefix, page).await
    }

    async fn probe(&self) -> Result<Probe> {
        self.memory.probe().await
    }

    async fn close(&self) -> Result<()> {
        self.memory.close().await
    }
}
