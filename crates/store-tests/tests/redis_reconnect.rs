//! Connections that were cut are made anew by whoever needs one.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::time::Duration;

use leasehold::store::redis::RedisStore;
use leasehold::testkit::Proxy;
use leasehold::{ErrorKind, LockManager};
use store_tests::{Site, on_every_server};

on_every_server! {
    every_operation_is_healed_within_the_call
    a_connection_may_take_longer_than_a_request
}

async fn every_operation_is_healed_within_the_call(site: Site) {
    let locks = site.manager().await;
    let lock = locks.lock("job");
    let mut client = site.client();
    let mut cut = move || redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).exec(&mut client).unwrap();
    for _ in 0..5 {
        cut();
        let guard = lock.try_acquire().await.unwrap().unwrap();
        cut();
        guard.extend(Duration::from_secs(60)).await.unwrap();
        cut();
        let token = guard.hand_over().await.unwrap();
        cut();
        let guard = lock.resume(&token).await.unwrap();
        cut();
        guard.check().unwrap();
        guard.release().await.unwrap();
        site.at_rest(std::slice::from_ref(&locks)).await;
    }
}

/// Each request has time for more than a round trip, and for less than a new connection takes.
async fn a_connection_may_take_longer_than_a_request(site: Site) {
    const TTL: Duration = Duration::from_secs(6);
    let proxy = Proxy::start(site.server().address()).unwrap();
    let store = RedisStore::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let locks = LockManager::builder(store).ttl(TTL).build().unwrap();
    // The scripts are known from now on.
    locks.lock("job").try_acquire().await.unwrap().unwrap().release().await.unwrap();
    // A sixth of the ttl is what a request may take.
    proxy.requests().delay(TTL / 20);
    proxy.replies().delay(TTL / 20);
    proxy.reset();
    for number in 0..10 {
        match locks.lock(&format!("job {number}")).try_acquire().await {
            Ok(guard) => {
                proxy.heal();
                return guard.unwrap().release().await.unwrap();
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Indeterminate | ErrorKind::Unavailable), "{error}");
            }
        }
    }
    panic!("the connection is never made");
}
