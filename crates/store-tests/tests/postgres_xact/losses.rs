//! The way to the server breaks, in the middle of each request.

use std::time::Duration;

use leasehold::store::postgres::PostgresTransactionStore;
use leasehold::store::{Attempt, Claim, Store};
use leasehold::testkit::{Accident, Proxy};
use leasehold::{ErrorKind, Key, LockManager, LostReason, OwnerToken};
use store_tests::{Table, run};

use crate::setting::{SHORT, SOON, at_rest, hasty, locks, manager, soon, take, until, waiter};

/// A network in front of a server, a manager behind that, and a way around.
struct Bench {
    table: Table,
    proxy: Proxy,
    ours: LockManager,
    others: LockManager,
}

impl Bench {
    async fn new() -> Self {
        let table = Table::new();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let ours = hasty(&table.url_at(proxy.address())).await;
        let others = manager(&table.url()).await;
        Self { table, proxy, ours, others }
    }

    /// Each is as good as new.
    async fn recovers(&self, what: &str) {
        at_rest(&self.table).await;
        let again = async {
            loop {
                match self.ours.lock("k").ttl(SOON).try_acquire().await {
                    Ok(Some(guard)) => break guard.release().await.unwrap(),
                    _ => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        };
        soon(what, again).await;
        at_rest(&self.table).await;
    }
}

/// What asks whether a transaction still stands.
const CHECK: &str = "SELECT current_setting('leasehold.transaction'";

/// Each way in which a request or its reply is lost.
fn losses() -> [(&'static str, Accident); 4] {
    [
        ("request reset", Accident::lose_request()),
        ("request swallowed", Accident::lose_request().silently()),
        ("reply reset", Accident::lose_reply()),
        ("reply swallowed", Accident::lose_reply().silently()),
    ]
}

fn is_honest(error: &leasehold::Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate)
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn what_is_lost_in_an_acquire_is_healed_or_told_and_never_contention() {
    run(async {
        let bench = Bench::new().await;
        for part in ["BEGIN", "nextval", CHECK] {
            for (what, accident) in losses() {
                bench.proxy.once(accident.containing(part));
                // What broke at once is healed within the call, if that has time for it.
                let is_told = what.ends_with("reset");
                let lock = bench.ours.lock("k").ttl(if is_told { SOON } else { SHORT });
                let answer = soon(what, lock.try_acquire()).await;
                assert!(!is_told || answer.is_ok(), "{what} {part}: {answer:?}");
                match answer {
                    Ok(guard) => {
                        let guard = guard.unwrap_or_else(|| panic!("{part} {what}: nobody has it"));
                        assert!(bench.others.lock("k").try_acquire().await.unwrap().is_none(), "{part} {what}");
                        // One that was granted late has little time.
                        if let Err(error) = guard.release().await {
                            assert!(!is_told && is_honest(&error), "{part} {what}: {error}");
                        }
                    }
                    Err(error) => assert!(is_honest(&error), "{part} {what}: {error}"),
                }
                assert_eq!(bench.proxy.pending(), 0, "{part} {what}");
                bench.recovers(what).await;
            }
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn what_is_lost_in_a_release_or_an_extend_frees_the_lock() {
    run(async {
        let bench = Bench::new().await;
        for (what, accident) in losses() {
            let guard = take(&bench.ours, "k").await;
            bench.proxy.once(accident.containing("ROLLBACK"));
            if let Err(error) = soon(what, guard.release()).await {
                assert!(is_honest(&error) || error.kind() == ErrorKind::NotHeld, "{what}: {error}");
            }
            assert_eq!(bench.proxy.pending(), 0, "{what}");
            bench.recovers(what).await;
        }
        for (what, accident) in losses() {
            let guard = take(&bench.ours, "k").await;
            bench.proxy.once(accident.containing("leasehold.transaction"));
            let error = soon(what, guard.extend(Duration::from_secs(7))).await.unwrap_err();
            assert!(is_honest(&error) || error.kind() == ErrorKind::NotHeld, "{what}: {error}");
            let reason = soon(what, guard.lost()).await;
            assert!(matches!(reason, LostReason::ConnectionLost | LostReason::Expired | LostReason::NotHeld));
            drop(guard);
            bench.recovers(what).await;
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn what_is_lost_while_waiting_or_leaving_leaves_no_place() {
    run(async {
        let bench = Bench::new().await;
        for part in ["pg_advisory_xact_lock", "pg_locks", "pg_cancel_backend"] {
            for (what, accident) in losses() {
                let guard = take(&bench.others, "k").await;
                let wait = Duration::from_secs(2);
                let waiting = async {
                    loop {
                        bench.proxy.once(accident.clone().containing(part));
                        match bench.ours.lock("k").acquire_within(wait).await {
                            Ok(none) => break assert!(none.is_none(), "{part} {what}"),
                            Err(error) => assert!(is_honest(&error), "{part} {what}: {error}"),
                        }
                        // A place that broke on a busy machine is not cancelled: then it is no round.
                        if part != "pg_cancel_backend" || bench.proxy.pending() == 0 {
                            break;
                        }
                        bench.proxy.heal();
                    }
                };
                soon(what, waiting).await;
                until(what, async || bench.proxy.pending() == 0).await;
                until("the place is left", async || locks(&bench.table, false).await == 0).await;
                guard.release().await.unwrap();
                bench.recovers(what).await;
            }
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn what_is_lost_in_a_look_is_never_told_as_an_answer() {
    run(async {
        let table = Table::new();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let store = PostgresTransactionStore::connect(&table.url_at(proxy.address())).await.unwrap();
        let key = Key::new("leasehold", "k").unwrap();
        let _guard = take(&manager(&table.url()).await, "k").await;
        for (what, accident) in losses() {
            for part in ["look", "removal", "probe"] {
                let known = if part == "probe" { "pg_stat_replication" } else { "pg_locks AS held" };
                proxy.once(accident.clone().containing(known));
                let asking = async {
                    match part {
                        "look" => store.inspect(&key).await.map(|known| assert_eq!(known.holders.len(), 1, "{what}")),
                        // It names the one who has it.
                        "removal" => {
                            let error = store.force_release(&key, None).await.expect_err(what);
                            if error.kind() == ErrorKind::Unsupported { Ok(()) } else { Err(error) }
                        }
                        _ => store.probe().await.map(drop),
                    }
                };
                // What is swallowed has no end of its own; what broke is asked again on a connection that is made anew.
                let limit = if what.ends_with("swallowed") { Duration::from_secs(1) } else { SOON };
                match tokio::time::timeout(limit, soon(part, asking)).await {
                    Ok(Err(error)) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{part} {what}: {error}"),
                    Ok(Ok(())) => {}
                    Err(_) => assert!(what.ends_with("swallowed"), "{part} {what}"),
                }
                assert_eq!(proxy.pending(), 0, "{part} {what}");
                let looks = async { while store.inspect(&key).await.is_err() {} };
                soon("it goes on", looks).await;
            }
        }
    });
}

/// Who asks again is answered in time, and so is whoever comes after.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_question_without_an_answer_holds_up_no_release() {
    run(async {
        let table = Table::new();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let store = PostgresTransactionStore::connect(&table.url_at(proxy.address())).await.unwrap();
        let (key, owner) = (Key::new("n", "k").unwrap(), OwnerToken::mint().unwrap());
        for (what, accident) in losses() {
            let claim = Claim::new(&key, &owner, SHORT);
            assert!(matches!(store.acquire(&claim).await.unwrap(), Attempt::Acquired(_)), "{what}");
            proxy.once(accident.containing(CHECK));
            match soon(what, store.acquire(&claim)).await {
                Ok(attempt) => assert!(matches!(attempt, Attempt::Acquired(_)), "{what}"),
                Err(error) => assert!(is_honest(&error), "{what}: {error}"),
            }
            assert_eq!(proxy.pending(), 0, "{what}");
            if let Err(error) = soon("a release", store.release(&key, &owner)).await {
                assert!(is_honest(&error), "{what}: {error}");
            }
            at_rest(&table).await;
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_black_hole_ends_what_is_held_and_what_is_waited_for() {
    run(async {
        let bench = Bench::new().await;
        let (mine, theirs) = (take(&bench.ours, "mine").await, take(&bench.others, "theirs").await);
        let waiting = bench.ours.lock("theirs");
        let waiting = tokio::spawn(async move { waiting.acquire().await });
        until("it stands in line", async || locks(&bench.table, false).await == 1).await;
        bench.proxy.hold();
        let reason = soon("the loss", mine.lost()).await;
        assert!(matches!(reason, LostReason::Expired | LostReason::ConnectionLost), "{reason:?}");
        // The server knows nothing of it yet, and grants the other to one who does not hear.
        assert!(bench.others.lock("mine").try_acquire().await.unwrap().is_none());
        theirs.release().await.unwrap();
        let error = soon("the place is broken", waiting).await.unwrap().unwrap_err();
        assert!(is_honest(&error), "{error}");
        bench.proxy.reset();
        bench.proxy.heal();
        drop(mine);
        for name in ["mine", "theirs"] {
            soon("it is free", bench.others.lock(name).acquire()).await.unwrap().release().await.unwrap();
        }
        bench.recovers("a new connection").await;
    });
}

/// The connection of the one who waits is silent, and nothing else is.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_grant_that_does_not_arrive_is_noticed_and_asked_for_again() {
    run(async {
        let bench = Bench::new().await;
        let guard = take(&bench.others, "k").await;
        // The reply is the grant itself.
        bench.proxy.once(Accident::lose_reply().silently().containing("pg_advisory_xact_lock"));
        let waiting = waiter(&bench.table, &bench.ours, "k", 0).await;
        let last = guard.fencing_token();
        guard.release().await.unwrap();
        let next = soon("its turn", waiting).await.unwrap();
        assert!(next.fencing_token() > last);
        assert!(bench.others.lock("k").try_acquire().await.unwrap().is_none());
        next.release().await.unwrap();
        bench.recovers("it goes on").await;
    });
}
