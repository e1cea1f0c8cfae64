//! Cycles per second, hand-over and fairness against hand-written loops, on a server that it starts: `redis-server` on
//! the path, or what `LEASEHOLD_BENCH_SERVER` names. Compare within one run only.
//!
//! `cargo bench -p leasehold --features redis --bench redis`, of which `-- cycles` and `-- hand-over` are parts

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods, missing_docs, reason = "a benchmark")]

use std::sync::Arc;
use std::time::Duration;

use leasehold::config::Config;
use leasehold::store::redis::RedisStore;
use leasehold::{LockManager, Renew};
use redis::aio::MultiplexedConnection;

#[path = "fixtures/cycles.rs"]
mod cycles;
#[path = "fixtures/hand_over.rs"]
mod hand_over;
#[path = "fixtures/server.rs"]
mod server;
#[path = "redis/waiters.rs"]
mod waiters;

use self::cycles::{median, turn};
use self::hand_over::Loop;
use self::server::Server;
use self::waiters::{Polling, Popped, Queue};

const RAW_ACQUIRE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return {1, redis.call('INCR', KEYS[2])} else return {0, redis.call('PTTL', KEYS[1])} end";
const RAW_RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let server = Server::start(include_str!("fixtures/redis.sh"));
    let url = format!("redis://127.0.0.1:{}/", server.port);
    if hand_over::is_asked("cycles") {
        compare_cycles(&url).await;
    }
    if hand_over::is_asked("hand-over") {
        for at_once in [false, true] {
            compare_hand_over(&url, at_once).await;
        }
    }
}

async fn compare_cycles(url: &str) {
    let rounds = cycles::ROUNDS;
    println!("cycles/s, medians of {rounds} turns, the loops in turn; in brackets the ratio to ref-fence");
    for tasks in [1, 16, 64] {
        let mut rates: [Vec<f64>; 5] = Default::default();
        for _ in 0..rounds {
            rates[0].push(raw(url, tasks, false).await);
            rates[1].push(raw(url, tasks, true).await);
            rates[2].push(bare_store(url, tasks).await);
            rates[3].push(engine(url, tasks, false).await);
            rates[4].push(engine(url, tasks, true).await);
        }
        let rates = rates.map(median);
        let name = ["raw", "ref-fence", "store", "engine", "on a thread of its own"];
        let shown: Vec<_> =
            name.iter().zip(rates).map(|(name, rate)| format!("{name} {rate:.0} ({:.2})", rate / rates[1])).collect();
        println!("{tasks:3} tasks: {}", shown.join(", "));
    }
}

async fn compare_hand_over(url: &str, at_once: bool) {
    let manager =
        async || LockManager::builder(RedisStore::connect(url).await.unwrap()).renew(Renew::Off).build().unwrap();
    let one = manager().await;
    let mut one = Loop::new("one process", async || one.clone()).await;
    let mut eight = Loop::new("8 managers", manager).await;
    let mut polling = Loop::new("SET NX polled each 100 ms", async || Polling::connect(url).await).await;
    let mut queue = Loop::new("list and PUBLISH", async || Queue::connect(url).await).await;
    let mut popped = Loop::new("BLPOP and RPUSH", async || Popped::connect(url).await).await;
    for _ in 0..hand_over::ROUNDS {
        one.turn(at_once).await;
        eight.turn(at_once).await;
        polling.turn(at_once).await;
        queue.turn(at_once).await;
        popped.turn(at_once).await;
    }
    hand_over::head("redis", at_once);
    let ours = [one.tell(&[]), eight.tell(&[])];
    polling.tell(&ours);
    queue.tell(&ours);
    popped.tell(&ours);
}

async fn connection(url: &str) -> MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

fn token() -> String {
    format!("{:032x}", fastrand::u128(..))
}

async fn raw(url: &str, tasks: usize, fenced: bool) -> f64 {
    let connection = connection(url).await;
    let (acquire, release) = (Arc::new(redis::Script::new(RAW_ACQUIRE)), Arc::new(redis::Script::new(RAW_RELEASE)));
    turn(tasks, move |task| {
        let mut connection = connection.clone();
        let (acquire, release) = (Arc::clone(&acquire), Arc::clone(&release));
        async move {
            let (key, fence) = (format!("raw:{task}"), format!("raw:{task}:fence"));
            let token = token();
            if fenced {
                let granted: (u8, u64) =
                    acquire.key(&key).key(fence).arg(&token).arg(30_000).invoke_async(&mut connection).await.unwrap();
                assert_eq!(granted.0, 1);
            } else {
                let mut set = redis::cmd("SET");
                set.arg(&key).arg(&token).arg("NX").arg("PX").arg(30_000);
                let granted: bool = set.query_async(&mut connection).await.unwrap();
                assert!(granted);
            }
            let released: u8 = release.key(&key).arg(&token).invoke_async(&mut connection).await.unwrap();
            assert_eq!(released, 1);
        }
    })
    .await
}

async fn bare_store(url: &str, tasks: usize) -> f64 {
    use leasehold::store::{Claim, Store};
    let store: Arc<dyn Store> = Arc::new(RedisStore::connect(url).await.unwrap());
    let rate = turn(tasks, {
        let store = Arc::clone(&store);
        move |task| {
            let store = Arc::clone(&store);
            async move {
                let key = leasehold::Key::new("bare", &task.to_string()).unwrap();
                let owner = leasehold::OwnerToken::mint().unwrap();
                store.acquire(&Claim::new(&key, &owner, Duration::from_secs(30))).await.unwrap();
                assert!(store.release(&key, &owner).await.unwrap());
            }
        }
    })
    .await;
    store.close().await.unwrap();
    rate
}

async fn engine(url: &str, tasks: usize, own_runtime: bool) -> f64 {
    let manager = Config::from_url(url).own_runtime(own_runtime).connect().await.unwrap();
    turn(tasks, move |task| {
        let manager = manager.clone();
        async move {
            let guard = manager.lock(&task.to_string()).try_acquire().await.unwrap().unwrap();
            guard.release().await.unwrap();
        }
    })
    .await
}
