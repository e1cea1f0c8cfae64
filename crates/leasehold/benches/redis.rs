//! Cycles per second against hand-written loops, hand-over, and fairness; needs `redis-server` on the path.
//!
//! `cargo bench -p leasehold --features redis --bench redis`

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods, missing_docs, reason = "a benchmark")]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::config::Config;
use leasehold::store::redis::RedisStore;
use leasehold::{LockManager, Renew};
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

const RAW_ACQUIRE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return {1, redis.call('INCR', KEYS[2])} else return {0, redis.call('PTTL', KEYS[1])} end";
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
    let server = Server::start();
    let url = server.1.as_str();
    println!("cycles/s, medians of {ROUNDS} turns, the loops in turn; in brackets the ratio to ref-fence");
    for tasks in [1, 16, 64] {
        let mut rates: [Vec<f64>; 5] = Default::default();
        for _ in 0..ROUNDS {
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
    for (what, selfish) in [("8 waiters", false), ("8 waiters, the releaser asks again at once", true)] {
        for (how, managers) in [("one process", 1), ("8 managers", 8)] {
            let (gaps, turns) = hand_over(url, managers, selfish).await;
            let (least, most) = (turns.iter().min().unwrap(), turns.iter().max().unwrap());
            println!(
                "{what}, {how}: gap median {:.3} ms, p99 {:.3} ms; most/least turns {most}/{least}",
                gaps[gaps.len() / 2],
                gaps[gaps.len() * 99 / 100]
            );
        }
    }
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

async fn connection(url: &str) -> MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

async fn turn<F: Future<Output = ()> + Send + 'static>(
    tasks: usize,
    cycle: impl Fn(usize) -> F + Send + Sync + 'static,
) -> f64 {
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

async fn raw(url: &str, tasks: usize, fenced: bool) -> f64 {
    let connection = connection(url).await;
    let (acquire, release) = (Arc::new(redis::Script::new(RAW_ACQUIRE)), Arc::new(redis::Script::new(RAW_RELEASE)));
    turn(tasks, move |task| {
        let mut connection = connection.clone();
        let (acquire, release) = (Arc::clone(&acquire), Arc::clone(&release));
        async move {
            let (key, fence) = (format!("raw:{task}"), format!("raw:{task}:fence"));
            let token = format!("{:032x}", fastrand::u128(..));
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

/// Gaps between release and the next grant in ms, sorted, and how many turns each waiter had.
async fn hand_over(url: &str, managers: usize, selfish: bool) -> (Vec<f64>, Vec<u64>) {
    let begin = Instant::now();
    let last = Arc::new(AtomicU64::new(0));
    let gaps = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut locks = Vec::new();
    for _ in 0..managers {
        locks.push(LockManager::builder(RedisStore::connect(url).await.unwrap()).renew(Renew::Off).build().unwrap());
    }
    let mut set = JoinSet::new();
    for waiter in 0..8 {
        let manager = locks[waiter % managers].clone();
        let (last, gaps) = (Arc::clone(&last), Arc::clone(&gaps));
        set.spawn(async move {
            let mut turns = 0;
            while begin.elapsed() < 4 * TURN {
                let guard = manager.lock("handed").acquire().await.unwrap();
                let now = begin.elapsed().as_nanos() as u64;
                let before = last.swap(0, Ordering::AcqRel);
                if before != 0 {
                    gaps.lock().push((now.saturating_sub(before)) as f64 / 1e6);
                }
                turns += 1;
                tokio::time::sleep(Duration::from_millis(2)).await;
                last.store(begin.elapsed().as_nanos() as u64, Ordering::Release);
                guard.release().await.unwrap();
                if !selfish {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            turns
        });
    }
    let turns = set.join_all().await;
    let mut gaps = std::mem::take(&mut *gaps.lock());
    gaps.sort_by(f64::total_cmp);
    (gaps, turns)
}
