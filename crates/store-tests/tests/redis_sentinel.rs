//! Sentinels that tell where the primary is, and what happens when that changes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "an error fails the test, also in its helpers")]

use std::future::Future;
use std::time::Duration;

use leasehold::store::redis::RedisStore;
use leasehold::{ErrorKind, LockGuard, LockManager, Renew};
use redis::Value;
use store_tests::{Sentinels, ask, patiently, run, run_suite};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

/// A ttl with an operation limit of a second.
const SHORT: Duration = Duration::from_secs(6);

/// After this, sentinels hold a server for dead: far longer than a busy machine keeps one from answering.
const DEAD_AFTER: Duration = Duration::from_secs(5);

/// Five times and more of what a failover takes on a busy machine.
const SOON: Duration = Duration::from_secs(60);

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.unwrap_or_else(|_| panic!("never came: {what}"))
}

async fn take(locks: &LockManager, name: &str) -> LockGuard {
    locks.lock(name).try_acquire().await.unwrap().expect("nobody else is there")
}

/// Waits until a replica knows this key.
fn until_known(sentinels: &Sentinels, server: usize, name: &str) {
    patiently("the replica's knowledge", || {
        let known: bool = ask(&sentinels.servers()[server], &["EXISTS", &format!("leasehold:{name}")]).unwrap();
        known.then_some(())
    });
}

