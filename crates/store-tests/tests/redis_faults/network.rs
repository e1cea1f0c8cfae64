//! The way to the server breaks, in the middle of each request.

use std::time::Duration;

use leasehold::store::{Attempt, Claim, Page, Store};
use leasehold::testkit::{Accident, Proxy, Server};
use leasehold::{ErrorKind, Key, LockManager, LostReason, OwnerToken, Renew};
use store_tests::{redis, valkey};

use crate::setting::{Direct, LONG, SHORT, builder, fence, manager, soon, until};

/// A server, a network in front of it, a manager behind that, and a way around.
struct Bench {
    server: Server,
    proxy: Proxy,
    locks: LockManager,
    others: LockManager,
    direct: Direct,
}

impl Bench {
    async fn new() -> Self {
        Self::with(redis().start().unwrap()).await
    }

    async fn with(server: Server) -> Self {
        let proxy = Proxy::start(server.address()).unwrap();
        let locks = manager(proxy.address(), SHORT).await;
        let (others, direct) = (manager(server.address(), SHORT).await, Direct::to(server.address()));
        let bench = Self { server, proxy, locks, others, direct };
        // Every script is known from here on: one request each.
        let guard = bench.locks.lock("warm").try_acquire().await.unwrap().unwrap();
        guard.extend(SHORT).await.unwrap();
        guard.release().await.unwrap();
        bench
    }

    fn counter(&mut self, key: &str) -> Option<String> {
        self.direct.text(&format!("HGET leasehold:{key}:fence{{leasehold:{key}}} fence"))
    }
}

/// A ttl with an operation limit that leaves a repeat time enough, and is waited for when something is swallowed.
const PATIENT: Duration = Duration::from_secs(15);

