//! How many requests a server of the Redis family is sent.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::time::Duration;

use leasehold::store::{Claim, Store};
use leasehold::{Clock, Key, Lock, OwnerToken, Renew};
use store_tests::{Monitor, Site, on_every_server, run};

on_every_server! {
    a_try_and_a_release_are_two_requests
    an_acquire_and_a_release_are_two_requests
    waiters_of_one_process_ask_at_most_twice_a_second
    waiters_ask_once_more_for_each_renewal
    every_other_call_is_one_script
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn redis_7_releases_by_a_script() {
    run(async {
        let site = Site::redis();
        assert!(version(&site, "redis_version") >= [7, 0], "the documentation names the version that is tested");
        a_release_is(&site, "EVALSHA").await;
    });
}

#[test]
#[cfg_attr(not(has_valkey_server), ignore = "valkey-server is not installed")]
fn valkey_9_releases_by_its_own_conditional_delete() {
    run(async {
        let site = Site::valkey();
        assert!(version(&site, "valkey_version") >= [9, 0], "the documentation names the version that is tested");
        a_release_is(&site, "DELIFEQ").await;
    });
}

/// The first two numbers of a version.
fn version(site: &Site, name: &str) -> [u32; 2] {
    let info: String = redis::cmd("INFO").arg("server").query(&mut site.client()).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    let mut numbers = line.trim().split('.').map(|number| number.parse().unwrap());
    [numbers.next().unwrap(), numbers.next().unwrap()]
}

const CYCLES: usize = 1000;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

async fn a_try_and_a_release_are_two_requests(site: Site) {
    let locks = site.manager().await;
    // The first use loads the scripts.
    locks.lock("warm").try_acquire().await.unwrap().unwrap().release().await.unwrap();
    let mut monitor = Monitor::start(site.server().address());
    for number in 0..CYCLES {
        let lock = locks.lock(&format!("job {}", number % 10));
        lock.try_acquire().await.unwrap().expect("nobody else is there").release().await.unwrap();
    }
    check_cycles(&monitor.requests());
}

async fn an_acquire_and_a_release_are_two_requests(site: Site) {
    let locks = site.manager().await;
    locks.lock("warm").acquire().await.unwrap().release().await.unwrap();
    let mut monitor = Monitor::start(site.server().address());
    // By several at once, each for a key of its own.
    let tasks = (0..10).map(|task| {
        let lock = locks.lock(&format!("job {task}"));
        tokio::spawn(async move {
            for _ in 0..CYCLES / 10 {
                lock.acquire().await.unwrap().release().await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    check_cycles(&monitor.requests());
}

fn check_cycles(requests: &[String]) {
    assert_eq!(requests.len(), 2 * CYCLES, "{:?}", &requests[..requests.len().min(10)]);
    let removals = ["\"EVALSHA\"", "\"DELIFEQ\"", "\"DELEX\""];
    assert!(
        requests.iter().all(|request| removals.iter().any(|name| request.starts_with(name))),
        "{:?}",
        &requests[..4]
    );
}

async fn waiters_of_one_process_ask_at_most_twice_a_second(site: Site) {
    let locks = site.manager().await;
    fifty_ask_at_most(2, site, locks.lock("busy").ttl(LONG)).await;
}

/// Each renewal is a change of the key, of which those who wait are told.
async fn waiters_ask_once_more_for_each_renewal(site: Site) {
    let often = site.builder().await.renew(Renew::Every(Duration::from_millis(500))).build().unwrap();
    // The renewals themselves, and a question each.
    fifty_ask_at_most(2 + 2 * 2, site, often.lock("busy")).await;
}

/// Fifty wait for 12 s, and there are no more requests in each of them, on the average.
async fn fifty_ask_at_most(each_second: u32, site: Site, held: Lock) {
    const LENGTH: Duration = Duration::from_secs(12);
    let locks = site.manager().await;
    let guard = held.try_acquire().await.unwrap().unwrap();
    let mut monitor = Monitor::start(site.server().address());
    let waiters: Vec<_> = (0..50)
        .map(|_| {
            let lock = locks.lock("busy");
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
        })
        .collect();
    let began = Clock::system().now();
    tokio::time::sleep(LENGTH).await;
    let requests = monitor.requests();
    // On a machine that stands still it was more than that.
    let waited = Clock::system().now().since(began);
    assert!(!requests.is_empty(), "nobody asked");
    assert!(requests.len() as f64 <= f64::from(each_second) * waited.as_secs_f64(), "{} requests", requests.len());
    // All of them are served in the end.
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    site.at_rest(&[locks]).await;
}

async fn every_other_call_is_one_script(site: Site) {
    const LEASES: usize = 20;
    let store = site.store().await;
    let keys: Vec<_> = (0..LEASES).map(|number| Key::new("leasehold", &format!("job {number}")).unwrap()).collect();
    let (first, second) = (OwnerToken::mint().unwrap(), OwnerToken::mint().unwrap());
    for key in &keys {
        store.acquire(&Claim::new(key, &first, LONG)).await.unwrap();
    }
    // Once to load the scripts, and once to count.
    for (round, key) in keys[..2].iter().enumerate() {
        let mut monitor = Monitor::start(site.server().address());
        let mut was = |call: &str, count: usize| {
            let requests = monitor.requests();
            let scripts = requests.iter().filter(|request| request.starts_with("\"EVALSHA\"")).count();
            assert!(round == 0 || (requests.len(), scripts) == (count, count), "{call}: {requests:?}");
        };
        assert_eq!(store.inspect(key).await.unwrap().holders.len(), 1);
        was("inspect", 1);
        let claims: Vec<_> = keys.iter().map(|key| Claim::new(key, &first, LONG * 2)).collect();
        assert!(store.extend(&claims[round..]).await.unwrap().into_iter().all(|answer| answer.unwrap().is_some()));
        was("extend", LEASES - round);
        assert!(store.transfer(&first, &Claim::new(key, &second, LONG)).await.unwrap().is_some());
        was("transfer", 1);
        assert!(store.force_release(key, None).await.unwrap().is_some());
        was("force release", 1);
        // What is asked in vain costs no more.
        assert!(store.inspect(key).await.unwrap().holders.is_empty());
        assert!(store.transfer(&first, &Claim::new(key, &second, LONG)).await.unwrap().is_none());
        assert!(store.extend(&claims[round..=round]).await.unwrap().remove(0).unwrap().is_none());
        assert!(store.force_release(key, None).await.unwrap().is_none());
        was("all of that in vain", 4);
    }
}

async fn a_release_is(site: &Site, command: &str) {
    let locks = site.manager().await;
    locks.lock("job").acquire().await.unwrap().release().await.unwrap();
    let guard = locks.lock("job").acquire().await.unwrap();
    let mut monitor = Monitor::start(site.server().address());
    guard.release().await.unwrap();
    let requests = monitor.requests();
    assert!(requests.len() == 1 && requests[0].starts_with(&format!("\"{command}\"")), "{requests:?}");
}
