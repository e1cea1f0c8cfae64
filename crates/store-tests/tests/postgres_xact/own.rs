//! Locks in the caller's own transaction.

use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold::store::postgres::{lock_in_transaction, with_lock_in_transaction};
use leasehold::testkit::Proxy;
use leasehold::{Error, ErrorKind, Key, Wait};
use rustix::process::{Pid, Signal, kill_process};
use store_tests::{Postgres, Table, run};
use tokio_postgres::{NoTls, Transaction};

use crate::setting::{at_rest, backend, locks, manager, number, soon, take, until};

/// What a program of one's own fails with.
#[derive(Debug)]
enum Failure {
    Lock(Error),
    Sql,
    Work,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(_: tokio_postgres::Error) -> Self {
        Self::Sql
    }
}

const ROWS: &str = "SELECT count(*) FROM written";

async fn place() -> (Table, Key) {
    let table = Table::new();
    table.client().await.batch_execute("CREATE TABLE written (number bigint)").await.unwrap();
    (table, Key::new("leasehold", "deploy").unwrap())
}

async fn write(transaction: &Transaction<'_>) -> Result<(), Failure> {
    transaction.execute("INSERT INTO written VALUES (1)", &[]).await?;
    Ok(())
}

fn kind<T: std::fmt::Debug>(outcome: Result<T, Failure>) -> ErrorKind {
    match outcome {
        Err(Failure::Lock(error)) => error.kind(),
        other => panic!("no failure of the lock: {other:?}"),
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn the_lock_and_what_is_written_live_and_die_together() {
    run(async {
        let (table, key) = place().await;
        let (mut client, others) = (table.client().await, manager(&table.url()).await);
        let ran = with_lock_in_transaction(&mut client, &key, Wait::No, async |transaction| {
            write(transaction).await?;
            assert!(others.lock("deploy").try_acquire().await?.is_none());
            assert_eq!(number(&table, ROWS).await, 0);
            Ok::<_, Failure>(7)
        });
        assert_eq!(ran.await.unwrap(), Some(7));
        assert_eq!(number(&table, ROWS).await, 1);
        take(&others, "deploy").await.release().await.unwrap();

        let failed = with_lock_in_transaction(&mut client, &key, Wait::Forever, async |transaction| {
            write(transaction).await?;
            Err::<(), _>(Failure::Work)
        });
        assert!(matches!(failed.await, Err(Failure::Work)));
        // The session dies in the middle.
        let mut dying = table.client().await;
        let killed = with_lock_in_transaction(&mut dying, &key, Wait::Forever, async |transaction| {
            write(transaction).await?;
            let pid: i32 = transaction.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
            client.query("SELECT pg_terminate_backend($1)", &[&pid]).await?;
            take_soon(&others).await;
            Ok::<_, Failure>(())
        });
        assert!(matches!(kind(killed.await), ErrorKind::Unavailable | ErrorKind::Indeterminate));
        assert_eq!(number(&table, ROWS).await, 1);
        at_rest(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn waits_are_bounded_and_leave_limits_as_they_were() {
    run(async {
        let (table, key) = place().await;
        let (mut client, others) = (table.client().await, manager(&table.url()).await);
        client.batch_execute("SET statement_timeout = '3s'; SET lock_timeout = '2s'").await.unwrap();
        let guard = take(&others, "deploy").await;
        for wait in [Wait::No, Wait::UpTo(Duration::ZERO), Wait::UpTo(Duration::from_secs(4))] {
            let began = leasehold::Clock::system().now();
            let ran = with_lock_in_transaction(&mut client, &key, wait, async |_| Ok::<_, Failure>(()));
            assert!(soon("the end of the wait", ran).await.unwrap().is_none());
            if let Wait::UpTo(wait) = wait {
                assert!(leasehold::Clock::system().now().since(began) >= wait);
            }
        }
        let release = async {
            until("it waits", async || locks(&table, false).await == 1).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            guard.release().await.unwrap();
        };
        let ran = with_lock_in_transaction(&mut client, &key, Wait::Forever, async |transaction| {
            let row = transaction
                .query_one("SELECT current_setting('statement_timeout'), current_setting('lock_timeout')", &[]);
            let row = row.await?;
            Ok::<_, Failure>((row.get::<_, String>(0), row.get::<_, String>(1)))
        });
        let (ran, ()) = soon("its turn", async { tokio::join!(ran, release) }).await;
        assert_eq!(ran.unwrap(), Some(("3s".to_owned(), "2s".to_owned())));
        // In a transaction that the caller began, those of the session count.
        let guard = take(&others, "deploy").await;
        let transaction = client.transaction().await.unwrap();
        let error = soon("the limit", lock_in_transaction(&transaction, &key)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Contended, "{error}");
        drop(transaction);
        guard.release().await.unwrap();
        at_rest(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn transactions_are_served_in_the_order_of_their_requests() {
    run(async {
        let (table, key) = place().await;
        let guard = take(&manager(&table.url()).await, "deploy").await;
        let (told, mut order) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..8_i64 {
            let (mut client, key, told) = (table.client().await, key.clone(), told.clone());
            tokio::spawn(async move {
                let work = async |_: &Transaction<'_>| {
                    told.send(number).unwrap();
                    Ok::<_, Failure>(())
                };
                with_lock_in_transaction(&mut client, &key, Wait::Forever, work).await.unwrap().unwrap();
            });
            until("it stands in line", async || locks(&table, false).await == number + 1).await;
        }
        guard.release().await.unwrap();
        for number in 0..8 {
            assert_eq!(soon("the next", order.recv()).await, Some(number));
        }
        at_rest(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn what_is_dropped_leaves_no_lock_and_a_connection_that_works() {
    run(async {
        let (table, key) = place().await;
        let (mut client, others) = (table.client().await, manager(&table.url()).await);
        let guard = take(&others, "deploy").await;
        for _ in 0..20 {
            let work = async |transaction: &Transaction<'_>| write(transaction).await;
            let waiting = with_lock_in_transaction(&mut client, &key, Wait::Forever, work);
            let is_in_line = until("it waits", async || locks(&table, false).await == 1);
            tokio::select! {
                ended = waiting => panic!("it does not wait: {:?}", ended.err()),
                () = is_in_line => {}
            }
            // Not before the statement that waited was given up.
            soon("the connection goes on", client.batch_execute("SELECT 1")).await.unwrap();
            assert_eq!(locks(&table, false).await, 0);
        }
        guard.release().await.unwrap();
        let work = async |transaction: &Transaction<'_>| {
            write(transaction).await?;
            std::future::pending::<Result<(), Failure>>().await
        };
        let working = with_lock_in_transaction(&mut client, &key, Wait::Forever, work);
        assert!(tokio::time::timeout(Duration::from_millis(300), working).await.is_err());
        take_soon(&others).await;
        assert_eq!(number(&table, ROWS).await, 0);
        at_rest(&table).await;
    });
}

/// The server discards a cancel request that comes to it before the statement.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_cancel_request_that_overtakes_the_statement_is_repeated() {
    run(async {
        let (table, key) = place().await;
        let guard = take(&manager(&table.url()).await, "deploy").await;
        let proxy = Proxy::start(table.server().address()).unwrap();
        let (mut client, connection) = tokio_postgres::connect(&table.url_at(proxy.address()), NoTls).await.unwrap();
        tokio::spawn(connection);
        let transaction = client.transaction().await.unwrap();
        let pid = transaction.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let process = Pid::from_raw(pid).unwrap();
        // It stands still after the first question, which does not wait.
        proxy.replies().hold();
        let stopping = async {
            let asked = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' \
                AND query LIKE '%pg_try_advisory_xact_lock%' AND pid = ";
            until("it has asked", async || number(&table, &format!("{asked}{pid}")).await == 1).await;
            kill_process(process, Signal::STOP).unwrap();
            let sent = proxy.requests().next_passed();
            proxy.heal();
            soon("the statement that waits", sent).await;
        };
        tokio::select! {
            locked = lock_in_transaction(&transaction, &key) => panic!("{locked:?}"),
            () = stopping => {}
        }
        let cancelled = format!("/proc/{pid}/status");
        let is_cancelled = async || {
            let status = std::fs::read_to_string(&cancelled).unwrap();
            let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
            u64::from_str_radix(pending.trim(), 16).unwrap() >> (Signal::INT.as_raw() - 1) & 1 == 1
        };
        until("the cancel request is there", is_cancelled).await;
        kill_process(process, Signal::CONT).unwrap();
        soon("the connection goes on", transaction.rollback()).await.unwrap();
        guard.release().await.unwrap();
        at_rest(&table).await;
    });
}

async fn take_soon(others: &leasehold::LockManager) {
    soon("it is free", others.lock("deploy").acquire()).await.unwrap().release().await.unwrap();
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn work_that_failed_or_ended_its_transaction_is_no_success() {
    run(async {
        let (table, key) = place().await;
        let mut client = table.client().await;
        let swallowed = with_lock_in_transaction(&mut client, &key, Wait::No, async |transaction| {
            write(transaction).await?;
            transaction.batch_execute("SELECT 1 / 0").await.unwrap_err();
            Ok::<_, Failure>(())
        });
        assert_eq!(kind(swallowed.await), ErrorKind::NotHeld);
        assert_eq!(number(&table, ROWS).await, 0);
        let ended = with_lock_in_transaction(&mut client, &key, Wait::No, async |transaction| {
            transaction.batch_execute("ROLLBACK").await?;
            Ok::<_, Failure>(())
        });
        assert_eq!(kind(ended.await), ErrorKind::NotHeld);
        let ran = with_lock_in_transaction(&mut client, &key, Wait::No, async |transaction| write(transaction).await);
        ran.await.unwrap().unwrap();
        assert_eq!(number(&table, ROWS).await, 1);
        at_rest(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_deadlock_is_never_contention() {
    run(async {
        let (table, key) = place().await;
        let other_key = Key::new("leasehold", "other").unwrap();
        let (mut one, mut other) = (table.client().await, table.client().await);
        let (one, other) = (one.transaction().await.unwrap(), other.transaction().await.unwrap());
        lock_in_transaction(&one, &key).await.unwrap();
        lock_in_transaction(&one, &key).await.unwrap();
        lock_in_transaction(&other, &other_key).await.unwrap();
        let both = async { tokio::join!(locked(one, &other_key), locked(other, &key)) };
        let (one, other) = soon("one is given up", both).await;
        let error = one.and(other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        at_rest(&table).await;
    });
}

/// Locks, and ends the transaction whatever comes of it.
async fn locked(transaction: Transaction<'_>, key: &Key) -> leasehold::Result<()> {
    let locked = lock_in_transaction(&transaction, key).await;
    transaction.rollback().await.unwrap();
    locked
}

/// The statements of the documentation, for those who use another client.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn the_documented_statements_do_the_same() {
    run(async {
        let (table, _) = place().await;
        let others = manager(&table.url()).await;
        let docs = include_str!("../../../../docs/stores-postgres.md");
        let statements = docs.split("```sql\n").map(|part| part.split("```").next().unwrap());
        let statements = statements.into_iter().find(|part| part.starts_with("BEGIN;")).expect("they are documented");
        let psql = |statements: &str| {
            let mut command = Command::new(Postgres::programs().join("psql"));
            command.args(["-X", "-v", "ON_ERROR_STOP=1", &table.url(), "-c", statements]);
            command.output().unwrap()
        };
        let write = statements.replace("-- what is to be written", "INSERT INTO written VALUES (1);");
        assert_ne!(write, statements);
        let free = psql(&write);
        assert!(free.status.success(), "{free:?}");
        assert_eq!(number(&table, ROWS).await, 1);
        let guard = take(&others, "deploy").await;
        let refused = psql(&write.replace("'5s'", "'300ms'"));
        assert!(!refused.status.success());
        assert!(String::from_utf8_lossy(&refused.stderr).contains("lock timeout"), "{refused:?}");
        assert_eq!(number(&table, ROWS).await, 1);
        guard.release().await.unwrap();
        // And whoever holds it that way keeps out everybody else.
        let held =
            format!("{}; SELECT pg_sleep(1000)", write.split("COMMIT").next().unwrap().trim().trim_end_matches(';'));
        let mut command = Command::new(Postgres::programs().join("psql"));
        let command = command.args(["-X", &table.url(), "-c", &held]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("it holds", async || locks(&table, true).await == 1).await;
        assert!(others.lock("deploy").try_acquire().await.unwrap().is_none());
        let end = "SELECT pg_terminate_backend($1)";
        table.client().await.query(end, &[&backend(&table, true).await.unwrap()]).await.unwrap();
        child.wait().unwrap();
        take_soon(&others).await;
        assert_eq!(number(&table, ROWS).await, 1);
    });
}
