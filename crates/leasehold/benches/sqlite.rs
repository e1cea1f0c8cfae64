//! What the SQLite store adds to its bare transactions, how soon a waiter in another process has a released lease, and
//! how long four processes wait for their turn on one key. Run with `cargo bench -p leasehold --bench sqlite`; compare
//! within one run only.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark that fails has nothing to report")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use leasehold::store::sqlite::SqliteStore;
use leasehold::store::{Attempt, Claim, Store, Tie};
use leasehold::{Clock, Key, LockManager, OwnerToken};
use rusqlite::Connection;
use tokio::runtime::Runtime;

const TTL: Duration = Duration::from_secs(30);
const CYCLES: u32 = 2_000;
const WAKE_UPS: usize = 200;
const TURNS: usize = 1_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let arguments: Vec<_> = std::env::args().collect();
    match &arguments[1..] {
        [role, path] if role == "waiter" => return runtime.block_on(wait_for_orders(Path::new(path))),
        [role, path] if role == "contender" => return runtime.block_on(take_turns(Path::new(path))),
        _ => {}
    }
    let directory = tempfile::tempdir().unwrap();
    cycles(&runtime, directory.path());
    wake_ups(&runtime, &directory.path().join("wake-ups.db"));
    turns(&runtime, &directory.path().join("turns.db"));
}

fn cycles(runtime: &Runtime, directory: &Path) {
    let path = directory.join("leases.db");
    let store = runtime.block_on(SqliteStore::open(&path)).unwrap();
    let (key, owner) = (Key::new("bench", "key").unwrap(), OwnerToken::mint().unwrap());
    let db = Connection::open(&path).unwrap();
    db.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 4000").unwrap();
    // In turn, so that whatever disturbs disturbs all of them.
    let mut best = [Duration::MAX; 4];
    let locks = runtime.block_on(async { LockManager::new(store.clone()) });
    let lock = locks.lock("managed");
    for _ in 0..7 {
        let bare = timed(|| bare_cycle(&db));
        let question = timed(|| runtime.block_on(async { _ = store.inspect(&key).await.unwrap() }));
        let alone = timed(|| {
            runtime.block_on(async {
                let claim = Claim::new(&key, &owner, TTL).tie(Tie::Process);
                assert!(matches!(store.acquire(&claim).await.unwrap(), Attempt::Acquired(_)));
                assert!(store.release(&key, &owner).await.unwrap());
            });
        });
        let engine = timed(|| {
            runtime.block_on(async { lock.try_acquire().await.unwrap().unwrap().release().await.unwrap() });
        });
        for (best, took) in best.iter_mut().zip([bare, question, alone, engine]) {
            *best = took.min(*best);
        }
    }
    let ratio = |took: Duration| took.as_secs_f64() / best[0].as_secs_f64();
    println!("acquire + release: best of 7 rounds, microseconds, and relation to the bare transactions");
    for (what, took) in ["bare transactions", "one question", "store", "engine and store"].into_iter().zip(best) {
        println!("  {what:<20} {:>8.1} {:>6.2}", took.as_secs_f64() * 1e6, ratio(took));
    }
}

/// What an acquire and a release read and write.
fn bare_cycle(db: &Connection) {
    let find = "SELECT key, owner, token, boot, ends, wall_ends, tie, tie_id, tie_start, tie_pid_namespace, host, pid, \
                command, label, reason, since, renewed FROM leases WHERE key = ?1";
    let row = |key: &str| {
        let mut statement = db.prepare_cached(find).unwrap();
        statement.query([key]).unwrap().next().unwrap().map(|row| row.get::<_, Vec<u8>>(1).unwrap())
    };
    let run = |sql: &str| db.prepare_cached(sql).unwrap().execute([]).unwrap();
    assert!(row("bare").is_none());
    run("BEGIN IMMEDIATE");
    assert!(row("bare").is_none());
    let token: i64 = db
        .prepare_cached("UPDATE meta SET last_token = last_token + 1 RETURNING last_token")
        .unwrap()
        .query_row([], |row| row.get(0))
        .unwrap();
    db.prepare_cached(
        "INSERT OR REPLACE INTO leases VALUES (?1, ?2, ?3, ?4, 1 << 62, 1 << 62, 1, 1, 1, 'pid:[4026531836]', NULL, NULL, NULL, \
         NULL, NULL, 1, 1)",
    )
    .unwrap()
    .execute(("bare", [7_u8; 16], token, "01234567-89ab-cdef-0123-456789abcdef"))
    .unwrap();
    run("COMMIT");
    run("BEGIN IMMEDIATE");
    assert!(row("bare").is_some());
    db.prepare_cached("DELETE FROM leases WHERE key = ?1").unwrap().execute(["bare"]).unwrap();
    run("COMMIT");
}

