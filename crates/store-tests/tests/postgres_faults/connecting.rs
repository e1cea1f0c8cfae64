//! Connecting takes long, or part of it gets no answer.

use std::time::Duration;

use leasehold::Key;
use leasehold::store::postgres::{PostgresAdvisoryStore, PostgresStore, PostgresTransactionStore};
use leasehold::store::{Store, Waiting};
use leasehold::testkit::{Accident, Proxy};
use store_tests::{Table, run};

use crate::setting::{LONG, SOON, manager, soon};

async fn table_behind_a_proxy() -> (Table, Proxy) {
    let table = Table::new();
    // So that there are tables.
    drop(table.store().await);
    let proxy = Proxy::start(table.server().address()).unwrap();
    (table, proxy)
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn no_wait_while_connecting_is_without_end() {
    run(async {
        let table = Table::new();
        drop(table.store().await);
        let mut tasks = Vec::new();
        for (what, mode) in [
            ("transaction_read_only", "table"),
            ("LISTEN", "table"),
            ("pg_notify", "table"),
            ("idle_session_timeout", "table"),
            ("SELECT pg_notify", "advisory"),
            ("set_config('leasehold.session'", "advisory"),
            ("SELECT set_config('client_connection_check_interval'", "xact"),
            ("set_config('leasehold.transaction'", "xact"),
            ("ROLLBACK", "xact"),
        ] {
            let table = table.clone();
            tasks.push(tokio::spawn(async move {
                let proxy = Proxy::start(table.server().address()).unwrap();
                let url = table.url_at(proxy.address());
                proxy.once(Accident::lose_reply().silently().containing(what));
                let connecting = async {
                    match mode {
                        "table" => PostgresStore::connect(&url).await.map(drop),
                        "xact" => PostgresTransactionStore::connect(&url).await.map(drop),
                        _ => PostgresAdvisoryStore::connect(&url).await.map(drop),
                    }
                };
                // What it comes to depends on what was lost; that it comes to an end does not.
                let connected =
                    tokio::time::timeout(5 * SOON, connecting).await.unwrap_or_else(|_| panic!("never came: {what}"));
                assert_eq!(proxy.pending(), 0, "{what}: {connected:?}");
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_notification_that_does_not_come_is_no_pooler() {
    run(async {
        let (table, proxy) = table_behind_a_proxy().await;
        let url = table.url_at(proxy.address());
        let probe = || Accident::lose_push().silently().containing("public.leasehold\0p");
        proxy.once(probe());
        let store = PostgresAdvisoryStore::connect(&url).await.unwrap();
        assert_eq!((proxy.pending(), store.capabilities().waiting), (0, Waiting::Poll));
        let locks = leasehold::LockManager::builder(store).build().unwrap();
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        let lock = locks.lock("k");
        let (next, released) = tokio::join!(soon("the next", lock.acquire()), guard.release());
        released.unwrap();
        next.unwrap().release().await.unwrap();

        proxy.once(probe());
        let store = PostgresStore::connect(&url).await.unwrap();
        assert_eq!((proxy.pending(), store.capabilities().waiting), (0, Waiting::Poll));
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn connecting_goes_on_when_its_caller_has_gone() {
    run(async {
        let (table, proxy) = table_behind_a_proxy().await;
        let store = PostgresStore::connect(&table.url_at(proxy.address())).await.unwrap();
        let advisory = PostgresAdvisoryStore::connect(&table.url_at(proxy.address())).await.unwrap();
        let key = Key::new("n", "k").unwrap();
        proxy.reset();
        // A new connection takes several times of what an answer takes, and more than its caller has.
        proxy.replies().delay(Duration::from_millis(300));
        for store in [&store as &dyn Store, &advisory] {
            soon("an answer", async {
                while !matches!(
                    tokio::time::timeout(Duration::from_millis(700), store.inspect(&key)).await,
                    Ok(Ok(inspection)) if inspection.holders.is_empty()
                ) {}
            })
            .await;
        }
        proxy.heal();
        drop(manager(&table.url(), LONG).await);
    });
}
