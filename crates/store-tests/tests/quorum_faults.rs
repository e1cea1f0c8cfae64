//! Quorums of Redis servers some of which are dead, stopped, slow, wiped, restarted, or wrong about the time.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use leasehold::store::Store;
use leasehold::store::quorum::Quorum;
use leasehold::store::redis::RedisStore;
use leasehold::testkit::{History, Record, Server};
use leasehold::{Clock, ErrorKind, Key, LockGuard, LockManager, Renew};
use store_tests::{answers_ping, redis, run};
use tempfile::TempDir;

const TTL: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// Five times and more of what anything here needs on a busy machine.
const SOON: Duration = Duration::from_secs(30);

struct Nodes(Vec<Server>);

impl Nodes {
    fn start(count: usize) -> Self {
        Self((0..count).map(|_| redis().start().unwrap()).collect())
    }

    fn url(&self) -> String {
        let hosts: Vec<_> = self.0.iter().map(|server| server.address().to_string()).collect();
        format!("redlock://{}", hosts.join(","))
    }

    /// A quorum that trusts its nodes to have forgotten nothing, as another process would have it.
    async fn quorum(&self) -> Quorum {
        let mut stores = Vec::new();
        for server in &self.0 {
            stores.push(RedisStore::connect(&format!("redis://{}", server.address())).await.unwrap());
        }
        let names = ["oak", "ash", "elm", "fir", "yew"];
        Quorum::builder(stores)
            .names(names.into_iter().take(self.0.len()))
            .restart_guard(false)
            .node_timeout(SECOND * 3)
            .build()
            .unwrap()
    }

    async fn manager(&self) -> LockManager {
        LockManager::builder(self.quorum().await).ttl(TTL).build().unwrap()
    }

    /// The keys that each node has, without companions.
    fn held(&self) -> Vec<Vec<String>> {
        let held = |server: &Server| {
            let client = ::redis::Client::open(format!("redis://{}", server.address())).unwrap();
            let keys: Vec<String> = ::redis::cmd("KEYS").arg("*").query(&mut client.get_connection().unwrap()).unwrap();
            keys.into_iter().filter(|key| !key.contains(":fence")).collect()
        };
        self.0.iter().map(held).collect()
    }

    /// Waits until every node has a key: a majority was enough to be granted a lease, and the rest may come later.
    async fn wait_until_all_hold(&self) {
        tokio::time::timeout(SOON, async {
            while self.held().iter().any(Vec::is_empty) {
                tokio::time::sleep(SECOND / 100).await;
            }
        })
        .await
        .expect("every node gets its lease");
    }

    /// Waits until no node has a key: far less than a ttl.
    async fn check_nothing_left(&self) {
        self.check_nothing_left_within(SECOND * 25).await;
    }

    async fn check_nothing_left_within(&self, limit: Duration) {
        // What is late comes first.
        tokio::time::sleep(SECOND * 2).await;
        let emptied = async {
            while !self.held().iter().all(Vec::is_empty) {
                tokio::time::sleep(SECOND / 10).await;
            }
        };
        let ended = tokio::time::timeout(limit - SECOND * 2, emptied).await;
        ended.unwrap_or_else(|_| panic!("left behind: {:?}", self.held()));
    }
}

