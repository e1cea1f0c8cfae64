//! How the map of the slots is learned anew, and what that costs.

use std::collections::BTreeSet;
use std::time::Duration;

use store_tests::{Cluster, run};

use crate::{LONG, take};

/// The connections to a server that are told of changes.
fn listeners(cluster: &Cluster, node: usize) -> BTreeSet<String> {
    let clients: String = cluster.ask(node, &["CLIENT", "LIST"]);
    let listeners = clients.lines().filter(|client| client.contains(" flags=t "));
    listeners.map(|client| client.split(' ').next().unwrap().to_owned()).collect()
}

/// All are asked and the first one is believed; the others have not become silent by that.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_new_map_costs_no_connection() {
    run(async {
        let cluster = Cluster::start();
        let locks = cluster.manager(LONG).await;
        for node in 0..3 {
            take(&locks, &cluster.name_at(node, "asked")).await.release().await.unwrap();
        }
        let present = || (0..3).map(|node| listeners(&cluster, node)).collect::<Vec<_>>();
        let before = present();
        assert!(before.iter().all(|listeners| listeners.len() == 1), "{before:?}");
        for _ in 0..8 {
            locks.probe().await.unwrap();
            // Longer than a connection may be silent on which something was given up.
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        assert_eq!(present(), before);
    });
}
