//! Many holders in several processes, some of which are stopped, cut off or killed: at most one at a time believes in
//! its lease, fencing tokens grow, and nothing is left.

#![allow(clippy::print_stdout, reason = "a child of the test speaks to it")]
#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use leasehold::clock::Moment;
use leasehold::store::redis::RedisStore;
use leasehold::testkit::{History, Proxy, Record};
use leasehold::{Clock, ErrorKind, FencingToken, Key, LockGuard, LockManager, OwnerToken};
use rustix::process::{Pid, Signal, kill_process};
use store_tests::{Site, on_every_server};
use tokio::time::{sleep, timeout};

on_every_server! {
    holders_in_many_processes_never_overlap
}

const TTL: Duration = Duration::from_millis(600);
const LENGTH: Duration = Duration::from_secs(8);
const WORKERS: usize = 4;
/// Managers of a worker, each with its own connection.
const MANAGERS: usize = 2;
/// Tasks of a manager.
const TASKS: usize = 2;
const KEYS: usize = 2;
/// Holders that one task may have been.
const LIVES: u64 = 1_000_000;
const URL: &str = "LEASEHOLD_TEST_URL";
const NUMBER: &str = "LEASEHOLD_TEST_NUMBER";

async fn holders_in_many_processes_never_overlap(site: Site) {
    let proxy = Proxy::start(site.server().address()).unwrap();
    let history = Arc::new(History::new());
    // Every other one is behind a network that breaks.
    let urls = [site.url(), format!("redis://{}", proxy.address())];
    let mut crew: Vec<_> = (0..WORKERS).map(|number| Worker::start(number, &urls[number % 2], &history)).collect();
    let end = Clock::system().now() + LENGTH;
    let mut turns = 0;
    while Clock::system().now() < end {
        sleep(TTL / 4).await;
        match turns % 8 {
            0 => crew[0].stopped_for(2 * TTL).await,
            2 => proxy.reset(),
            4 => {
                proxy.hold();
                sleep(2 * TTL).await;
                proxy.heal();
                proxy.reset();
            }
            6 => {
                let number = WORKERS + turns;
                crew[1] = Worker::start(number, &urls[1], &history);
            }
            _ => {}
        }
        turns += 1;
    }
    crew.into_iter().for_each(Worker::end);
    assert_eq!(history.check(), []);
    assert!(history.len() > 50, "only {} leases were held", history.len());
    // What those who were killed held ends by its ttl.
    let locks = site.manager().await;
    for key in 0..KEYS {
        let guard = locks.lock(&name(key)).acquire_within(10 * TTL).await.unwrap();
        guard.unwrap().release().await.unwrap();
    }
    site.at_rest(&[locks]).await;
}

fn name(key: usize) -> String {
    format!("shared {key}")
}

/// A process that holds leases, and tells of each.
struct Worker {
    child: Child,
    reader: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(number: usize, url: &str, history: &Arc<History>) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "work", "--ignored", "--nocapture"])
            .envs([(URL, url), (NUMBER, &number.to_string())])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let history = Arc::clone(history);
        let reader = thread::spawn(move || {
            for line in lines {
                let line = line.unwrap();
                // What the test harness says, and a line that a kill cut off, are none.
                let Some(held) = line.strip_prefix("held ").and_then(|held| held.strip_suffix(" .")) else { continue };
                let numbers: Vec<u64> = held.split(' ').map(|number| number.parse().unwrap()).collect();
                let [key, holder, fence, from, until] = numbers[..] else { panic!("{line}") };
                let key = Key::new("", &name(key.try_into().unwrap())).unwrap();
                let (from, until) = (Moment::from_nanos(from), Moment::from_nanos(until));
                history.record(Record::new(key, holder, from, until).fencing(Some(FencingToken::new(fence))));
            }
        });
        Self { child, reader: Some(reader) }
    }

    async fn stopped_for(&self, length: Duration) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        sleep(length).await;
        kill_process(pid, Signal::CONT).unwrap();
    }

    /// Lets it give back what it holds; it must have found nothing wrong.
    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if let Some(reader) = self.reader.take() {
            assert!(reader.join().is_ok() || thread::panicking(), "what a worker said made no sense");
        }
    }
}

