//! Pushes: each server tells of its own keys.

use leasehold::LostReason;
use store_tests::{Cluster, run};

use crate::{LONG, pushed, soon, take, waiter};

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn every_server_wakes_those_who_wait_for_its_keys() {
    run(async {
        let cluster = Cluster::start();
        let (holder, locks) = (cluster.manager(LONG).await, pushed(&cluster).await);
        for node in 0..3 {
            let name = cluster.name_at(node, "waited for");
            for _ in 0..3 {
                let guard = take(&holder, &name).await;
                let waiter = waiter(&locks, &name).await;
                guard.release().await.unwrap();
                soon("the push", waiter).await.unwrap().release().await.unwrap();
            }
            // By whomever.
            let guard = take(&holder, &name).await;
            let waiter = waiter(&locks, &name).await;
            cluster.ask::<()>(node, &["DEL", &format!("leasehold:{name}")]);
            assert_eq!(soon("the loss", guard.lost()).await, LostReason::NotHeld);
            soon("the push", waiter).await.unwrap().release().await.unwrap();
        }
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_flush_of_one_server_is_no_loss_at_the_others() {
    run(async {
        let cluster = Cluster::start();
        let (locks, others) = (cluster.manager(LONG).await, pushed(&cluster).await);
        let names: Vec<_> = (0..3).map(|node| cluster.name_at(node, "flushed")).collect();
        let (mut guards, mut waiters) = (Vec::new(), Vec::new());
        for name in &names {
            guards.push(take(&locks, name).await);
            waiters.push(waiter(&others, name).await);
        }
        cluster.ask::<()>(1, &["FLUSHALL"]);
        assert_eq!(soon("the loss", guards[1].lost()).await, LostReason::NotHeld);
        let next = soon("the push", waiters.remove(1)).await.unwrap();
        assert!(next.fencing_token() > guards[1].fencing_token());
        for node in [0, 2] {
            guards[node].extend(LONG).await.unwrap();
            guards[node].check().unwrap();
        }
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        next.check().unwrap();
        waiters.iter().for_each(|waiter| waiter.abort());
    });
}

/// One server that goes away must not leave those asleep who wait for the keys of the others.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn who_waits_is_woken_although_another_server_goes() {
    run(async {
        let cluster = Cluster::start();
        let (holder, locks) = (cluster.manager(LONG).await, pushed(&cluster).await);
        let name = cluster.name_at(2, "waited for");
        let guard = take(&holder, &name).await;
        let waiter = waiter(&locks, &name).await;
        cluster.server(0).kill().unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        assert!(!waiter.is_finished());
        guard.release().await.unwrap();
        soon("the push", waiter).await.unwrap().release().await.unwrap();
    });
}
