//! Who asks again at once after each release does not keep the others out: nobody has less than a third of its share.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::LockManager;
use store_tests::{Site, on_servers_that_push};
use tokio::sync::Barrier;

on_servers_that_push! {
    two_managers_take_turns
    eight_managers_take_turns
    several_waiters_of_one_manager_keep_nobody_out
}

/// How often each would have the lock if all had it equally often.
const SHARE: usize = 60;
/// What somebody does with the lock.
const WORK: Duration = Duration::from_millis(2);

async fn two_managers_take_turns(site: Site) {
    check_shares(&[site.manager().await, site.manager().await]).await;
}

async fn eight_managers_take_turns(site: Site) {
    let mut managers = Vec::new();
    for _ in 0..8 {
        managers.push(site.manager().await);
    }
    check_shares(&managers).await;
}

async fn several_waiters_of_one_manager_keep_nobody_out(site: Site) {
    let crowd = site.manager().await;
    let mut managers = vec![crowd.clone(), crowd.clone(), crowd];
    for _ in 0..3 {
        managers.push(site.manager().await);
    }
    check_shares(&managers).await;
}

/// One waiter for each of the managers, who asks again as soon as it has released.
async fn check_shares(managers: &[LockManager]) {
    let (total, taken) = (SHARE * managers.len(), Arc::new(AtomicUsize::new(0)));
    let all_there = Arc::new(Barrier::new(managers.len()));
    let waiters = managers.iter().map(|manager| {
        let (lock, taken, all_there) = (manager.lock("job"), Arc::clone(&taken), Arc::clone(&all_there));
        tokio::spawn(async move {
            all_there.wait().await;
            let mut turns = 0;
            while taken.load(Ordering::Acquire) < total {
                let guard = lock.acquire().await.unwrap();
                taken.fetch_add(1, Ordering::AcqRel);
                turns += 1;
                tokio::time::sleep(WORK).await;
                guard.release().await.unwrap();
            }
            turns
        })
    });
    let mut turns = Vec::new();
    for waiter in waiters.collect::<Vec<_>>() {
        turns.push(waiter.await.unwrap());
    }
    println!("{turns:?}");
    assert!(turns.iter().all(|turns| 3 * turns >= SHARE), "{turns:?}");
}
