//! A cache whose keys all begin with the same text.

use std::time::Duration;

use async_trait::async_trait;

use super::{Cache, Locking};
use crate::error::Result;
use crate::store::Scope;

/// Puts a prefix in front of every key of a cache, for several programs that share one.
///
/// It can lock if, and only if, the cache can.
#[derive(Clone, Debug)]
pub struct Prefixed<C> {
    prefix: String,
    cache: C,
}

impl<C: Cache> Prefixed<C> {
    /// Stands in front of `cache`.
    pub fn new(prefix: &str, cache: C) -> Self {
        Self { prefix: prefix.to_owned(), cache }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

#[async_trait]
impl<C: Cache> Cache for Prefixed<C> {
    fn name(&self) -> &'static str {
        self.cache.name()
    }

    fn reach(&self) -> Scope {
        self.cache.reach()
    }

    fn locking(&self) -> Locking {
        self.cache.locking()
    }

    async fn add(&self, key: &str, value: &[u8], ttl: Duration) -> Result<bool> {
        self.cache.add(&self.key(key), value, ttl).await
    }

    async fn forget_if(&self, key: &str, value: &[u8]) -> Result<bool> {
        self.cache.forget_if(&self.key(key), value).await
    }

    async fn extend_if(&self, key: &str, value: &[u8], ttl: Duration) -> Result<bool> {
        self.cache.extend_if(&self.key(key), value, ttl).await
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.cache.get(&self.key(key)).await
    }
}