/// Grants go on, and nothing is left on any node when all answer again.
async fn grants_go_on(nodes: &Nodes, trouble: impl Fn(&Nodes), heal: impl Fn(&Nodes)) {
    let (one, other) = (nodes.manager().await, nodes.manager().await);
    for round in 0..10 {
        let guard = one.lock("shared").acquire_within(SOON).await.unwrap().unwrap();
        if round == 0 {
            // So that one of them makes no difference.
            nodes.wait_until_all_hold().await;
            trouble(nodes);
        }
        assert!(other.lock("shared").try_acquire().await.unwrap().is_none(), "two hold");
        guard.extend(TTL).await.unwrap();
        guard.release().await.unwrap();
        let guard = other.lock("shared").acquire_within(SOON).await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
    heal(nodes);
    nodes.check_nothing_left().await;
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_dead_node_is_no_hindrance() {
    run(async {
        let (three, five) = (Nodes::start(3), Nodes::start(5));
        let kill = |nodes: &Nodes| nodes.0[0].kill().unwrap();
        grants_go_on(&three, kill, |nodes| nodes.0[0].restart().unwrap()).await;
        let kill = |nodes: &Nodes| nodes.0[1..3].iter().for_each(|server| server.kill().unwrap());
        grants_go_on(&five, kill, |nodes| nodes.0[1..3].iter().for_each(|server| server.restart().unwrap())).await;
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_stopped_node_is_no_hindrance_and_is_clean_when_it_goes_on() {
    run(async {
        let nodes = Nodes::start(3);
        grants_go_on(&nodes, |nodes| nodes.0[1].stop().unwrap(), |nodes| nodes.0[1].cont().unwrap()).await;
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_node_that_was_stopped_for_long_is_clean_when_it_goes_on() {
    run(async {
        let nodes = Nodes::start(3);
        let pause = |nodes: &Nodes| {
            std::thread::sleep(SECOND * 4);
            nodes.0[1].cont().unwrap();
        };
        grants_go_on(&nodes, |nodes| nodes.0[1].stop().unwrap(), pause).await;
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_wiped_node_is_no_hindrance() {
    run(async {
        let nodes = Nodes::start(3);
        let wipe = |nodes: &Nodes| {
            let client = ::redis::Client::open(format!("redis://{}", nodes.0[2].address())).unwrap();
            ::redis::cmd("FLUSHALL").exec(&mut client.get_connection().unwrap()).unwrap();
        };
        grants_go_on(&nodes, wipe, |_| ()).await;
        // One after the other, with a renewal between, the lease stands.
        let manager = nodes.manager().await;
        let guard = manager.lock("kept").acquire_within(SOON).await.unwrap().unwrap();
        nodes.wait_until_all_hold().await;
        for round in 0..6 {
            let client = ::redis::Client::open(format!("redis://{}", nodes.0[round % 3].address())).unwrap();
            ::redis::cmd("FLUSHALL").exec(&mut client.get_connection().unwrap()).unwrap();
            guard.extend(TTL).await.unwrap();
            nodes.wait_until_all_hold().await;
            guard.check().unwrap();
        }
        guard.release().await.unwrap();
        nodes.check_nothing_left().await;
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn with_two_of_three_dead_it_refuses_at_once_and_names_them() {
    run(async {
        let nodes = Nodes::start(3);
        let (quorum, manager) = (nodes.quorum().await, nodes.manager().await);
        nodes.0[0].kill().unwrap();
        nodes.0[2].kill().unwrap();
        // What they were sent as they died may have been applied, for all that one knows.
        let error = tokio::time::timeout(SOON, manager.lock("refused").acquire()).await.unwrap().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Indeterminate | ErrorKind::Unavailable), "{error}");
        for _ in 0..3 {
            let error = tokio::time::timeout(SOON, manager.lock("refused").acquire()).await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "surely nothing remains: {error}");
            let said = error.to_string();
            assert!(said.contains("oak: unavailable") && said.contains("ash: granted"), "{said}");
            assert!(said.contains("elm: unavailable"), "{said}");
        }
        let key = Key::new("leasehold", "refused").unwrap();
        assert_eq!(quorum.inspect(&key).await.unwrap_err().kind(), ErrorKind::Unavailable);
        nodes.0[0].restart().unwrap();
        nodes.0[2].restart().unwrap();
        nodes.check_nothing_left().await;
        let guard = manager.lock("refused").acquire_within(SOON).await.unwrap().unwrap();
        guard.release().await.unwrap();
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn three_clients_on_five_nodes_make_progress_and_never_overlap() {
    run(async {
        let nodes = Nodes::start(5);
        let (history, clock) = (Arc::new(History::new()), Clock::system());
        let mut clients = Vec::new();
        for client in 0..3_u64 {
            let (manager, history, clock) = (nodes.manager().await, Arc::clone(&history), clock.clone());
            clients.push(tokio::spawn(async move {
                for round in 0..50 {
                    let guard = manager.lock("shared").acquire_within(SOON * 2).await.unwrap();
                    let guard = guard.expect("no progress within a minute");
                    let from = clock.now();
                    tokio::time::sleep(SECOND / 1000).await;
                    guard.check().unwrap();
                    let key = Key::new("leasehold", "shared").unwrap();
                    history.record(Record::new(key, client * 1000 + round, from, clock.now()));
                    guard.release().await.unwrap();
                }
            }));
        }
        for client in clients {
            client.await.unwrap();
        }
        assert_eq!(history.check(), vec![]);
        assert_eq!(history.len(), 150);
        nodes.check_nothing_left().await;
    });
}

/// What the guard is for: two owners of one key at one time, and how the second is refused.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_node_that_restarts_empty_helps_a_second_owner_only_without_the_guard() {
    run(async {
        let nodes = Nodes::start(3);
        let url = format!("{}?max_ttl=30s&ttl=30s&node_timeout=3s", nodes.url());
        // Fresh servers do not vote yet.
        let error = leasehold::config::open(&url).await.unwrap().build().unwrap();
        let error = error.lock("early").try_acquire().await.unwrap_err();
        assert!(error.to_string().contains("it was started less than 30s ago"), "{error}");
        tokio::time::sleep(SECOND * 32).await;
        let holder = leasehold::config::open(&url).await.unwrap().build().unwrap();
        let guarded = leasehold::config::open(&url).await.unwrap().build().unwrap();
        let unguarded = nodes.manager().await;
        for manager in [&guarded, &unguarded] {
            manager.lock("before").acquire_within(SOON).await.unwrap().unwrap().release().await.unwrap();
        }

        nodes.0[2].kill().unwrap();
        let lock = holder.lock("shared").renew(Renew::Off);
        let guard = lock.acquire_within(SOON).await.unwrap().unwrap();
        nodes.0[2].restart().unwrap();
        nodes.0[1].restart().unwrap();
        is_refused_by_the_guard(&guarded).await;
        let second = unguarded_grant(&unguarded).await;
        guard.check().expect("the first owner believes in its lease as well");
        drop((guard, second));
        // What nobody could take back ends with its ttl.
        nodes.check_nothing_left_within(SECOND * 42).await;
    });
}

/// A node that was started just now may be late to say so; but a grant there is none.
async fn is_refused_by_the_guard(guarded: &LockManager) {
    let mut said = String::new();
    for _ in 0..20 {
        match guarded.lock("shared").try_acquire().await {
            Ok(None) => return,
            Ok(Some(_)) => panic!("two owners in spite of the guard"),
            Err(error) => said = error.to_string(),
        }
        if said.matches("it was started less than").count() == 2 {
            return;
        }
        tokio::time::sleep(SECOND / 10).await;
    }
    panic!("the nodes that were restarted do not say so: {said}");
}

/// The documented violation. What others left on the nodes may have to be taken back first.
async fn unguarded_grant(unguarded: &LockManager) -> LockGuard {
    let mut told = None;
    for _ in 0..20 {
        match unguarded.lock("shared").try_acquire().await {
            Ok(Some(guard)) => return guard,
            other => told = Some(other.map(|_| "contended")),
        }
        tokio::time::sleep(SECOND / 10).await;
    }
    panic!("the documented violation did not occur: {told:?}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_node_whose_clock_steps_is_no_hindrance() {
    run(async {
        let mut nodes = Nodes::start(2);
        let (server, directory) = clocked();
        nodes.0.push(server);
        let step = |seconds: i64| {
            let clock = fs::File::options().write(true).open(directory.path().join("clock")).unwrap();
            clock.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
        };
        for seconds in [3600, -3600] {
            grants_go_on(&nodes, |_| step(seconds), |_| step(0)).await;
            // A lease that ended there early stands on the others, and is brought back.
            let (manager, other) = (nodes.manager().await, nodes.manager().await);
            let guard = manager.lock("kept").acquire_within(SOON).await.unwrap().unwrap();
            nodes.wait_until_all_hold().await;
            step(seconds);
            assert!(other.lock("kept").try_acquire().await.unwrap().is_none());
            guard.extend(TTL).await.unwrap();
            guard.release().await.unwrap();
            nodes.check_nothing_left().await;
            step(0);
        }
    });
}

/// A server whose wall clock obeys.
fn clocked() -> (Server, TempDir) {
    let directory = TempDir::new().unwrap();
    let (source, library) = (directory.path().join("clock.c"), directory.path().join("clock.so"));
    fs::write(&source, include_str!("redis_faults/clock.c")).unwrap();
    let compile = ["-shared", "-fPIC", "-O1", "-o"];
    assert!(Command::new("cc").args(compile).args([&library, &source]).status().unwrap().success());
    let clock = directory.path().join("clock");
    fs::write(&clock, 0_i64.to_ne_bytes()).unwrap();
    let program = Server::find("redis-server").unwrap();
    let arguments = [
        format!("LD_PRELOAD={}", library.display()),
        format!("TEST_CLOCK={}", clock.display()),
        program.display().to_string(),
    ];
    let options = ["--bind", "127.0.0.1", "--port", "{port}", "--dir", "{dir}", "--save", ""];
    let server = Server::builder("/usr/bin/env").args(arguments).args(options).ready(answers_ping);
    (server.start().unwrap(), directory)
}
