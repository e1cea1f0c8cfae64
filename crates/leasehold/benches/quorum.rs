//! A quorum of three Redis servers against one raw node: cycles per second, and keys left behind; needs `redis-server`
//! on the path.
//!
//! `cargo bench -p leasehold --features redis --bench quorum`

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods, missing_docs, reason = "a benchmark")]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::store::quorum::Quorum;
use leasehold::store::redis::RedisStore;
use leasehold::store::{Attempt, Claim, Store};
use leasehold::{Key, LockManager, OwnerToken};
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

const RAW_RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";
const TURN: Duration = Duration::from_millis(1500);
const ROUNDS: usize = 5;

struct Server(Child, String);

impl Server {
    fn start() -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let binary = std::env::var("LEASEHOLD_BENCH_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let child = Command::new(binary)
            .args(["--port", &port.to_string(), "--save", "", "--bind", "127.0.0.1"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        Self(child, format!("redis://127.0.0.1:{port}/"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let servers = [Server::start(), Server::start(), Server::start()];
    println!("cycles/s, medians of {ROUNDS} turns, the loops in turn; in brackets the ratio to raw");
    for tasks in [1, 16, 64] {
        let mut rates: [Vec<f64>; 5] = Default::default();
        for _ in 0..ROUNDS {
            rates[0].push(raw(&servers[0].1, tasks).await);
            rates[1].push(raw_three(&servers, tasks).await);
            rates[2].push(stores(&servers, tasks).await);
            rates[3].push(store(&servers, tasks).await);
            rates[4].push(engine(&servers, tasks).await);
        }
        let rates = rates.map(median);
        let names = ["raw", "raw on three", "stores on three", "quorum", "engine"];
        let shown: Vec<_> =
            names.iter().zip(rates).map(|(name, rate)| format!("{name} {rate:.0} ({:.2})", rate / rates[0])).collect();
        println!("{tasks:3} tasks: {}", shown.join(", "));
    }
    println!("keys left behind: {}", left(&servers).await);
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

async fn connection(url: &str) -> MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

async fn turn<F>(tasks: usize, cycle: impl Fn(usize) -> F + Send + Sync + 'static) -> f64
where
    F: Future<Output = ()> + Send + 'static,
{
    let cycle = Arc::new(cycle);
    let count = Arc::new(AtomicU64::new(0));
    let mut set = JoinSet::new();
    let begin = Instant::now();
    for task in 0..tasks {
        let (cycle, count) = (Arc::clone(&cycle), Arc::clone(&count));
        set.spawn(async move {
            while begin.elapsed() < TURN {
                cycle(task).await;
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    set.join_all().await;
    count.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64()
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
async fn raw_three(servers: &[Server; 3], tasks: usize) -> f64 {
    let release = Arc::new(redis::Script::new(RAW_RELEASE));
    let [one, two, three] = servers;
    let connections = [connection(&one.1).await, connection(&two.1).await, connection(&three.1).await];
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

async fn quorum(servers: &[Server]) -> Quorum {
    let mut stores = Vec::new();
    for server in servers {
        stores.push(RedisStore::connect(&server.1).await.unwrap());
    }
    let quorum = Quorum::builder(stores).restart_guard(false).node_timeout(Duration::from_secs(1));
    quorum.build().unwrap()
}

async fn store(servers: &[Server], tasks: usize) -> f64 {
    let store = quorum(servers).await;
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
async fn stores(servers: &[Server; 3], tasks: usize) -> f64 {
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for server in servers {
        stores.push(Arc::new(RedisStore::connect(&server.1).await.unwrap()));
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

async fn engine(servers: &[Server], tasks: usize) -> f64 {
    let manager = LockManager::new(quorum(servers).await);
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
async fn left(servers: &[Server]) -> usize {
    let mut left = 0;
    for server in servers {
        let keys: Vec<String> =
            redis::cmd("KEYS").arg("*").query_async(&mut connection(&server.1).await).await.unwrap();
        left += keys.iter().filter(|key| !key.contains(":fence")).count();
    }
    left
}
