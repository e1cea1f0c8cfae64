//! Calls that are given up leave nothing behind.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::future::Future;
use std::time::Duration;

use leasehold::store::redis::RedisStore;
use leasehold::testkit::{Proxy, Residue};
use leasehold::{Clock, LockManager};
use store_tests::{Site, on_every_server};
use tokio::time::{sleep, timeout};

on_every_server! {
    acquires_given_up_at_any_moment_leave_their_keys_free
    acquires_given_up_over_a_slow_network_leave_their_keys_free
    resumes_given_up_at_any_moment_leave_the_lease_to_its_token
}

/// Fresh keys, each acquired and given up once.
const KEYS: u32 = 600;

async fn acquires_given_up_at_any_moment_leave_their_keys_free(site: Site) {
    give_up(&site, site.manager().await, Duration::from_millis(2)).await;
}

async fn acquires_given_up_over_a_slow_network_leave_their_keys_free(site: Site) {
    let proxy = Proxy::start(site.server().address()).unwrap();
    let store = RedisStore::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    proxy.requests().delay(Duration::from_millis(2));
    proxy.replies().delay(Duration::from_millis(2));
    give_up(&site, LockManager::new(store), Duration::from_millis(15)).await;
}

/// Gives acquires up after at most so long, by which about all of them would have been granted.
async fn give_up(site: &Site, locks: LockManager, longest: Duration) {
    let mut granted = 0;
    for number in 0..KEYS {
        let lock = locks.lock(&format!("fresh {number}"));
        // A grant is dropped, too.
        granted += u32::from(for_at_most(longest, lock.acquire()).await.is_some());
    }
    assert!(granted > 0, "no grant was dropped");
    assert!(granted < KEYS, "none was given up");
    site.at_rest(std::slice::from_ref(&locks)).await;
    let other = site.manager().await;
    for number in 0..KEYS {
        let guard = other.lock(&format!("fresh {number}")).try_acquire().await.unwrap();
        guard.unwrap_or_else(|| panic!("key {number} is held by nobody")).release().await.unwrap();
    }
}

async fn resumes_given_up_at_any_moment_leave_the_lease_to_its_token(site: Site) {
    // What was handed over is not renewed, and has to stand until the end.
    let long = async || site.builder().await.ttl(Duration::from_secs(600)).build().unwrap();
    let (giver, locks) = (long().await, long().await);
    let mut handed = Vec::new();
    for number in 0..200 {
        let lock = giver.lock(&format!("handed {number}"));
        let mut token = lock.acquire().await.unwrap().hand_over().await.unwrap();
        let taker = locks.lock(&format!("handed {number}"));
        if let Some(resumed) = for_at_most(Duration::from_millis(2), taker.resume(&token)).await {
            token = resumed.unwrap().hand_over().await.unwrap();
        }
        handed.push((lock, token));
    }
    // Whatever was under way is undone within a second or two.
    let undone = async {
        while Residue::of(&locks).background > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(20), undone).await.unwrap();
    for (lock, token) in handed {
        assert!(lock.holder().await.unwrap().unwrap().owner == token, "the lease is somebody else's");
        lock.release_by(&token).await.unwrap();
    }
    site.at_rest(&[giver, locks]).await;
}

/// What a future comes to, unless it is given up within this time, by chance; to the microsecond, which no timer is.
async fn for_at_most<T>(longest: Duration, call: impl Future<Output = T>) -> Option<T> {
    let until = Clock::system().now() + longest.mul_f64(fastrand::f64());
    let patience = async {
        while Clock::system().now() < until {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        outcome = call => Some(outcome),
        () = patience => None,
    }
}
