//! Living with other programs that take a lock on a majority of servers, or on the only one: node-redlock and rslock,
//! executed.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::store::SharedStore;
use leasehold::store::quorum::Quorum;
use leasehold::store::redis::RedisStore;
use leasehold::{Clock, ErrorKind, LockGuard, LockManager, Renew};
use rslock::LockError;
use store_tests::{ForeignClient, Site, run};
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

/// Far longer than anything here takes, and what a quorum grants at most.
const TTL: Duration = Duration::from_secs(60);
/// Where they ask again and again: node-redlock takes what its own earlier tries left on some nodes for somebody else's,
/// so that two who ask at once may both wait until that has run out.
const ASKED_AGAIN: Duration = Duration::from_secs(10);
/// What is to run out.
const SHORT: Duration = Duration::from_secs(1);
/// Five times and more of what either sleeps between two asks.
const SOON: Duration = Duration::from_secs(15);

macro_rules! against_each {
    ($($test:ident)*) => {
        against_each! { with_node_redlock node_redlock has_node_redlock "node-redlock is not installed" $($test)* }
        against_each! { with_rslock rslock has_redis_server "redis-server is not installed" $($test)* }
    };
    ($module:ident $theirs:ident $has:ident $reason:literal $($test:ident)*) => {
        mod $module {
            $(
                mod $test {
                    #[test]
                    #[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
                    #[cfg_attr(all(has_redis_server, not($has)), ignore = $reason)]
                    fn on_one_server() {
                        crate::check(1, crate::Theirs::$theirs, crate::$test);
                    }

                    #[test]
                    #[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
                    #[cfg_attr(all(has_redis_server, not($has)), ignore = $reason)]
                    fn on_three_servers() {
                        crate::check(3, crate::Theirs::$theirs, crate::$test);
                    }
                }
            )*
        }
    };
}

against_each! {
    each_excludes_the_other
    each_waits_for_the_other
    a_late_release_takes_nothing_from_the_other
    they_never_hold_at_once
}

/// Runs a test under both names that a lock has, and looks whether anything is left.
fn check<F: Future<Output = Theirs>>(
    count: usize,
    theirs: impl Fn(&Nodes) -> Theirs,
    test: impl Fn(Scene, Theirs) -> F,
) {
    run(async {
        let nodes = Nodes((0..count).map(|_| Site::redis()).collect());
        for (namespace, name) in [("", "job"), ("leasehold", "leasehold:job")] {
            let locks = LockManager::builder(nodes.store().await).namespace(namespace).ttl(TTL).build().unwrap();
            // What is theirs lives until nothing is left, so that what they are still at counts.
            let theirs = test(Scene { locks: locks.clone(), name }, theirs(&nodes)).await;
            for node in &nodes.0 {
                node.at_rest(std::slice::from_ref(&locks)).await;
            }
            drop(theirs);
        }
    });
}

struct Nodes(Vec<Site>);

impl Nodes {
    /// The only server, or a quorum of them all.
    async fn store(&self) -> SharedStore {
        let mut stores: Vec<RedisStore> = Vec::new();
        for node in &self.0 {
            stores.push(node.store().await);
        }
        if stores.len() == 1 {
            return stores.remove(0).into();
        }
        // They were started just now, and have forgotten nothing.
        let quorum = Quorum::builder(stores).restart_guard(false).node_timeout(Duration::from_secs(3));
        quorum.build().unwrap().into()
    }
}

/// Our side, and the name under which they know our lock `job`.
struct Scene {
    locks: LockManager,
    name: &'static str,
}

impl Scene {
    async fn acquire(&self) -> LockGuard {
        self.locks.lock("job").acquire_within(SOON).await.unwrap().expect("the lock is free")
    }

    /// A lease that ends soon; nodes are given so little time for one that a busy machine may miss it.
    async fn acquire_for(&self, ttl: Duration) -> LockGuard {
        let lock = self.locks.lock("job").ttl(ttl).renew(Renew::Off);
        for _ in 0..10 {
            match lock.acquire_within(SOON).await {
                Err(error) => assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}"),
                Ok(granted) => return granted.expect("the lock is free"),
            }
        }
        panic!("the outcome was never known")
    }

    async fn is_contended(&self) -> bool {
        self.locks.lock("job").try_acquire().await.unwrap().is_none()
    }
}

/// Their side.
enum Theirs {
    NodeRedlock(ForeignClient),
    Rslock { once: rslock::LockManager, held: HashMap<&'static str, rslock::Lock> },
}

impl Theirs {
    fn node_redlock(nodes: &Nodes) -> Self {
        let servers: Vec<_> = nodes.0.iter().map(|node| node.server().address()).collect();
        Self::NodeRedlock(ForeignClient::node_redlock(&servers))
    }

    fn rslock(nodes: &Nodes) -> Self {
        let mut once = rslock::LockManager::new(nodes.0.iter().map(Site::url).collect());
        once.set_retry(1, Duration::from_millis(100));
        Self::Rslock { once, held: HashMap::new() }
    }

    async fn try_acquire(&mut self, name: &'static str, ttl: Duration) -> bool {
        match self {
            Self::NodeRedlock(client) => block_in_place(|| client.try_acquire(name, ttl)),
            Self::Rslock { once, held } => match once.lock(name, ttl).await {
                Ok(lock) => {
                    held.insert(name, lock);
                    true
                }
                Err(LockError::Unavailable) => false,
                Err(error) => panic!("{error}"),
            },
        }
    }

