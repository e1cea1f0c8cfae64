//! Sessions that end, servers that end, and others that are in the way.

use std::time::Duration;

use leasehold::store::postgres::PostgresTransactionStore;
use leasehold::store::{Attempt, Claim, Store};
use leasehold::testkit::Proxy;
use leasehold::{ErrorKind, Key, LockManager, LostReason, OwnerToken};
use store_tests::{Table, run};

use crate::setting::{RULE, SHORT, SOON, at_rest, backend, hasty, locks, manager, soon, take, until, waiter};

async fn end(table: &Table, function: &str, pid: i32) {
    table.client().await.query(&format!("SELECT {function}($1)"), &[&pid]).await.unwrap();
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_session_that_the_server_ends_is_a_loss_at_once_and_stops_the_work() {
    run(async {
        let table = Table::new();
        let (ours, others) = (manager(&table.url()).await, manager(&table.url()).await);
        let unharmed = take(&ours, "unharmed").await;
        let pid = backend(&table, true).await.unwrap();
        let lock = ours.lock("k");
        let work = tokio::spawn(async move { lock.run(async |_| std::future::pending::<()>().await).await });
        until("it works", async || locks(&table, true).await == 2).await;
        let client = table.client().await;
        let other = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND pid <> $1 \
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        assert_eq!(client.query(other, &[&pid]).await.unwrap().len(), 1);
        let stopped = soon("the work is stopped", work).await.unwrap().unwrap_err();
        assert_eq!((stopped.kind(), stopped.lost_reason()), (ErrorKind::Lost, Some(LostReason::ConnectionLost)));
        // Each lock has a session of its own.
        unharmed.extend(SOON).await.unwrap();
        end(&table, "pg_terminate_backend", pid).await;
        assert_eq!(soon("the loss", unharmed.lost()).await, LostReason::ConnectionLost);
        let next = soon("the lock", others.lock("unharmed").acquire()).await.unwrap();
        assert!(next.fencing_token() > unharmed.fencing_token());
        assert!(soon("an answer", ours.lock("unharmed").try_acquire()).await.unwrap().is_none());
        next.release().await.unwrap();
        at_rest(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_token_drawn_after_the_lock_was_lost_is_no_grant() {
    run(async {
        let table = Table::new();
        let store = PostgresTransactionStore::connect(&table.url()).await.unwrap();
        let (key, owner) = (Key::new("n", "k").unwrap(), OwnerToken::mint().unwrap());
        // Draws wait while somebody is changing the sequence.
        let changing = table.client().await;
        changing.batch_execute("BEGIN; ALTER SEQUENCE leasehold_fence OWNED BY NONE").await.unwrap();
        let asking = {
            let (store, key) = (store.clone(), key.clone());
            tokio::spawn(async move { store.acquire(&Claim::new(&key, &owner, SOON).waits(false)).await })
        };
        until("it has the lock", async || locks(&table, true).await == 1).await;
        end(&table, "pg_terminate_backend", backend(&table, true).await.unwrap()).await;
        until("it has lost it", async || locks(&table, true).await == 0).await;
        let next = OwnerToken::mint().unwrap();
        changing.batch_execute("COMMIT").await.unwrap();
        let error = soon("an answer", asking).await.unwrap().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate), "{error}");
        let again = soon("an answer", store.acquire(&Claim::new(&key, &next, SOON))).await.unwrap();
        assert!(matches!(again, Attempt::Acquired(_)), "{again:?}");
        store.release(&key, &next).await.unwrap();
        at_rest(&table).await;
    });
}

/// Who asks again is asked about while nobody waits for the place any more.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_place_left_while_its_lock_is_looked_at_is_no_grant_of_that() {
    run(async {
        let table = Table::new();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let store = PostgresTransactionStore::connect(&table.url_at(proxy.address())).await.unwrap();
        let (key, owner) = (Key::new("leasehold", "k").unwrap(), OwnerToken::mint().unwrap());
        for _ in 0..5 {
            let guard = take(&manager(&table.url()).await, "k").await;
            let claim = Claim::new(&key, &owner, SOON).waits(true);
            let waiting = store.acquire(&claim).await.unwrap();
            assert!(matches!(waiting, Attempt::Contended(_)), "{waiting:?}");
            guard.release().await.unwrap();
            let is_granted = async || {
                let known = store.inspect(&key).await.unwrap();
                known.holders.iter().any(|holder| holder.owner == owner)
            };
            until("it is granted", is_granted).await;
            proxy.replies().hold();
            let arrived = proxy.requests().next_passed();
            let again = {
                let (store, key, owner) = (store.clone(), key.clone(), owner.clone());
                tokio::spawn(async move { store.acquire(&Claim::new(&key, &owner, SOON).waits(true)).await })
            };
            soon("it is looked at", arrived).await;
            let arrived = proxy.requests().next_passed();
            drop(waiting);
            soon("the place is left", arrived).await;
            proxy.heal();
            let answer = soon("an answer", again).await.unwrap().unwrap();
            if let Attempt::Acquired(_) = answer {
                assert_eq!(locks(&table, true).await, 1, "granted, and nobody has it");
            }
            drop(answer);
            store.release(&key, &owner).await.unwrap();
            at_rest(&table).await;
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn who_is_thrown_out_of_the_line_stands_in_it_again() {
    run(async {
        let table = Table::new();
        let (holder, ours) = (manager(&table.url()).await, manager(&table.url()).await);
        let guard = take(&holder, "k").await;
        let waiting = waiter(&table, &ours, "k", 0).await;
        for function in ["pg_cancel_backend", "pg_terminate_backend", "pg_cancel_backend"] {
            let pid = backend(&table, false).await.unwrap();
            end(&table, function, pid).await;
            let again = async || backend(&table, false).await.is_some_and(|again| again != pid);
            until("it stands in line again", again).await;
        }
        guard.release().await.unwrap();
        soon("its turn", waiting).await.unwrap().release().await.unwrap();
        at_rest(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn the_crash_of_any_backend_and_a_restart_end_all_sessions() {
    run(async {
        let table = Table::alone(&[]);
        let locks = hasty(&table.url()).await;
        let mut last = None;
        for crash in [true, false] {
            let guard = soon("the lock", patiently(&locks, "k")).await;
            assert!(guard.fencing_token() > last);
            last = guard.fencing_token();
            if crash {
                let client = table.client().await;
                let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
                let pid = rustix::process::Pid::from_raw(pid).unwrap();
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
                assert_eq!(soon("the loss", guard.lost()).await, LostReason::ConnectionLost);
            } else {
                table.server().kill().unwrap();
                assert_eq!(soon("the loss", guard.lost()).await, LostReason::ConnectionLost);
                let error = soon("an answer", locks.lock("k").try_acquire()).await.unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate), "{error}");
                table.server().restart().unwrap();
            }
        }
        // What the last one drew was on disk.
        let guard = soon("the lock", patiently(&locks, "k")).await;
        assert!(guard.fencing_token() > last);
    });
}

/// The server may not be back yet.
async fn patiently(locks: &LockManager, name: &str) -> leasehold::LockGuard {
    loop {
        match locks.lock(name).try_acquire().await {
            Ok(Some(guard)) => return guard,
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Whoever waits for the lock and has what a claim needs is in the way of both.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_deadlock_is_never_contention_and_leaves_no_lock() {
    run(async {
        let table = Table::new();
        let store = PostgresTransactionStore::connect(&table.url()).await.unwrap();
        let (key, owner) = (Key::new("n", "k").unwrap(), OwnerToken::mint().unwrap());
        let client = table.client().await;
        client.batch_execute("BEGIN; ALTER SEQUENCE leasehold_fence INCREMENT 1").await.unwrap();
        // It has the lock for a sixth of that.
        let claim = Claim::new(&key, &owner, 3 * SHORT);
        let other = async {
            until("the claim has its lock", async || locks(&table, true).await == 1).await;
            client.query_one(&format!("SELECT pg_advisory_xact_lock({RULE})"), &[&"n:k"]).await.unwrap();
            client.batch_execute("COMMIT").await.unwrap();
        };
        let (answer, ()) = soon("both go on", async { tokio::join!(store.acquire(&claim), other) }).await;
        let error = answer.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate), "{error}");
        at_rest(&table).await;
        let Attempt::Acquired(_) = store.acquire(&claim).await.unwrap() else { panic!("refused") };
        assert!(store.release(&key, &owner).await.unwrap());
        at_rest(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn stricter_isolation_is_no_contention_and_no_error() {
    run(async {
        let table = Table::new();
        let strict = "CREATE ROLE strict_xact LOGIN SUPERUSER; \
            ALTER ROLE strict_xact SET default_transaction_isolation = 'serializable'";
        table.client().await.batch_execute(strict).await.unwrap();
        let url = table.url().replace("postgres@", "strict_xact@");
        let mut tasks = Vec::new();
        for _ in 0..6 {
            let locks = manager(&url).await;
            tasks.push(tokio::spawn(async move {
                for _ in 0..15 {
                    // Nothing but a grant is right.
                    soon("a turn", locks.lock("k").acquire()).await.unwrap().release().await.unwrap();
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        at_rest(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn missing_functions_and_missing_tables_are_refused() {
    run(async {
        let table = Table::new();
        let locks = manager(&table.url()).await;
        let client = table.client().await;
        let guard = take(&locks, "k").await;
        let token = guard.fencing_token();
        guard.release().await.unwrap();
        client.batch_execute("DROP TABLE leasehold, leasehold_waits; DROP SEQUENCE leasehold_fence").await.unwrap();
        let error = locks.lock("k").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        at_rest(&table).await;
        // The next one makes them anew.
        let guard = take(&locks, "k").await;
        assert!(guard.fencing_token() > token);
        guard.release().await.unwrap();
        let rename = "ALTER FUNCTION pg_catalog.pg_try_advisory_xact_lock(bigint) RENAME TO gone";
        client.batch_execute(rename).await.unwrap();
        let error = locks.lock("k").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(error.to_string().contains("42883") && error.to_string().contains("is it PostgreSQL?"), "{error}");
        at_rest(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn what_ends_with_its_client_is_said() {
    run(async {
        let table = Table::new();
        let (ours, others) = (manager(&table.url()).await, manager(&table.url()).await);
        let guard = take(&ours, "k").await;
        let error = others.force_release("k", None).await.unwrap_err();
        let pid = backend(&table, true).await.unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(&format!("pg_terminate_backend({pid})")), "{error}");
        assert!(others.force_release("nobody's", None).await.unwrap().is_none());
        assert_eq!(guard.hand_over().await.unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(guard.keep().await.unwrap_err().kind(), ErrorKind::Unsupported);
        guard.check().unwrap();
        let holder = others.holder("k").await.unwrap().unwrap();
        assert!(holder.info.label.as_ref().unwrap().starts_with(&format!("backend {pid} leasehold ")), "{holder:?}");
        guard.release().await.unwrap();
        at_rest(&table).await;
    });
}
