//! Grants that replicas have to know of where there are none, and a server that becomes a replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::store::Page;
use leasehold::{ErrorKind, LockManager};
use store_tests::redis;

use crate::fake::{Fake, greeting};
use crate::refusals::is_told;
use crate::setting::{Direct, LONG, SHORT, manager, nobody, soon, until};

/// A manager whose grants a replica has to know of.
async fn strict(server: &str) -> LockManager {
    soon("an answer", LockManager::connect(&format!("redis://{server}?wait_replicas=1"))).await.unwrap()
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_grant_that_nobody_else_knows_of_is_given_back() {
    let server = redis().start().unwrap();
    let locks = strict(&server.address().to_string()).await;
    let error = soon("an answer", locks.lock("k").ttl(LONG).try_acquire()).await.unwrap_err();
    is_told(&error, ErrorKind::Unavailable, &["0 of 1 replicas", "given back"]);
    assert_eq!(Direct::to(server.address()).number("EXISTS leasehold:k"), 0);
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_grant_that_cannot_be_given_back_is_not_denied() {
    let server = redis().start().unwrap();
    let mut direct = Direct::to(server.address());
    // Enough to take a key that is free, and not to give it back.
    direct.ask("ACL SETUSER locks on >pw ~* &* +@all -get");
    let locks = strict(&format!("locks:pw@{}", server.address())).await;
    let error = soon("an answer", locks.lock("k").ttl(SHORT).try_acquire()).await.unwrap_err();
    assert_eq!(direct.number("EXISTS leasehold:k"), 1);
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_lease_that_is_taken_on_and_nobody_else_knows_of_goes_back_to_whom_it_came_from() {
    let server = redis().start().unwrap();
    let plain = manager(server.address(), LONG).await;
    let owner = plain.lock("k").try_acquire().await.unwrap().unwrap().hand_over().await.unwrap();
    let locks = strict(&server.address().to_string()).await;
    let error = soon("an answer", locks.lock("k").ttl(LONG).resume(&owner)).await.unwrap_err();
    is_told(&error, ErrorKind::Unavailable, &["0 of 1 replicas", "given back"]);
    let back = async {
        loop {
            match plain.lock("k").resume(&owner).await {
                Ok(guard) => break guard,
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotHeld),
            }
            // It never was free.
            assert_eq!(plain.lock("k").try_acquire().await.unwrap().map(|guard| format!("{guard:?}")), None);
        }
    };
    soon("it goes back", back).await.release().await.unwrap();
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn renewals_leave_a_server_that_was_demoted() {
    let server = redis().start().unwrap();
    let mut direct = Direct::to(server.address());
    let locks = manager(server.address(), LONG).await;
    let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
    let (_port, nobody) = nobody();
    direct.ask(&format!("REPLICAOF 127.0.0.1 {}", nobody.port()));
    // Also where nothing has to be written.
    let error = soon("an answer", guard.extend(LONG / 2)).await.unwrap_err();
    is_told(&error, ErrorKind::Unavailable, &["READONLY", "become a replica"]);
    // On a new connection: by now the name may lead elsewhere.
    let error = soon("an answer", guard.extend(LONG)).await.unwrap_err();
    is_told(&error, ErrorKind::Rejected, &["is a replica: name the primary"]);
    direct.ask("REPLICAOF NO ONE");
    guard.extend(LONG).await.unwrap();
    guard.release().await.unwrap();
}

/// A server that is demoted under a connection that stays, and cut off from the new primary, knows what was once.
#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn what_a_demoted_server_knows_is_no_answer() {
    let (old, new) = (redis().start().unwrap(), redis().start().unwrap());
    let mut direct = Direct::to(old.address());
    let (_port, nobody) = nobody();
    let present = manager(new.address(), LONG).await;
    let owner = present.lock("k").try_acquire().await.unwrap().unwrap().hand_over().await.unwrap();
    for case in 0..7 {
        direct.ask("REPLICAOF NO ONE");
        let locks = manager(old.address(), LONG).await;
        let lock = locks.lock("k");
        assert!(locks.holder("k").await.unwrap().is_none());
        direct.ask(&format!("REPLICAOF 127.0.0.1 {}", nobody.port()));
        let asked = async {
            match case {
                0 => lock.resume(&owner).await.map(|guard| format!("{guard:?}")),
                1 => lock.extend_by(&owner, LONG).await.map(|answer| format!("{answer:?}")),
                2 => lock.release_by(&owner).await.map(|answer| format!("{answer:?}")),
                3 => locks.holder("k").await.map(|answer| format!("{answer:?}")),
                4 => locks.list("", Page::first(9)).await.map(|answer| format!("{answer:?}")),
                5 => locks.force_release("k", None).await.map(|answer| format!("{answer:?}")),
                _ => lock.try_acquire().await.map(|answer| format!("{answer:?}")),
            }
        };
        let error = soon("an answer", asked).await.expect_err(&format!("case {case}"));
        is_told(&error, ErrorKind::Unavailable, &["READONLY", "become a replica"]);
    }
    assert_eq!(present.holder("k").await.unwrap().unwrap().owner, owner);
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn what_a_replica_no_longer_knows_is_no_loss() {
    let server = redis().start().unwrap();
    let mut direct = Direct::to(server.address());
    let locks = manager(server.address(), LONG).await;
    let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
    let (_port, nobody) = nobody();
    direct.ask(&format!("REPLICAOF 127.0.0.1 {}", nobody.port()));
    direct.ask("CONFIG SET replica-read-only no");
    direct.ask("CONFIG RESETSTAT");
    direct.ask("DEL leasehold:k");
    until("the look", || direct.text("INFO commandstats").unwrap().contains("cmdstat_get:")).await;
    // Long enough for its answer.
    tokio::time::sleep(Duration::from_millis(300)).await;
    guard.check().unwrap();
}

/// As versions up to 6 tell what a script ran into.
#[tokio::test]
async fn an_old_server_that_was_demoted_is_left() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let fake = Fake::start(move |words| {
        if words[0] == "HELLO" {
            counted.fetch_add(1, Ordering::AcqRel);
        }
        let refusal = "-ERR Error running script (call to f_1): @user_script:3: @user_script: 3: -READONLY You can't \
                       write against a read only replica. \r\n";
        greeting(words).unwrap_or_else(|| refusal.into())
    })
    .await;
    let locks = manager(fake.address(), LONG).await;
    for count in 1..4 {
        let error = soon("an answer", locks.lock("k").try_acquire()).await.unwrap_err();
        is_told(&error, ErrorKind::Unavailable, &["become a replica"]);
        assert_eq!(connections.load(Ordering::Acquire), count);
    }
}
