//! Sessions end: the server ends them, dies, or stands still.

use std::time::Duration;

use leasehold::{ErrorKind, LostReason};
use store_tests::{Table, run};

use crate::setting::{STORES, manager, none_held, soon};

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_session_that_the_server_ends_is_a_loss_at_once_and_stops_the_work() {
    run(async {
        let table = Table::new();
        let (locks, others) = (manager(&table.url()).await, manager(&table.url()).await);
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        let idle = locks.lock("work");
        let client = table.client().await;
        let (began, has_begun) = tokio::sync::oneshot::channel();
        let work = idle.run(async |_| {
            began.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        let end = async {
            has_begun.await.unwrap();
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
        // None of ours, which would be told by the end of its connection.
        let client = table.client().await;
        let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
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
fn a_restart_frees_all_locks_and_tokens_go_on() {
    run(async {
        let table = Table::alone(&[]);
        let (locks, others) = (manager(&table.url()).await, manager(&table.url()).await);
        for is_orderly in [false, true] {
            let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
            if is_orderly {
                table.end_in_order();
                assert_eq!(soon("the loss", guard.lost()).await, LostReason::ConnectionLost);
            }
            table.server().restart().unwrap();
            assert_eq!(soon("the loss", guard.lost()).await, LostReason::ConnectionLost);
            let next = soon("the lock", others.lock("k").acquire()).await.unwrap();
            assert!(next.fencing_token() > guard.fencing_token());
            assert!(locks.lock("k").try_acquire().await.unwrap().is_none());
            next.release().await.unwrap();
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn no_limit_for_idle_sessions_ends_a_lock() {
    run(async {
        // Less would also end those that a busy machine keeps from their next statement.
        let table = Table::alone(&["-c", "idle_session_timeout=3s"]);
        let locks = manager(&table.url()).await;
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_secs(12)).await;
        guard.check().unwrap();
        assert!(manager(&table.url()).await.lock("k").try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
    });
}
