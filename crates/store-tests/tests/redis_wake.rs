//! Pushes: who waits is woken, and who holds is told of a loss, without asking.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::time::Duration;

use leasehold::store::{Attempt, Claim, Contention, Store};
use leasehold::testkit::Proxy;
use leasehold::{Backoff, Jitter, Key, LockGuard, LockManager, LostReason, OwnerToken};
use store_tests::{ForeignClient, Monitor, Site, on_servers_that_push};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Five times and more of what a push needs on a busy machine, and far from any ttl or pause of these tests.
const SOON: Duration = Duration::from_secs(10);
/// Nothing that lasts so long happens within a test.
const LONG: Duration = Duration::from_secs(600);
/// How long nothing is to happen.
const A_WHILE: Duration = Duration::from_millis(200);

on_servers_that_push! {
    a_release_by_another_manager_wakes
    #[cfg_attr(not(has_redis_python), ignore = "LEASEHOLD_TEST_PYTHON names no Python with redis-py")]
    a_release_by_redis_py_wakes
    a_plain_del_wakes
    a_del_under_a_holder_is_a_loss_at_once
    another_value_under_a_holder_is_a_loss_at_once
    own_extensions_raise_nothing_and_cost_nothing_more
    flushall_wakes_all_waiters_and_all_holders_lose
    waiters_are_armed_again_when_the_server_cuts_the_connection
    waiters_are_armed_again_when_the_network_cuts_the_connection
    holders_learn_of_a_loss_during_a_broken_connection
}

/// What needs no pushes.
mod without {
    use super::{a_refusal_tells_how_long_the_lease_stands, an_expiry_is_covered_by_a_timer};

    store_tests::on_every_server! {
        an_expiry_is_covered_by_a_timer
        a_refusal_tells_how_long_the_lease_stands
    }
}

/// A manager that asks again after a push, after the end of a lease, and otherwise never.
async fn pushed(url: &str) -> LockManager {
    let never = Backoff::new(LONG, LONG, 1.0).unwrap().jitter(Jitter::from_fn(|| 1.0));
    let store = leasehold::store::redis::RedisStore::connect(url).await.unwrap();
    let locks = LockManager::builder(store).ttl(LONG).backoff(never).build().unwrap();
    // The first use loads the scripts, which takes requests of its own.
    take(&locks, "warm").await.release().await.unwrap();
    locks
}

async fn take(locks: &LockManager, name: &str) -> LockGuard {
    locks.lock(name).try_acquire().await.unwrap().expect("nobody else is there")
}

/// Somebody who waits, and has been refused by the server already.
async fn waiter(locks: &LockManager, name: &str, monitor: &mut Monitor) -> JoinHandle<LockGuard> {
    monitor.requests();
    let lock = locks.lock(name);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    // By its key: whoever connects asks something, too.
    monitor.until("EVAL", name).await;
    // Nothing but a push brings it here: perhaps that of the grant before, which may have been under way.
    for _ in 0..3 {
        tokio::time::sleep(A_WHILE).await;
        assert!(!waiter.is_finished());
        if monitor.requests().is_empty() {
            return waiter;
        }
    }
    panic!("the waiter asks again and again")
}

async fn woken(waiter: JoinHandle<LockGuard>) -> LockGuard {
    timeout(SOON, waiter).await.expect("a push wakes the waiter").unwrap()
}

async fn lost(guard: &LockGuard) -> LostReason {
    timeout(SOON, guard.lost()).await.expect("a push tells of the loss")
}

async fn a_release_by_another_manager_wakes(site: Site) {
    let (holder, locks) = (site.builder().await.ttl(LONG).build().unwrap(), pushed(&site.url()).await);
    let mut monitor = Monitor::start(site.server().address());
    for _ in 0..20 {
        let guard = take(&holder, "job").await;
        let waiter = waiter(&locks, "job", &mut monitor).await;
        guard.release().await.unwrap();
        woken(waiter).await.release().await.unwrap();
    }
}

async fn a_release_by_redis_py_wakes(site: Site) {
    let locks = pushed(&site.url()).await;
    let mut monitor = Monitor::start(site.server().address());
    let mut python = ForeignClient::redis_py(site.server().address());
    for _ in 0..5 {
        assert!(python.try_acquire("leasehold:job", LONG));
        let waiter = waiter(&locks, "job", &mut monitor).await;
        assert!(python.release("leasehold:job"));
        woken(waiter).await.release().await.unwrap();
    }
}

