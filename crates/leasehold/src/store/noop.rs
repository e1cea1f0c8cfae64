//! A store that excludes nobody: everything that is asked for is granted.
//!
//! For development and for switching locks off on purpose. It has to be named; nothing ever falls back to it.

use async_trait::async_trait;

use crate::error::Result;
use crate::store::{
    Attempt, Capabilities, Claim, Finding, Grant, Inspection, Level, Listing, Page, Probe, Removed, Scope, Store,
    TimeAuthority,
};
use crate::types::{Key, OwnerToken};

/// A store that grants everything and remembers nothing.
///
/// Its scope is [`Scope::None`] and it gives no fencing tokens, so `require_scope` and `require_fencing` refuse it.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "there is nothing in it, and nothing ever will be")]
pub struct NoopStore;

impl NoopStore {
    /// The store.
    pub const fn new() -> Self {
        Self
    }
}

#[async_trait]
impl Store for NoopStore {
    fn name(&self) -> &'static str {
        "noop"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(Scope::None).time(TimeAuthority::None).hand_over().lists()
    }

    /// Always granted.
    async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt> {
        Ok(Attempt::Acquired(Grant::new(claim.ttl)))
    }

    /// Always extended.
    async fn extend(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        Ok(claims.iter().map(|claim| Ok(Some(Grant::new(claim.ttl)))).collect())
    }

    /// Always `true`: whoever asks holds it.
    async fn release(&self, _key: &Key, _owner: &OwnerToken) -> Result<bool> {
        Ok(true)
    }

    /// Always passed on.
    async fn transfer(&self, _from: &OwnerToken, claim: &Claim<'_>) -> Result<Option<Grant>> {
        Ok(Some(Grant::new(claim.ttl)))
    }

    /// Nothing is kept, so nothing is removed.
    async fn force_release(&self, _key: &Key, _expected: Option<&OwnerToken>) -> Result<Option<Removed>> {
        Ok(None)
    }

    /// Always free.
    async fn inspect(&self, _key: &Key) -> Result<Inspection> {
        Ok(Inspection::new(Vec::new()))
    }

    /// Always empty.
    async fn list(&self, _prefix: &str, _page: Page) -> Result<Listing> {
        Ok(Listing::new(Vec::new()))
    }

    /// Always reachable, and always with the finding that it excludes nobody.
    async fn probe(&self) -> Result<Probe> {
        Ok(Probe::new().finding(Finding::new(
            Level::Fail,
            "the noop store excludes nobody",
            "name another store wherever two runs at once do harm",
        )))
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::Fencing;

    #[tokio::test]
    async fn everything_is_granted_to_everybody_and_nothing_is_kept() {
        let store = NoopStore::new();
        let key = Key::new("t", "k").unwrap();
        let (one, other) = (OwnerToken::mint().unwrap(), OwnerToken::mint().unwrap());
        let ttl = Duration::from_secs(7);
        for owner in [&one, &other, &one] {
            let claim = Claim::new(&key, owner, ttl).waits(true);
            let Attempt::Acquired(grant) = store.acquire(&claim).await.unwrap() else { panic!("refused") };
            assert_eq!((grant.validity, grant.fencing), (ttl, None));
            let extended = store.extend(&[claim, claim]).await.unwrap();
            assert_eq!(extended.len(), 2);
            assert!(extended.iter().all(|answer| matches!(answer, Ok(Some(_)))));
            assert!(store.transfer(&other, &claim).await.unwrap().is_some());
        }
        assert!(store.inspect(&key).await.unwrap().holders.is_empty());
        assert!(store.list("", Page::first(10)).await.unwrap().entries.is_empty());
        assert!(store.force_release(&key, None).await.unwrap().is_none());
        for _ in 0..2 {
            assert!(store.release(&key, &one).await.unwrap());
            store.close().await.unwrap();
        }
    }

    #[tokio::test]
    async fn it_promises_nothing_and_says_so() {
        let store = NoopStore::new();
        let capabilities = store.capabilities();
        assert_eq!((capabilities.scope, capabilities.fencing), (Scope::None, Fencing::None));
        assert_eq!(capabilities.time, TimeAuthority::None);
        assert!(!capabilities.is_shared());
        assert_eq!(store.probe().await.unwrap().findings[0].level, Level::Fail);
    }
}