/// Asks until the primary can be reached, and then must be refused: somebody holds the key.
async fn until_refused(locks: &LockManager, name: &str) {
    let refused = async {
        while let Err(error) = locks.lock(name).try_acquire().await.map(|granted| assert!(granted.is_none())) {
            assert!([ErrorKind::Unavailable, ErrorKind::Indeterminate].contains(&error.kind()), "{error:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    soon("the primary", refused).await;
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn sentinels_pass_the_suite() {
    run(async {
        let sentinels = Sentinels::start();
        run_suite(|who| sentinels.url_for(who, "main"), &[&sentinels.servers()[0]]).await;
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn the_next_primary_is_found() {
    run(async {
        let sentinels = Sentinels::with(DEAD_AFTER, &[]);
        // Held for long, renewed all the time, and waited for.
        let (locks, others) = (sentinels.manager(LONG).await, sentinels.manager(LONG).await);
        // The failover may have to be tried again.
        let renewing = LockManager::builder(sentinels.store().await).ttl(SOON * 2);
        let renewing = renewing.renew(Renew::Every(Duration::from_secs(5))).build().unwrap();
        let (guard, renewed) = (take(&locks, "held").await, take(&renewing, "renewed").await);
        let waiter = tokio::spawn({
            let lock = others.lock("held");
            async move { lock.acquire().await }
        });
        for replica in [1, 2] {
            until_known(&sentinels, replica, "held");
            until_known(&sentinels, replica, "renewed");
        }
        sentinels.servers()[0].kill().unwrap();
        let primary = sentinels.until_replaced(0);
        until_refused(&locks, "held").await;
        guard.extend(LONG).await.unwrap();
        let before = renewed.remaining();
        soon("a renewal", async {
            while renewed.remaining() <= before {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        renewed.check().unwrap();

        // The old one comes back and is told to follow: it is nobody's primary any more.
        sentinels.servers()[0].restart().unwrap();
        patiently("the old primary's demotion", || {
            // A server that is told to follow ends its connections.
            let role: Vec<Value> = ask(&sentinels.servers()[0], &["ROLE"]).ok()?;
            (role[0] != Value::BulkString(b"master".to_vec())).then_some(())
        });
        let old = format!("redis://{}", sentinels.servers()[0].address());
        let refusal = async {
            loop {
                match RedisStore::connect(&old).await.unwrap_err() {
                    // It ends connections more than once.
                    error if error.kind() == ErrorKind::Unavailable => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    error => return error,
                }
            }
        };
        let error = soon("the refusal", refusal).await;
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(error.to_string().contains("replica"), "{error}");
        assert_eq!(sentinels.until_replaced(0), primary);
        let late = sentinels.manager(LONG).await;
        assert!(late.lock("held").try_acquire().await.unwrap().is_none());
        let fence = guard.fencing_token();
        guard.release().await.unwrap();
        // A waiter outlives what it could not ask.
        match soon("the waiter", waiter).await.unwrap() {
            Ok(next) => assert!(next.fencing_token() > fence),
            Err(error) => {
                assert!([ErrorKind::Unavailable, ErrorKind::Indeterminate].contains(&error.kind()), "{error:?}");
                assert!(take(&late, "held").await.fencing_token() > fence);
            }
        }
    });
}

/// The primary lives on, as a replica: whoever renews there is refused and goes to the new one.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_demoted_primary_is_left() {
    run(async {
        let sentinels = Sentinels::start();
        let locks = sentinels.manager(Duration::from_secs(30)).await;
        let guard = take(&locks, "held").await;
        until_known(&sentinels, 1, "held");
        until_known(&sentinels, 2, "held");
        patiently("the failover", || ask::<()>(&sentinels.sentinels()[0], &["SENTINEL", "FAILOVER", "main"]).ok());
        sentinels.until_replaced(0);
        let before = guard.remaining();
        soon("a renewal", async {
            while guard.remaining() <= before {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        until_refused(&locks, "held").await;
        guard.release().await.unwrap();
    });
}

/// Nobody cuts the connections of a server that hangs; requests that are given up tell.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_primary_that_hangs_is_left() {
    run(async {
        let sentinels = Sentinels::with(DEAD_AFTER, &[]);
        let locks = sentinels.manager(SHORT).await;
        let guard = locks.lock("held").ttl(LONG).try_acquire().await.unwrap().unwrap();
        until_known(&sentinels, 1, "held");
        until_known(&sentinels, 2, "held");
        sentinels.servers()[0].stop().unwrap();
        let primary = sentinels.until_replaced(0);
        until_refused(&locks, "held").await;
        guard.extend(LONG).await.unwrap();
        let stands: i64 = ask(&sentinels.servers()[primary], &["PTTL", "leasehold:held"]).unwrap();
        assert!(stands > 0);
        sentinels.servers()[0].cont().unwrap();
        guard.release().await.unwrap();
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn sentinels_that_die_or_hang_are_done_without() {
    run(async {
        let sentinels = Sentinels::start();
        sentinels.sentinels()[0].stop().unwrap();
        take(&sentinels.manager(SHORT).await, "one hangs").await.release().await.unwrap();
        sentinels.sentinels()[1].kill().unwrap();
        take(&sentinels.manager(SHORT).await, "another is dead").await.release().await.unwrap();
        let locks = sentinels.manager(SHORT).await;
        sentinels.sentinels()[0].kill().unwrap();
        sentinels.sentinels()[2].kill().unwrap();
        // Whoever is connected needs none.
        take(&locks, "all are dead").await.release().await.unwrap();
        let error = RedisStore::connect(&sentinels.url()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("none of 3 sentinels"), "{error}");
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_name_that_no_sentinel_knows_is_told_as_that() {
    run(async {
        let sentinels = Sentinels::start();
        let error = RedisStore::connect(&sentinels.url_for("", "mian")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("\"mian\""), "{error}");
        // Whoever names a server as a sentinel that is none.
        let url = format!("redis+sentinel://{}/main", sentinels.servers()[0].address());
        let error = RedisStore::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn sentinels_may_want_a_password_of_their_own() {
    run(async {
        let sentinels = Sentinels::with(Duration::from_secs(30), &["requirepass s3cret"]);
        let directory = sentinels.servers()[0].dir();
        let url = |name: &str| format!("{}?sentinel_password_file={}", sentinels.url(), directory.join(name).display());
        std::fs::write(directory.join("right"), "s3cret\n").unwrap();
        std::fs::write(directory.join("wrong"), "guess3d\n").unwrap();
        for refused in [sentinels.url(), url("wrong")] {
            let error = LockManager::connect(&refused).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
            let text = format!("{error} {error:?}");
            assert!(text.contains("sentinel") && !text.contains("s3cret") && !text.contains("guess3d"), "{text}");
        }
        let locks = LockManager::connect(&url("right")).await.unwrap();
        take(&locks, "let in").await.release().await.unwrap();
    });
}
