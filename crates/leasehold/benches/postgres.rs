//! Cycles per second, hand-over and fairness against hand-written loops, on a server that it starts, or on the one that
//! `LEASEHOLD_BENCH_URL` names (`postgres://..`), which has to let in 200 connections. Compare within one run only.
//!
//! Its own server does not wait for the disk; with `LEASEHOLD_BENCH_FSYNC=on` it does.
//!
//! `cargo bench -p leasehold --features postgres --bench postgres`, of which `-- cycles` and `-- hand-over` are parts

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods, missing_docs, reason = "a benchmark")]

use std::sync::Arc;

use leasehold::store::postgres::{PostgresAdvisoryStore, PostgresStore, PostgresTransactionStore};
use leasehold::{LockManager, Renew};
use tokio_postgres::{Client, NoTls};

#[path = "fixtures/cycles.rs"]
mod cycles;
#[path = "fixtures/hand_over.rs"]
mod hand_over;
#[path = "fixtures/server.rs"]
mod server;
#[path = "postgres/waiters.rs"]
mod waiters;

use self::cycles::{median, turn};
use self::hand_over::{Loop, Waiter};
use self::server::Server;
use self::waiters::{Row, Session, Transaction};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS raw_leases \
    (key text PRIMARY KEY, owner text NOT NULL, fence bigint NOT NULL, expires timestamptz NOT NULL)";
const ACQUIRE: &str = "INSERT INTO raw_leases AS l VALUES ($1, $2, 1, clock_timestamp() + interval '30 s') \
    ON CONFLICT (key) DO UPDATE SET owner = $2, fence = l.fence + 1, expires = clock_timestamp() + interval '30 s' \
    WHERE l.owner = '' OR l.expires <= clock_timestamp() RETURNING fence";
const RELEASE: &str = "UPDATE raw_leases SET owner = '' WHERE key = $1 AND owner = $2";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let named = std::env::var("LEASEHOLD_BENCH_URL").ok();
    let own = named.is_none().then(|| Server::start(include_str!("fixtures/postgres.sh")));
    let at = |own: &Server| format!("postgres://postgres@127.0.0.1:{}/postgres", own.port);
    let url = named.or(own.as_ref().map(at)).unwrap();
    // It listens before it lets anybody in.
    while own.is_some() && tokio_postgres::connect(&url, NoTls).await.is_err() {
        tokio::time::sleep(hand_over::POLL).await;
    }
    let fsync = client(&url).await.query_one("SHOW fsync", &[]).await.unwrap().get::<_, String>(0);
    println!("fsync is {fsync}");
    if hand_over::is_asked("cycles") {
        compare_cycles(&url).await;
    }
    if hand_over::is_asked("hand-over") {
        for at_once in [false, true] {
            let polled = Loop::new("rows polled each 100 ms", async || Row::polling(&url).await).await;
            let notified = Loop::new("rows and LISTEN", async || Row::notified(&url).await).await;
            compare_hand_over(&url, "table", at_once, vec![polled, notified]).await;
            let polled = Loop::new("try-lock polled each 100 ms", async || Session::connect(&url, true).await).await;
            let blocked = Loop::new("pg_advisory_lock", async || Session::connect(&url, false).await).await;
            compare_hand_over(&url, "advisory", at_once, vec![polled, blocked]).await;
            let blocked = Loop::new("pg_advisory_xact_lock", async || Transaction::connect(&url).await).await;
            compare_hand_over(&url, "xact", at_once, vec![blocked]).await;
        }
    }
}

async fn compare_cycles(url: &str) {
    let rounds = cycles::ROUNDS;
    println!(
        "cycles/s, medians of {rounds} turns, the loops in turn; in brackets the ratio to the hand-written one before"
    );
    for tasks in [1, 16, 64] {
        let mut rates: [Vec<f64>; 6] = Default::default();
        for _ in 0..rounds {
            rates[0].push(advisory(url, tasks).await);
            rates[1].push(raw(url, tasks).await);
            rates[2].push(engine(LockManager::new(PostgresStore::connect(url).await.unwrap()), tasks).await);
            rates[3].push(engine(LockManager::new(PostgresAdvisoryStore::connect(url).await.unwrap()), tasks).await);
            rates[4].push(transactions(url, tasks).await);
            let transactions = PostgresTransactionStore::connect(url).await.unwrap().limited_to(tasks);
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
}

/// A mode beside what is written by hand for it.
async fn compare_hand_over<W: Waiter>(url: &str, mode: &str, at_once: bool, mut by_hand: Vec<Loop<W>>) {
    let url = format!("{url}?mode={mode}");
    let manager = async || leasehold::config::open(&url).await.unwrap().renew(Renew::Off).build().unwrap();
    let one = manager().await;
    let mut one = Loop::new("one process", async || one.clone()).await;
    let mut eight = Loop::new("8 managers", manager).await;
    for _ in 0..hand_over::ROUNDS {
        one.turn(at_once).await;
        eight.turn(at_once).await;
        for by_hand in &mut by_hand {
            by_hand.turn(at_once).await;
        }
    }
    hand_over::head(mode, at_once);
    let ours = [one.tell(&[]), eight.tell(&[])];
    for by_hand in &mut by_hand {
        by_hand.tell(&ours);
    }
}

async fn client(url: &str) -> Arc<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    Arc::new(client)
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
