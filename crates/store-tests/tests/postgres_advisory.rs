//! Locks of a session: real servers, real ends of sessions.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold::store::postgres::PostgresAdvisoryStore;
use leasehold::store::{Attempt, Claim, Store};
use leasehold::testkit::{Accident, Proxy};
use leasehold::{ErrorKind, Key, LockManager, LostReason, OwnerToken, config};
use store_tests::{Pooler, Table, run};

/// Five times and more of what anything here needs on a busy machine.
const SOON: Duration = Duration::from_secs(30);

const RULE: &str = "('x' || left(encode(sha256(convert_to($1, 'UTF8')), 'hex'), 16))::bit(64)::bigint";

/// Advisory locks of this database.
const HELD: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// Every session of a store in this database.
const STORES: &str = "FROM pg_stat_activity WHERE application_name LIKE 'leasehold%' AND datname = current_database()";

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.unwrap_or_else(|_| panic!("never came: {what}"))
}

async fn manager(url: &str) -> LockManager {
    LockManager::builder(PostgresAdvisoryStore::connect(url).await.unwrap()).build().unwrap()
}

async fn number(table: &Table, statement: &str) -> i64 {
    table.client().await.query_one(statement, &[]).await.unwrap().get(0)
}

async fn none_held(table: &Table) {
    let waiting = async {
        while number(table, HELD).await > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("all locks are free", waiting).await;
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn managers_exclude_each_other_and_are_woken() {
    run(async {
        let table = Table::new();
        let (one, other) = (manager(&table.url()).await, config::open(&format!("{}?mode=advisory", table.url())).await);
        let other = other.unwrap().build().unwrap();
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
                        let guard = soon("a turn", locks.lock("job").acquire()).await.unwrap();
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
fn a_session_that_the_server_ends_is_a_loss_at_once_and_stops_the_work() {
    run(async {
        let table = Table::new();
        let (locks, others) = (manager(&table.url()).await, manager(&table.url()).await);
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        let idle = locks.lock("work");
        let client = table.client().await;
        let work = idle.run(async |_| std::future::pending::<()>().await);
        let end = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            client.query(&format!("SELECT pg_terminate_backend(pid) {STORES}"), &[]).await.unwrap();
        };
        let (stopped, ()) = soon("the work is stopped", async { tokio::join!(work, end) }).await;
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(soon("the loss", guard.lost()).await, LostReason::ConnectionLost);
        guard.check().unwrap_err();
        // Everybody goes on with a session of its own.
        let next = soon("the lock", others.lock("k").acquire()).await.unwrap();
        assert!(next.fencing_token() > guard.fencing_token());
        assert!(soon("an answer", locks.lock("k").try_acquire()).await.unwrap().is_none());
        next.release().await.unwrap();
        soon("the lock", locks.lock("k").acquire()).await.unwrap().release().await.unwrap();
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn the_crash_of_any_backend_ends_all_sessions() {
    run(async {
        let table = Table::alone(&[]);
        let locks = manager(&table.url()).await;
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        let pid = i32::try_from(
            number(&table, "SELECT pid::bigint FROM pg_stat_activity WHERE backend_type = 'client backend' LIMIT 1")
                .await,
        );
        let pid = rustix::process::Pid::from_raw(pid.unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        assert_eq!(soon("the loss", guard.lost()).await, LostReason::ConnectionLost);
        let again = async {
            loop {
                match locks.lock("k").try_acquire().await {
                    Ok(Some(guard)) => break guard,
                    _ => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        };
        let again = soon("the server is back", again).await;
        assert!(again.fencing_token() > guard.fencing_token());
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_hundred_locks_use_one_session() {
    run(async {
        let table = Table::new();
        let locks = manager(&table.url()).await;
        let mut guards = Vec::new();
        for number in 0..100 {
            guards.push(locks.lock(&format!("k{number}")).try_acquire().await.unwrap().unwrap());
        }
        assert_eq!(number(&table, HELD).await, 100);
        // And one that hears of releases.
        assert_eq!(number(&table, &format!("SELECT count(*) {STORES}")).await, 2);
        assert_eq!(number(&table, &HELD.replace("count(*)", "count(DISTINCT pid)")).await, 1);
        drop(guards);
        none_held(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn five_hundred_dropped_acquires_leave_nothing() {
    run(async {
        let table = Table::new();
        let managers = [manager(&table.url()).await, manager(&table.url()).await];
        let mut tasks = Vec::new();
        for number in 0..500_u64 {
            let lock = managers[usize::try_from(number % 2).unwrap()].lock(&format!("key {}", number % 7));
            tasks.push(tokio::spawn(async move {
                let limit = Duration::from_micros(number * 37 % 3000);
                if let Ok(guard) = tokio::time::timeout(limit, lock.acquire()).await {
                    guard.unwrap().release().await.unwrap();
                }
            }));
            if number % 20 == 0 {
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        none_held(&table).await;
        let busy = format!("SELECT count(*) {STORES} AND state <> 'idle'");
        assert_eq!(number(&table, &busy).await, 0);
        for number in 0..7 {
            let lock = managers[0].lock(&format!("key {number}"));
            soon("each can be had", lock.acquire()).await.unwrap().release().await.unwrap();
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_black_hole_ends_the_session_and_frees_its_locks() {
    run(async {
        let table = Table::new();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let store = PostgresAdvisoryStore::connect(&table.url_at(proxy.address())).await.unwrap();
        let locks = LockManager::builder(store).ttl(Duration::from_secs(6)).build().unwrap();
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
fn tables_that_are_dropped_are_made_anew() {
    run(async {
        let table = Table::new();
        let locks = manager(&table.url()).await;
        let last = locks.lock("k").try_acquire().await.unwrap().unwrap();
        let token = last.fencing_token();
        last.release().await.unwrap();
        let drop = "DROP TABLE leasehold, leasehold_waits; DROP SEQUENCE leasehold_fence";
        table.client().await.batch_execute(drop).await.unwrap();
        let error = locks.lock("k").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        none_held(&table).await;
        assert!(locks.lock("k").try_acquire().await.unwrap().unwrap().fencing_token() > token);
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
                match soon(what, locks.lock("k").try_acquire()).await {
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
                    Ok(None) => {}
                    Err(error) => assert!(
                        matches!(error.kind(), ErrorKind::Indeterminate | ErrorKind::Unavailable),
                        "{what} {part}: {error}"
                    ),
                }
                assert_eq!(proxy.pending(), 0, "{what} {part}");
                soon(what, async {
                    loop {
                        match locks.lock("k").try_acquire().await {
                            Ok(Some(guard)) => break guard.release().await.unwrap(),
                            _ => tokio::time::sleep(Duration::from_millis(100)).await,
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
fn an_answer_that_cannot_be_read_leaves_no_lock() {
    run(async {
        let table = Table::new();
        let store = PostgresAdvisoryStore::connect(&table.url()).await.unwrap();
        let (key, owner) = (Key::new("n", "k").unwrap(), OwnerToken::mint().unwrap());
        let below = "ALTER SEQUENCE leasehold_fence MINVALUE -10 RESTART -5";
        table.client().await.batch_execute(below).await.unwrap();
        let error = store.acquire(&Claim::new(&key, &owner, SOON)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
        none_held(&table).await;
    });
}

/// The lock of a session survives the statement that took it.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_deadlock_leaves_no_lock() {
    run(async {
        let table = Table::new();
        let store = PostgresAdvisoryStore::connect(&table.url()).await.unwrap();
        let (key, owner) = (Key::new("n", "k").unwrap(), OwnerToken::mint().unwrap());
        let client = table.client().await;
        // So that it is not the other one that is ended.
        client.batch_execute("SET deadlock_timeout = '2min'; BEGIN").await.unwrap();
        client.batch_execute("ALTER SEQUENCE leasehold_fence INCREMENT 1").await.unwrap();
        let claim = Claim::new(&key, &owner, SOON);
        let other = async {
            while number(&table, HELD).await == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            client.query_one(&format!("SELECT pg_advisory_xact_lock({RULE})"), &[&"n:k"]).await.unwrap();
            client.batch_execute("COMMIT").await.unwrap();
        };
        let (answer, ()) = soon("both go on", async { tokio::join!(store.acquire(&claim), other) }).await;
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        none_held(&table).await;
        let Attempt::Acquired(_) = store.acquire(&claim).await.unwrap() else { panic!("refused") };
        assert_eq!(number(&table, HELD).await, 1);
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
#[cfg_attr(not(all(has_postgres, has_pgbouncer)), ignore = "postgres and pgbouncer are not both installed")]
fn a_pooler_that_lends_sessions_to_transactions_is_refused() {
    run(async {
        for mode in ["transaction", "statement"] {
            let pooler = Pooler::start(Table::new(), mode);
            let error = PostgresAdvisoryStore::connect(&pooler.url()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
            assert!(error.to_string().contains("mode=table"), "{error}");
            none_held(pooler.table()).await;
        }
        let pooler = Pooler::start(Table::new(), "session");
        let (locks, others) = (manager(&pooler.url()).await, manager(&pooler.table().url()).await);
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        assert!(others.lock("k").try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        drop(guard);
        drop(locks);
        none_held(pooler.table()).await;
    });
}

/// What its last client left behind is nobody's to build on.
#[test]
#[cfg_attr(not(all(has_postgres, has_pgbouncer)), ignore = "postgres and pgbouncer are not both installed")]
fn a_session_that_was_anothers_is_refused_and_stays_as_it_is() {
    run(async {
        let pooler = Pooler::with(Table::new(), "session", "default_pool_size = 2\nserver_reset_query =");
        let read = "SELECT current_setting('leasehold.session', true)";
        let before = [pooler.client().await, pooler.client().await];
        for client in &before {
            client.batch_execute("SET leasehold.session = 'another'").await.unwrap();
        }
        drop(before);
        let error = soon("an answer", PostgresAdvisoryStore::connect(&pooler.url())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(error.to_string().contains("mode=table"), "{error}");
        // Nor is it overwritten.
        let clients = [pooler.client().await, pooler.client().await];
        for client in &clients {
            assert_eq!(client.query_one(read, &[]).await.unwrap().get::<_, &str>(0), "another");
        }
    });
}

/// What a pooler lent to the next one is no session of ours any more.
#[test]
#[cfg_attr(not(all(has_postgres, has_pgbouncer)), ignore = "postgres and pgbouncer are not both installed")]
fn a_new_session_ends_none_that_a_pooler_has_lent_to_others() {
    run(async {
        let pooler = Pooler::start(Table::new(), "session");
        let proxy = Proxy::start(pooler.server().address()).unwrap();
        let store = PostgresAdvisoryStore::connect(&pooler.table().url_at(proxy.address())).await.unwrap();
        let ours = pooler.table().client().await.query(&format!("SELECT pid {STORES}"), &[]).await.unwrap();
        let ours: Vec<i32> = ours.iter().map(|row| row.get(0)).collect();
        assert_eq!(ours.len(), 2);
        proxy.refuse();
        proxy.reset();
        let mut others = Vec::new();
        let mut lent = Vec::new();
        soon("the pooler lends both to others", async {
            while !ours.iter().all(|pid| lent.contains(pid)) {
                tokio::time::sleep(Duration::from_millis(20)).await;
                let other = pooler.client().await;
                lent.push(other.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get::<_, i32>(0));
                others.push(other);
            }
        })
        .await;
        proxy.heal();
        let locks = LockManager::builder(store).build().unwrap();
        soon("a new session", locks.lock("k").acquire()).await.unwrap().release().await.unwrap();
        for other in &others {
            other.query_one("SELECT 1", &[]).await.unwrap();
        }
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
