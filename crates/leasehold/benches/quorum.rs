//! A quorum of three Redis servers, which it starts, against one raw node: cycles per second, and keys left behind;
//! `redis-server` on the path, or what `LEASEHOLD_BENCH_SERVER` names. Compare within one run only.
//!
//! `cargo bench -p leasehold --features redis --bench quorum`

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods, missing_docs, reason = "a benchmark")]

use std::sync::Arc;
use std::time::Duration;

use leasehold::store::quorum::Quorum;
use leasehold::store::redis::RedisStore;
use leasehold::store::{Attempt, Claim, Store};
use leasehold::{Key, LockManager, OwnerToken};
use redis::aio::MultiplexedConnection;

#[path = "fixtures/cycles.rs"]
mod cycles;
#[path = "fixtures/server.rs"]
mod server;

use self::cycles::{ROUNDS, median, turn};
use self::server::Server;

const RAW_RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let servers = [(); 3].map(|()| Server::start(include_str!("fixtures/redis.sh")));
    let urls = servers.each_ref().map(|server| format!("redis://127.0.0.1:{}/", server.port));
    println!("cycles/s, medians of {ROUNDS} turns, the loops in turn; in brackets the ratio to raw");
    for tasks in [1, 16, 64] {
        let mut rates: [Vec<f64>; 5] = Default::default();
        for _ in 0..ROUNDS {
            rates[0].push(raw(&urls[0], tasks).await);
            rates[1].push(raw_three(&urls, tasks).await);
            rates[2].push(stores(&urls, tasks).await);
            rates[3].push(store(&urls, tasks).await);
            rates[4].push(engine(&urls, tasks).await);
        }
        let rates = rates.map(median);
        let names = ["raw", "raw on three", "stores on three", "quorum", "engine"];
        let shown: Vec<_> =
            names.iter().zip(rates).map(|(name, rate)| format!("{name} {rate:.0} ({:.2})", rate / rates[0])).collect();
        println!("{tasks:3} tasks: {}", shown.join(", "));
    }
    println!("keys left behind: {}", left(&urls).await);
}

async fn connection(url: &str) -> MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

async fn raw_cycle(mut connection: MultiplexedConnection, release: Arc<redis::Script>, key: String, token: String) {
    let mut set = redis::cmd("SET");
    set.arg(&key).arg(&token).arg("NX").arg("PX").arg(30_000);
    let granted: bool = set.query_async(&mut connection).await.unwrap();
    assert!(granted);
    let released: u8 = release.key(&key).arg(&token).invoke_async(&mut connection).await.unwrap();
    assert_eq!(released, 1);
}

async fn raw(url: &str, tasks: usize) -> f64 {
    let (connection, release) = (connection(url).await, Arc::new(redis::Script::new(RAW_RELEASE)));
    turn(tasks, move |task| {
        let token = format!("{:032x}", fastrand::u128(..));
        raw_cycle(connection.clone(), Arc::clone(&release), format!("raw:{task}"), token)
    })
    .await
}

/// The same on three nodes at once, without any decision: what the machine has to give.
async fn raw_three(urls: &[String; 3], tasks: usize) -> f64 {
    let release = Arc::new(redis::Script::new(RAW_RELEASE));
    let [one, two, three] = urls;
    let connections = [connection(one).await, connection(two).await, connection(three).await];
    turn(tasks, move |task| {
        let token = format!("{:032x}", fastrand::u128(..));
        let [one, two, three] = connections
            .clone()
            .map(|connection| raw_cycle(connection, Arc::clone(&release), format!("raw:{task}"), token.clone()));
        async move {
            tokio::join!(one, two, three);
        }
    })
    .await
}

async fn quorum(urls: &[String]) -> Quorum {
    let mut stores = Vec::new();
    for url in urls {
        stores.push(RedisStore::connect(url).await.unwrap());
    }
    let quorum = Quorum::builder(stores).restart_guard(false).node_timeout(Duration::from_secs(1));
    quorum.build().unwrap()
}

async fn store(urls: &[String], tasks: usize) -> f64 {
    let store = quorum(urls).await;
    let asked = store.clone();
    let rate = turn(tasks, move |task| {
        let store = asked.clone();
        async move {
            let key = Key::new("quorum", &task.to_string()).unwrap();
            let owner = OwnerToken::mint().unwrap();
            let attempt = store.acquire(&Claim::new(&key, &owner, Duration::from_secs(30))).await.unwrap();
            assert!(matches!(attempt, Attempt::Acquired(_)));
            assert!(store.release(&key, &owner).await.unwrap());
        }
    })
    .await;
    store.close().await.unwrap();
    rate
}

/// Three stores at once, without any decision: what the quorum adds to is this.
async fn stores(urls: &[String; 3], tasks: usize) -> f64 {
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for url in urls {
        stores.push(Arc::new(RedisStore::connect(url).await.unwrap()));
    }
    turn(tasks, move |task| {
        let stores = stores.clone();
        async move {
            let key = Key::new("stores", &task.to_string()).unwrap();
            let owner = OwnerToken::mint().unwrap();
            let cycle = async |store: &Arc<dyn Store>| {
                store.acquire(&Claim::new(&key, &owner, Duration::from_secs(30))).await.unwrap();
                assert!(store.release(&key, &owner).await.unwrap());
            };
            tokio::join!(cycle(&stores[0]), cycle(&stores[1]), cycle(&stores[2]));
        }
    })
    .await
}

async fn engine(urls: &[String], tasks: usize) -> f64 {
    let manager = LockManager::new(quorum(urls).await);
    let asked = manager.clone();
    let rate = turn(tasks, move |task| {
        let manager = asked.clone();
        async move {
            let guard = manager.lock(&task.to_string()).try_acquire().await.unwrap().unwrap();
            guard.release().await.unwrap();
        }
    })
    .await;
    manager.close(leasehold::Close::Release).await.unwrap();
    rate
}

/// Keys that hold a lease, on all nodes.
async fn left(urls: &[String]) -> usize {
    let mut left = 0;
    for url in urls {
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection(url).await).await.unwrap();
        left += keys.iter().filter(|key| !key.contains(":fence")).count();
    }
    left
}
