//! So many locks at a time; and limits of sessions, which end none.

use std::time::Duration;

use leasehold::store::postgres::PostgresTransactionStore;
use leasehold::store::{Attempt, Claim, Store};
use leasehold::testkit::Proxy;
use leasehold::{ErrorKind, Key, OwnerToken};
use store_tests::{Table, run};

use crate::setting::{SOON, at_rest, locks, manager, number, soon, take, until, waiter};

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn the_seventeenth_lock_is_unavailable_and_never_contended() {
    run(async {
        let table = Table::new();
        let (ours, others) = (manager(&table.url()).await, manager(&table.url()).await);
        let contended = take(&others, "contended").await;
        let free = take(&others, "then free").await;
        let mut guards = Vec::new();
        for number in 0..14 {
            guards.push(take(&ours, &format!("k{number}")).await);
        }
        let waiting = [waiter(&table, &ours, "contended", 0).await, waiter(&table, &ours, "then free", 1).await];
        for name in ["nobody's", "k0", "contended"] {
            let error = soon("an answer", ours.lock(name).try_acquire()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{name}: {error}");
            assert!(error.to_string().contains("all 16 are in use"), "{error}");
        }
        // Sixteen, and one for everything else.
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'leasehold%' \
            AND datname = current_database() AND (application_name <> 'leasehold' OR state = 'idle')";
        assert!(number(&table, sessions).await <= 17 + 3);
        // What is held is looked after all the same.
        for guard in &guards {
            guard.extend(Duration::from_secs(30)).await.unwrap();
        }
        guards.pop().unwrap().release().await.unwrap();
        take(&ours, "nobody's").await.release().await.unwrap();
        let [one, other] = waiting;
        one.abort();
        drop(contended);
        free.release().await.unwrap();
        soon("its turn", other).await.unwrap().release().await.unwrap();
        drop(guards);
        at_rest(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_place_that_is_just_being_left_is_waited_for() {
    run(async {
        let table = Table::new();
        let store = PostgresTransactionStore::connect(&table.url()).await.unwrap().limited_to(1);
        let ours = leasehold::LockManager::builder(store).build().unwrap();
        let others = manager(&table.url()).await;
        let guard = take(&others, "k").await;
        for _ in 0..10 {
            waiter(&table, &ours, "k", 0).await.abort();
            until("it leaves", async || locks(&table, false).await == 0).await;
            take(&ours, "other").await.release().await.unwrap();
        }
        guard.release().await.unwrap();
        at_rest(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_place_that_was_given_up_this_moment_is_waited_for() {
    run(async {
        let table = Table::new();
        let store = PostgresTransactionStore::connect(&table.url()).await.unwrap().limited_to(1);
        let others = manager(&table.url()).await;
        let guard = take(&others, "k").await;
        let (key, owner) = (Key::new("leasehold", "k").unwrap(), OwnerToken::mint().unwrap());
        let (other, ttl) = (Key::new("leasehold", "other").unwrap(), Duration::from_secs(30));
        // In a task, where what is spawned last runs first: before the one that leaves the line.
        let work = tokio::spawn(async move {
            for _ in 0..50 {
                let place = store.acquire(&Claim::new(&key, &owner, ttl).waits(true)).await.unwrap();
                assert!(matches!(place, Attempt::Contended(_)), "{place:?}");
                drop(place);
                let taken = soon("an answer", store.acquire(&Claim::new(&other, &owner, ttl))).await.unwrap();
                assert!(matches!(taken, Attempt::Acquired(_)), "{taken:?}");
                assert!(store.release(&other, &owner).await.unwrap());
            }
        });
        work.await.unwrap();
        guard.release().await.unwrap();
        at_rest(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_place_whose_leaving_takes_long_is_unavailable_in_time() {
    run(async {
        let table = Table::new();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let store = PostgresTransactionStore::connect(&table.url_at(proxy.address())).await.unwrap().limited_to(1);
        // A call has five seconds, and a connection that is silent ends after that.
        let ours = leasehold::LockManager::builder(store).ttl(SOON).build().unwrap();
        let guard = take(&ours, "k").await;
        proxy.replies().hold();
        let left = proxy.requests().next_passed();
        let releasing = tokio::spawn(guard.release());
        soon("it leaves", left).await;
        let error = soon("an answer", ours.lock("other").try_acquire()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("all 1 are in use"), "{error}");
        proxy.heal();
        soon("an answer", releasing).await.unwrap().ok();
        at_rest(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn connections_that_nobody_uses_are_ended_although_a_runtime_was() {
    run(async {
        let table = Table::new();
        let url = table.url();
        let ended = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let store = runtime.block_on(async {
                let store = PostgresTransactionStore::connect(&url).await.unwrap();
                let locks = leasehold::LockManager::builder(store.clone()).build().unwrap();
                take(&locks, "k").await.release().await.unwrap();
                store
            });
            runtime.shutdown_timeout(Duration::from_secs(5));
            store
        });
        let locks = leasehold::LockManager::builder(ended.await.unwrap()).build().unwrap();
        soon("the lock", locks.lock("k").acquire()).await.unwrap().release().await.unwrap();
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'leasehold%' \
            AND datname = current_database()";
        assert!(number(&table, sessions).await > 1);
        let waiting = async {
            while number(&table, sessions).await > 1 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        // Twice ten seconds at most, and five times that.
        tokio::time::timeout(Duration::from_secs(100), waiting).await.expect("they are ended");
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn limits_for_statements_locks_and_idle_transactions_end_none() {
    run(async {
        let table = Table::new();
        let limits = "CREATE ROLE limited LOGIN SUPERUSER; \
            ALTER ROLE limited SET statement_timeout = '3s'; ALTER ROLE limited SET lock_timeout = '3s'; \
            ALTER ROLE limited SET idle_in_transaction_session_timeout = '3s'; \
            ALTER ROLE limited SET idle_session_timeout = '3s'";
        table.client().await.batch_execute(limits).await.unwrap();
        let url = table.url().replace("postgres@", "limited@");
        let (ours, others) = (manager(&url).await, manager(&url).await);
        let guard = take(&ours, "k").await;
        let waiting = waiter(&table, &others, "k", 0).await;
        tokio::time::sleep(Duration::from_secs(9)).await;
        guard.check().unwrap();
        assert!(!waiting.is_finished());
        assert_eq!((locks(&table, true).await, locks(&table, false).await), (1, 1));
        guard.release().await.unwrap();
        soon("its turn", waiting).await.unwrap().release().await.unwrap();
        // They hold again in between, and end connections that nobody uses.
        tokio::time::sleep(Duration::from_secs(5)).await;
        take(&ours, "k").await.release().await.unwrap();
        at_rest(&table).await;
    });
}
