//! The server ends in order, or others are strict.

use leasehold::{ErrorKind, LostReason};
use store_tests::{Table, run};

use crate::setting::{at_rest, granted, hasty, manager, soon, take, until};

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_server_that_ends_in_order_frees_all_locks_and_tokens_go_on() {
    run(async {
        let table = Table::alone(&[]);
        let (ours, others) = (hasty(&table.url()).await, hasty(&table.url()).await);
        let guard = take(&ours, "k").await;
        let lock = others.lock("k");
        let waiting = tokio::spawn(async move { lock.acquire().await });
        until("it stands in line", async || crate::setting::locks(&table, false).await == 1).await;
        table.end_in_order();
        assert_eq!(soon("the loss", guard.lost()).await, LostReason::ConnectionLost);
        let error = soon("an answer", ours.lock("other").try_acquire()).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate), "{error}");
        // Who waits is told, or goes on where the server is back in time.
        table.server().restart().unwrap();
        match soon("an answer", waiting).await.unwrap() {
            Ok(next) => next.release().await.unwrap(),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate), "{error}");
            }
        }
        let next = granted(&others, "k").await;
        assert!(next.fencing_token() > guard.fencing_token());
        next.release().await.unwrap();
        drop(guard);
        at_rest(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn stricter_isolation_refuses_nobody_who_asks_once() {
    run(async {
        let table = Table::alone(&[]);
        let strict = "CREATE ROLE strict LOGIN SUPERUSER; \
            ALTER ROLE strict SET default_transaction_isolation = 'serializable'";
        let client = table.client().await;
        client.batch_execute(strict).await.unwrap();
        let url = table.url().replace("postgres@", "strict@");
        let mut tasks = Vec::new();
        for number in 0..6 {
            let locks = manager(&url).await;
            tasks.push(tokio::spawn(async move {
                for _ in 0..15 {
                    take(&locks, &format!("k{number}")).await.release().await.unwrap();
                }
            }));
        }
        // What is strict, too, and goes through the tables and the sequence meanwhile.
        while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
            let foreign = "BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE leasehold SET renewed = clock_timestamp(); \
                SELECT nextval('leasehold_fence'), (SELECT count(*) FROM leasehold); COMMIT";
            client.batch_execute(foreign).await.unwrap();
        }
        for task in tasks {
            task.await.unwrap();
        }
        at_rest(&table).await;
    });
}