/// Not a test of its own: what the processes above run, until their input ends.
#[test]
#[ignore = "started by another test"]
fn work() {
    let (Ok(url), Ok(number)) = (env::var(URL), env::var(NUMBER)) else { return };
    let number: u64 = number.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let over = Arc::new(tokio::sync::Notify::new());
    runtime.block_on(async {
        let mut managers = Vec::new();
        for _ in 0..MANAGERS {
            managers.push(LockManager::builder(connect(&url).await).ttl(TTL).build().unwrap());
        }
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..MANAGERS * TASKS {
            let holder = (number * 100 + task as u64) * LIVES;
            tasks.spawn(live(managers[task % MANAGERS].clone(), managers[(task + 1) % MANAGERS].clone(), holder));
        }
        let input = {
            let over = Arc::clone(&over);
            thread::spawn(move || {
                std::io::stdin().lines().for_each(drop);
                over.notify_one();
            })
        };
        tokio::select! {
            () = over.notified() => {}
            Some(failed) = tasks.join_next() => failed.unwrap(),
        }
        tasks.shutdown().await;
        for locks in managers {
            locks.close(leasehold::Close::Release).await.ok();
        }
        input.join().unwrap();
    });
}

/// The network may be out just now.
async fn connect(url: &str) -> RedisStore {
    loop {
        match RedisStore::connect(url).await {
            Ok(store) => return store,
            Err(error) => assert!(is_weather(&error), "{error}"),
        }
        sleep(TTL / 10).await;
    }
}

/// Whether an error is of the kind that a broken network makes.
fn is_weather(error: &leasehold::Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate)
}

/// Holds one lease after another, and passes some on.
async fn live(locks: LockManager, others: LockManager, mut holder: u64) {
    loop {
        holder += 1;
        let key = fastrand::usize(..KEYS);
        let lock = locks.lock(&name(key));
        // Some calls are given up in the middle.
        let patience = if fastrand::u8(..4) == 0 { Duration::from_millis(fastrand::u64(..8)) } else { 20 * TTL };
        let guard = match timeout(patience, lock.acquire()).await {
            Ok(Ok(guard)) => guard,
            Ok(Err(error)) => {
                assert!(is_weather(&error), "{error}");
                sleep(Duration::from_millis(5)).await;
                continue;
            }
            Err(_) => continue,
        };
        believe(key, holder, &guard).await;
        if fastrand::u8(..8) > 0 {
            guard.release().await.ok();
            continue;
        }
        let Ok(token) = guard.hand_over().await else { continue };
        holder += 1;
        take_on(&others, &token, key, holder).await;
    }
}

async fn take_on(locks: &LockManager, token: &OwnerToken, key: usize, holder: u64) {
    if let Ok(guard) = locks.lock(&name(key)).resume(token).await {
        believe(key, holder, &guard).await;
        guard.release().await.ok();
    }
}

/// Holds a lease for a while, now and then past several renewals, and tells when it was valid by the guard's word.
async fn believe(key: usize, holder: u64, guard: &LockGuard) {
    let clock = Clock::system();
    let length = if fastrand::u8(..50) == 0 { 2 * TTL } else { Duration::from_millis(fastrand::u64(..10)) };
    let end = clock.now() + length;
    let mut believed = None;
    loop {
        let now = clock.now();
        // Valid at some moment after `now`, so it was at `now` unless that is before the grant.
        if guard.check().is_err() {
            break;
        }
        believed = Some((believed.map_or(now, |(from, _)| from), now));
        if now >= end {
            break;
        }
        sleep(Duration::from_millis(1)).await;
    }
    if let (Some((from, until)), Some(fence)) = (believed, guard.fencing_token()) {
        let line = format!("held {key} {holder} {} {} {} .\n", fence.get(), from.as_nanos(), until.as_nanos());
        std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
    }
}
