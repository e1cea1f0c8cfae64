//! A pooler that begins to lend sessions while we run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use store_tests::{Pooler, Table, run};

use crate::setting::{LONG, SOON, manager, until};

#[test]
#[cfg_attr(not(all(has_postgres, has_pgbouncer)), ignore = "postgres and pgbouncer are not both installed")]
fn a_pooler_that_begins_to_lend_sessions_changes_nothing() {
    run(async {
        let pooler = Pooler::with(Table::new(), "session", "default_pool_size = 30");
        let mut managers = Vec::new();
        for _ in 0..4 {
            managers.push(manager(&pooler.url(), LONG).await);
        }
        let inside = Arc::new(AtomicU32::new(0));
        let work = async |rounds: u32| {
            let mut tasks = Vec::new();
            for locks in &managers {
                let (locks, inside) = (locks.clone(), Arc::clone(&inside));
                tasks.push(tokio::spawn(async move {
                    for _ in 0..rounds {
                        // A hundred turns come before, and waiters ask again and again.
                        let turn = tokio::time::timeout(5 * SOON, locks.lock("k").acquire()).await;
                        let guard = turn.expect("a turn").unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                        guard.release().await.unwrap();
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
        };
        let client = pooler.table().client().await;
        let named = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
            AND query LIKE '%leasehold.elsewhere%'";
        // The last statement of a session is seen, and that need not be one with a name.
        let works_by_name = async || {
            for _ in 0..20 {
                work(10).await;
                if client.query_one(named, &[]).await.unwrap().get::<_, i64>(0) > 0 {
                    return true;
                }
            }
            false
        };
        assert!(works_by_name().await);

        let settings = pooler.server().dir().join("pgbouncer.ini");
        let lends =
            std::fs::read_to_string(&settings).unwrap().replace("pool_mode = session", "pool_mode = transaction");
        std::fs::write(&settings, lends).unwrap();
        let pid = Pid::from_raw(i32::try_from(pooler.server().pid().unwrap()).unwrap()).unwrap();
        kill_process(pid, Signal::HUP).unwrap();
        until("it lends them", async || pooler.server().log().contains("SIGHUP")).await;
        work(30).await;
    });
}

#[test]
#[cfg_attr(not(all(has_postgres, has_pgbouncer)), ignore = "postgres and pgbouncer are not both installed")]
fn sessions_that_a_pooler_lends_are_left_as_they_were() {
    run(async {
        let table = Table::new();
        // Older servers know no such limit.
        let limit = format!("ALTER DATABASE {} SET idle_session_timeout = 60000", table.database());
        table.client().await.batch_execute(&limit).await.ok();
        // The session that all are lent.
        let pooler = Pooler::with(table, "transaction", "default_pool_size = 1");
        let locks = manager(&pooler.url(), LONG).await;
        locks.lock("k").try_acquire().await.unwrap().unwrap().release().await.unwrap();
        let statement = "SELECT (SELECT count(*) FROM pg_listening_channels()) + (SELECT count(*) FROM pg_settings \
            WHERE name = 'idle_session_timeout' AND source = 'session' AND setting <> reset_val)";
        let client = pooler.client().await;
        assert_eq!(client.query_typed(statement, &[]).await.unwrap()[0].get::<_, i64>(0), 0);
    });
}
