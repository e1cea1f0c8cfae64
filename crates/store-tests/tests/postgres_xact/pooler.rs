//! Behind pgbouncer.

use leasehold::ErrorKind;
use leasehold::store::postgres::PostgresTransactionStore;
use store_tests::{Pooler, Table, run};

use crate::setting::{at_rest, locks, manager, soon, take, until, waiter};

#[test]
#[cfg_attr(not(all(has_postgres, has_pgbouncer)), ignore = "postgres and pgbouncer are not both installed")]
fn transactions_through_a_pooler_exclude_and_wait_in_line() {
    run(async {
        for mode in ["transaction", "session"] {
            let pooler = Pooler::start(Table::new(), mode);
            let table = pooler.table();
            let (pooled, direct) = (manager(&pooler.url()).await, manager(&table.url()).await);
            let guard = take(&pooled, "job").await;
            let mut line = Vec::new();
            for place in 0..4 {
                let url = if place % 2 == 0 { pooler.url() } else { table.url() };
                line.push(waiter(table, &manager(&url).await, "job", place).await);
            }
            // One in the middle leaves.
            line.remove(2).abort();
            until("it has left", async || locks(table, false).await == 3).await;
            assert!(direct.lock("job").try_acquire().await.unwrap().is_none());
            let mut last = guard.fencing_token();
            guard.release().await.unwrap();
            for waiter in line {
                let guard = soon("its turn", waiter).await.unwrap();
                assert!(guard.fencing_token() > last);
                last = guard.fencing_token();
                guard.release().await.unwrap();
            }
            at_rest(table).await;
        }
    });
}

/// Only what is locked takes a connection from others.
#[test]
#[cfg_attr(not(all(has_postgres, has_pgbouncer)), ignore = "postgres and pgbouncer are not both installed")]
fn nothing_is_pinned_beyond_the_lock() {
    run(async {
        let pooler = Pooler::with(Table::new(), "transaction", "default_pool_size = 2");
        let locks = manager(&pooler.url()).await;
        for _ in 0..3 {
            let guard = take(&locks, "k").await;
            let client = soon("the other connection", pooler.client()).await;
            soon("an answer", client.batch_execute("SELECT 1")).await.unwrap();
            guard.release().await.unwrap();
            // Both at the same time.
            let mut others = Vec::new();
            for _ in 0..2 {
                let client = pooler.client().await;
                soon("a connection", client.batch_execute("BEGIN")).await.unwrap();
                others.push(client);
            }
            drop(others);
        }
        at_rest(pooler.table()).await;
    });
}

#[test]
#[cfg_attr(not(all(has_postgres, has_pgbouncer)), ignore = "postgres and pgbouncer are not both installed")]
fn a_pooler_that_lends_connections_to_statements_is_refused() {
    run(async {
        let pooler = Pooler::start(Table::new(), "statement");
        let error = soon("an answer", PostgresTransactionStore::connect(&pooler.url())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(error.to_string().contains("mode=table"), "{error}");
        at_rest(pooler.table()).await;
    });
}
