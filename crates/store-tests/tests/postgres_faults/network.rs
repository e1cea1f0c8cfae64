//! The way to the server breaks, in the middle of each request.

use std::time::Duration;

use leasehold::store::postgres::PostgresStore;
use leasehold::store::{Page, Store};
use leasehold::testkit::{Accident, Proxy};
use leasehold::{ErrorKind, Key, LockManager, LostReason, Renew};
use store_tests::{Table, run};

use crate::setting::{LONG, ROOMY, SHORT, builder, manager, soon, until};

/// What each statement is known by on its way.
const ACQUIRE: &str = "INSERT INTO \"public\".\"leasehold\"";
const EXTEND: &str = "max(ttl)";
const RELEASE: &str = "RETURNING true";

/// How long a call may take until it is repeated, and then again: with what it takes to connect anew.
const LIMIT: Duration = Duration::from_secs(5);

/// A table, a network in front of its server, a manager behind that, and a way around.
struct Bench {
    table: Table,
    proxy: Proxy,
    locks: LockManager,
    others: LockManager,
}

impl Bench {
    async fn new() -> Self {
        let table = Table::new();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let locks = builder(&table.url_at(proxy.address()), ROOMY).await.renew(Renew::Off).operation_limit(LIMIT);
        let locks = locks.build().unwrap();
        let others = manager(&table.url(), ROOMY).await;
        Self { table, proxy, locks, others }
    }

    fn url(&self) -> String {
        self.table.url_at(self.proxy.address())
    }

    async fn held(&self) -> i64 {
        let statement = "SELECT count(*) FROM leasehold WHERE owner <> '' AND expires > clock_timestamp()";
        self.table.client().await.query_one(statement, &[]).await.unwrap().get(0)
    }
}

