//! A store that is asked on another runtime than that of its callers.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use tokio::runtime::Handle;

use crate::error::Result;
use crate::own_runtime::OwnRuntime;
use crate::store::{
    Attempt, BoxFuture, Capabilities, Claim, Grant, Inspection, Listing, OwnedClaim, Page, Probe, Removed, Store, Wake,
};
use crate::types::{Key, OwnerToken};

/// Sends every call to a runtime of our own, so that connections which are made in the course of it live there.
#[derive(Debug)]
pub(crate) struct Hosted {
    store: Arc<dyn Store>,
    runtime: OwnRuntime,
}

impl Hosted {
    pub(crate) const fn new(store: Arc<dyn Store>, runtime: OwnRuntime) -> Self {
        Self { store, runtime }
    }

    async fn ask<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
        &self,
        call: impl FnOnce(Arc<dyn Store>) -> F + Send,
    ) -> Result<T> {
        self.runtime.run(call(Arc::clone(&self.store))).await?
    }
}

/// What a wake-up spawns when it is polled or dropped belongs to the runtime, too.
fn hosted(runtime: &Handle, wake: Wake) -> Wake {
    let inside = |future| -> BoxFuture { Box::pin(Inside { runtime: runtime.clone(), future: Some(future) }) };
    match wake {
        Wake::Hint(future) => Wake::Hint(inside(future)),
        Wake::Place(future) => Wake::Place(inside(future)),
    }
}

struct Inside {
    runtime: Handle,
    future: Option<BoxFuture>,
}

impl Future for Inside {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { runtime, future } = &mut *self;
        let _inside = runtime.enter();
        future.as_mut().map_or(Poll::Ready(()), |future| future.as_mut().poll(context))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _inside = self.runtime.enter();
        self.future = None;
    }
}

#[async_trait]
impl Store for Hosted {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt> {
        let claim = OwnedClaim::new(claim);
        let runtime = self.runtime.handle().clone();
        self.ask(|store| async move {
            let mut attempt = store.acquire(&claim.borrow()).await?;
            // On the thread: a caller who is gone by now drops the answer on its own.
            if let Attempt::Contended(contention) = &mut attempt {
                contention.wake = contention.wake.take().map(|wake| hosted(&runtime, wake));
            }
            Ok(attempt)
        })
        .await
    }

    async fn extend(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        let claims: Vec<_> = claims.iter().map(OwnedClaim::new).collect();
        self.ask(|store| async move {
            let claims: Vec<_> = claims.iter().map(OwnedClaim::borrow).collect();
            store.extend(&claims).await
        })
        .await
    }

    async fn release(&self, key: &Key, owner: &OwnerToken) -> Result<bool> {
        let (key, owner) = (key.clone(), owner.clone());
        self.ask(|store| async move { store.release(&key, &owner).await }).await
    }

    async fn transfer(&self, from: &OwnerToken, claim: &Claim<'_>) -> Result<Option<Grant>> {
        let (from, claim) = (from.clone(), OwnedClaim::new(claim));
        self.ask(|store| async move { store.transfer(&from, &claim.borrow()).await }).await
    }

    async fn force_release(&self, key: &Key, expected: Option<&OwnerToken>) -> Result<Option<Removed>> {
        let (key, expected) = (key.clone(), expected.cloned());
        self.ask(|store| async move { store.force_release(&key, expected.as_ref()).await }).await
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        let key = key.clone();
        self.ask(|store| async move { store.inspect(&key).await }).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<Listing> {
        let prefix = prefix.to_owned();
        self.ask(|store| async move { store.list(&prefix, page).await }).await
    }

    async fn probe(&self) -> Result<Probe> {
        self.ask(|store| async move { store.probe().await }).await
    }

    async fn close(&self) -> Result<()> {
        self.ask(|store| async move { store.close().await }).await
    }
}

#[cfg(all(test, feature = "testkit"))]
mod tests;
