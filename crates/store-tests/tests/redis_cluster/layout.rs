//! The whole suite, and where keys lie.

use std::time::Duration;

use leasehold::store::redis::RedisStore;
use leasehold::store::{Attempt, Claim, Grant, Store};
use leasehold::{ErrorKind, Key, OwnerToken, Result};
use store_tests::{Cluster, Monitor, redis, run, run_suite};

use crate::{LONG, take};

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

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_key_and_its_companion_lie_in_one_slot() {
    run(async {
        let cluster = Cluster::start();
        let store = cluster.store().await;
        let names = [
            "a",
            "a{b}c",
            "{}x",
            "a}b",
            "a{b",
            "}{",
            "{",
            "}",
            "a{}b{c}",
            "{{a}}",
            "{a}}",
            "x:fence{x}",
            "täglich ü",
            "{ü}",
        ];
        for name in names {
            let (key, owner, next) =
                (Key::new("", name).unwrap(), OwnerToken::mint().unwrap(), OwnerToken::mint().unwrap());
            let granted = store.acquire(&Claim::new(&key, &owner, LONG)).await.unwrap();
            assert!(matches!(granted, Attempt::Acquired(_)), "{name}: {granted:?}");
            let (slot, keeper) = (cluster.slot(name), cluster.keeper(0, name).unwrap());
            let mut keys: Vec<String> = cluster.ask(keeper, &["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "20"]);
            keys.retain(|key| key.starts_with(name));
            keys.sort_by_key(String::len);
            assert_eq!(keys.len(), 2, "{name}: {keys:?}");
            assert!(keys[0] == name && keys[1].starts_with(&format!("{name}:fence")), "{name}: {keys:?}");
            assert_eq!(cluster.slot(&keys[1]), slot, "{name}");

            assert!(store.extend(&[Claim::new(&key, &owner, LONG)]).await.unwrap()[0].as_ref().unwrap().is_some());
            assert!(store.transfer(&owner, &Claim::new(&key, &next, LONG)).await.unwrap().is_some());
            assert_eq!(store.inspect(&key).await.unwrap().holders[0].owner, next);
            assert!(store.release(&key, &next).await.unwrap());
        }
    });
}

/// Whether every claim was extended: a server that is half a second later than the others is not waited for.
fn is_answered(answers: Vec<Result<Option<Grant>>>) -> bool {
    answers.into_iter().all(|answer| match answer {
        Ok(extended) => {
            assert!(extended.is_some());
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
            false
        }
    })
}

/// Each server gets the extends of its own keys, each once, and nothing else.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_batch_goes_to_each_server_once() {
    run(async {
        let cluster = Cluster::start();
        let (store, owner) = (cluster.store().await, OwnerToken::mint().unwrap());
        let names = (0..3).map(|node| cluster.names_at(node, "batch", 10 * (node + 1)));
        let names: Vec<_> = names.collect();
        let keys: Vec<_> = names.iter().flatten().map(|name| Key::new("leasehold", name).unwrap()).collect();
        for key in &keys {
            store.acquire(&Claim::new(key, &owner, LONG)).await.unwrap();
        }
        let claims: Vec<_> = keys.iter().map(|key| Claim::new(key, &owner, LONG * 2)).collect();
        // Every server learns the script.
        while !is_answered(store.extend(&claims).await.unwrap()) {}
        let mut monitors: Vec<_> = (0..3).map(|node| Monitor::start(cluster.server(node).address())).collect();
        while !is_answered(store.extend(&claims).await.unwrap()) {
            // What the late one was asked is no part of the next batch.
            tokio::time::sleep(Duration::from_secs(1)).await;
            monitors.iter_mut().for_each(|monitor| drop(monitor.requests()));
        }
        for (monitor, names) in monitors.iter_mut().zip(&names) {
            let requests = monitor.requests();
            let extends = requests.iter().filter(|request| request.starts_with("\"EVALSHA\"")).count();
            assert_eq!((requests.len(), extends), (names.len(), names.len()), "{requests:?}");
        }
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn what_is_no_cluster_is_told_as_that() {
    run(async {
        let alone = redis().start().unwrap();
        let error = RedisStore::connect(&format!("redis+cluster://{}", alone.address())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("redis:"), "{error}");

        let cluster = Cluster::start();
        let locks = leasehold::LockManager::connect(&format!("redis://{}", cluster.server(0).address())).await.unwrap();
        let name = cluster.name_at(1, "elsewhere");
        let error = locks.lock(&name).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(error.to_string().contains("redis+cluster:"), "{error}");
    });
}

/// A cluster may be behind something that servers do not know the name of.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn servers_that_tell_no_name_are_where_the_others_are() {
    run(async {
        let cluster = Cluster::start();
        for node in 0..3 {
            cluster.ask::<()>(node, &["CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint"]);
        }
        let locks = cluster.manager(LONG).await;
        for node in 0..3 {
            take(&locks, &cluster.name_at(node, "unnamed")).await.release().await.unwrap();
        }
        let name = cluster.name_at(0, "moving");
        let guard = take(&locks, &name).await;
        cluster.move_slot(cluster.slot(&format!("leasehold:{name}")), 0, 1);
        guard.extend(LONG).await.unwrap();
        guard.release().await.unwrap();
    });
}
