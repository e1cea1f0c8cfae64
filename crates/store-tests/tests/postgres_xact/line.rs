//! Exclusion, and the server's line.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::store::postgres::{PostgresAdvisoryStore, PostgresTransactionStore};
use leasehold::store::{Claim, Store};
use leasehold::{ErrorKind, Key, LockManager, OwnerToken, config};
use store_tests::{Table, run};

use crate::setting::{RULE, SOON, at_rest, backend, locks, manager, number, soon, take, until, waiter};

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn transactions_sessions_and_other_clients_exclude_each_other() {
    run(async {
        let table = Table::new();
        let one = manager(&table.url()).await;
        let other = config::open(&format!("{}?mode=xact", table.url())).await.unwrap().build().unwrap();
        let session = PostgresAdvisoryStore::connect(&table.url()).await.unwrap();
        let session = LockManager::builder(session).build().unwrap();
        let client = table.client().await;
        let asked = format!("SELECT pg_try_advisory_lock({RULE})");
        let given = format!("SELECT pg_advisory_unlock({RULE})");
        let ask =
            async |statement: &str, key: &str| client.query_one(statement, &[&key]).await.unwrap().get::<_, bool>(0);
        let mut last = None;
        for name in ["job", "ä:\"'"] {
            let key = format!("leasehold:{name}");
            for holder in [&one, &other, &session] {
                let guard = take(holder, name).await;
                assert!(guard.fencing_token() > last);
                last = guard.fencing_token();
                for loser in [&one, &other, &session] {
                    assert!(loser.lock(name).try_acquire().await.unwrap().is_none());
                    assert!(loser.holder(name).await.unwrap().is_some());
                }
                assert!(!ask(&asked, &key).await);
                guard.release().await.unwrap();
                assert!(one.holder(name).await.unwrap().is_none());
            }
            assert!(ask(&asked, &key).await);
            assert!(one.lock(name).try_acquire().await.unwrap().is_none());
            assert!(ask(&given, &key).await);
        }
        at_rest(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn those_who_wait_are_served_in_the_order_of_their_requests() {
    run(async {
        let table = Table::new();
        let holder = manager(&table.url()).await;
        let guard = take(&holder, "job").await;
        let mut line = Vec::new();
        for place in 0..8 {
            line.push(waiter(&table, &manager(&table.url()).await, "job", place).await);
        }
        let mut last = guard.fencing_token();
        guard.release().await.unwrap();
        for (place, waiter) in line.into_iter().enumerate() {
            let guard = soon("its turn", waiter).await.unwrap();
            assert_eq!(locks(&table, false).await, 7 - i64::try_from(place).unwrap());
            assert!(guard.fencing_token() > last);
            last = guard.fencing_token();
            // Nobody overtakes.
            assert!(holder.lock("job").try_acquire().await.unwrap().is_none());
            guard.release().await.unwrap();
        }
        at_rest(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn holders_never_overlap() {
    run(async {
        let table = Table::new();
        let (inside, last) = (Arc::new(AtomicU32::new(0)), Arc::new(parking_lot::Mutex::new(None)));
        let mut tasks = Vec::new();
        for _ in 0..3 {
            let locks = manager(&table.url()).await;
            for _ in 0..4 {
                let (locks, inside, last) = (locks.clone(), Arc::clone(&inside), Arc::clone(&last));
                tasks.push(tokio::spawn(async move {
                    for _ in 0..25 {
                        let guard = soon("a turn", locks.lock("job").acquire()).await.unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        let before = last.lock().replace(guard.fencing_token().unwrap());
                        assert!(guard.fencing_token() > before);
                        tokio::task::yield_now().await;
                        assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                        guard.release().await.unwrap();
                    }
                }));
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        at_rest(&table).await;
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
                let limit = Duration::from_micros(number * 37 % 6000);
                match tokio::time::timeout(limit, lock.acquire()).await {
                    Ok(Ok(guard)) => guard.release().await.unwrap(),
                    // There are no more connections for those who come so fast.
                    Ok(Err(error)) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                    Err(_) => {}
                }
            }));
            if number % 20 == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        at_rest(&table).await;
        for number in 0..7 {
            let lock = managers[0].lock(&format!("key {number}"));
            soon("each can be had", lock.acquire()).await.unwrap().release().await.unwrap();
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_connection_is_used_again_once_it_is_at_rest() {
    run(async {
        let table = Table::new();
        let (one, other) = (manager(&table.url()).await, manager(&table.url()).await);
        let guard = take(&one, "job").await;
        let mut backends = Vec::new();
        // On a busy machine one that is not left in time is ended instead.
        while backends.iter().all(|backend| backends.iter().filter(|other| *other == backend).count() < 2) {
            let waiter = waiter(&table, &other, "job", 0).await;
            backends.push(backend(&table, false).await.unwrap());
            assert!(backends.len() < 30, "a new connection for each: {backends:?}");
            waiter.abort();
            until("it has left", async || locks(&table, false).await == 0).await;
            let next = take(&other, "another").await;
            next.release().await.unwrap();
        }
        guard.release().await.unwrap();
        // Those that nobody needs any more are ended.
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold' \
            AND datname = current_database()";
        let waiting = async {
            while number(&table, sessions).await != 2 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        // Twice ten seconds at most, and five times that.
        tokio::time::timeout(Duration::from_secs(100), waiting).await.expect("one for each manager is left");
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn what_ends_leaves_the_line_and_gives_back() {
    run(async {
        let table = Table::new();
        let (holder, closing, dropped) =
            (manager(&table.url()).await, manager(&table.url()).await, manager(&table.url()).await);
        let guard = take(&holder, "job").await;
        let held = take(&closing, "other").await;
        let lock = closing.lock("job");
        let waiting = tokio::spawn(async move { lock.acquire().await });
        let _kept = (take(&dropped, "third").await, waiter(&table, &dropped, "job", 1).await);
        closing.close(leasehold::Close::Release).await.unwrap();
        assert_eq!(soon("it ends", waiting).await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
        assert!(held.check().is_err());
        until("the place is left", async || locks(&table, false).await == 1).await;
        take(&holder, "other").await.release().await.unwrap();
        assert_eq!(closing.lock("job").try_acquire().await.unwrap_err().kind(), ErrorKind::Closed);
        drop(_kept.0);
        _kept.1.abort();
        drop(dropped);
        guard.release().await.unwrap();
        at_rest(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn what_a_runtime_takes_with_it_leaves_no_lock() {
    run(async {
        let table = Table::new();
        let url = table.url();
        let holder = manager(&url).await;
        let guard = take(&holder, "waited for").await;
        let ended = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let place = runtime.block_on(async {
                let store = PostgresTransactionStore::connect(&url).await.unwrap();
                let owner = OwnerToken::mint().unwrap();
                let (held, waited) = (Key::new("n", "held").unwrap(), Key::new("leasehold", "waited for").unwrap());
                store.acquire(&Claim::new(&held, &owner, SOON)).await.unwrap();
                (store.acquire(&Claim::new(&waited, &owner, SOON).waits(true)).await.unwrap(), store)
            });
            runtime.shutdown_background();
            place
        });
        let place = ended.await.unwrap();
        // The server looks every five seconds whether those who wait are still there.
        until("the place is left", async || locks(&table, false).await == 0).await;
        drop(place);
        guard.release().await.unwrap();
        at_rest(&table).await;
    });
}
