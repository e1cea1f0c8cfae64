//! The way to the server breaks or is slow.

use std::time::Duration;

use leasehold::store::postgres::PostgresAdvisoryStore;
use leasehold::store::{Claim, Store};
use leasehold::testkit::{Accident, Proxy};
use leasehold::{ErrorKind, Key, LockManager, LostReason, OwnerToken, Renew};
use store_tests::{Table, run};

use crate::setting::{HELD, SOON, manager, none_held, number, soon};

/// What asks whether the session is still there is known by this on its way.
pub(crate) const CHECK: &str = "SELECT current_setting('leasehold.session', true) = $1";

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_black_hole_ends_the_session_and_frees_its_locks() {
    run(async {
        let table = Table::new();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let store = PostgresAdvisoryStore::connect(&table.url_at(proxy.address())).await.unwrap();
        let locks = LockManager::builder(store).ttl(Duration::from_secs(12)).build().unwrap();
        let others = manager(&table.url()).await;
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        proxy.hold();
        let reason = soon("the loss", guard.lost()).await;
        assert!(matches!(reason, LostReason::Expired | LostReason::ConnectionLost), "{reason:?}");
        // The server knows nothing of it yet.
        assert!(others.lock("k").try_acquire().await.unwrap().is_none());
        proxy.reset();
        proxy.heal();
        soon("a new session", async {
            while locks.lock("other").try_acquire().await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        soon("the lock is free", others.lock("k").acquire()).await.unwrap().release().await.unwrap();
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn slow_answers_cost_no_lock() {
    run(async {
        let table = Table::new();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let locks = manager(&table.url_at(proxy.address())).await;
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        for _ in 0..3 {
            proxy.replies().delay(Duration::from_millis(600));
            let lock = locks.lock("given up");
            assert!(tokio::time::timeout(Duration::from_millis(100), lock.try_acquire()).await.is_err());
            tokio::time::sleep(Duration::from_millis(300)).await;
            // Meanwhile others make a connection of their own.
            soon("a look", locks.holder("other")).await.unwrap();
            proxy.heal();
            let other = soon("another lock", locks.lock("other").acquire()).await.unwrap();
            guard.check().unwrap();
            guard.extend(SOON).await.unwrap();
            other.release().await.unwrap();
        }
        guard.release().await.unwrap();
        none_held(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn what_is_lost_on_the_way_leaves_no_lock() {
    run(async {
        let table = Table::new();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let store = PostgresAdvisoryStore::connect(&table.url_at(proxy.address())).await.unwrap();
        let locks = LockManager::builder(store).ttl(Duration::from_secs(6)).build().unwrap();
        for (what, accident) in [
            ("request reset", Accident::lose_request()),
            ("request swallowed", Accident::lose_request().silently()),
            ("reply reset", Accident::lose_reply()),
            ("reply swallowed", Accident::lose_reply().silently()),
        ] {
            for part in ["pg_try_advisory_lock", "pg_advisory_unlock"] {
                proxy.once(accident.clone().containing(part));
                // What broke at once is healed within the call, if that has time for it: nobody else has it, least of all
                // a session of our own.
                let is_told = what.ends_with("reset");
                let lock = locks.lock("k").ttl(if is_told { SOON } else { Duration::from_secs(6) });
                let answer = soon(what, lock.try_acquire()).await;
                assert!(!is_told || answer.is_ok(), "{what} {part}: {answer:?}");
                match answer {
                    Ok(Some(guard)) => match soon(what, guard.release()).await {
                        Ok(()) => {}
                        Err(error) => assert!(
                            matches!(
                                error.kind(),
                                ErrorKind::Indeterminate | ErrorKind::NotHeld | ErrorKind::Unavailable
                            ),
                            "{what} {part}: {error}"
                        ),
                    },
                    Ok(None) => panic!("{what} {part}: nobody else has it"),
                    Err(error) => assert!(
                        matches!(error.kind(), ErrorKind::Indeterminate | ErrorKind::Unavailable),
                        "{what} {part}: {error}"
                    ),
                }
                assert_eq!(proxy.pending(), 0, "{what} {part}");
                soon(what, async {
                    loop {
                        match locks.lock("k").ttl(SOON).try_acquire().await {
                            Ok(Some(guard)) => break guard.release().await.unwrap(),
                            Ok(None) => panic!("{what} {part}: nobody else has it"),
                            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                        }
                    }
                })
                .await;
                none_held(&table).await;
            }
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_claim_whose_runtime_ends_before_the_answer_leaves_no_lock() {
    run(async {
        let table = Table::new();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let store = PostgresAdvisoryStore::connect(&table.url_at(proxy.address())).await.unwrap();
        let (key, owner) = (Key::new("n", "k").unwrap(), OwnerToken::mint().unwrap());
        proxy.replies().hold();
        let asking = store.clone();
        let ended = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.spawn(async move { asking.acquire(&Claim::new(&key, &owner, SOON)).await.map(drop) });
            runtime
        });
        let runtime = ended.await.unwrap();
        soon("the grant", async {
            while number(&table, HELD).await == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        runtime.shutdown_background();
        // The session may end before the answer comes, and must after it.
        tokio::time::sleep(Duration::from_millis(300)).await;
        proxy.heal();
        none_held(&table).await;
        let locks = LockManager::builder(store).build().unwrap();
        soon("a new session", locks.lock("k").acquire()).await.unwrap().release().await.unwrap();
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn what_is_lost_in_a_renewal_or_a_look_is_never_told_as_an_answer() {
    run(async {
        let table = Table::new();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let store = PostgresAdvisoryStore::connect(&table.url_at(proxy.address())).await.unwrap();
        let locks = LockManager::builder(store.clone()).ttl(Duration::from_secs(6)).renew(Renew::Off).build().unwrap();
        let theirs = manager(&table.url()).await.lock("theirs").try_acquire().await.unwrap().unwrap();
        for (what, accident) in [
            ("request reset", Accident::lose_request()),
            ("request swallowed", Accident::lose_request().silently()),
            ("reply reset", Accident::lose_reply()),
            ("reply swallowed", Accident::lose_reply().silently()),
        ] {
            let guard = soon(what, async {
                loop {
                    match locks.lock("k").acquire_within(Duration::from_secs(1)).await {
                        Ok(Some(guard)) => break guard,
                        _ => tokio::time::sleep(Duration::from_millis(50)).await,
                    }
                }
            })
            .await;
            proxy.once(accident.clone().containing(CHECK));
            let extended = soon(what, guard.extend(SOON)).await;
            assert_eq!(proxy.pending(), 0, "{what}");
            // Where the connection broke the lock is lost, and where it was only silent it is not.
            if let Err(error) = extended {
                let kinds = [ErrorKind::Indeterminate, ErrorKind::Unavailable, ErrorKind::NotHeld, ErrorKind::Lost];
                assert!(kinds.contains(&error.kind()), "{what}: {error}");
            }
            drop(guard);
            // On a connection that stands, so that the limit is for the question alone.
            let stands = async || soon(what, async { while store.probe().await.is_err() {} }).await;
            stands().await;
            proxy.once(accident.clone().containing("pg_stat_replication"));
            // What is swallowed has no end of its own.
            let limit = if what.ends_with("swallowed") { Duration::from_secs(1) } else { SOON };
            match tokio::time::timeout(limit, soon(what, store.probe())).await {
                Ok(Err(error)) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error}"),
                Ok(Ok(_)) => {}
                Err(_) => assert!(what.ends_with("swallowed"), "{what}"),
            }
            assert_eq!(proxy.pending(), 0, "{what}");
            stands().await;
            proxy.once(accident.containing("pg_locks AS held"));
            match soon(what, locks.holder("theirs")).await {
                Ok(holder) => assert!(holder.is_some(), "{what}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error}"),
            }
            assert_eq!(proxy.pending(), 0, "{what}");
        }
        theirs.check().unwrap();
        proxy.reset();
        theirs.release().await.unwrap();
        none_held(&table).await;
    });
}
