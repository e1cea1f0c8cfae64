//! What an index that is made concurrently waits for.

use std::time::Duration;

use store_tests::{Table, run};

use crate::setting::{at_rest, backend, manager, number, soon, take, until, waiter};

/// Whose transaction the index waits for.
const WAITED_FOR: &str = "SELECT coalesce(max(holder.pid), 0)::bigint FROM pg_stat_activity AS index \
    JOIN pg_locks AS wanted ON wanted.pid = index.pid AND NOT wanted.granted AND wanted.locktype = 'virtualxid' \
    JOIN pg_locks AS holder ON holder.virtualxid = wanted.virtualxid AND holder.granted \
    WHERE index.query LIKE 'CREATE INDEX%' AND index.datname = current_database()";

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn it_waits_for_those_who_wait_but_not_for_one_who_holds() {
    run(async {
        let table = Table::new();
        let (ours, others) = (manager(&table.url()).await, manager(&table.url()).await);
        let client = table.client().await;
        client.batch_execute("CREATE TABLE big AS SELECT generate_series(1, 1000) AS number").await.unwrap();
        let guard = take(&ours, "migration").await;
        soon("the first", client.batch_execute("CREATE INDEX CONCURRENTLY ON big (number)")).await.unwrap();
        let waiting = waiter(&table, &others, "migration", 0).await;
        let theirs = backend(&table, false).await.unwrap();
        // A migration that does this under the lock would wait for ever.
        let index = async move { client.batch_execute("CREATE INDEX CONCURRENTLY ON big (number)").await.unwrap() };
        let index = tokio::spawn(index);
        until("it waits for the one in line", async || number(&table, WAITED_FOR).await == i64::from(theirs)).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!index.is_finished());
        guard.release().await.unwrap();
        // Whom it waits for, it waits for to the end of the transaction.
        let next = soon("its turn", waiting).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!index.is_finished());
        next.release().await.unwrap();
        soon("the second", index).await.unwrap();
        at_rest(&table).await;
    });
}
