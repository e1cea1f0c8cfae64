//! Many who wait.

use std::time::Duration;

use store_tests::{Table, run};

use crate::setting::{at_rest, locks, manager, number, soon, take, until};

/// Every session of a store in this database.
const STORES: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'leasehold%' \
    AND datname = current_database()";

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn fifty_waiters_take_one_connection_and_cost_two_statements_a_second_at_most() {
    const WHILE: Duration = Duration::from_secs(15);
    run(async {
        let table = Table::alone(&["-c", "log_statement=all"]);
        let (holder, ours) = (manager(&table.url()).await, manager(&table.url()).await);
        let guard = take(&holder, "job").await;
        let waiters: Vec<_> = (0..50)
            .map(|_| {
                let lock = ours.lock("job");
                tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
            })
            .collect();
        until("one stands in line", async || locks(&table, false).await == 1).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        // Those of connecting are ended some time later.
        let ending = async {
            while number(&table, STORES).await != 4 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        // Twice ten seconds at most, and five times that.
        tokio::time::timeout(Duration::from_secs(100), ending).await.expect("two for each manager are left");
        let count = || {
            let log = table.server().log();
            log.matches("LOG:  execute ").count() + log.matches("LOG:  statement: ").count()
        };
        let before = count();
        tokio::time::sleep(WHILE).await;
        let asked = count() - before;
        assert!(asked <= 2 * 15, "{asked} statements in {WHILE:?}");
        assert_eq!((locks(&table, true).await, locks(&table, false).await, number(&table, STORES).await), (1, 1, 4));
        guard.release().await.unwrap();
        for waiter in waiters {
            soon("each has its turn", waiter).await.unwrap();
        }
        at_rest(&table).await;
    });
}
