//! Who asks again at once after each release does not keep the others out: nobody has less than a third of its share.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use leasehold::LockManager;
use leasehold::store::memory::MemoryStore;
use store_tests::{Site, Table, on_servers_that_push};
use tokio::runtime;

/// How often each would have the lock if all had it equally often.
const SHARE: usize = 60;
/// What somebody does with the lock.
const WORK: Duration = Duration::from_millis(2);

on_servers_that_push! {
    those_of_a_server_take_turns
}

async fn those_of_a_server_take_turns(site: Site) {
    tokio::task::spawn_blocking(move || check_all(&site.url())).await.unwrap();
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn those_of_transactions_take_turns() {
    let table = Table::new();
    check_all(&format!("{}?mode=xact", table.url()));
}

#[test]
fn those_of_one_process_take_turns() {
    let store = MemoryStore::new();
    let one = || async { LockManager::new(store.clone()) };
    // Without a server in between they are served in one line, whoever they belong to.
    check_shares(&one, 2, 1);
    check_shares(&one, 8, 1);
}

fn check_all(url: &str) {
    check(url, 2, 1);
    check(url, 8, 1);
    check(url, 4, 3);
}

fn check(url: &str, managers: usize, crowd: usize) {
    check_shares(&async || LockManager::connect(url).await.unwrap(), managers, crowd);
}

/// Managers share alike, and so do the waiters of one: in one round of ten, for a machine that is busy elsewhere may keep a
/// thread from its turns for a while. What is unfair is so in each.
fn check_shares<F: Future<Output = LockManager>>(one: &(impl Fn() -> F + Sync), managers: usize, crowd: usize) {
    let total = SHARE * managers * crowd;
    let is_fair = |of_one: &Vec<usize>| {
        let sum: usize = of_one.iter().sum();
        3 * sum >= total / managers && of_one.iter().all(|turns| 3 * turns * of_one.len() >= sum)
    };
    let mut rounds = Vec::new();
    let is_one_fair = (0..10).any(|number| {
        // What keeps the machine busy may be over then.
        thread::sleep(WORK * 100 * number.min(5));
        let round = turns(one, managers, crowd, total);
        let is_round_fair = round.iter().all(is_fair);
        rounds.push(round);
        is_round_fair
    });
    assert!(is_one_fair, "{rounds:?}");
}

/// Each manager has a thread to itself, as in a process of its own, and a waiter who asks again as soon as it has
/// released; the first manager has several. Answers with the turns of each waiter of each manager.
fn turns<F: Future<Output = LockManager>>(
    one: &(impl Fn() -> F + Sync),
    managers: usize,
    crowd: usize,
    total: usize,
) -> Vec<Vec<usize>> {
    let taken = Arc::new(AtomicUsize::new(0));
    let all_there = Barrier::new(managers);
    thread::scope(|threads| {
        let begun = (0..managers).map(|number| {
            let waiters = if number == 0 { crowd } else { 1 };
            let (all_there, taken) = (&all_there, &taken);
            threads.spawn(move || {
                let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let manager = catch_unwind(AssertUnwindSafe(|| runtime.block_on(one())));
                // Also where it failed, or the others would wait for ever.
                all_there.wait();
                let manager = manager.unwrap_or_else(|panic| resume_unwind(panic));
                let waiters = (0..waiters).map(|_| runtime.spawn(waiter(manager.clone(), total, Arc::clone(taken))));
                let waiters: Vec<_> = waiters.collect();
                waiters.into_iter().map(|waiter| runtime.block_on(waiter).unwrap()).collect()
            })
        });
        let begun: Vec<_> = begun.collect();
        begun.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

async fn waiter(manager: LockManager, total: usize, taken: Arc<AtomicUsize>) -> usize {
    let mut turns = 0;
    while taken.load(Ordering::Acquire) < total {
        let guard = manager.lock("job").acquire().await.unwrap();
        taken.fetch_add(1, Ordering::AcqRel);
        turns += 1;
        tokio::time::sleep(WORK).await;
        guard.release().await.unwrap();
    }
    turns
}
