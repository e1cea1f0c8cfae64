//! The server ends sessions, dies, starts again, or is in another's way.

use std::time::Duration;

use leasehold::store::Store;
use leasehold::testkit::Server;
use leasehold::{Clock, ErrorKind, Key, LockGuard, LostReason, Renew};
use store_tests::{Table, run};

use crate::setting::{LONG, ROOMY, builder, granted, manager, soon, until};

/// Every session of a store in this database.
const STORES: &str = "FROM pg_stat_activity WHERE application_name = 'leasehold' AND datname = current_database()";

async fn ends_sessions(table: &Table) {
    let ended = ends_those_that_are_there(table).await;
    assert!(ended >= 2, "{ended}");
}

async fn ends_those_that_are_there(table: &Table) -> usize {
    let client = table.client().await;
    let rows = client.query(&format!("SELECT pid, pg_terminate_backend(pid) {STORES}"), &[]).await.unwrap();
    let ended: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    let left = format!("SELECT {STORES} AND pid = ANY ($1)");
    until("the sessions are gone", async || client.query(&left, &[&ended]).await.unwrap().is_empty()).await;
    ended.len()
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_lease_does_not_depend_on_its_session() {
    run(async {
        let table = Table::new();
        let (locks, others) = (manager(&table.url(), LONG).await, manager(&table.url(), LONG).await);
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        for _ in 0..3 {
            ends_sessions(&table).await;
            guard.check().unwrap();
            assert!(others.lock("k").try_acquire().await.unwrap().is_none());
            guard.extend(LONG).await.unwrap();
        }
        ends_sessions(&table).await;
        guard.release().await.unwrap();
        assert!(others.lock("k").try_acquire().await.unwrap().is_some());
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn an_idle_session_that_the_server_ends_is_replaced() {
    run(async {
        // Less would also end those that a busy machine keeps from their next statement.
        let table = Table::alone(&["-c", "idle_session_timeout=3s"]);
        let builder = builder(&table.url(), ROOMY).await.renew(Renew::Every(Duration::from_secs(5)));
        let locks = builder.build().unwrap();
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        tokio::time::sleep(ROOMY / 2).await;
        guard.check().unwrap();
        guard.release().await.unwrap();
    });
}

/// The client has not read yet that the session has ended.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_look_on_a_session_that_has_just_ended_is_answered() {
    let table = Table::new();
    // Nobody reads while somebody else works.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = table.store().await;
        let key = Key::new("leasehold", "k").unwrap();
        for _ in 0..3 {
            assert!(soon("an answer", store.inspect(&key)).await.unwrap().holders.is_empty());
            let ended = table.clone();
            let ending = std::thread::spawn(move || {
                run(async move { assert!(ends_those_that_are_there(&ended).await > 0) });
            });
            ending.join().unwrap();
            assert!(soon("an answer", store.inspect(&key)).await.unwrap().holders.is_empty());
        }
    });
}

async fn survives(table: &Table, server: &Server, end: impl FnOnce(&Server)) {
    let url = table.url();
    let locks =
        builder(&url, Duration::from_secs(60)).await.renew(Renew::Every(Duration::from_secs(1))).build().unwrap();
    let others = manager(&url, LONG).await;
    let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
    end(server);
    let error = soon("an answer", others.lock("other").try_acquire()).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate), "{error}");
    guard.check().unwrap();
    server.restart().unwrap();
    assert!(others.lock("k").try_acquire().await.unwrap().is_none());
    let before = guard.remaining();
    until("a renewal", async || guard.remaining() > before).await;
    let last = guard.fencing_token();
    guard.release().await.unwrap();
    let next = others.lock("k").try_acquire().await.unwrap().unwrap();
    assert!(next.fencing_token() > last);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn leases_survive_a_killed_server() {
    run(async {
        let table = Table::alone(&[]);
        survives(&table, table.server(), |server| server.kill().unwrap()).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn leases_survive_a_server_that_ends_in_order() {
    run(async {
        let table = Table::alone(&[]);
        survives(&table, table.server(), |_| table.end_in_order()).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn leases_survive_the_crash_of_one_backend() {
    run(async {
        let table = Table::alone(&[]);
        let builder = builder(&table.url(), Duration::from_secs(60)).await.renew(Renew::Every(Duration::from_secs(1)));
        let locks = builder.build().unwrap();
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        let client = table.client().await;
        let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        // The server ends all sessions and recovers.
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL)
            .unwrap();
        until("the session is gone", async || client.query("SELECT", &[]).await.is_err()).await;
        let end = || Clock::system().now() + guard.remaining();
        let before = end();
        until("renewals", async || end() > before + Duration::from_secs(3)).await;
        guard.check().unwrap();
        assert_eq!(holder(&table, "k").await, Some(guard_owner(&guard)));
        guard.release().await.unwrap();
    });
}

fn guard_owner(guard: &LockGuard) -> Vec<u8> {
    guard.owner_token().as_bytes().to_vec()
}

async fn holder(table: &Table, key: &str) -> Option<Vec<u8>> {
    let statement = "SELECT owner FROM leasehold WHERE key = 'leasehold:' || $1::text AND expires > clock_timestamp()";
    let rows = table.client().await.query(statement, &[&key]).await.unwrap();
    rows.first().map(|row| row.get(0))
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_server_that_is_gone_longer_than_the_ttl_is_told_in_time() {
    run(async {
        let table = Table::alone(&[]);
        let locks = builder(&table.url(), Duration::from_secs(3)).await.build().unwrap();
        let guard = granted(&locks, "k").await;
        table.server().kill().unwrap();
        assert_eq!(soon("the loss", guard.lost()).await, LostReason::Expired);
        tokio::time::sleep(Duration::from_secs(1)).await;
        table.server().restart().unwrap();
        let next = granted(&locks, "k").await;
        assert!(next.fencing_token() > guard.fencing_token());
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn stricter_isolation_is_no_contention_and_no_error() {
    run(async {
        let table = Table::new();
        let strict = "ALTER ROLE strict SET default_transaction_isolation = 'serializable'";
        let client = table.client().await;
        client.batch_execute(&format!("CREATE ROLE strict LOGIN SUPERUSER; {strict}")).await.unwrap();
        let url = table.url().replace("postgres@", "strict@");
        let mut tasks = Vec::new();
        for _ in 0..10 {
            let locks = manager(&url, LONG).await;
            tasks.push(tokio::spawn(async move {
                for _ in 0..20 {
                    // Nothing but a grant is right.
                    soon("a turn", locks.lock("k").acquire()).await.unwrap().release().await.unwrap();
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_locked_table_is_an_error_and_never_contention() {
    run(async {
        let table = Table::new();
        let role = "ALTER ROLE hasty SET lock_timeout = '200ms'";
        let mut client = table.client().await;
        client.batch_execute(&format!("CREATE ROLE hasty LOGIN SUPERUSER; {role}")).await.unwrap();
        let locks = manager(&table.url().replace("postgres@", "hasty@"), LONG).await;
        let transaction = client.transaction().await.unwrap();
        transaction.batch_execute("LOCK TABLE leasehold").await.unwrap();
        let error = soon("an answer", locks.lock("k").try_acquire()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        transaction.rollback().await.unwrap();
        assert!(locks.lock("k").try_acquire().await.unwrap().is_some());
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn waiters_do_not_hold_up_an_index_that_is_made_concurrently() {
    run(async {
        let table = Table::new();
        let (locks, others) = (manager(&table.url(), LONG).await, manager(&table.url(), LONG).await);
        let guard = locks.lock("migration").try_acquire().await.unwrap().unwrap();
        let lock = others.lock("migration");
        let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
        tokio::time::sleep(Duration::from_millis(300)).await;
        let client = table.client().await;
        client.batch_execute("CREATE TABLE big AS SELECT generate_series(1, 1000) AS number").await.unwrap();
        let index = client.batch_execute("CREATE INDEX CONCURRENTLY ON big (number)");
        soon("the index", index).await.unwrap();
        assert!(!waiter.is_finished());
        guard.release().await.unwrap();
        soon("the waiter", waiter).await.unwrap().release().await.unwrap();
    });
}
