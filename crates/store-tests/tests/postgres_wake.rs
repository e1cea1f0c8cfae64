//! Notifications: who waits is woken, and who holds is told of a removal, without asking; and what waiting costs.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::time::Duration;

use leasehold::store::postgres::PostgresStore;
use leasehold::store::{Attempt, Claim, Store, Wake};
use leasehold::{Backoff, Clock, Jitter, Key, LockGuard, LockManager, LostReason, OwnerToken};
use store_tests::{Table, run};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Five times and more of what a notification needs on a busy machine, and far from any ttl or pause of these tests.
const SOON: Duration = Duration::from_secs(30);
/// Nothing that lasts so long happens within a test.
const LONG: Duration = Duration::from_secs(600);

/// A manager that asks again after a notification, after the end of a lease, and otherwise never.
async fn told(table: &Table) -> LockManager {
    let never = Backoff::new(LONG, LONG, 1.0).unwrap().jitter(Jitter::from_fn(|| 1.0));
    LockManager::builder(table.store().await).ttl(LONG).backoff(never).build().unwrap()
}

async fn take(locks: &LockManager, name: &str) -> LockGuard {
    locks.lock(name).ttl(LONG).try_acquire().await.unwrap().expect("nobody else is there")
}

/// Somebody who waits, and has been refused by the server already.
async fn waiter(table: &Table, locks: &LockManager, name: &str) -> JoinHandle<LockGuard> {
    let client = table.client().await;
    client.execute("DELETE FROM leasehold_waits", &[]).await.unwrap();
    let lock = locks.lock(name);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    let marked = async {
        while client.query("SELECT FROM leasehold_waits", &[]).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, marked).await.expect("the waiter marks the key");
    assert!(!waiter.is_finished());
    waiter
}