    /// Waits for it.
    async fn acquire(&mut self, name: &'static str, ttl: Duration) {
        match self {
            Self::NodeRedlock(client) => block_in_place(|| {
                client.start_acquire(name, ttl);
                assert!(client.granted());
            }),
            Self::Rslock { once, held } => {
                let mut patient = once.clone();
                patient.set_retry(3000, Duration::from_millis(80));
                held.insert(name, patient.lock(name, ttl).await.unwrap());
            }
        }
    }

    /// Prolongs it. rslock has half a second for an answer, and gives back what it held when a busy machine misses that;
    /// then it is taken anew, if nobody else has it.
    async fn extend(&mut self, name: &'static str) -> bool {
        match self {
            Self::NodeRedlock(client) => block_in_place(|| client.extend(name, TTL)),
            Self::Rslock { once, held } => {
                for _ in 0..10 {
                    let began = Clock::system().now();
                    if once.extend(&held[name], TTL).await.is_ok() {
                        return true;
                    }
                    if Clock::system().now().since(began) < Duration::from_millis(400) {
                        return false;
                    }
                    match once.lock(name, TTL).await {
                        Ok(lock) => held.insert(name, lock),
                        Err(_) => return false,
                    };
                }
                false
            }
        }
    }

    /// Gives it back, late perhaps.
    async fn release(&mut self, name: &'static str) {
        match self {
            Self::NodeRedlock(client) => {
                block_in_place(|| client.release(name));
            }
            Self::Rslock { once, held } => once.unlock(&held[name]).await,
        }
    }
}

async fn each_excludes_the_other(ours: Scene, mut theirs: Theirs) -> Theirs {
    for _ in 0..3 {
        let guard = ours.acquire().await;
        assert!(!theirs.try_acquire(ours.name, TTL).await);
        guard.extend(TTL).await.unwrap();
        assert!(!theirs.try_acquire(ours.name, TTL).await);
        // Nor do they disturb it.
        guard.check().unwrap();
        guard.release().await.unwrap();

        theirs.acquire(ours.name, TTL).await;
        assert!(ours.is_contended().await);
        assert!(theirs.extend(ours.name).await);
        assert!(ours.is_contended().await);
        theirs.release(ours.name).await;
    }
    theirs
}

async fn each_waits_for_the_other(ours: Scene, mut theirs: Theirs) -> Theirs {
    let guard = ours.acquire().await;
    let name = ours.name;
    let waiter = tokio::spawn(async move {
        theirs.acquire(name, TTL).await;
        theirs
    });
    sleep(Duration::from_millis(300)).await;
    assert!(!waiter.is_finished());
    guard.check().unwrap();
    guard.release().await.unwrap();
    let mut theirs = timeout(SOON, waiter).await.unwrap().unwrap();

    let lock = ours.locks.lock("job");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    sleep(Duration::from_millis(300)).await;
    assert!(!waiter.is_finished());
    assert!(theirs.extend(name).await);
    theirs.release(name).await;
    let guard = timeout(SOON, waiter).await.unwrap().unwrap().unwrap();
    assert!(!theirs.try_acquire(name, TTL).await);
    guard.release().await.unwrap();
    theirs
}

async fn a_late_release_takes_nothing_from_the_other(ours: Scene, mut theirs: Theirs) -> Theirs {
    // Theirs runs out.
    theirs.acquire(ours.name, SHORT).await;
    let guard = ours.acquire().await;
    theirs.release(ours.name).await;
    assert!(!theirs.extend(ours.name).await);
    assert!(!theirs.try_acquire(ours.name, TTL).await);
    guard.check().unwrap();
    guard.extend(TTL).await.unwrap();
    guard.release().await.unwrap();

    // Ours does.
    let guard = ours.acquire_for(SHORT).await;
    theirs.acquire(ours.name, TTL).await;
    assert!(guard.check().is_err(), "they hold what we may still assume");
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
    assert!(ours.is_contended().await);
    assert!(theirs.extend(ours.name).await);
    theirs.release(ours.name).await;
    theirs
}

async fn they_never_hold_at_once(ours: Scene, mut theirs: Theirs) -> Theirs {
    const ROUNDS: usize = 5;
    let is_held = Arc::new(AtomicBool::new(false));
    let name = ours.name;
    let other = tokio::spawn({
        let is_held = Arc::clone(&is_held);
        async move {
            for _ in 0..ROUNDS {
                theirs.acquire(name, ASKED_AGAIN).await;
                hold(&is_held).await;
                theirs.release(name).await;
            }
            theirs
        }
    });
    for _ in 0..ROUNDS {
        let guard = ours.locks.lock("job").acquire().await.unwrap();
        hold(&is_held).await;
        guard.check().unwrap();
        guard.release().await.unwrap();
        // Or they, who only ask now and then, would have no turn before we are through.
        sleep(Duration::from_millis(fastrand::u64(0..60))).await;
    }
    other.await.unwrap()
}

async fn hold(is_held: &AtomicBool) {
    assert!(!is_held.swap(true, Ordering::SeqCst), "two hold");
    sleep(Duration::from_millis(5)).await;
    is_held.store(false, Ordering::SeqCst);
}
