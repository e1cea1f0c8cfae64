//! Living with other programs that take locks by `SET key token NX PX ttl`: redis-py, executed.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::time::Duration;

use leasehold::{LockManager, OwnerToken};
use store_tests::{ForeignClient, Site, on_every_server};
use tokio::time::timeout;

/// Five times and more of what redis-py sleeps between two asks, and we do.
const SOON: Duration = Duration::from_secs(10);

/// What redis-py asks for: longer than any test takes.
const TTL: Duration = Duration::from_secs(600);

on_every_server! {
    #[cfg_attr(not(has_redis_python), ignore = "LEASEHOLD_TEST_PYTHON names no Python with redis-py")]
    each_excludes_the_other
    #[cfg_attr(not(has_redis_python), ignore = "LEASEHOLD_TEST_PYTHON names no Python with redis-py")]
    each_waits_for_the_other
    #[cfg_attr(not(has_redis_python), ignore = "LEASEHOLD_TEST_PYTHON names no Python with redis-py")]
    what_it_holds_can_be_looked_at_passed_on_and_removed
}

/// Managers with the name under which redis-py knows their lock `job`.
async fn namespaces(site: &Site) -> [(LockManager, &'static str); 2] {
    let exact = site.builder().await.namespace("").build().unwrap();
    [(exact, "job"), (site.manager().await, "leasehold:job")]
}

async fn each_excludes_the_other(site: Site) {
    let mut python = ForeignClient::redis_py(site.server().address());
    for (locks, name) in namespaces(&site).await {
        let lock = locks.lock("job");
        for _ in 0..3 {
            let guard = lock.try_acquire().await.unwrap().unwrap();
            assert!(!python.try_acquire(name, TTL));
            guard.extend(Duration::from_secs(60)).await.unwrap();
            assert!(!python.try_acquire(name, TTL));
            guard.release().await.unwrap();

            assert!(python.try_acquire(name, TTL));
            assert!(lock.try_acquire().await.unwrap().is_none());
            assert!(python.extend(name, TTL));
            assert!(lock.acquire_within(Duration::from_millis(50)).await.unwrap().is_none());
            assert!(python.release(name));
        }
    }
}

async fn each_waits_for_the_other(site: Site) {
    let mut python = ForeignClient::redis_py(site.server().address());
    for (locks, name) in namespaces(&site).await {
        let lock = locks.lock("job");
        let guard = lock.try_acquire().await.unwrap().unwrap();
        python.start_acquire(name, TTL);
        tokio::time::sleep(Duration::from_millis(300)).await;
        guard.check().unwrap();
        guard.release().await.unwrap();
        assert!(python.granted());

        let waiter = tokio::spawn(async move { lock.acquire().await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!waiter.is_finished());
        assert!(python.release(name));
        let guard = timeout(SOON, waiter).await.unwrap().unwrap().unwrap();
        assert!(guard.fencing_token().is_some());
        assert!(!python.try_acquire(name, TTL));
        guard.release().await.unwrap();
    }
}

async fn what_it_holds_can_be_looked_at_passed_on_and_removed(site: Site) {
    let mut python = ForeignClient::redis_py(site.server().address());
    for (locks, name) in namespaces(&site).await {
        let lock = locks.lock("job");
        let fence = lock.try_acquire().await.unwrap().unwrap().fencing_token();
        site.at_rest(std::slice::from_ref(&locks)).await;

        assert!(python.try_acquire(name, TTL));
        let holder = lock.holder().await.unwrap().unwrap();
        // What was known of the one before is not told of this one.
        assert_eq!((holder.info.pid, holder.fencing), (None, None));
        assert!(holder.remaining.unwrap() > Duration::from_secs(590));

        // It passes its token on to us.
        let token: Vec<u8> = redis::cmd("GET").arg(name).query(&mut site.client()).unwrap();
        let guard = lock.resume(&OwnerToken::from_bytes(&token).unwrap()).await.unwrap();
        assert!(guard.fencing_token() > fence);
        assert!(!python.release(name));
        guard.release().await.unwrap();

        assert!(python.try_acquire(name, TTL));
        let removed = locks.force_release("job", None).await.unwrap().unwrap();
        assert_eq!(removed.holders[0].owner.as_bytes().len(), 32);
        assert!(!python.release(name));
        assert!(lock.try_acquire().await.unwrap().unwrap().fencing_token() > removed.fence_floor);
        site.at_rest(std::slice::from_ref(&locks)).await;
    }
}