async fn a_plain_del_wakes(site: Site) {
    let locks = pushed(&site.url()).await;
    let mut monitor = Monitor::start(site.server().address());
    let mut client = site.client();
    redis::cmd("SET").arg(&["leasehold:job", "somebody"]).exec(&mut client).unwrap();
    let waiter = waiter(&locks, "job", &mut monitor).await;
    redis::cmd("DEL").arg("leasehold:job").exec(&mut client).unwrap();
    woken(waiter).await.release().await.unwrap();
}

async fn a_del_under_a_holder_is_a_loss_at_once(site: Site) {
    let locks = pushed(&site.url()).await;
    let guard = take(&locks, "job").await;
    redis::cmd("DEL").arg("leasehold:job").exec(&mut site.client()).unwrap();
    assert_eq!(lost(&guard).await, LostReason::NotHeld);
    assert!(guard.check().is_err());
    // And the next one can have it, with a higher token.
    assert!(take(&locks, "job").await.fencing_token() > guard.fencing_token());
}

async fn another_value_under_a_holder_is_a_loss_at_once(site: Site) {
    let locks = pushed(&site.url()).await;
    let guard = take(&locks, "job").await;
    // Also after it was extended, which is a change of its own.
    guard.extend(LONG).await.unwrap();
    redis::cmd("SET").arg(&["leasehold:job", "somebody"]).exec(&mut site.client()).unwrap();
    assert_eq!(lost(&guard).await, LostReason::NotHeld);
}

async fn own_extensions_raise_nothing_and_cost_nothing_more(site: Site) {
    let locks = pushed(&site.url()).await;
    let guard = take(&locks, "job").await;
    guard.extend(LONG).await.unwrap();
    let mut monitor = Monitor::start(site.server().address());
    for more in 1..=10 {
        guard.extend(LONG + Duration::from_secs(more)).await.unwrap();
    }
    tokio::time::sleep(A_WHILE).await;
    let requests = monitor.requests();
    assert_eq!(requests.len(), 10, "{requests:?}");
    guard.check().unwrap();
    // Somebody else's look at the key changes nothing either; a change that leaves us the holder costs one look.
    let mut client = site.client();
    redis::cmd("GET").arg("leasehold:job").exec(&mut client).unwrap();
    redis::cmd("PEXPIRE").arg("leasehold:job").arg(600_000).exec(&mut client).unwrap();
    let mut looks = || monitor.requests().iter().filter(|request| request.starts_with("\"EVAL\"")).count();
    let first = async {
        loop {
            match looks() {
                0 => tokio::time::sleep(Duration::from_millis(5)).await,
                count => return count,
            }
        }
    };
    let first = timeout(SOON, first).await.expect("it is looked at");
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(first + looks(), 1);
    guard.check().unwrap();
    guard.release().await.unwrap();
}

async fn flushall_wakes_all_waiters_and_all_holders_lose(site: Site) {
    let (holder, locks) = (pushed(&site.url()).await, pushed(&site.url()).await);
    let mut monitor = Monitor::start(site.server().address());
    let (mut guards, mut waiters) = (Vec::new(), Vec::new());
    for name in ["one", "two", "three", "four"] {
        guards.push(take(&holder, name).await);
        waiters.push(waiter(&locks, name, &mut monitor).await);
    }
    // One that nobody waits for.
    guards.push(take(&holder, "five").await);
    redis::cmd("FLUSHALL").exec(&mut site.client()).unwrap();
    for guard in &guards {
        assert_eq!(lost(guard).await, LostReason::NotHeld);
    }
    for (waiter, guard) in waiters.into_iter().zip(&guards) {
        let woken = woken(waiter).await;
        assert!(woken.fencing_token() > guard.fencing_token());
        woken.check().unwrap();
    }
}

