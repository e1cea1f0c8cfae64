//! How the map of the slots is learned anew, and what that costs.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold::store::{Claim, Store};
use leasehold::{ErrorKind, Key, OwnerToken};
use store_tests::{Cluster, Monitor, ask, run};

use crate::{LONG, take, until};

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
        let mut rounds = Vec::new();
        // A server that a busy machine keeps for half a second is given up, with its connection: then it is to last longer,
        // or to be seen once more. What each map costs shows every time.
        for maps in [8, 24, 8, 8, 8, 8] {
            let before = present();
            let mut are_answered = true;
            for _ in 0..maps {
                are_answered &= locks.probe().await.is_ok();
                // Longer than a connection may be silent on which something was given up.
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            let after = present();
            if are_answered && before == after && before.iter().all(|listeners| listeners.len() == 1) {
                return;
            }
            rounds.push((are_answered, before, after));
        }
        panic!("{rounds:?}");
    });
}

/// Everybody who finds a server gone wants a new map, and one is enough for all.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn many_who_find_a_server_gone_ask_for_few_maps() {
    run(async {
        const REQUESTS: usize = 200;
        let cluster = Cluster::start();
        let locks = cluster.manager(LONG).await;
        let names = cluster.names_at(1, "gone", REQUESTS);
        for node in 0..3 {
            take(&locks, &cluster.name_at(node, "asked")).await.release().await.unwrap();
        }
        cluster.server(1).kill().unwrap();
        let mut monitor = Monitor::start(cluster.server(0).address());
        // The answer takes longer than all the requests.
        for node in [0, 2] {
            cluster.server(node).stop().unwrap();
        }
        let attempt = |name: String| {
            let lock = locks.lock(&name);
            tokio::spawn(async move { lock.try_acquire().await.map(drop) })
        };
        let tasks: Vec<_> = names.into_iter().map(attempt).collect();
        tokio::time::sleep(Duration::from_millis(400)).await;
        for node in [0, 2] {
            cluster.server(node).cont().unwrap();
        }
        for task in tasks {
            let error = task.await.unwrap().unwrap_err();
            assert!([ErrorKind::Unavailable, ErrorKind::Indeterminate].contains(&error.kind()), "{error:?}");
        }
        let maps = monitor.requests().iter().filter(|request| request.contains("\"SLOTS\"")).count();
        assert!((1..REQUESTS / 4).contains(&maps), "{maps} maps for {REQUESTS} requests");
    });
}

/// As one that joined just now, and has not heard of all the others yet.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_server_that_knows_of_fewer_slots_is_not_believed() {
    run(async {
        let cluster = Cluster::start();
        let locks = cluster.manager(LONG).await;
        let name = cluster.name_at(0, "unheard of");
        let slot = cluster.slot(&format!("leasehold:{name}")).to_string();
        let mut failed = Vec::new();
        for _ in 0..20 {
            for node in [1, 2] {
                // Until they hear of it again.
                ask::<()>(cluster.server(node), &["CLUSTER", "DELSLOTS", &slot]).ok();
            }
            let taken = match locks.probe().await {
                Ok(_) => locks.lock(&name).try_acquire().await,
                Err(error) => Err(error),
            };
            match taken {
                Ok(guard) => guard.expect("nobody else is there").release().await.unwrap(),
                // The one that knows was half a second later than the others, and was not heard.
                Err(error) if error.kind() == ErrorKind::Unavailable => failed.push(error),
                Err(error) => panic!("{error:?}"),
            }
        }
        // Whoever believes the first to answer believes another in two of three rounds.
        assert!(failed.len() <= 3, "{failed:?}");
    });
}

/// A slot that nobody keeps when the map is drawn: renewals alone find out who keeps it later.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_slot_that_was_on_no_map_is_looked_for() {
    run(async {
        let cluster = Cluster::start();
        let (store, owner) = (cluster.store().await, OwnerToken::mint().unwrap());
        let name = cluster.name_at(0, "missing");
        let key = Key::new("leasehold", &name).unwrap();
        store.acquire(&Claim::new(&key, &owner, LONG)).await.unwrap();
        let slot = cluster.slot(&format!("leasehold:{name}")).to_string();
        for node in 0..3 {
            cluster.ask::<()>(node, &["CLUSTER", "DELSLOTS", &slot]);
        }
        // Draws the map anew.
        store.probe().await.unwrap();
        let claims = [Claim::new(&key, &owner, LONG)];
        let error = store.extend(&claims).await.unwrap().remove(0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        cluster.ask::<()>(0, &["CLUSTER", "ADDSLOTS", &slot]);
        let extended = || async { store.extend(&claims).await.unwrap().remove(0).ok() };
        until("the slot's new keeper", extended).await.expect("it is held all the time");
    });
}
