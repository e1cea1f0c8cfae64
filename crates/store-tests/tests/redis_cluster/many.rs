//! Very many leases, while slots move and a server dies.

use std::time::Duration;

use leasehold::{LockGuard, LostReason};
use store_tests::{Cluster, run};

use crate::soon;

const LEASES: usize = 1_000;
const TTL: Duration = Duration::from_secs(15);
const MOVED: usize = 100;

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_reshard_loses_nothing_and_a_server_its_own() {
    run(async {
        let cluster = Cluster::with(0, Duration::from_secs(5));
        let locks = cluster.manager(TTL).await;
        let mut guards: Vec<(usize, String, LockGuard)> = Vec::new();
        for number in 0..LEASES {
            let name = format!("lease {number}");
            let node = usize::from(cluster.slot(&format!("leasehold:{name}"))) * 3 / 16_384;
            let guard = locks.lock(&name).try_acquire().await.unwrap().unwrap();
            guards.push((node, name, guard));
        }
        // From the first server to the second, while renewals go on.
        let cluster = tokio::task::spawn_blocking({
            let mut slots: Vec<_> = guards
                .iter()
                .filter(|(node, ..)| *node == 0)
                .map(|(_, name, _)| cluster.slot(&format!("leasehold:{name}")))
                .collect();
            slots.sort_unstable();
            slots.dedup();
            assert!(slots.len() > MOVED);
            move || {
                for slot in slots.into_iter().take(MOVED) {
                    cluster.move_slot(slot, 0, 1);
                    std::thread::sleep(Duration::from_millis(20));
                }
                cluster
            }
        })
        .await
        .unwrap();
        tokio::time::sleep(TTL).await;
        for (_, name, guard) in &guards {
            guard.check().unwrap_or_else(|error| panic!("{name}: {error}"));
        }

        cluster.server(2).kill().unwrap();
        for (_, name, guard) in guards.iter().filter(|(node, ..)| *node == 2) {
            assert_eq!(soon(name, guard.lost()).await, LostReason::Expired, "{name}");
        }
        tokio::time::sleep(TTL).await;
        for (_, name, guard) in guards.iter().filter(|(node, ..)| *node != 2) {
            guard.check().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    });
}
