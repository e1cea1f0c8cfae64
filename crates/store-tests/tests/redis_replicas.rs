//! A replica that takes over without knowing the latest grant: what is promised, what is not, and what it costs to ask
//! replicas.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "an error fails the test, also in its helpers")]

use std::time::Duration;

use leasehold::testkit::{Proxy, Server};
use leasehold::{Backoff, ErrorKind, FencingToken, Jitter, Lock, LockGuard, LockManager, LostReason, config};
use store_tests::{Monitor, ask, patiently, redis, run};

/// A ttl that no test outlasts, and that lets replicas take a second.
const TTL: Duration = Duration::from_secs(300);

/// How long nothing is to happen.
const A_WHILE: Duration = Duration::from_millis(200);

/// A primary and a replica, with a network between them that can be cut.
struct Pair {
    primary: Server,
    between: Proxy,
    replica: Server,
}

impl Pair {
    fn start() -> Self {
        Self::with(&[])
    }

    /// With further settings of the primary.
    fn with(settings: &[&str]) -> Self {
        let quick = ["--repl-diskless-sync-delay", "0"];
        let primary = redis().args(quick).args(settings.iter().copied()).start().unwrap();
        let between = Proxy::start(primary.address()).unwrap();
        let follow = ["--replicaof".to_owned(), format!("127.0.0.1 {}", between.address().port())];
        let replica = redis().args(quick).args(follow).start().unwrap();
        let pair = Self { primary, between, replica };
        pair.until_followed();
        pair
    }

    fn url(&self, options: &str) -> String {
        format!("redis://{}{options}", self.primary.address())
    }

    async fn manager(&self, options: &str) -> LockManager {
        LockManager::connect(&self.url(options)).await.unwrap()
    }

    /// A manager that asks again after a push, after the end of a lease, and otherwise never.
    async fn patient(&self, options: &str) -> LockManager {
        let never = Backoff::new(TTL * 2, TTL * 2, 1.0).unwrap().jitter(Jitter::from_fn(|| 1.0));
        config::open(&self.url(options)).await.unwrap().backoff(never).build().unwrap()
    }

    fn until_followed(&self) {
        patiently("the replica follows", || {
            let info: String = ask(&self.replica, &["INFO", "replication"]).unwrap();
            info.contains("master_link_status:up").then_some(())
        });
        // The primary may hear of that later.
        let known: u32 = ask(&self.primary, &["WAIT", "1", "50000"]).unwrap();
        assert_eq!(known, 1);
    }

    /// From now on the replica learns nothing.
    fn cut(&self) {
        self.between.replies().hold();
    }

    /// What was held back is lost, and the replica knows only what it knew.
    fn fail_over(&self) {
        self.primary.kill().unwrap();
        self.between.refuse();
        self.between.reset();
        ask::<()>(&self.replica, &["REPLICAOF", "NO", "ONE"]).unwrap();
    }
}

/// Something that only one holder may write to, and that knows of holders nothing but their tokens.
#[derive(Default)]
struct Resource(Option<FencingToken>);

impl Resource {
    fn write(&mut self, guard: &LockGuard) -> bool {
        let is_current = guard.fencing_token() >= self.0;
        self.0 = guard.fencing_token().max(self.0);
        is_current
    }
}

