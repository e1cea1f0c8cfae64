//! What waits for the log, and what does not: a replica that is asked for and does not exist never has it.

use std::time::Duration;

use leasehold::ErrorKind;
use store_tests::{Table, run};

use crate::setting::{LONG, SHORT, manager, soon, until};

/// Has commits wait for this replica, or for none.
async fn wait_for(table: &Table, replica: &str) {
    let client = table.client().await;
    client.batch_execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{replica}'")).await.unwrap();
    client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    // Told to all some time later.
    let waiting = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep'";
    until("commits obey", async || {
        let writer = table.client().await;
        let write = writer.batch_execute("SELECT pg_logical_emit_message(true, '', '')");
        if replica.is_empty() {
            return tokio::time::timeout(Duration::from_millis(500), write).await.is_ok();
        }
        // A write that is slow is none that waits.
        tokio::select! {
            written = write => {
                written.unwrap();
                false
            }
            () = until("it waits", async || !client.query(waiting, &[]).await.unwrap().is_empty()) => true,
        }
    })
    .await;
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn grants_renewals_and_transfers_wait_for_the_log_and_a_release_does_not() {
    run(async {
        let table = Table::alone(&[]);
        let (locks, others) = (manager(&table.url(), SHORT).await, manager(&table.url(), SHORT).await);
        let take = async |name: &str| locks.lock(name).ttl(LONG).try_acquire().await.unwrap().unwrap();
        // What is asked often is asked by a name.
        for _ in 0..4 {
            take("warm").await.release().await.unwrap();
        }
        let (released, held) = (take("released").await, take("held").await);
        let token = take("passed on").await.hand_over().await.unwrap();

        wait_for(&table, "nobody").await;
        soon("a release", released.release()).await.unwrap();
        let error = soon("an acquire", locks.lock("k").try_acquire()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
        let error = soon("an extend", held.extend(2 * LONG)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
        let error = soon("a resume", others.lock("passed on").resume(&token)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
        held.check().unwrap();

        wait_for(&table, "").await;
        // What nobody waited for has been undone by then, or is soon.
        soon("an acquire", locks.lock("k").acquire()).await.unwrap().release().await.unwrap();
        soon("an acquire", others.lock("released").acquire()).await.unwrap().release().await.unwrap();
        held.extend(3 * LONG).await.unwrap();
        let resumed = async || match others.lock("passed on").resume(&token).await {
            Ok(guard) => guard.release().await.is_ok(),
            Err(_) => false,
        };
        until("a resume", resumed).await;
    });
}
