//! Very many locks, waiters, and calls that were given up.

use std::time::Duration;

use store_tests::{Table, run};

use crate::setting::{HELD, STORES, manager, none_held, number, soon};

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
        soon("nothing is under way", async {
            while number(&table, &busy).await > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        for number in 0..7 {
            let lock = managers[0].lock(&format!("key {number}"));
            soon("each can be had", lock.acquire()).await.unwrap().release().await.unwrap();
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn fifty_waiters_cost_two_statements_a_second_at_most() {
    const WHILE: Duration = Duration::from_secs(15);
    run(async {
        let table = Table::alone(&["-c", "log_statement=all"]);
        let (holder, locks) = (manager(&table.url()).await, manager(&table.url()).await);
        let guard = holder.lock("job").try_acquire().await.unwrap().unwrap();
        let waiters: Vec<_> = (0..50)
            .map(|_| {
                let lock = locks.lock("job");
                tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
            })
            .collect();
        // The first questions come closer together.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let count = || table.server().log().matches("LOG:  execute ").count();
        let before = count();
        tokio::time::sleep(WHILE).await;
        let asked = count() - before;
        assert!(asked > 0 && asked <= 2 * 15, "{asked} statements in {WHILE:?}");
        guard.release().await.unwrap();
        for waiter in waiters {
            soon("each has its turn", waiter).await.unwrap();
        }
    });
}
