//! Managers that share a connection, whose changes the server does not tell it of.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::time::Duration;

use leasehold::store::SharedStore;
use leasehold::{Backoff, LockManager, LostReason};
use store_tests::{Monitor, Site, on_servers_that_push};
use tokio::time::{sleep, timeout};

/// Five times and more of what anything here needs on a busy machine, and far from any ttl or pause of these tests.
const SOON: Duration = Duration::from_secs(10);
/// Nothing that lasts so long happens within a test.
const LONG: Duration = Duration::from_secs(600);

on_servers_that_push! {
    a_release_wakes
    a_removal_wakes_and_is_a_loss_at_once
    a_lease_that_is_taken_on_is_lost_at_once
    there_is_one_connection
    a_connection_outlives_all_managers_but_the_last
}

/// A manager that asks again after a push, and otherwise never.
fn manager(store: &SharedStore) -> LockManager {
    let never = Backoff::new(LONG, LONG, 1.0).unwrap();
    LockManager::builder(store.clone()).ttl(LONG).backoff(never).build().unwrap()
}

async fn a_release_wakes(site: Site) {
    let store = SharedStore::new(site.store().await);
    let (holder, locks) = (manager(&store), manager(&store));
    let mut monitor = Monitor::start(site.server().address());
    for _ in 0..20 {
        let guard = holder.lock("job").try_acquire().await.unwrap().unwrap();
        let lock = locks.lock("job");
        monitor.requests();
        let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
        // Whatever follows on the connection that they share, follows its refusal.
        monitor.until("EVAL", "leasehold:job").await;
        guard.release().await.unwrap();
        timeout(SOON, waiter).await.unwrap().unwrap().release().await.unwrap();
    }
}

async fn a_removal_wakes_and_is_a_loss_at_once(site: Site) {
    let store = SharedStore::new(site.store().await);
    let (holder, locks, operator) = (manager(&store), manager(&store), manager(&store));
    let guard = holder.lock("job").try_acquire().await.unwrap().unwrap();
    let waiter = tokio::spawn({
        let lock = locks.lock("job");
        async move { lock.acquire().await.unwrap() }
    });
    sleep(Duration::from_millis(50)).await;
    let removed = operator.force_release("job", None).await.unwrap().unwrap();
    assert_eq!(timeout(SOON, guard.lost()).await.unwrap(), LostReason::NotHeld);
    let next = timeout(SOON, waiter).await.unwrap().unwrap();
    assert!(next.fencing_token() > removed.fence_floor);
    next.check().unwrap();
}

async fn a_lease_that_is_taken_on_is_lost_at_once(site: Site) {
    let store = SharedStore::new(site.store().await);
    let (holder, taker) = (manager(&store), manager(&store));
    let guard = holder.lock("job").try_acquire().await.unwrap().unwrap();
    let taken = taker.lock("job").resume(guard.owner_token()).await.unwrap();
    assert_eq!(timeout(SOON, guard.lost()).await.unwrap(), LostReason::NotHeld);
    taken.check().unwrap();
    assert!(guard.release().await.is_err());
    taken.release().await.unwrap();
}

async fn there_is_one_connection(site: Site) {
    let mut client = site.client();
    // Those of the server's start may be about to end.
    until_alone(&mut client).await;
    let store = SharedStore::new(site.store().await);
    let managers: Vec<_> = (0..10).map(|_| manager(&store)).collect();
    for (number, locks) in managers.iter().enumerate() {
        let guard = locks.lock(&format!("job {number}")).acquire().await.unwrap();
        let waiter = tokio::spawn({
            let lock = managers[0].lock(&format!("job {number}"));
            async move { lock.acquire_within(Duration::from_millis(50)).await }
        });
        assert!(waiter.await.unwrap().unwrap().is_none());
        guard.release().await.unwrap();
    }
    assert_eq!(connections(&mut client), 2);
    drop((store, managers));
    until_alone(&mut client).await;
}

fn connections(client: &mut redis::Connection) -> usize {
    let list: String = redis::cmd("CLIENT").arg("LIST").query(client).unwrap();
    list.lines().count()
}

/// Waits until the server has no other client.
async fn until_alone(client: &mut redis::Connection) {
    let alone = async {
        while connections(client) > 1 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, alone).await.expect("the others end");
}

async fn a_connection_outlives_all_managers_but_the_last(site: Site) {
    let store = SharedStore::new(site.store().await);
    let (first, second) = (manager(&store), manager(&store));
    first.lock("job").try_acquire().await.unwrap().unwrap().release().await.unwrap();
    first.close(leasehold::Close::Release).await.unwrap();
    second.lock("job").try_acquire().await.unwrap().unwrap().release().await.unwrap();
}