async fn woken(waiter: JoinHandle<LockGuard>) -> LockGuard {
    timeout(SOON, waiter).await.expect("a notification wakes the waiter").unwrap()
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_release_by_another_manager_wakes() {
    run(async {
        let table = Table::new();
        let holder = table.manager().await;
        for round in 0..20 {
            // A manager each time: within ten seconds it would not mark the key again.
            let (locks, name) = (told(&table).await, format!("job {}", round % 2));
            let guard = take(&holder, &name).await;
            let waiter = waiter(&table, &locks, &name).await;
            guard.release().await.unwrap();
            woken(waiter).await.release().await.unwrap();
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn every_release_wakes_one_who_waits() {
    run(async {
        let table = Table::new();
        // Nobody polls: a release that fell between a refusal and its mark would leave its waiter for good.
        let work = |locks: LockManager| async move {
            for _ in 0..100 {
                let guard = timeout(SOON, locks.lock("job").ttl(LONG).acquire()).await.expect("woken").unwrap();
                tokio::task::yield_now().await;
                guard.release().await.unwrap();
            }
        };
        let tasks = [told(&table).await, told(&table).await, told(&table).await].map(|locks| tokio::spawn(work(locks)));
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn no_release_falls_between_a_refusal_and_its_mark() {
    run(async {
        let table = Table::new();
        let (holder, waiter) = (table.store().await, table.store().await);
        for round in 0..1500_u64 {
            // A key that nobody has marked.
            let key = Key::new("", &format!("k{round}")).unwrap();
            let (first, second) = (OwnerToken::mint().unwrap(), OwnerToken::mint().unwrap());
            assert!(matches!(holder.acquire(&Claim::new(&key, &first, LONG)).await.unwrap(), Attempt::Acquired(_)));
            let release = async {
                tokio::time::sleep(Duration::from_micros(round * 7 % 1500)).await;
                holder.release(&key, &first).await.unwrap()
            };
            let claim = Claim::new(&key, &second, LONG).waits(true);
            let (answer, released) = tokio::join!(waiter.acquire(&claim), release);
            assert!(released);
            if let Attempt::Contended(contention) = answer.unwrap() {
                let Some(Wake::Hint(told)) = contention.wake else { panic!("nothing wakes") };
                timeout(SOON, told).await.unwrap_or_else(|_| panic!("round {round} was not told of the release"));
            }
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_removal_is_told_to_the_holder_and_wakes() {
    run(async {
        let table = Table::new();
        let (holder, locks, operator) = (table.manager().await, told(&table).await, table.manager().await);
        let guard = take(&holder, "job").await;
        let waiter = waiter(&table, &locks, "job").await;
        operator.force_release("job", None).await.unwrap().expect("it was held");
        let next = woken(waiter).await;
        assert_eq!(timeout(SOON, guard.lost()).await.expect("it is told"), LostReason::NotHeld);
        next.check().unwrap();
        assert!(next.fencing_token() > guard.fencing_token());
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn waiters_are_armed_again_when_the_server_ends_their_sessions() {
    run(async {
        let table = Table::new();
        let (holder, locks) = (table.manager().await, told(&table).await);
        let guard = take(&holder, "job").await;
        let waiter = waiter(&table, &locks, "job").await;
        let client = table.client().await;
        for _ in 0..3 {
            let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                WHERE application_name = 'leasehold' AND datname = current_database()";
            client.query(end, &[]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1500)).await;
            guard.check().unwrap();
            assert!(!waiter.is_finished());
        }
        guard.release().await.unwrap();
        woken(waiter).await.release().await.unwrap();
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn an_expiry_is_covered_by_a_timer() {
    run(async {
        let table = Table::new();
        let (store, locks) = (table.store().await, told(&table).await);
        let (key, owner) = (Key::new("leasehold", "job").unwrap(), OwnerToken::mint().unwrap());
        let claim = Claim::new(&key, &owner, Duration::from_secs(2));
        assert!(matches!(store.acquire(&claim).await.unwrap(), Attempt::Acquired(_)));
        let guard = timeout(SOON, locks.lock("job").acquire()).await.expect("the lease ends").unwrap();
        assert!(!store.release(&key, &owner).await.unwrap());
        guard.check().unwrap();
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_refused_claim_writes_nothing() {
    run(async {
        // What the server writes by itself is little then, and not in the way.
        let table = Table::alone(&["-c", "autovacuum=off", "-c", "wal_level=minimal", "-c", "max_wal_senders=0"]);
        let (store, client) = (table.store().await, table.client().await);
        let next = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text, pg_current_wal_insert_lsn()::text";
        let state = async || {
            let row = client.query_one(next, &[]).await.unwrap();
            (row.get::<_, String>(0), row.get::<_, String>(1))
        };
        let holder = OwnerToken::mint().unwrap();
        // Also where it waits: then the key is marked as waited for, and not again within ten seconds.
        for waits in [false, true] {
            let told = async {
                for round in 0.. {
                    let key = Key::new("", &format!("{waits} {round}")).unwrap();
                    let granted = store.acquire(&Claim::new(&key, &holder, LONG)).await.unwrap();
                    assert!(matches!(granted, Attempt::Acquired(_)));
                    let refused = async |times: u32| {
                        for _ in 0..times {
                            let owner = OwnerToken::mint().unwrap();
                            let answer = store.acquire(&Claim::new(&key, &owner, LONG).waits(waits)).await.unwrap();
                            assert!(matches!(answer, Attempt::Contended(_)));
                        }
                    };
                    // What the server writes from time to time is done with, and so is the first look at a row.
                    client.batch_execute("CHECKPOINT").await.unwrap();
                    let began = Clock::system().now();
                    refused(5).await;
                    let before = state().await;
                    refused(100).await;
                    let after = state().await;
                    if Clock::system().now().since(began) < Duration::from_secs(9) {
                        return (before, after);
                    }
                }
                unreachable!()
            };
            let (before, after) = timeout(5 * SOON, told).await.expect("a hundred answers within nine seconds");
            assert_eq!(before, after, "waits: {waits}");
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn fifty_waiters_cost_two_statements_a_second_at_most() {
    const WHILE: Duration = Duration::from_secs(25);
    run(async {
        let table = Table::alone(&["-c", "log_statement=all"]);
        let (holder, locks) = (table.manager().await, table.manager().await);
        let guard = take(&holder, "job").await;
        let waiters: Vec<_> = (0..50)
            .map(|_| {
                let lock = locks.lock("job");
                tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
            })
            .collect();
        // The first questions come closer together.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let count = || table.server().log().matches("LOG:  execute ").count();
        let marks = || table.server().log().matches("INSERT INTO \"public\".\"leasehold_waits\"").count();
        let (before, marked) = (count(), marks());
        tokio::time::sleep(WHILE).await;
        let asked = count() - before;
        assert!(asked > 0 && asked <= 2 * 25, "{asked} statements in {WHILE:?}");
        // A mark counts for twenty seconds, and is made anew after ten.
        let marked = marks() - marked;
        assert!(marked > 0 && marked <= 3, "{marked} marks in {WHILE:?}");
        guard.release().await.unwrap();
        for waiter in waiters {
            timeout(SOON, waiter).await.expect("each has its turn").unwrap();
        }
        // One that notifies waits for all others that do: nothing is told within the transaction of a change.
        let log = table.server().log();
        let statements: Vec<_> = log.split("LOG:  ").filter(|logged| logged.starts_with("execute ")).collect();
        assert!(statements.iter().any(|statement| statement.contains("SET owner = ''")));
        let tells: Vec<_> = statements.iter().filter(|statement| statement.contains("pg_notify")).collect();
        assert!(!tells.is_empty());
        assert!(tells.iter().all(|tells| !tells.contains("UPDATE ") && !tells.contains("INSERT ")), "{tells:?}");
        assert!(!statements.iter().any(|statement| statement.contains("BEGIN")));
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn without_the_right_to_mark_waiters_ask() {
    run(async {
        let table = Table::new();
        let holder = table.manager().await;
        let client = table.client().await;
        let role = format!("locks_{}", table.database());
        let rights = format!(
            "CREATE ROLE {role} LOGIN; GRANT SELECT, INSERT, UPDATE ON leasehold TO {role}; \
            GRANT USAGE ON SEQUENCE leasehold_fence TO {role}"
        );
        client.batch_execute(&rights).await.unwrap();
        let url = table.url().replace("postgres@", &format!("{role}@"));
        let store = PostgresStore::connect(&url).await.unwrap();
        assert_eq!(store.capabilities().waiting, leasehold::store::Waiting::Poll);
        let locks = LockManager::builder(store).build().unwrap();
        let guard = take(&holder, "job").await;
        let lock = locks.lock("job");
        let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
        tokio::time::sleep(Duration::from_millis(300)).await;
        guard.release().await.unwrap();
        woken(waiting).await.release().await.unwrap();
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_release_that_nobody_waits_for_is_one_statement() {
    run(async {
        let table = Table::alone(&["-c", "log_statement=all"]);
        let (locks, others) = (table.manager().await, told(&table).await);
        // What is asked often is given a name first.
        for _ in 0..5 {
            take(&locks, "job").await.release().await.unwrap();
        }
        let count = || table.server().log().matches("LOG:  execute ").count();
        let before = count();
        for _ in 0..10 {
            take(&locks, "job").await.release().await.unwrap();
        }
        let asked = count() - before;
        // One for each take and release, and a few for what is seen to now and then.
        assert!((20..25).contains(&asked), "{asked} statements");
        // Who connects after a mark knows of it, too.
        let guard = take(&locks, "job").await;
        let waiter = waiter(&table, &others, "job").await;
        guard.release().await.unwrap();
        woken(waiter).await.release().await.unwrap();
        let late = table.manager().await;
        let guard = take(&late, "job").await;
        let lock = others.lock("job");
        let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
        tokio::time::sleep(Duration::from_millis(300)).await;
        guard.release().await.unwrap();
        woken(waiter).await.release().await.unwrap();
    });
}