/// A replica that has to know may take longer than it is waited for; what was granted is given back then.
async fn take(locks: &LockManager, name: &str) -> LockGuard {
    for _ in 0..30 {
        match locks.lock(name).ttl(TTL).try_acquire().await {
            Ok(granted) => return granted.expect("nobody else is there"),
            Err(error) => assert!(error.to_string().contains("0 of 1 replicas"), "{error}"),
        }
    }
    panic!("the replica never knew")
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_failover_without_the_latest_grant_makes_two_holders_and_the_resource_knows_the_later() {
    run(async {
        let pair = Pair::start();
        let locks = pair.manager("").await;
        // The replica knows the counter, and that nobody holds the key.
        take(&locks, "k").await.release().await.unwrap();
        patiently("the release", || {
            let (counter, held): (bool, bool) = (
                ask(&pair.replica, &["EXISTS", "leasehold:k:fence{leasehold:k}"]).unwrap(),
                ask(&pair.replica, &["EXISTS", "leasehold:k"]).unwrap(),
            );
            (counter && !held).then_some(())
        });
        pair.cut();
        let mut firsts = Vec::new();
        // More grants than one, so that a counter that only counts would come to the same number again.
        for _ in 0..3 {
            let guard = take(&locks, "k").await;
            firsts.push(guard.fencing_token());
            guard.release().await.unwrap();
        }
        let first = take(&locks, "k").await;
        pair.fail_over();

        let others = LockManager::connect(&format!("redis://{}", pair.replica.address())).await.unwrap();
        let second = take(&others, "k").await;
        // Both may believe in it: the violation that the documentation states.
        first.check().unwrap();
        second.check().unwrap();
        assert!(second.fencing_token() > first.fencing_token());
        assert!(firsts.into_iter().all(|earlier| earlier < first.fencing_token()));
        let mut resource = Resource::default();
        assert!(resource.write(&first));
        assert!(resource.write(&second));
        assert!(!resource.write(&first), "the resource took the older holder");
        assert!(resource.write(&second));
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_grant_that_no_replica_knows_of_is_refused() {
    run(async {
        let pair = Pair::start();
        let (locks, plain) = (pair.manager("?wait_replicas=1").await, pair.manager("").await);
        let known = take(&locks, "known").await;
        let there: bool = ask(&pair.replica, &["EXISTS", "leasehold:known"]).unwrap();
        assert!(there, "granted before the replica knew");

        pair.cut();
        let error = locks.lock("k").ttl(TTL).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
        // Given back, so that it is free.
        let left: bool = ask(&pair.primary, &["EXISTS", "leasehold:k"]).unwrap();
        assert!(!left);
        // Held is held: no replica has to know that.
        assert!(locks.lock("known").ttl(TTL).try_acquire().await.unwrap().is_none());
        // Renewals do not wait for replicas.
        known.extend(TTL).await.unwrap();
        take(&plain, "unsure").await.release().await.unwrap();

        // The same failover as ever finds nobody who believes in a lease that the new primary does not know.
        pair.fail_over();
        let others = LockManager::connect(&format!("redis://{}", pair.replica.address())).await.unwrap();
        assert!(others.lock("known").ttl(TTL).try_acquire().await.unwrap().is_none());
        take(&others, "k").await.release().await.unwrap();
    });
}

/// Waiting for replicas blocks the connection that all grants share, for a second here; an answer may take five.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn many_that_no_replica_knows_of_are_refused_together() {
    const GRANTS: usize = 30;
    run(async {
        let pair = Pair::start();
        let locks = pair.manager("?wait_replicas=1").await;
        take(&locks, "known").await.release().await.unwrap();
        pair.cut();
        let ask = |number: usize| {
            let lock = locks.lock(&format!("k{number}")).ttl(TTL);
            tokio::spawn(async move { lock.try_acquire().await.unwrap_err() })
        };
        let tasks: Vec<_> = (0..GRANTS).map(ask).collect();
        let mut refused = 0;
        for task in tasks {
            refused += usize::from(task.await.unwrap().to_string().contains("0 of 1 replicas"));
        }
        // One after the other, there would be time for five.
        assert!(refused > GRANTS / 2, "{refused} of {GRANTS}");
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_lease_that_is_taken_on_without_a_replica_stays_with_whom_it_came_from() {
    run(async {
        let pair = Pair::start();
        let locks = pair.manager("?wait_replicas=1").await;
        let guard = take(&locks, "k").await;
        let (owner, fence) = (guard.hand_over().await.unwrap(), guard.fencing_token());
        pair.cut();
        let error = locks.lock("k").ttl(TTL).resume(&owner).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(locks.holder("k").await.unwrap().unwrap().owner, owner);

        pair.between.heal();
        pair.between.reset();
        pair.until_followed();
        let resumed = patiently_resumed(&locks, &owner).await;
        assert!(resumed.fencing_token() > fence);
        resumed.release().await.unwrap();
    });
}

/// The replica may have to come back first.
async fn patiently_resumed(locks: &LockManager, owner: &leasehold::OwnerToken) -> LockGuard {
    for _ in 0..100 {
        match locks.lock("k").ttl(TTL).resume(owner).await {
            Ok(guard) => return guard,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
    }
    panic!("the replica never came back")
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn more_replicas_than_there_are_grant_nothing() {
    run(async {
        let pair = Pair::start();
        let locks = pair.manager("?wait_replicas=2").await;
        let error = locks.lock("k").ttl(TTL).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("1 of 2 replicas"), "{error}");
        let left: bool = ask(&pair.primary, &["EXISTS", "leasehold:k"]).unwrap();
        assert!(!left);
    });
}

/// Grants have a connection of their own, which the server need not tell of renewals.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn own_extensions_raise_nothing_and_cost_nothing_more() {
    run(async {
        let pair = Pair::start();
        let (locks, others) = (pair.patient("?wait_replicas=1").await, pair.patient("?wait_replicas=1").await);
        // The first use loads the scripts, which takes requests of its own.
        let warm = take(&locks, "warm").await;
        warm.extend(TTL * 2).await.unwrap();
        warm.release().await.unwrap();
        let mut monitor = Monitor::start(pair.primary.address());
        let guard = take(&locks, "job").await;
        // It is looked at once, for the server to tell of it.
        monitor.until("EVAL\"", "leasehold:job").await;
        // The look may be late.
        let mut quiet = 0;
        while quiet < 2 {
            tokio::time::sleep(A_WHILE).await;
            quiet = if monitor.requests().is_empty() { quiet + 1 } else { 0 };
        }
        for more in 1..=10 {
            guard.extend(TTL + Duration::from_secs(more)).await.unwrap();
            // Asked for by somebody who is refused, over the connection for grants.
            assert!(locks.lock("job").try_acquire().await.unwrap().is_none());
        }
        tokio::time::sleep(A_WHILE).await;
        let requests = monitor.requests();
        assert_eq!(requests.len(), 20, "{requests:?}");
        assert!(requests.iter().all(|request| request.starts_with("\"EVALSHA\"")), "{requests:?}");
        guard.check().unwrap();

        // What others do is heard all the same: by who holds it, and by who waits.
        let theirs = take(&others, "theirs").await;
        let lock = locks.lock("theirs");
        let waiter = tokio::spawn(async move { wait_for(lock).await });
        monitor.until("EVALSHA", "theirs").await;
        tokio::time::sleep(A_WHILE).await;
        assert!(!waiter.is_finished());
        theirs.release().await.unwrap();
        soon("a push wakes the waiter", waiter).await.unwrap().release().await.unwrap();
        ask::<()>(&pair.primary, &["DEL", "leasehold:job"]).unwrap();
        assert_eq!(soon("a push tells of the loss", guard.lost()).await, LostReason::NotHeld);
    });
}

/// Nothing is heard of between the refusal over one connection and the question over the other.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_release_before_anybody_listens_wakes() {
    run(async {
        let pair = Pair::start();
        let locks = pair.patient("?wait_replicas=1").await;
        let mut monitor = Monitor::start(pair.primary.address());
        for _ in 0..20 {
            ask::<()>(&pair.primary, &["SET", "leasehold:k", "somebody"]).unwrap();
            let lock = locks.lock("k");
            let waiter = tokio::spawn(async move { wait_for(lock).await });
            monitor.until("EVALSHA", "leasehold:k").await;
            ask::<()>(&pair.primary, &["DEL", "leasehold:k"]).unwrap();
            soon("it is woken", waiter).await.unwrap().release().await.unwrap();
        }
    });
}

/// Waits until the lock is free, which alone is told by a grant that the replica is late to know of; then takes it.
async fn wait_for(lock: Lock) -> LockGuard {
    for _ in 0..30 {
        match lock.acquire().await {
            Ok(guard) => return guard,
            Err(error) => assert!(error.to_string().contains("0 of 1 replicas"), "{error}"),
        }
    }
    panic!("the replica never knew")
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), future).await.expect(what)
}

/// A renewal, which is one of a batch, is all that meets the refusal.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_server_that_became_a_replica_is_left() {
    run(async {
        let server = redis().start().unwrap();
        let proxy = Proxy::start(server.address()).unwrap();
        let locks = LockManager::connect(&format!("redis://{}", proxy.address())).await.unwrap();
        let guard = take(&locks, "k").await;
        let connections = proxy.accepted();
        ask::<()>(&server, &["REPLICAOF", "127.0.0.1", "1"]).unwrap();
        let error = guard.extend(TTL * 2).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        // The next one looks for the primary, which is not here.
        let error = guard.extend(TTL * 2).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(error.to_string().contains("replica"), "{error}");
        assert!(proxy.accepted() > connections);
        ask::<()>(&server, &["REPLICAOF", "NO", "ONE"]).unwrap();
        guard.extend(TTL * 2).await.unwrap();
        guard.release().await.unwrap();
    });
}

/// The servers' own remedy against a primary that is cut off and goes on renewing.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_primary_that_must_have_replicas_renews_nothing_without() {
    run(async {
        let pair = Pair::with(&["--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"]);
        let locks = pair.manager("").await;
        let guard = patiently_taken(&locks).await;
        pair.between.hold();
        let refused = async {
            loop {
                if let Err(error) = guard.extend(TTL).await {
                    break error;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let error = tokio::time::timeout(Duration::from_secs(60), refused).await.expect("the lag is noticed");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("NOREPLICAS"), "{error}");
        let error = locks.lock("other").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        guard.check().unwrap();
    });
}

/// The primary may have to hear from its replica first.
async fn patiently_taken(locks: &LockManager) -> LockGuard {
    for _ in 0..600 {
        match locks.lock("k").ttl(TTL).try_acquire().await {
            Ok(granted) => return granted.expect("nobody else is there"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the primary never heard from its replica")
}
