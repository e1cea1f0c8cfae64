//! Cycles per second against hand-written loops, and hand-over, on a server that is named and lets in 200 connections.
//!
//! `LEASEHOLD_BENCH_URL=postgres://.. cargo bench -p leasehold --features postgres --bench postgres`

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods, missing_docs, reason = "a benchmark")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::store::postgres::{PostgresAdvisoryStore, PostgresStore, PostgresTransactionStore};
use leasehold::{LockManager, Renew};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

const TURN: Duration = Duration::from_millis(1500);
const ROUNDS: usize = 5;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS raw_leases \
    (key text PRIMARY KEY, owner text NOT NULL, fence bigint NOT NULL, expires timestamptz NOT NULL)";
const ACQUIRE: &str = "INSERT INTO raw_leases AS l VALUES ($1, $2, 1, clock_timestamp() + interval '30 s') \
    ON CONFLICT (key) DO UPDATE SET owner = $2, fence = l.fence + 1, expires = clock_timestamp() + interval '30 s' \
    WHERE l.owner = '' OR l.expires <= clock_timestamp() RETURNING fence";
const RELEASE: &str = "UPDATE raw_leases SET owner = '' WHERE key = $1 AND owner = $2";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let Ok(url) = std::env::var("LEASEHOLD_BENCH_URL") else {
        println!("LEASEHOLD_BENCH_URL names no server");
        return;
    };
    println!(
        "cycles/s, medians of {ROUNDS} turns, the loops in turn; in brackets the ratio to the hand-written one before"
    );
    for tasks in [1, 16, 64] {
        let mut rates: [Vec<f64>; 6] = Default::default();
        for _ in 0..ROUNDS {
            rates[0].push(advisory(&url, tasks).await);
            rates[1].push(raw(&url, tasks).await);
            rates[2].push(engine(LockManager::new(PostgresStore::connect(&url).await.unwrap()), tasks).await);
            rates[3].push(engine(LockManager::new(PostgresAdvisoryStore::connect(&url).await.unwrap()), tasks).await);
            rates[4].push(transactions(&url, tasks).await);
            let transactions = PostgresTransactionStore::connect(&url).await.unwrap().limited_to(tasks);
            rates[5].push(engine(LockManager::new(transactions), tasks).await);
        }
        let rates = rates.map(median);
        let [try_lock, raw, table, advisory, transactions, xact] = rates;
        println!(
            "{tasks:3} tasks: hand-written {raw:.0}, table {table:.0} ({:.2}); try-lock {try_lock:.0}, advisory {advisory:.0} ({:.2}); \
             transactions {transactions:.0}, xact {xact:.0} ({:.2})",
            table / raw,
            advisory / try_lock,
            xact / transactions
        );
    }
    for (how, managers) in [("one process", 1), ("8 managers", 8)] {
        for mode in ["table", "advisory", "xact"] {
            let gaps = hand_over(&url, mode, managers).await;
            let (median, late) = (gaps[gaps.len() / 2], gaps[gaps.len() * 99 / 100]);
            println!("{mode}, 8 waiters, {how}: gap median {median:.3} ms, p99 {late:.3} ms");
        }
    }
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

async fn client(url: &str) -> Arc<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    Arc::new(client)
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

async fn advisory(url: &str, tasks: usize) -> f64 {
    let client = client(url).await;
    let lock = client.prepare("SELECT pg_try_advisory_lock($1)").await.unwrap();
    let unlock = client.prepare("SELECT pg_advisory_unlock($1)").await.unwrap();
    turn(tasks, move |task| {
        let (client, lock, unlock) = (Arc::clone(&client), lock.clone(), unlock.clone());
        async move {
            let key = task as i64;
            assert!(client.query_one(&lock, &[&key]).await.unwrap().get::<_, bool>(0));
            assert!(client.query_one(&unlock, &[&key]).await.unwrap().get::<_, bool>(0));
        }
    })
    .await
}

async fn raw(url: &str, tasks: usize) -> f64 {
    let client = client(url).await;
    client.batch_execute(TABLE).await.unwrap();
    let (acquire, release) = (client.prepare(ACQUIRE).await.unwrap(), client.prepare(RELEASE).await.unwrap());
    turn(tasks, move |task| {
        let (client, acquire, release) = (Arc::clone(&client), acquire.clone(), release.clone());
        async move {
            let (key, token) = (format!("raw:{task}"), format!("{:032x}", fastrand::u128(..)));
            client.query_one(&acquire, &[&key, &token]).await.unwrap();
            assert_eq!(client.execute(&release, &[&key, &token]).await.unwrap(), 1);
        }
    })
    .await
}

/// A transaction for each lock, on a connection for each task.
async fn transactions(url: &str, tasks: usize) -> f64 {
    let mut clients = Vec::new();
    for _ in 0..tasks {
        let client = client(url).await;
        let lock = client.prepare("SELECT pg_try_advisory_xact_lock($1)").await.unwrap();
        clients.push((client, lock));
    }
    turn(tasks, move |task| {
        let (client, lock) = clients[task].clone();
        async move {
            client.batch_execute("BEGIN").await.unwrap();
            assert!(client.query_one(&lock, &[&(task as i64)]).await.unwrap().get::<_, bool>(0));
            client.batch_execute("COMMIT").await.unwrap();
        }
    })
    .await
}

async fn engine(manager: LockManager, tasks: usize) -> f64 {
    turn(tasks, move |task| {
        let manager = manager.clone();
        async move {
            let guard = manager.lock(&task.to_string()).try_acquire().await.unwrap().unwrap();
            guard.release().await.unwrap();
        }
    })
    .await
}

/// Gaps between release and the next grant in ms, sorted.
async fn hand_over(url: &str, mode: &str, managers: usize) -> Vec<f64> {
    let begin = Instant::now();
    let last = Arc::new(AtomicU64::new(0));
    let gaps = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut locks = Vec::new();
    for _ in 0..managers {
        let builder = leasehold::config::open(&format!("{url}?mode={mode}")).await.unwrap();
        locks.push(builder.renew(Renew::Off).build().unwrap());
    }
    let mut set = JoinSet::new();
    for waiter in 0..8 {
        let manager = locks[waiter % managers].clone();
        let (last, gaps) = (Arc::clone(&last), Arc::clone(&gaps));
        set.spawn(async move {
            while begin.elapsed() < 4 * TURN {
                let guard = manager.lock("handed").acquire().await.unwrap();
                let now = begin.elapsed().as_nanos() as u64;
                let before = last.swap(0, Ordering::AcqRel);
                if before != 0 {
                    gaps.lock().push((now.saturating_sub(before)) as f64 / 1e6);
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
                last.store(begin.elapsed().as_nanos() as u64, Ordering::Release);
                guard.release().await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }
    set.join_all().await;
    let mut gaps = std::mem::take(&mut *gaps.lock());
    gaps.sort_by(f64::total_cmp);
    gaps
}
