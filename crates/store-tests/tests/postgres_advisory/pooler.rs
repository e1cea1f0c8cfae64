//! Poolers between us and the server.

use std::time::Duration;

use leasehold::store::postgres::PostgresAdvisoryStore;
use leasehold::testkit::Proxy;
use leasehold::{ErrorKind, LockManager};
use store_tests::{Pooler, Table, run};

use crate::setting::{STORES, manager, none_held, soon};

#[test]
#[cfg_attr(not(all(has_postgres, has_pgbouncer)), ignore = "postgres and pgbouncer are not both installed")]
fn a_pooler_that_lends_sessions_to_transactions_is_refused() {
    run(async {
        for mode in ["transaction", "statement"] {
            let pooler = Pooler::start(Table::new(), mode);
            let error = PostgresAdvisoryStore::connect(&pooler.url()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
            assert!(error.to_string().contains("mode=table"), "{error}");
            none_held(pooler.table()).await;
        }
        let pooler = Pooler::start(Table::new(), "session");
        let (locks, others) = (manager(&pooler.url()).await, manager(&pooler.table().url()).await);
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        assert!(others.lock("k").try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        drop(guard);
        drop(locks);
        none_held(pooler.table()).await;
    });
}

/// What its last client left behind is nobody's to build on.
#[test]
#[cfg_attr(not(all(has_postgres, has_pgbouncer)), ignore = "postgres and pgbouncer are not both installed")]
fn a_session_that_was_anothers_is_refused_and_stays_as_it_is() {
    run(async {
        let pooler = Pooler::with(Table::new(), "session", "default_pool_size = 2\nserver_reset_query =");
        let read = "SELECT current_setting('leasehold.session', true)";
        let before = [pooler.client().await, pooler.client().await];
        for client in &before {
            client.batch_execute("SET leasehold.session = 'another'").await.unwrap();
        }
        drop(before);
        let error = soon("an answer", PostgresAdvisoryStore::connect(&pooler.url())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(error.to_string().contains("mode=table"), "{error}");
        // Nor is it overwritten.
        let clients = [pooler.client().await, pooler.client().await];
        for client in &clients {
            assert_eq!(client.query_one(read, &[]).await.unwrap().get::<_, &str>(0), "another");
        }
    });
}

/// What a pooler lent to the next one is no session of ours any more.
#[test]
#[cfg_attr(not(all(has_postgres, has_pgbouncer)), ignore = "postgres and pgbouncer are not both installed")]
fn a_new_session_ends_none_that_a_pooler_has_lent_to_others() {
    run(async {
        let pooler = Pooler::with(Table::new(), "session", "default_pool_size = 200");
        let proxy = Proxy::start(pooler.server().address()).unwrap();
        let store = PostgresAdvisoryStore::connect(&pooler.table().url_at(proxy.address())).await.unwrap();
        let ours = pooler.table().client().await.query(&format!("SELECT pid {STORES}"), &[]).await.unwrap();
        let ours: Vec<i32> = ours.iter().map(|row| row.get(0)).collect();
        assert_eq!(ours.len(), 2);
        proxy.refuse();
        proxy.reset();
        let mut others = Vec::new();
        let mut lent = Vec::new();
        soon("the pooler lends both to others", async {
            while !ours.iter().all(|pid| lent.contains(pid)) {
                tokio::time::sleep(Duration::from_millis(20)).await;
                let other = pooler.client().await;
                lent.push(other.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get::<_, i32>(0));
                others.push(other);
            }
        })
        .await;
        proxy.heal();
        let locks = LockManager::builder(store).build().unwrap();
        soon("a new session", locks.lock("k").acquire()).await.unwrap().release().await.unwrap();
        for other in &others {
            other.query_one("SELECT 1", &[]).await.unwrap();
        }
    });
}
