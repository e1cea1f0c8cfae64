//! The server forgets: scripts, keys, everything.

use std::time::Duration;

use leasehold::store::{Claim, Level, Store};
use leasehold::testkit::Server;
use leasehold::{ErrorKind, Key, LostReason, OwnerToken};
use store_tests::{redis, valkey};

use crate::setting::{Direct, LONG, SHORT, builder, fence, manager, soon, store, until};

async fn scripts_are_sent_again(server: Server) {
    let locks = manager(server.address(), LONG).await;
    let mut direct = Direct::to(server.address());
    let mut flush = || assert_eq!(direct.ask("SCRIPT FLUSH"), ::redis::Value::Okay);
    flush();
    let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
    flush();
    guard.extend(LONG * 2).await.unwrap();
    flush();
    assert_eq!(locks.holder("k").await.unwrap().unwrap().fencing, guard.fencing_token());
    flush();
    let owner = guard.hand_over().await.unwrap();
    flush();
    let guard = locks.lock("k").resume(&owner).await.unwrap();
    flush();
    guard.release().await.unwrap();
    let _held = locks.lock("k").try_acquire().await.unwrap().unwrap();
    flush();
    assert!(locks.force_release("k", None).await.unwrap().is_some());
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn scripts_that_were_forgotten_are_sent_again() {
    scripts_are_sent_again(redis().start().unwrap()).await;
}

#[tokio::test]
#[cfg_attr(not(has_valkey_server), ignore = "valkey-server is not installed")]
async fn scripts_that_valkey_forgot_are_sent_again() {
    scripts_are_sent_again(valkey().start().unwrap()).await;
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_batch_of_extends_survives_forgotten_scripts() {
    let server = redis().start().unwrap();
    let (store, mut direct) = (store(server.address()).await, Direct::to(server.address()));
    let keys: Vec<_> = (0..600).map(|number| Key::new("", &format!("k{number}")).unwrap()).collect();
    let (owner, stranger) = (OwnerToken::mint().unwrap(), OwnerToken::mint().unwrap());
    for key in &keys {
        store.acquire(&Claim::new(key, &owner, LONG)).await.unwrap();
    }
    direct.ask("SCRIPT FLUSH");
    // More than is sent at once; every seventh is somebody else's.
    let claims = keys.iter().enumerate().map(|(at, key)| {
        let owner = if at % 7 == 3 { &stranger } else { &owner };
        Claim::new(key, owner, LONG * 2)
    });
    let answers = store.extend(&claims.collect::<Vec<_>>()).await.unwrap();
    assert_eq!(answers.len(), keys.len());
    for (at, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer.unwrap().is_none(), at % 7 == 3, "{at}");
        let left = direct.number(&format!("PTTL k{at}"));
        assert_eq!(left > 600_000, at % 7 != 3, "{left}");
    }
}

async fn a_lost_key_is_told(server: Server, removal: &str) {
    let (locks, others) = (manager(server.address(), LONG).await, manager(server.address(), LONG).await);
    let mut direct = Direct::to(server.address());
    let first = locks.lock("k").try_acquire().await.unwrap().unwrap();
    let other = locks.lock("other").try_acquire().await.unwrap().unwrap();
    let waiter = others.lock("k");
    let mut waiting = Box::pin(waiter.acquire());
    tokio::select! {
        _ = &mut waiting => panic!("granted twice"),
        () = tokio::time::sleep(Duration::from_millis(300)) => {}
    }
    direct.ask(removal);
    // Nothing is renewed and nothing runs out: only the server can have told.
    assert_eq!(soon("the loss", first.lost()).await, LostReason::NotHeld);
    let second = soon("the key", waiting).await.unwrap();
    assert!(fence(&second) > fence(&first));
    if removal == "FLUSHALL" {
        assert_eq!(soon("the other loss", other.lost()).await, LostReason::NotHeld);
    } else {
        other.check().unwrap();
    }
    // What the first holder does now does the second no harm.
    first.extend(LONG).await.unwrap_err();
    drop(first);
    tokio::time::sleep(Duration::from_millis(100)).await;
    second.check().unwrap();
    second.release().await.unwrap();
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_key_that_was_deleted_by_hand_is_told_at_once() {
    a_lost_key_is_told(redis().start().unwrap(), "DEL leasehold:k").await;
    a_lost_key_is_told(redis().start().unwrap(), "DEL leasehold:k leasehold:k:fence{leasehold:k}").await;
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_flush_is_told_at_once() {
    a_lost_key_is_told(redis().start().unwrap(), "FLUSHALL").await;
}

#[tokio::test]
#[cfg_attr(not(has_valkey_server), ignore = "valkey-server is not installed")]
async fn valkey_tells_of_a_flush_at_once() {
    a_lost_key_is_told(valkey().start().unwrap(), "FLUSHALL").await;
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn an_evicted_lease_is_told_and_a_probe_warns_of_it() {
    let server = redis().args(["--maxmemory", "3mb", "--maxmemory-policy", "volatile-lru"]).start().unwrap();
    let (locks, mut direct) = (manager(server.address(), LONG).await, Direct::to(server.address()));
    let probe = locks.probe().await.unwrap();
    let finding = probe.findings.iter().find(|finding| finding.what.contains("volatile-lru")).unwrap();
    assert_eq!(finding.level, Level::Warn);
    assert!(finding.fix.contains("noeviction"), "{finding:?}");

    let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
    let filling = "x".repeat(10_000);
    for number in 0.. {
        assert!(number < 10_000, "nothing is evicted");
        direct.ask(&format!("SET filling{number} {filling} EX 600"));
        if number % 50 == 0 && direct.number("EXISTS leasehold:k") == 0 {
            break;
        }
    }
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::NotHeld);
    let next = locks.lock("k").try_acquire().await.unwrap().unwrap();
    assert!(fence(&next) > fence(&guard));
}

/// The server does not tell a connection of what it throws away to make room for that connection's own requests.
#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_lease_that_is_evicted_for_our_own_requests_is_told_at_its_next_renewal() {
    let evicting = ["--maxmemory", "3mb", "--maxmemory-policy", "volatile-ttl", "--maxmemory-samples", "64"];
    let server = redis().args(evicting).start().unwrap();
    let locks = manager(server.address(), LONG).await;
    let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
    let mut filling = Vec::new();
    while filling.len() % 50 != 0 || locks.holder("k").await.unwrap().is_some() {
        assert!(filling.len() < 50_000, "nothing is evicted");
        let lock = locks.lock(&format!("filling{}", filling.len())).ttl(LONG * 2);
        filling.push(lock.try_acquire().await.unwrap().unwrap());
    }
    assert_eq!(guard.extend(LONG).await.unwrap_err().kind(), ErrorKind::NotHeld);
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::NotHeld);
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_restart_that_keeps_the_data_keeps_the_lease() {
    let server = redis().args(["--appendonly", "yes"]).start().unwrap();
    let locks = builder(server.address(), SHORT * 5).await.build().unwrap();
    let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
    server.kill().unwrap();
    server.restart().unwrap();
    let before = guard.remaining();
    until("a renewal", || guard.remaining() > before).await;
    guard.check().unwrap();
    assert_eq!(locks.holder("k").await.unwrap().unwrap().fencing, guard.fencing_token());
    assert!(locks.lock("k").try_acquire().await.unwrap().is_none());
    let token = fence(&guard);
    guard.release().await.unwrap();
    assert!(fence(&locks.lock("k").try_acquire().await.unwrap().unwrap()) > token);
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_restart_from_a_snapshot_takes_the_leases_back_to_it_but_no_token() {
    let server = redis().start().unwrap();
    let locks = builder(server.address(), SHORT * 5).await.build().unwrap();
    let others = manager(server.address(), LONG).await;
    let released = others.lock("released").try_acquire().await.unwrap().unwrap();
    others.lock("often").try_acquire().await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(Direct::to(server.address()).ask("SAVE"), ::redis::Value::Okay);
    let taken = locks.lock("taken").try_acquire().await.unwrap().unwrap();
    let owner = others.holder("released").await.unwrap().unwrap().owner;
    released.release().await.unwrap();
    let mut token = fence(&taken);
    for _ in 0..5 {
        let guard = others.lock("often").try_acquire().await.unwrap().unwrap();
        token = fence(&guard);
        guard.release().await.unwrap();
    }
    server.kill().unwrap();
    server.restart().unwrap();
    let next = soon("the key", others.lock("taken").acquire()).await.unwrap();
    assert!(fence(&next) > fence(&taken));
    assert_eq!(soon("the loss", taken.lost()).await, LostReason::NotHeld);
    next.check().unwrap();
    // It stands again, for the owner who gave it back.
    assert!(others.lock("released").try_acquire().await.unwrap().is_none());
    assert_eq!(others.holder("released").await.unwrap().unwrap().owner, owner);
    assert!(fence(&others.lock("often").try_acquire().await.unwrap().unwrap()) > token);
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_restart_without_the_data_is_learned_at_the_next_renewal() {
    let server = redis().start().unwrap();
    let locks = builder(server.address(), SHORT * 5).await.build().unwrap();
    let others = manager(server.address(), LONG).await;
    let first = locks.lock("k").try_acquire().await.unwrap().unwrap();
    let second_key = locks.lock("unwatched").try_acquire().await.unwrap().unwrap();
    server.kill().unwrap();
    server.restart().unwrap();
    // The lease is gone, and its holder does not know yet: only the token tells the two apart.
    let second = soon("the key", others.lock("k").acquire()).await.unwrap();
    assert!(fence(&second) > fence(&first));
    assert_eq!(soon("the loss", first.lost()).await, LostReason::NotHeld);
    assert_eq!(soon("the other loss", second_key.lost()).await, LostReason::NotHeld);
    second.check().unwrap();
}
