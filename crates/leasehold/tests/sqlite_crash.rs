//! Processes that are killed and stopped at any moment, on one file: at most one holder at a time believes in its
//! lease, fencing tokens grow, and nothing is left behind.
//!
//! `LEASEHOLD_TEST_CYCLES` is how many leases are held in all, half of them on one key; `LEASEHOLD_TEST_SEED` decides
//! what is drawn by chance, as far as the machine's scheduler lets it.

#![cfg(all(feature = "sqlite", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

mod crash {
    pub(crate) mod crew;
    pub(crate) mod records;
    pub(crate) mod verdict;
    pub(crate) mod worker;
}

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::store::sqlite::SqliteStore;
use leasehold::store::{Page, Store};
use leasehold::testkit::Residue;
use leasehold::{Close, DEFAULT_TTL, LockManager};

use crash::crew::{Crew, Plan};
use crash::verdict::Verdict;
use crash::worker::{LONGEST_TTL, expect_busy, key_name};

const CYCLES: u64 = 16_000;
const WORKERS: usize = 8;

#[test]
fn one_key_survives_kills_and_stops() {
    survive(1);
}

#[test]
fn many_keys_survive_kills_and_stops() {
    survive(32);
}

/// What the workers of the tests above run.
#[tokio::test]
#[ignore = "started by other tests"]
async fn worker() {
    crash::worker::work().await;
}

fn survive(keys: u64) {
    let seed = given("LEASEHOLD_TEST_SEED").unwrap_or_else(|| fastrand::u64(..));
    let cycles = given("LEASEHOLD_TEST_CYCLES").unwrap_or(CYCLES).div_ceil(2);
    // Stays where it is if anything below fails.
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("crash-{keys}-{seed}"));
    report(&format!("crash test: {cycles} cycles on {keys} key(s), seed {seed}, history in {}", directory.display()));
    fs::remove_dir_all(&directory).ok();
    fs::create_dir_all(&directory).unwrap();
    let plan = Plan { store: directory.join("leases.db"), keys, workers: WORKERS, cycles, seed };
    block_on(async { SqliteStore::open(&plan.store).await.unwrap().close().await.unwrap() });
    let deeds = Crew::new(&plan).work();
    fs::write(directory.join("deeds"), deeds.log()).unwrap();
    let verdict = Verdict::of(&deeds);
    report(&format!("crash test: {keys} key(s): {deeds}, {verdict}, seed {seed}"));
    verdict.assert_lawful();
    assert!(verdict.cycles >= cycles, "only {} of {cycles} cycles", verdict.cycles);
    assert_eq!(strays(&plan.store), Vec::<String>::new(), "processes outlived the test");
    block_on(nothing_is_left(&plan));
    let check: String = rusqlite::Connection::open(&plan.store)
        .unwrap()
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(check, "ok");
    fs::remove_dir_all(&directory).unwrap();
}

async fn nothing_is_left(plan: &Plan) {
    let locks = LockManager::new(SqliteStore::open(&plan.store).await.unwrap());
    for number in 0..plan.keys {
        obtain(&locks, &key_name(number)).await;
    }
    let mut left = locks.list("", Page::first(100)).await.unwrap().entries;
    if !left.is_empty() {
        // A release of the workers or of those above that found the file busy.
        tokio::time::sleep(DEFAULT_TTL + LONGEST_TTL).await;
        left = locks.list("", Page::first(100)).await.unwrap().entries;
    }
    assert!(left.is_empty(), "{left:?}");
    locks.close(Close::Release).await.unwrap();
    assert!(Residue::of(&locks).is_none());
}

/// Takes a lease that nobody holds, and gives it back; patient with a disk that is busy with what was written before.
async fn obtain(locks: &LockManager, name: &str) {
    for _ in 0..20 {
        match locks.lock(name).acquire_within(10 * LONGEST_TTL).await {
            Ok(guard) => {
                let guard = guard.unwrap_or_else(|| panic!("\"{name}\" is not to be had"));
                guard.release().await.unwrap_or_else(|error| expect_busy(&error));
                return;
            }
            Err(error) => expect_busy(&error),
        }
    }
    panic!("\"{name}\" is not to be had");
}

/// The processes that work on this file.
fn strays(store: &Path) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let works_on_it = |process: &Path| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&*store.to_string_lossy())
    };
    processes.filter(|process| works_on_it(process)).map(|process| process.display().to_string()).collect()
}

fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
}

/// Says it also where the test passes, whose output is captured.
fn report(line: &str) {
    let mut output = std::io::stderr().lock();
    writeln!(output, "{line}").unwrap();
}

/// Waits a little for something to change.
fn pause() {
    std::thread::sleep(Duration::from_millis(1));
}
