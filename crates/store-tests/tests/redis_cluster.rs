//! A cluster as a place that keeps leases: the whole suite, and where keys lie.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::time::Duration;

use leasehold::store::{Claim, Level, Store};
use leasehold::{ErrorKind, Key, LockManager, OwnerToken};
use store_tests::{Cluster, Monitor, run, run_suite};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_cluster_passes_the_suite() {
    run(async {
        let cluster = Cluster::start();
        let servers = [cluster.server(0), cluster.server(1), cluster.server(2)];
        let url = |who: &str| cluster.url().replace("://", &format!("://{who}"));
        run_suite(url, &servers).await;
    });
}
