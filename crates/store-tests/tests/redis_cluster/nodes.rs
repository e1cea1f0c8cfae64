//! Servers of a cluster that die, hang, come back, or are replaced.

use std::time::Duration;

use leasehold::store::Page;
use leasehold::store::redis::RedisStore;
use leasehold::{ErrorKind, LockManager, LostReason};
use store_tests::{Cluster, run};

use crate::{LONG, soon, take, until};

/// A ttl with an operation limit of a second.
const SHORT: Duration = Duration::from_secs(6);

/// After this, servers hold another for dead: longer than a busy machine keeps one from answering.
const DEAD_AFTER: Duration = Duration::from_secs(4);

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_server_that_is_gone_takes_only_its_own_leases_along() {
    run(async {
        const TTL: Duration = Duration::from_secs(9);
        let cluster = Cluster::with(0, Duration::from_secs(10));
        let locks = cluster.manager(TTL).await;
        let names: Vec<_> = (0..3).map(|node| cluster.names_at(node, "gone", 2)).collect();
        let mut guards = Vec::new();
        for name in &names {
            guards.push(take(&locks, &name[0]).await);
        }
        cluster.server(1).kill().unwrap();
        for _ in 0..20 {
            let error = locks.lock(&names[1][1]).try_acquire().await.unwrap_err();
            assert!([ErrorKind::Unavailable, ErrorKind::Indeterminate].contains(&error.kind()), "{error:?}");
            for node in [0, 2] {
                take(&locks, &names[node][1]).await.release().await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // What is there altogether is not known.
        let error = locks.list("", Page::first(10)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        // A process that starts now can do without it as well.
        let late = LockManager::builder(RedisStore::connect(&cluster.url()).await.unwrap()).ttl(TTL).build().unwrap();
        take(&late, &names[2][1]).await.release().await.unwrap();
        assert!(late.lock(&names[2][0]).try_acquire().await.unwrap().is_none());
        let error = late.lock(&names[1][1]).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");

        assert_eq!(soon("the end", guards[1].lost()).await, LostReason::Expired);
        // The others were renewed all the time, also when it was held for dead.
        let is_dead =
            || cluster.ask::<String>(0, &["CLUSTER", "NODES"]).lines().any(|node| node.contains("master,fail "));
        until("the death", || async { is_dead().then_some(()) }).await;
        tokio::time::sleep(TTL / 2).await;
        guards[0].check().unwrap();
        guards[2].check().unwrap();

        // It comes back, without its data: as free as it says.
        cluster.server(1).restart().unwrap();
        let again = until("the server that came back", || async {
            locks.lock(&names[1][0]).try_acquire().await.ok().flatten()
        });
        assert!(again.await.fencing_token() > guards[1].fencing_token());
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_server_that_lost_its_data_is_learned_at_the_next_renewal() {
    run(async {
        let cluster = Cluster::start();
        // The server is back long before that is over.
        let locks = cluster.manager(SHORT * 5).await;
        let mut guards = Vec::new();
        for node in 0..3 {
            guards.push(take(&locks, &cluster.name_at(node, "lost")).await);
        }
        cluster.server(2).kill().unwrap();
        cluster.server(2).restart().unwrap();
        assert_eq!(soon("the loss", guards[2].lost()).await, LostReason::NotHeld);
        tokio::time::sleep(SHORT * 5).await;
        guards[0].check().unwrap();
        guards[1].check().unwrap();
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_server_that_hangs_holds_nobody_else_up() {
    run(async {
        const TTL: Duration = Duration::from_secs(9);
        let cluster = Cluster::start();
        let locks = cluster.manager(TTL).await;
        let names: Vec<_> = (0..3).map(|node| cluster.names_at(node, "hung", 12)).collect();
        let mut guards = Vec::new();
        for name in names.iter().flat_map(|names| &names[1..]) {
            guards.push(take(&locks, name).await);
        }
        let long = locks.lock(&names[0][0]).ttl(LONG).try_acquire().await.unwrap().unwrap();
        cluster.server(0).stop().unwrap();
        let error = locks.lock(&names[0][0]).try_acquire().await.unwrap_err();
        assert!([ErrorKind::Unavailable, ErrorKind::Indeterminate].contains(&error.kind()), "{error:?}");
        tokio::time::sleep(TTL * 2).await;
        for (at, guard) in guards.iter().enumerate() {
            assert_eq!(guard.check().is_ok(), at >= 11, "{at}");
        }
        take(&locks, &names[1][0]).await.release().await.unwrap();

        cluster.server(0).cont().unwrap();
        until("the server", || async { locks.holder(&names[0][0]).await.ok() }).await;
        long.extend(LONG).await.unwrap();
        long.check().unwrap();
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_replica_that_takes_over_is_found() {
    run(async {
        let cluster = Cluster::with(1, DEAD_AFTER);
        let (locks, others) = (cluster.manager(LONG).await, cluster.manager(LONG).await);
        let name = cluster.name_at(0, "kept");
        let stored = format!("leasehold:{name}");
        let guard = take(&locks, &name).await;
        until("the replica's knowledge", || async {
            cluster.ask::<Vec<String>>(3, &["KEYS", "*"]).contains(&stored).then_some(())
        })
        .await;
        cluster.server(0).kill().unwrap();
        until("the replica's promotion", || async { (cluster.keeper(1, &stored) == Some(3)).then_some(()) }).await;
        until("that of the others", || async { (cluster.keeper(2, &stored) == Some(3)).then_some(()) }).await;
        // Nobody has asked in between: the first request finds it.
        assert!(others.lock(&name).try_acquire().await.unwrap().is_none());
        guard.extend(LONG).await.unwrap();
        guard.check().unwrap();

        // The old primary comes back as a replica, and grants nothing.
        cluster.server(0).restart().unwrap();
        until("the replica", || async {
            cluster.ask::<String>(0, &["INFO", "replication"]).contains("role:slave").then_some(())
        })
        .await;
        let by_replica = RedisStore::connect(&cluster.url_by(0)).await.unwrap();
        let by_replica = LockManager::builder(by_replica).ttl(LONG).build().unwrap();
        assert!(by_replica.lock(&name).try_acquire().await.unwrap().is_none());
        let fence = guard.fencing_token();
        guard.release().await.unwrap();
        assert!(take(&by_replica, &name).await.fencing_token() > fence);
    });
}

/// Nobody cuts the connections of a server that hangs; requests that are given up tell.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_replica_that_takes_over_from_a_server_that_hangs_is_found() {
    run(async {
        let cluster = Cluster::with(1, DEAD_AFTER);
        let locks = cluster.manager(SHORT).await;
        let name = cluster.name_at(0, "kept");
        let stored = format!("leasehold:{name}");
        let guard = locks.lock(&name).ttl(LONG).try_acquire().await.unwrap().unwrap();
        until("the replica's knowledge", || async {
            cluster.ask::<Vec<String>>(3, &["KEYS", "*"]).contains(&stored).then_some(())
        })
        .await;
        cluster.server(0).stop().unwrap();
        until("the replica's promotion", || async { (cluster.keeper(1, &stored) == Some(3)).then_some(()) }).await;
        let refused = until("the new keeper", || async { locks.lock(&name).try_acquire().await.ok() }).await;
        assert!(refused.is_none());
        guard.extend(LONG).await.unwrap();
        // The old one wakes up and learns that it is none any more.
        cluster.server(0).cont().unwrap();
        until("the old primary's demotion", || async {
            cluster.ask::<String>(0, &["INFO", "replication"]).contains("role:slave").then_some(())
        })
        .await;
        assert!(locks.lock(&name).try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_grant_may_have_to_be_known_by_a_replica() {
    run(async {
        let cluster = Cluster::with(1, Duration::from_secs(30));
        let locks = LockManager::connect(&format!("{}?wait_replicas=1", cluster.url())).await.unwrap();
        for node in 0..3 {
            let name = cluster.name_at(node, "known");
            let guard = known(async || locks.lock(&name).try_acquire().await).await.unwrap();
            let there: Vec<String> = cluster.ask(node + 3, &["KEYS", "*"]);
            assert!(there.contains(&format!("leasehold:{name}")), "granted before the replica knew");
            guard.release().await.unwrap();
        }
        // In the middle of a move, too: the new keeper's replica.
        let name = cluster.name_at(0, "moving");
        let stored = format!("leasehold:{name}");
        let slot = cluster.slot(&stored);
        let owner = known(async || locks.lock(&name).try_acquire().await).await.unwrap().hand_over().await.unwrap();
        cluster.begin_move(slot, 0, 1);
        for key in [&stored, &format!("{stored}:fence{{{stored}}}")] {
            cluster.move_key(key, 0, 1);
        }
        let guard = known(async || locks.lock(&name).resume(&owner).await).await;
        let there: Vec<String> = cluster.ask(4, &["KEYS", "*"]);
        assert!(there.contains(&stored));
        cluster.end_move(slot, 0, 1);
        guard.release().await.unwrap();

        cluster.server(3).kill().unwrap();
        let name = cluster.name_at(0, "unknown");
        let error = locks.lock(&name).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        let there: Vec<String> = cluster.ask(0, &["KEYS", "*"]);
        assert!(!there.contains(&format!("leasehold:{name}")));
        let elsewhere = locks.lock(&cluster.name_at(1, "elsewhere"));
        known(async || elsewhere.try_acquire().await).await.unwrap().release().await.unwrap();
    });
}

/// Asks until a replica has known in time; what was granted is given back otherwise.
async fn known<T>(ask: impl AsyncFn() -> leasehold::Result<T>) -> T {
    for _ in 0..30 {
        match ask().await {
            Ok(granted) => return granted,
            Err(error) => assert!(error.to_string().contains("0 of 1 replicas"), "{error}"),
        }
    }
    panic!("the replica never knew")
}
