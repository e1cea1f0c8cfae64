//! A runtime ends, and with it the connections that were made on it.

use std::time::Duration;

use leasehold::{LockManager, LostReason, config};
use store_tests::{Table, run};

use crate::setting::{LONG, granted, soon};

/// Has the server end the sessions of all stores in this database.
async fn end_all(table: &Table) {
    let statement = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
        WHERE application_name LIKE 'leasehold%' AND datname = current_database()";
    assert!(!table.client().await.query(statement, &[]).await.unwrap().is_empty());
}

/// A renewal would learn of it, too, but only after minutes.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_lock_is_told_as_lost_when_the_runtime_of_its_connection_ends() {
    run(async {
        for mode in ["advisory", "xact"] {
            let table = Table::new();
            let open = async || -> LockManager {
                config::open(&format!("{}?mode={mode}", table.url())).await.unwrap().ttl(LONG).build().unwrap()
            };
            let (locks, others) = (open().await, open().await);
            end_all(&table).await;
            // The next connections are made where they are needed.
            let elsewhere = locks.clone();
            let made = tokio::task::spawn_blocking(move || {
                let runtime = tokio::runtime::Runtime::new().unwrap();
                let theirs = runtime.block_on(async {
                    let theirs = granted(&elsewhere, "theirs").await;
                    // Whoever comes next may use its connection.
                    granted(&elsewhere, "given back").await.release().await.unwrap();
                    theirs
                });
                (runtime, theirs)
            });
            let (runtime, theirs) = made.await.unwrap();
            let ours = granted(&locks, "ours").await;
            tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(5))).await.unwrap();
            for guard in [&theirs, &ours] {
                assert_eq!(soon("the loss", guard.lost()).await, LostReason::ConnectionLost, "{mode}");
            }
            for name in ["theirs", "ours"] {
                granted(&others, name).await.release().await.unwrap();
                granted(&locks, name).await.release().await.unwrap();
            }
        }
    });
}