fn timed(mut once: impl FnMut()) -> Duration {
    let clock = Clock::system();
    let started = clock.now();
    for _ in 0..CYCLES {
        once();
    }
    clock.now().since(started) / CYCLES
}

fn wake_ups(runtime: &Runtime, path: &Path) {
    let clock = Clock::system();
    runtime.block_on(async {
        let locks = LockManager::new(SqliteStore::open(path).await.unwrap());
        let lock = locks.lock("key");
        let mut waiter = Process::start("waiter", path);
        let mut took = Vec::new();
        for round in 0..WAKE_UPS as u64 {
            let guard = lock.acquire().await.unwrap();
            waiter.say("take");
            // Long enough for it to wait, and at every point of a round of looks.
            tokio::time::sleep(Duration::from_micros(60_000 + round * 7_919 % 20_000)).await;
            let released = clock.now().as_nanos();
            guard.release().await.unwrap();
            let acquired: u64 = waiter.hear().parse().unwrap();
            took.push(acquired.saturating_sub(released));
            waiter.say("give");
            waiter.hear();
        }
        tell("release -> acquired by a waiter in another process", took);
    });
}

fn turns(runtime: &Runtime, path: &Path) {
    runtime.block_on(async { SqliteStore::open(path).await.unwrap().close().await.unwrap() });
    let mut contenders: Vec<_> = (0..4).map(|_| Process::start("contender", path)).collect();
    for contender in &mut contenders {
        contender.say("go");
    }
    for (number, contender) in contenders.iter_mut().enumerate() {
        let took = contender.hear().split(' ').map(|took| took.parse().unwrap()).collect();
        tell(&format!("process {number} of 4 on one key, {TURNS} turns, each wait"), took);
    }
}

/// One of the processes that wait for what another one releases.
async fn wait_for_orders(path: &Path) {
    let clock = Clock::system();
    let locks = LockManager::new(SqliteStore::open(path).await.unwrap());
    let lock = locks.lock("key");
    while is_ordered() {
        let guard = lock.acquire().await.unwrap();
        println!("{}", clock.now().as_nanos());
        is_ordered();
        guard.release().await.unwrap();
        println!("given");
    }
}

async fn take_turns(path: &Path) {
    let clock = Clock::system();
    let locks = LockManager::new(SqliteStore::open(path).await.unwrap());
    let lock = locks.lock("key");
    is_ordered();
    let mut waits = Vec::new();
    for _ in 0..TURNS {
        let began = clock.now();
        let guard = lock.acquire().await.unwrap();
        waits.push(clock.now().since(began).as_nanos().to_string());
        guard.release().await.unwrap();
    }
    println!("{}", waits.join(" "));
}

fn is_ordered() -> bool {
    std::io::stdin().read_line(&mut String::new()).unwrap() > 0
}

fn tell(what: &str, mut nanos: Vec<u64>) {
    nanos.sort_unstable();
    let at = |part: usize| nanos[(nanos.len() * part / 1000).min(nanos.len() - 1)] as f64 / 1e6;
    println!("{what}: median {:.2} ms, 99 % {:.2} ms, longest {:.2} ms", at(500), at(990), at(1000));
}

struct Process {
    process: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(role: &str, path: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .arg(role)
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, orders, answers }
    }

    fn say(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    fn hear(&mut self) -> String {
        self.answers.next().unwrap().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
