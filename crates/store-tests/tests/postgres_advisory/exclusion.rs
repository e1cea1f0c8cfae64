//! Who has a lock keeps out all others, whoever they are.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use leasehold::store::postgres::PostgresAdvisoryStore;
use leasehold::store::{Attempt, Claim, Store};
use leasehold::{Backoff, ErrorKind, Jitter, Key, LockManager, OwnerToken};
use store_tests::{Postgres, Table, connected, run};

use crate::setting::{HELD, RULE, SOON, manager, none_held, number, soon};

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn managers_exclude_each_other_and_are_woken() {
    run(async {
        let table = Table::new();
        let one = manager(&table.url()).await;
        // It asks again when it is told, and otherwise never.
        let never = Backoff::new(20 * SOON, 20 * SOON, 1.0).unwrap().jitter(Jitter::from_fn(|| 1.0));
        let url = table.url();
        let other = connected(true, || PostgresAdvisoryStore::connect(&url)).await.unwrap();
        let other = LockManager::builder(other).ttl(20 * SOON).backoff(never).build().unwrap();
        let mut last = None;
        for _ in 0..20 {
            let guard = soon("the lock", one.lock("job").acquire()).await.unwrap();
            assert!(guard.fencing_token() > last);
            last = guard.fencing_token();
            assert!(other.lock("job").try_acquire().await.unwrap().is_none());
            // Nor is it the process that counts.
            assert!(one.lock("job").try_acquire().await.unwrap().is_none());
            let lock = other.lock("job");
            let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
            tokio::time::sleep(Duration::from_millis(20)).await;
            guard.release().await.unwrap();
            let guard = soon("the waiter", waiter).await.unwrap();
            assert!(guard.fencing_token() > last);
            last = guard.fencing_token();
            guard.release().await.unwrap();
        }
        none_held(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn holders_never_overlap() {
    run(async {
        let table = Table::new();
        let inside = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let mut tasks = Vec::new();
        for _ in 0..3 {
            let locks = manager(&table.url()).await;
            for _ in 0..5 {
                let (locks, inside) = (locks.clone(), Arc::clone(&inside));
                tasks.push(tokio::spawn(async move {
                    for _ in 0..40 {
                        // All turns are over within that.
                        let lock = locks.lock("job");
                        let turn = tokio::time::timeout(5 * SOON, lock.acquire()).await;
                        let guard = turn.expect("a turn").unwrap();
                        assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        tokio::task::yield_now().await;
                        assert_eq!(inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst), 1);
                        guard.release().await.unwrap();
                    }
                }));
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        none_held(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn others_take_part_by_the_rule_for_keys() {
    run(async {
        let table = Table::new();
        let (locks, client) = (manager(&table.url()).await, table.client().await);
        let ask = async |statement: &str, key: &str| {
            let statement = format!("SELECT {statement}({RULE})");
            client.query_one(&statement, &[&key]).await.unwrap().get::<_, bool>(0)
        };
        for name in ["deploy", "ä:\"'", r"a\b"] {
            let key = format!("leasehold:{name}");
            assert!(ask("pg_try_advisory_lock", &key).await);
            assert!(locks.lock(name).try_acquire().await.unwrap().is_none());
            assert!(locks.holder(name).await.unwrap().is_some());
            assert!(ask("pg_advisory_unlock", &key).await);
            let guard = locks.lock(name).try_acquire().await.unwrap().unwrap();
            assert!(!ask("pg_try_advisory_lock", &key).await);
            guard.release().await.unwrap();
            assert!(ask("pg_try_advisory_lock", &key).await);
            assert!(ask("pg_advisory_unlock", &key).await);
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_psql_session_takes_part_by_the_rule_for_keys() {
    run(async {
        let table = Table::new();
        let locks = manager(&table.url()).await;
        let documented = include_str!("../../../../docs/stores-postgres.md");
        let (_, documented) = documented.split_once("Others take part by:\n\n```sql\n").unwrap();
        let (try_lock, _) = documented.split_once("\n```").unwrap();
        let try_lock = format!("{try_lock};\n");
        let psql = || {
            let mut command = Command::new(Postgres::programs().join("psql"));
            command.args(["-XAt", &table.url()]).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().unwrap()
        };
        let said = |mut session: Child, statement: &str| {
            session.stdin.take().unwrap().write_all(statement.as_bytes()).unwrap();
            String::from_utf8(session.wait_with_output().unwrap().stdout).unwrap()
        };
        let guard = locks.lock("deploy").try_acquire().await.unwrap().unwrap();
        assert_eq!(said(psql(), &try_lock), "f\n");
        guard.release().await.unwrap();
        assert_eq!(said(psql(), &try_lock), "t\n");
        none_held(&table).await;
        let mut session = psql();
        let mut typing = session.stdin.take().unwrap();
        typing.write_all(try_lock.as_bytes()).unwrap();
        let holds = async { while number(&table, HELD).await != 1 {} };
        soon("the session holds it", holds).await;
        assert!(locks.lock("deploy").try_acquire().await.unwrap().is_none());
        drop(typing);
        let guard = soon("the session has ended", locks.lock("deploy").acquire()).await.unwrap();
        assert!(session.wait().unwrap().success());
        guard.release().await.unwrap();
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn one_release_undoes_every_ask_of_an_owner() {
    run(async {
        let table = Table::new();
        let store = PostgresAdvisoryStore::connect(&table.url()).await.unwrap();
        let (key, owner, other) =
            (Key::new("n", "k").unwrap(), OwnerToken::mint().unwrap(), OwnerToken::mint().unwrap());
        let claim = Claim::new(&key, &owner, SOON);
        let mut tokens = Vec::new();
        for _ in 0..3 {
            let Attempt::Acquired(grant) = store.acquire(&claim).await.unwrap() else { panic!("refused") };
            tokens.push(grant.fencing.unwrap());
        }
        assert!(tokens.iter().all(|token| *token == tokens[0]));
        assert!(!store.release(&key, &other).await.unwrap());
        assert_eq!(number(&table, HELD).await, 1);
        assert!(store.extend(&[claim]).await.unwrap().remove(0).unwrap().is_some());
        assert!(store.release(&key, &owner).await.unwrap());
        assert!(store.extend(&[claim]).await.unwrap().remove(0).unwrap().is_none());
        assert!(!store.release(&key, &owner).await.unwrap());
        assert_eq!(number(&table, HELD).await, 0);
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn what_a_session_cannot_do_is_said() {
    run(async {
        let table = Table::new();
        let (locks, others) = (manager(&table.url()).await, manager(&table.url()).await);
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        let _other = locks.lock("other").try_acquire().await.unwrap().unwrap();
        let error = others.force_release("k", None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.to_string().contains("pg_terminate_backend(") && error.to_string().contains("1 other"),
            "{error}"
        );
        assert_eq!(guard.hand_over().await.unwrap_err().kind(), ErrorKind::Unsupported);
        guard.check().unwrap();
        assert!(others.holder("k").await.unwrap().is_some());
        assert!(others.holder("nobody's").await.unwrap().is_none());
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn waiters_do_not_hold_up_an_index_that_is_made_concurrently() {
    run(async {
        let table = Table::new();
        let (locks, others) = (manager(&table.url()).await, manager(&table.url()).await);
        let guard = locks.lock("migration").try_acquire().await.unwrap().unwrap();
        let lock = others.lock("migration");
        let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
        tokio::time::sleep(Duration::from_millis(300)).await;
        let client = table.client().await;
        client.batch_execute("CREATE TABLE big AS SELECT generate_series(1, 1000) AS number").await.unwrap();
        soon("the index", client.batch_execute("CREATE INDEX CONCURRENTLY ON big (number)")).await.unwrap();
        assert!(!waiter.is_finished());
        guard.release().await.unwrap();
        soon("the waiter", waiter).await.unwrap().release().await.unwrap();
    });
}
