//! How many requests a server of the Redis family is sent.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::time::Duration;

use store_tests::{Monitor, Site, on_every_server};

on_every_server! {
    a_try_and_a_release_are_two_requests
    an_acquire_and_a_release_are_two_requests
    waiters_of_one_process_ask_at_most_twice_a_second
    the_servers_own_conditional_delete_is_used_where_there_is_one
}

const CYCLES: usize = 1000;

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
    const LENGTH: Duration = Duration::from_secs(12);
    let (holder, locks) = (site.manager().await, site.manager().await);
    let guard = holder.lock("busy").ttl(Duration::from_secs(600)).try_acquire().await.unwrap().unwrap();
    let mut monitor = Monitor::start(site.server().address());
    let waiters: Vec<_> = (0..50)
        .map(|_| {
            let lock = locks.lock("busy");
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
        })
        .collect();
    tokio::time::sleep(LENGTH).await;
    let requests = monitor.requests();
    assert!(!requests.is_empty(), "nobody asked");
    assert!(requests.len() <= 2 * LENGTH.as_secs() as usize, "{} requests", requests.len());
    // All of them are served in the end.
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    site.at_rest(&[locks]).await;
}

async fn the_servers_own_conditional_delete_is_used_where_there_is_one(site: Site) {
    let known: Vec<redis::Value> =
        redis::cmd("COMMAND").arg(&["INFO", "DELIFEQ", "DELEX"]).query(&mut site.client()).unwrap();
    let expected = known.iter().zip(["DELIFEQ", "DELEX"]).find(|(info, _)| **info != redis::Value::Nil);
    let expected = expected.map_or("EVALSHA", |(_, name)| name);
    let locks = site.manager().await;
    locks.lock("job").acquire().await.unwrap().release().await.unwrap();
    let guard = locks.lock("job").acquire().await.unwrap();
    let mut monitor = Monitor::start(site.server().address());
    guard.release().await.unwrap();
    let requests = monitor.requests();
    assert!(requests.len() == 1 && requests[0].starts_with(&format!("\"{expected}\"")), "{requests:?}");
}
