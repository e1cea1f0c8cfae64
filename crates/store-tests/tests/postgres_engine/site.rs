//! Where a test takes place.

use std::time::Duration;

use leasehold::testkit::Residue;
use leasehold::{LockManager, Renew, config};
use store_tests::{Pooler, Table};
use tokio::time::{sleep, timeout};

use crate::SOON;

/// A database, how it is reached, and in which mode.
pub(crate) struct Site {
    table: Table,
    url: String,
    _pooler: Option<Pooler>,
}

impl Site {
    pub(crate) fn direct(mode: &str) -> Self {
        let table = Table::new();
        Self { url: format!("{}?mode={mode}", table.url()), table, _pooler: None }
    }

    /// Through a pooler that lends connections to these.
    pub(crate) fn pooled(mode: &str, lent: &str) -> Self {
        let table = Table::new();
        let pooler = Pooler::start(table.clone(), lent);
        Self { url: format!("{}?mode={mode}", pooler.url()), table, _pooler: Some(pooler) }
    }

    pub(crate) async fn manager(&self) -> LockManager {
        config::open(&self.url).await.unwrap().ttl(Duration::from_secs(30)).build().unwrap()
    }

    pub(crate) async fn renewing(&self, ttl: Duration, every: Duration) -> LockManager {
        config::open(&self.url).await.unwrap().ttl(ttl).renew(Renew::Every(every)).build().unwrap()
    }

    /// Waits until nobody holds on to anything, here or at the server.
    pub(crate) async fn at_rest(&self, managers: &[LockManager]) {
        let client = self.table.client().await;
        let here = "FROM pg_locks WHERE locktype = 'advisory' \
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let leases = "FROM leasehold WHERE owner <> '' AND expires > clock_timestamp()";
        let statement = format!("SELECT (SELECT count(*) {here}) + (SELECT count(*) {leases})");
        let rest = async {
            while client.query_one(&statement, &[]).await.unwrap().get::<_, i64>(0) > 0
                || !managers.iter().all(|locks| Residue::of(locks).is_none())
            {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(SOON, rest).await.expect("nothing is left");
    }

    /// Ends the sessions that hold locks.
    pub(crate) async fn end_holders(&self) {
        let end = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted \
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        assert!(!self.table.client().await.query(end, &[]).await.unwrap().is_empty());
    }
}
