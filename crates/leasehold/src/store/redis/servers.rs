//! The server that keeps a key: the only one, or one of a cluster.

use std::sync::Arc;

use redis::Value;

use super::cluster::Cluster;
use super::fault::{self, Effect};
use super::link::{Answer, Link, Request};
use super::script::Call;
use crate::error::Result;
use crate::store::watches::Doubt;

/// Every server of a store.
#[derive(Debug)]
pub(super) enum Servers {
    One(Arc<Link>),
    Cluster(Arc<Cluster>),
}

impl Servers {
    /// Asks whoever keeps the key.
    pub(super) async fn ask(&self, request: Request<'_>, effect: Effect) -> Result<Value> {
        let answer = match self {
            Self::One(link) => link.send(&request).await?,
            Self::Cluster(cluster) => cluster.ask(&request).await?,
        };
        answer.map_err(|error| fault::of(error, effect))
    }

    /// Runs scripts at once; one answer for each, in order.
    pub(super) async fn run_all(&self, calls: &[Call<'_>], effect: Effect) -> Result<Vec<Result<Value>>> {
        let link = match self {
            Self::One(link) => link,
            Self::Cluster(cluster) => {
                let answers = cluster.run_all(calls).await?;
                let certain = |answer: Answer| answer?.map_err(|error| fault::of(error, effect));
                return Ok(answers.into_iter().map(certain).collect());
            }
        };
        let answers = link.run_all(calls).await?.map_err(|error| fault::of(error, effect))?;
        if answers.len() != calls.len() {
            return Err(fault::unexpected(effect));
        }
        let certain = |answer| match answer {
            Value::ServerError(error) => Err(fault::of(error.into(), effect)),
            answer => Ok(answer),
        };
        Ok(answers.into_iter().map(certain).collect())
    }

    /// Looks once at a lease that may be gone.
    pub(super) async fn settle(&self, doubt: Doubt) {
        // Where nobody can be asked now, the next renewal tells.
        if let Ok(link) = self.keeper(&doubt.key).await {
            link.settle(vec![doubt]);
        }
    }

    /// Whether nobody holds the key. The server tells of the next change from then on.
    pub(super) async fn is_free(&self, key: &str) -> Result<bool> {
        let free = self.keeper(key).await?.is_free(key).await;
        if let (Self::Cluster(cluster), Err(_)) = (self, &free) {
            // The key may have moved.
            cluster.look_again();
        }
        free
    }

    async fn keeper(&self, key: &str) -> Result<Arc<Link>> {
        match self {
            Self::One(link) => Ok(Arc::clone(link)),
            Self::Cluster(cluster) => cluster.keeper(key).await,
        }
    }

    /// Reaches whoever can be reached. Answers whether they tell of changes.
    pub(super) async fn greet(&self) -> Result<bool> {
        match self {
            Self::One(link) => Ok(link.wire().await?.facts.tells),
            Self::Cluster(cluster) => cluster.greet().await,
        }
    }

    /// Every server that keeps leases.
    pub(super) async fn all(&self) -> Result<Vec<Arc<Link>>> {
        match self {
            Self::One(link) => Ok(vec![Arc::clone(link)]),
            Self::Cluster(cluster) => cluster.primaries().await,
        }
    }

    /// How many connections were made to the only server; `None` = there are several.
    pub(super) fn connections(&self) -> Option<u64> {
        match self {
            Self::One(link) => Some(link.connections()),
            Self::Cluster(_) => None,
        }
    }

    pub(super) fn close(&self) {
        match self {
            Self::One(link) => link.close(),
            Self::Cluster(cluster) => cluster.close(),
        }
    }
}