/// Each way in which a request or its reply is lost.
fn losses() -> [(&'static str, Accident); 4] {
    [
        ("request reset", Accident::lose_request()),
        ("request swallowed", Accident::lose_request().silently()),
        ("reply reset", Accident::lose_reply()),
        ("reply swallowed", Accident::lose_reply().silently()),
    ]
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn what_is_lost_in_an_acquire_is_healed_within_the_call() {
    let mut bench = Bench::new().await;
    for (at, (what, accident)) in losses().into_iter().enumerate() {
        let key = format!("k{at}");
        bench.proxy.once(accident.containing("EVALSHA"));
        let guard = soon(what, bench.locks.lock(&key).ttl(PATIENT).try_acquire()).await.unwrap().expect(what);
        assert_eq!(bench.proxy.pending(), 0, "{what}");
        guard.check().unwrap();
        // One holder and one token, however often it was asked for.
        let holder = bench.others.holder(&key).await.unwrap().unwrap();
        assert_eq!((holder.owner == *guard.owner_token(), holder.fencing), (true, guard.fencing_token()), "{what}");
        assert_eq!(bench.counter(&key), Some(fence(&guard).to_string()), "{what}");
        assert!(bench.others.lock(&key).try_acquire().await.unwrap().is_none(), "{what}");
        guard.release().await.unwrap();
        // The undo of what was uncertain must not meet the next holder.
        let next = bench.others.lock(&key).try_acquire().await.unwrap().expect(what);
        assert_eq!(fence(&next).get(), fence_of(&bench.counter(&key)), "{what}");
        next.check().unwrap();
    }
}

fn fence_of(counter: &Option<String>) -> u64 {
    counter.as_ref().unwrap().parse().unwrap()
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn what_is_lost_in_an_extend_is_healed_or_told_as_unknown() {
    let bench = Bench::new().await;
    let guard = bench.locks.lock("k").ttl(PATIENT).try_acquire().await.unwrap().unwrap();
    for (longer, (what, accident)) in (1..).zip(losses()) {
        bench.proxy.once(accident.containing("EVALSHA"));
        let ttl = PATIENT + Duration::from_secs(longer);
        let before = guard.remaining();
        let extended = soon(what, guard.extend(ttl)).await;
        assert_eq!(bench.proxy.pending(), 0, "{what}");
        match extended {
            Ok(()) => assert!(guard.remaining() > before, "{what}"),
            Err(error) => {
                // What is known to be lost is sent again.
                assert!(!what.contains("reset"), "{what}: {error}");
                assert_eq!(error.kind(), ErrorKind::Indeterminate, "{what}: {error}");
            }
        }
        // The next one goes through, on a connection of its own.
        guard.extend(ttl).await.unwrap();
        guard.check().unwrap();
        assert!(bench.others.lock("k").try_acquire().await.unwrap().is_none(), "{what}");
    }
    guard.release().await.unwrap();
    assert!(bench.others.lock("k").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn what_is_lost_in_a_release_is_healed() {
    a_release_is_healed(redis().start().unwrap(), "EVALSHA").await;
}

#[tokio::test]
#[cfg_attr(not(has_valkey_server), ignore = "valkey-server is not installed")]
async fn what_is_lost_in_a_release_is_healed_on_valkey() {
    a_release_is_healed(valkey().start().unwrap(), "DELIFEQ").await;
}

async fn a_release_is_healed(server: Server, command: &str) {
    let bench = Bench::with(server).await;
    for (what, accident) in losses() {
        let guard = bench.locks.lock("k").ttl(PATIENT).try_acquire().await.unwrap().expect(what);
        bench.proxy.once(accident.containing(command));
        soon(what, guard.release()).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(bench.proxy.pending(), 0, "{what}");
        assert!(bench.others.holder("k").await.unwrap().is_none(), "{what}");
    }
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_black_hole_ends_each_call_at_its_limit_and_leaves_nothing() {
    let bench = Bench::new().await;
    // It outlasts both calls.
    let held = bench.locks.lock("held").ttl(PATIENT).try_acquire().await.unwrap().unwrap();
    bench.proxy.hold();
    let error = soon("an acquire", bench.locks.lock("k").try_acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
    let error = soon("an extend", held.extend(PATIENT)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Indeterminate | ErrorKind::Unavailable), "{error}");
    let error = soon("a look", bench.locks.holder("k")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(soon("the loss", held.lost()).await, LostReason::Expired);
    bench.proxy.heal();
    // Whatever was on its way arrives now, an acquire after its undo, too; then the ttl ends it.
    let again = soon("the key", bench.others.lock("k").acquire()).await.unwrap();
    again.release().await.unwrap();
    soon("the key", bench.others.lock("held").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_grant_that_comes_after_the_ttl_is_refused_and_leaves_nothing() {
    let mut bench = Bench::new().await;
    // An operation may take a sixth of the ttl; the request arrives after all of it.
    let ttl = Duration::from_millis(600);
    bench.proxy.requests().delay(ttl * 3);
    let lock = bench.locks.lock("k").ttl(ttl);
    let error = soon("an answer", lock.try_acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
    bench.proxy.heal();
    tokio::time::sleep(ttl * 4).await;
    let next = soon("the key", bench.others.lock("k").acquire()).await.unwrap();
    tokio::time::sleep(ttl * 2).await;
    next.check().unwrap();
    next.release().await.unwrap();
    assert_eq!(bench.direct.number("EXISTS leasehold:k"), 0);
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_renewed_lease_survives_a_black_hole_shorter_than_its_validity() {
    let bench = Bench::new().await;
    let ttl = Duration::from_secs(30);
    let locks = builder(bench.proxy.address(), ttl).await.renew(Renew::Every(Duration::from_secs(1))).build().unwrap();
    let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
    // Both ends keep their connections, and nothing passes: the old connection stays dead when the network is back.
    bench.proxy.once(Accident::lose_request().silently());
    until("a renewal is swallowed", || bench.proxy.pending() == 0).await;
    let before = guard.remaining();
    until("a later renewal", || guard.remaining() > before).await;
    bench.proxy.hold();
    tokio::time::sleep(Duration::from_secs(8)).await;
    guard.check().unwrap();
    bench.proxy.heal();
    let before = guard.remaining();
    until("a renewal after the black hole", || guard.remaining() > before).await;
    guard.check().unwrap();
    assert!(bench.others.lock("k").try_acquire().await.unwrap().is_none());
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_half_open_connection_is_replaced_by_the_next_request() {
    let bench = Bench::new().await;
    let connections = bench.proxy.accepted();
    bench.proxy.once(Accident::lose_request().silently());
    // Given up by its caller before any limit, and after any silence that is borne with on a machine however slow.
    let lock = bench.locks.lock("k").ttl(LONG);
    let given_up = tokio::time::timeout(Duration::from_secs(3), lock.try_acquire()).await;
    assert!(given_up.is_err());
    let guard = soon("the next", bench.locks.lock("other").try_acquire()).await.unwrap().unwrap();
    guard.release().await.unwrap();
    assert!(bench.proxy.accepted() > connections);
    assert!(bench.others.holder("k").await.unwrap().is_none());
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_stopped_server_that_goes_on_is_used_again() {
    let bench = Bench::new().await;
    let ttl = Duration::from_secs(30);
    let locks = builder(bench.server.address(), ttl).await.operation_limit(Duration::from_secs(2)).build().unwrap();
    let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
    bench.server.stop().unwrap();
    let error = soon("an answer", locks.lock("other").try_acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    bench.server.cont().unwrap();
    guard.extend(ttl).await.unwrap();
    guard.check().unwrap();
    let other = soon("the other key", locks.lock("other").acquire()).await.unwrap();
    other.release().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn waiters_and_holders_survive_the_end_of_their_connection() {
    let mut bench = Bench::new().await;
    let locks = manager(bench.proxy.address(), LONG).await;
    let others = manager(bench.server.address(), LONG).await;
    let own = locks.lock("own").try_acquire().await.unwrap().unwrap();
    let theirs = others.lock("k").try_acquire().await.unwrap().unwrap();
    for round in ["killed by the server", "reset by the network", "ended by the network"] {
        let lock = locks.lock("k");
        let mut waiting = Box::pin(lock.acquire());
        tokio::select! {
            _ = &mut waiting => panic!("granted twice"),
            () = tokio::time::sleep(Duration::from_millis(300)) => {}
        }
        match round {
            "killed by the server" => drop(bench.direct.ask("CLIENT KILL TYPE normal SKIPME yes")),
            "reset by the network" => bench.proxy.reset(),
            _ => bench.proxy.hang_up(),
        }
        tokio::select! {
            _ = &mut waiting => panic!("granted twice, {round}"),
            () = tokio::time::sleep(Duration::from_millis(300)) => {}
        }
        drop(waiting);
        own.check().unwrap();
        theirs.check().unwrap();
    }
    let lock = locks.lock("k");
    let waiting = lock.acquire();
    let (guard, released) = tokio::join!(soon("the key", waiting), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        theirs.release().await
    });
    released.unwrap();
    guard.unwrap().release().await.unwrap();
    // The connection is a new one, on which nobody had asked for this key until now.
    bench.direct.ask("DEL leasehold:own");
    own.extend(LONG).await.unwrap_err();
    assert_eq!(own.lost().await, LostReason::NotHeld);
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_look_at_a_lease_in_doubt_that_is_never_answered_ends() {
    let server = redis().start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let store = crate::setting::store(proxy.address()).await;
    let (key, owner) = (Key::new("leasehold", "k").unwrap(), OwnerToken::mint().unwrap());
    let attempt = store.acquire(&Claim::new(&key, &owner, SHORT)).await.unwrap();
    assert!(matches!(attempt, Attempt::Acquired(_)), "{attempt:?}");
    proxy.once(Accident::lose_reply().containing("redis.pcall('GET', KEYS[1])").silently());
    Direct::to(server.address()).ask("DEL leasehold:k");
    until("the lease is looked at", || proxy.pending() == 0).await;
    // Nobody else keeps the connection.
    drop(store);
    until("the connection ends", || proxy.connections() == 0).await;
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_value_that_is_no_token_is_not_fetched_whole() {
    let mut bench = Bench::new().await;
    for number in 0..3 {
        bench.direct.ask(&format!("SETRANGE leasehold:big{number} 30000000 x"));
    }
    let before = bench.proxy.replies().bytes();
    assert!(bench.locks.holder("big0").await.unwrap().is_some());
    assert_eq!(bench.locks.list("big", Page::first(10)).await.unwrap().entries.len(), 3);
    assert!(bench.locks.lock("big0").try_acquire().await.unwrap().is_none());
    assert!(bench.locks.force_release("big0", None).await.unwrap().is_some());
    // Nor where a lease was.
    let guard = bench.locks.lock("own").try_acquire().await.unwrap().unwrap();
    bench.direct.ask("SETRANGE leasehold:own 30000000 x");
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::NotHeld);
    let fetched = bench.proxy.replies().bytes() - before;
    assert!(fetched < 100_000, "{fetched}");
}
