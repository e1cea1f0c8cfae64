//! A server that becomes read-only while we are connected.

use leasehold::{ErrorKind, config};
use store_tests::{Table, run};

use crate::setting::{soon, until};

async fn set(table: &Table, read_only: &str) {
    let client = table.client().await;
    client.batch_execute(&format!("ALTER SYSTEM SET default_transaction_read_only = {read_only}")).await.unwrap();
    client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    until("it is so", async || {
        let row = client.query_one("SHOW default_transaction_read_only", &[]).await.unwrap();
        row.get::<_, &str>(0) == read_only
    })
    .await;
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn what_becomes_read_only_refuses_and_grants_again_when_that_ends() {
    run(async {
        let table = Table::alone(&[]);
        let mut managers = Vec::new();
        for mode in ["table", "advisory", "xact"] {
            let url = format!("{}?mode={mode}", table.url());
            let locks = config::open(&url).await.unwrap().build().unwrap();
            // So that connections are made, and statements have names.
            for _ in 0..4 {
                locks.lock(mode).try_acquire().await.unwrap().unwrap().release().await.unwrap();
            }
            managers.push((mode, locks));
        }
        for _ in 0..2 {
            set(&table, "on").await;
            for (mode, locks) in &managers {
                for _ in 0..2 {
                    // A session hears of it in between its statements, so perhaps after this one.
                    until(mode, async || match soon(mode, locks.lock(mode).try_acquire()).await {
                        Ok(guard) => {
                            let released = guard.expect("nobody else has it").release().await;
                            released.is_err_and(|error| error.kind() == ErrorKind::Rejected)
                        }
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Rejected, "{mode}: {error}");
                            true
                        }
                    })
                    .await;
                }
            }
            set(&table, "off").await;
            for (mode, locks) in &managers {
                // What was refused left nothing behind; a release that was refused is sent again.
                until(mode, async || match soon(mode, locks.lock(mode).try_acquire()).await {
                    Ok(None) => false,
                    Ok(Some(guard)) => guard.release().await.is_ok(),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Rejected, "{mode}: {error}");
                        false
                    }
                })
                .await;
            }
        }
    });
}