async fn waiters_are_armed_again_when_the_server_cuts_the_connection(site: Site) {
    let (holder, locks) = (pushed(&site.url()).await, pushed(&site.url()).await);
    let mut monitor = Monitor::start(site.server().address());
    let mut waiting = Vec::new();
    for name in ["job", "other", "third", "fourth"] {
        waiting.push((take(&holder, name).await, waiter(&locks, name, &mut monitor).await));
    }
    // All but the one that asks, and the monitor.
    redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]).exec(&mut site.client()).unwrap();
    armed_again(Monitor::start(site.server().address())).await;
    for (guard, waiter) in waiting {
        assert!(!waiter.is_finished());
        guard.check().unwrap();
        guard.release().await.unwrap();
        woken(waiter).await.release().await.unwrap();
    }
}

async fn waiters_are_armed_again_when_the_network_cuts_the_connection(site: Site) {
    let proxy = Proxy::start(site.server().address()).unwrap();
    let (holder, locks) = (pushed(&site.url()).await, pushed(&format!("redis://{}", proxy.address())).await);
    let mut monitor = Monitor::start(site.server().address());
    for cut in [Proxy::reset, Proxy::hang_up] {
        let guard = take(&holder, "job").await;
        let waiter = waiter(&locks, "job", &mut monitor).await;
        cut(&proxy);
        armed_again(Monitor::start(site.server().address())).await;
        assert!(!waiter.is_finished());
        guard.release().await.unwrap();
        woken(waiter).await.release().await.unwrap();
    }
}

/// Waits until somebody waits on a new connection. What it asked may have been missed.
async fn armed_again(mut monitor: Monitor) {
    let mut quiet = 0;
    while quiet < 3 {
        tokio::time::sleep(A_WHILE).await;
        quiet = if monitor.requests().is_empty() { quiet + 1 } else { 0 };
    }
}

async fn holders_learn_of_a_loss_during_a_broken_connection(site: Site) {
    let proxy = Proxy::start(site.server().address()).unwrap();
    let locks = pushed(&format!("redis://{}", proxy.address())).await;
    let (gone, kept) = (take(&locks, "gone").await, take(&locks, "kept").await);
    proxy.refuse();
    proxy.reset();
    redis::cmd("DEL").arg("leasehold:gone").exec(&mut site.client()).unwrap();
    proxy.heal();
    // Whatever uses the connection next.
    drop(locks.holder("other").await);
    assert_eq!(lost(&gone).await, LostReason::NotHeld);
    tokio::time::sleep(A_WHILE).await;
    kept.check().unwrap();
    kept.release().await.unwrap();
}

async fn an_expiry_is_covered_by_a_timer(site: Site) {
    let locks = pushed(&site.url()).await;
    let mut client = site.client();
    // No push tells of the end of a lease in time, nor does a pause of the waiter.
    redis::cmd("DEBUG").arg(&["SET-ACTIVE-EXPIRE", "0"]).exec(&mut client).unwrap();
    redis::cmd("SET").arg(&["leasehold:job", "somebody", "PX", "15000"]).exec(&mut client).unwrap();
    let mut monitor = Monitor::start(site.server().address());
    let waiter = waiter(&locks, "job", &mut monitor).await;
    let next = timeout(SOON * 4, waiter).await.expect("a timer wakes the waiter");
    next.unwrap().release().await.unwrap();
}

async fn a_refusal_tells_how_long_the_lease_stands(site: Site) {
    let store = site.store().await;
    let key = Key::new("leasehold", "job").unwrap();
    let [holder, other] = [(); 2].map(|()| OwnerToken::mint().unwrap());
    let ttl = Duration::from_secs(60);
    assert!(matches!(store.acquire(&Claim::new(&key, &holder, ttl)).await.unwrap(), Attempt::Acquired(_)));
    let mut before = ttl;
    for waits in [false, true] {
        let attempt = store.acquire(&Claim::new(&key, &other, ttl * 2).waits(waits)).await.unwrap();
        let Attempt::Contended(contention) = attempt else { panic!("granted twice") };
        let left = contention.retry_after.expect("how long");
        assert!(!left.is_zero() && left <= before, "{left:?} after {before:?}");
        before = left;
    }
    // One that stands for good says so.
    redis::cmd("PERSIST").arg("leasehold:job").exec(&mut site.client()).unwrap();
    let attempt = store.acquire(&Claim::new(&key, &other, ttl)).await.unwrap();
    assert!(matches!(attempt, Attempt::Contended(Contention { retry_after: None, .. })), "{attempt:?}");
}
