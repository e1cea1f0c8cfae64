//! Storms of calls that are given up leave nothing behind: neither keys nor connections, tasks or memory.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold::LockManager;
use store_tests::{Site, run};
use tokio::time::timeout;

/// Held while the memory of this process is measured.
static ALONE: Mutex<()> = Mutex::new(());

/// The wait for others is no part of the time that a test may take.
fn alone(site: fn() -> Site) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    run(async { storms_of_given_up_acquires_leave_nothing(site()).await });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn storms_leave_nothing_on_redis() {
    alone(Site::redis);
}

#[test]
#[cfg_attr(not(has_valkey_server), ignore = "valkey-server is not installed")]
fn storms_leave_nothing_on_valkey() {
    alone(Site::valkey);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn storms_leave_nothing_in_the_old_protocol() {
    alone(Site::old);
}

async fn storms_of_given_up_acquires_leave_nothing(site: Site) {
    const STORM: u32 = 3500;
    const MIB: u64 = 1 << 20;
    let store = site.store().await;
    let (holder, locks) = (site.manager().await, LockManager::builder(store.clone()).build().unwrap());
    let managers = [holder.clone(), locks.clone()];
    let mut client = site.client();
    let mut connections = || -> usize {
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut client).unwrap();
        list.lines().count()
    };
    let metrics = tokio::runtime::Handle::current().metrics();
    let mut rounds = Vec::new();
    for round in 0..34 {
        let guard = holder.lock("held").try_acquire().await.unwrap().unwrap();
        storm(&locks, round, STORM).await;
        guard.release().await.unwrap();
        site.at_rest(&managers).await;
        // Nobody stands in the way.
        locks.lock("held").try_acquire().await.unwrap().unwrap().release().await.unwrap();
        site.at_rest(&managers).await;
        // Keys that nobody watches are dropped at once, or in the end by a search beyond so many.
        assert!(store.watched() < 128, "{} keys in round {round}", store.watched());
        rounds.push((connections(), metrics.num_alive_tasks(), resident()));
        if round % 10 == 3 && round > 3 {
            // The first ones make room for all that follows, and how much depends on how many calls overlap: what grows
            // shows also where it is least. Between the two parts lie seven storms: 64 bytes for each call would make
            // 1.5 MiB. A busy machine may have more calls overlap than ever before; what grows does so again and again.
            let (first, later) = (&rounds[rounds.len() - 14..][..4], &rounds[rounds.len() - 4..]);
            assert!(later.iter().all(|round| round.0 == first[3].0), "connections: {rounds:?}");
            assert!(later.iter().all(|round| round.1 <= first[3].1 + 1), "tasks: {rounds:?}");
            let least = later.iter().map(|round| round.2).min().unwrap();
            if least < first.iter().map(|round| round.2).max().unwrap() + MIB {
                return;
            }
        }
    }
    panic!("bytes: {rounds:?}");
}

/// Acquires that are given up: half of them of a key that somebody holds, the others of one that is free or not, and that
/// nobody asked for in an earlier round.
async fn storm(locks: &LockManager, round: u32, count: u32) {
    let calls: Vec<_> = (0..count)
        .map(|number| {
            let free = || locks.lock(&format!("free {round} {}", number % 50));
            let lock = if number % 2 == 0 { locks.lock("held") } else { free() };
            let patience = Duration::from_millis(50).mul_f64(fastrand::f64());
            tokio::spawn(async move { drop(timeout(patience, lock.acquire()).await) })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
}

/// Bytes of memory in use.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}
