//! Storms of calls that are given up leave nothing behind: neither keys nor connections, tasks or memory.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::fs;
use std::time::Duration;

use leasehold::LockManager;
use store_tests::{Site, on_every_server};
use tokio::sync::Mutex;
use tokio::time::timeout;

on_every_server! {
    storms_of_given_up_acquires_leave_nothing
}

/// Held while the memory of this process is measured.
static ALONE: Mutex<()> = Mutex::const_new(());

async fn storms_of_given_up_acquires_leave_nothing(site: Site) {
    const STORM: u32 = 2000;
    const MIB: u64 = 1 << 20;
    let _alone = ALONE.lock().await;
    let (holder, locks) = (site.manager().await, site.manager().await);
    let managers = [holder.clone(), locks.clone()];
    let mut client = site.client();
    let mut connections = || -> usize {
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut client).unwrap();
        list.lines().count()
    };
    let metrics = tokio::runtime::Handle::current().metrics();
    let mut before = None;
    for round in 0..6 {
        let guard = holder.lock("held").try_acquire().await.unwrap().unwrap();
        storm(&locks, STORM).await;
        guard.release().await.unwrap();
        site.at_rest(&managers).await;
        // Nobody stands in the way.
        locks.lock("held").try_acquire().await.unwrap().unwrap().release().await.unwrap();
        site.at_rest(&managers).await;
        let now = (connections(), metrics.num_alive_tasks(), resident());
        match before {
            // The first ones make room for all that follows.
            _ if round < 2 => before = Some(now),
            Some((connections, tasks, resident)) => {
                assert_eq!(now.0, connections, "connections");
                assert!(now.1 <= tasks + 1, "{} tasks, {tasks} before", now.1);
                assert!(now.2 < resident + 2 * MIB, "{} KiB, {} before", now.2 >> 10, resident >> 10);
            }
            None => {}
        }
    }
}

/// Acquires that are given up: half of them of a key that somebody holds, the others of one that is free or not.
async fn storm(locks: &LockManager, count: u32) {
    let calls: Vec<_> = (0..count)
        .map(|number| {
            let lock = if number % 2 == 0 { locks.lock("held") } else { locks.lock(&format!("free {}", number % 50)) };
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