/// Each way in which a request or its reply is lost.
fn losses() -> [(&'static str, Accident); 4] {
    [
        ("request reset", Accident::lose_request()),
        ("request swallowed", Accident::lose_request().silently()),
        ("reply reset", Accident::lose_reply()),
        ("reply swallowed", Accident::lose_reply().silently()),
    ]
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn what_is_lost_in_an_acquire_is_healed_within_the_call() {
    run(async {
        let bench = Bench::new().await;
        let mut last = None;
        for (at, (what, accident)) in losses().into_iter().enumerate() {
            let key = format!("k{at}");
            bench.proxy.once(accident.containing(ACQUIRE));
            let guard = soon(what, bench.locks.lock(&key).try_acquire()).await.unwrap().expect(what);
            assert_eq!(bench.proxy.pending(), 0, "{what}");
            guard.check().unwrap();
            // One holder and one token, however often it was asked for.
            let holder = bench.others.holder(&key).await.unwrap().unwrap();
            assert_eq!((holder.owner == *guard.owner_token(), holder.fencing), (true, guard.fencing_token()), "{what}");
            assert!(bench.others.lock(&key).try_acquire().await.unwrap().is_none(), "{what}");
            guard.release().await.unwrap();
            // The undo of what was uncertain must not meet the next holder.
            let next = bench.others.lock(&key).try_acquire().await.unwrap().expect(what);
            assert!(next.fencing_token() > guard_token(&mut last, next.fencing_token()), "{what}");
            tokio::time::sleep(Duration::from_millis(1500)).await;
            let holder = bench.others.holder(&key).await.unwrap().expect(what);
            assert!(holder.owner == *next.owner_token(), "{what}");
            next.check().unwrap();
        }
    });
}

/// The last token, which this one replaces.
fn guard_token<T>(last: &mut Option<T>, token: Option<T>) -> Option<T> {
    std::mem::replace(last, token)
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn what_is_lost_in_an_extend_is_healed_or_told_as_unknown() {
    run(async {
        let bench = Bench::new().await;
        let guard = bench.locks.lock("k").try_acquire().await.unwrap().unwrap();
        for (longer, (what, accident)) in (1..).zip(losses()) {
            bench.proxy.once(accident.containing(EXTEND));
            let ttl = ROOMY + Duration::from_secs(longer);
            let before = guard.remaining();
            let extended = soon(what, guard.extend(ttl)).await;
            assert_eq!(bench.proxy.pending(), 0, "{what}");
            match extended {
                Ok(()) => assert!(guard.remaining() > before, "{what}"),
                Err(error) => {
                    // What broke at once is healed within the call.
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
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn what_is_lost_in_a_release_is_healed() {
    run(async {
        let bench = Bench::new().await;
        for (what, accident) in losses() {
            let guard = bench.locks.lock("k").try_acquire().await.unwrap().expect(what);
            bench.proxy.once(accident.containing(RELEASE));
            soon(what, guard.release()).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(bench.proxy.pending(), 0, "{what}");
            assert!(bench.others.holder("k").await.unwrap().is_none(), "{what}");
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn what_is_lost_in_a_resume_is_healed_or_undone() {
    run(async {
        let bench = Bench::new().await;
        for (what, accident) in losses() {
            let guard = bench.others.lock("k").try_acquire().await.unwrap().expect(what);
            let token = guard.hand_over().await.unwrap();
            bench.proxy.once(accident.containing("passed AS"));
            match soon(what, bench.locks.lock("k").resume(&token)).await {
                Ok(taken) => taken.release().await.unwrap(),
                Err(error) => {
                    assert!(!what.contains("reset"), "{what}: {error}");
                    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{what}: {error}");
                    bench.others.force_release("k", None).await.unwrap();
                }
            }
            assert!(bench.others.holder("k").await.unwrap().is_none(), "{what}");
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_black_hole_ends_each_call_at_its_limit_and_leaves_nothing() {
    /// Beyond the limits of all the calls.
    const LASTING: Duration = Duration::from_secs(9);
    run(async {
        let bench = Bench::new().await;
        let limit = Duration::from_secs(1);
        let locks = builder(&bench.url(), LASTING).await.renew(Renew::Off).operation_limit(limit).build().unwrap();
        let held = locks.lock("held").try_acquire().await.unwrap().unwrap();
        bench.proxy.hold();
        let error = soon("an acquire", locks.lock("k").ttl(SHORT).try_acquire()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
        let error = soon("an extend", held.extend(SHORT)).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Indeterminate | ErrorKind::Unavailable), "{error}");
        let error = soon("a look", locks.holder("k")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(soon("the loss", held.lost()).await, LostReason::Expired);
        bench.proxy.heal();
        // Whatever was on its way arrives from now on; the undo, or else the ttl, ends it.
        until("it is free", async || match locks.lock("k").ttl(SHORT).try_acquire().await {
            Ok(Some(guard)) => guard.release().await.is_ok(),
            Ok(None) => false,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Indeterminate | ErrorKind::Unavailable), "{error}");
                false
            }
        })
        .await;
        until("nothing is left", async || bench.held().await == 0).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_renewed_lease_survives_a_black_hole_shorter_than_its_validity() {
    run(async {
        let bench = Bench::new().await;
        let builder = builder(&bench.url(), Duration::from_secs(30)).await;
        let locks = builder.renew(Renew::Every(Duration::from_secs(1))).build().unwrap();
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        // Both ends keep their connections, and nothing passes: the old connection stays dead when the network is back.
        bench.proxy.once(Accident::lose_request().silently().containing(EXTEND));
        until("a renewal is swallowed", async || bench.proxy.pending() == 0).await;
        let before = guard.remaining();
        until("a later renewal", async || guard.remaining() > before).await;
        bench.proxy.hold();
        tokio::time::sleep(Duration::from_secs(8)).await;
        guard.check().unwrap();
        bench.proxy.heal();
        let before = guard.remaining();
        until("a renewal after the black hole", async || guard.remaining() > before).await;
        guard.check().unwrap();
        assert!(bench.others.lock("k").try_acquire().await.unwrap().is_none());
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_half_open_connection_is_replaced_by_the_next_request() {
    run(async {
        let bench = Bench::new().await;
        let connections = bench.proxy.accepted();
        bench.proxy.once(Accident::lose_request().silently().containing(ACQUIRE));
        // Given up by its caller before any limit.
        let lock = bench.locks.lock("k");
        let given_up = tokio::time::timeout(Duration::from_millis(500), lock.try_acquire()).await;
        assert!(given_up.is_err());
        let guard = soon("the next", bench.locks.lock("other").try_acquire()).await.unwrap().unwrap();
        guard.release().await.unwrap();
        assert!(bench.proxy.accepted() > connections);
        until("nothing is left", async || bench.held().await == 0).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn waiters_and_holders_survive_the_end_of_their_connections() {
    run(async {
        let bench = Bench::new().await;
        let (locks, others) = (manager(&bench.url(), LONG).await, manager(&bench.table.url(), LONG).await);
        let own = locks.lock("own").try_acquire().await.unwrap().unwrap();
        let theirs = others.lock("k").try_acquire().await.unwrap().unwrap();
        for round in ["reset", "ended"] {
            let lock = locks.lock("k");
            let mut waiting = Box::pin(lock.acquire());
            tokio::select! {
                _ = &mut waiting => panic!("granted twice"),
                () = tokio::time::sleep(Duration::from_millis(300)) => {}
            }
            if round == "reset" {
                bench.proxy.reset()
            } else {
                bench.proxy.hang_up()
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
        let (guard, released) = tokio::join!(soon("the key", lock.acquire()), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            theirs.release().await
        });
        released.unwrap();
        guard.unwrap().release().await.unwrap();
        own.extend(LONG).await.unwrap();
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_host_that_is_silent_leaves_time_for_the_next() {
    run(async {
        let table = Table::new();
        // Who listens and accepts nobody is silent once as many wait as may.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let silent = socket.listen(1).unwrap();
        let address = silent.local_addr().unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) =
            tokio::time::timeout(Duration::from_millis(500), tokio::net::TcpStream::connect(address)).await
        {
            waiting.push(stream.unwrap());
        }
        let hosts = format!("{address},{}", table.server().address());
        let url = table.url().replace(&table.server().address().to_string(), &hosts);
        let locks = manager(&url, LONG).await;
        locks.lock("k").try_acquire().await.unwrap().unwrap().release().await.unwrap();
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn what_is_lost_in_a_look_or_a_removal_is_never_told_as_an_answer() {
    run(async {
        let bench = Bench::new().await;
        let store = PostgresStore::connect(&bench.url()).await.unwrap();
        let key = Key::new("leasehold", "k").unwrap();
        for (what, accident) in losses() {
            let _guard = bench.others.lock("k").try_acquire().await.unwrap().expect(what);
            for (part, is_look) in [
                ("WHERE key = $1 AND owner", true),
                ("starts_with", true),
                ("pg_stat_replication", true),
                ("AS floor", false),
            ] {
                // On a connection that stands, so that the limit is for the question alone.
                soon(what, store.probe()).await.unwrap();
                bench.proxy.once(accident.clone().containing(part));
                let asking = async {
                    match part {
                        "WHERE key = $1 AND owner" => store
                            .inspect(&key)
                            .await
                            .map(|inspection| assert_eq!(inspection.holders.len(), 1, "{what}")),
                        "starts_with" => {
                            let page = Page::first(9);
                            store.list("", page).await.map(|page| assert_eq!(page.entries.len(), 1, "{what}"))
                        }
                        "AS floor" => store.force_release(&key, None).await.map(drop),
                        _ => store.probe().await.map(drop),
                    }
                };
                // What is swallowed has no end of its own; the engine sets it.
                match tokio::time::timeout(Duration::from_secs(1), asking).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        let kind = if is_look { ErrorKind::Unavailable } else { ErrorKind::Indeterminate };
                        assert_eq!(error.kind(), kind, "{what}, {part}: {error}");
                    }
                    Err(_) => {}
                }
                assert_eq!(bench.proxy.pending(), 0, "{what}, {part}");
            }
            // The way goes on.
            assert!(soon(what, store.probe()).await.is_ok());
            bench.others.force_release("k", None).await.unwrap();
        }
    });
}
