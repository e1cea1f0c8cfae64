//! What the server does not let us do, and what is none of ours.

use leasehold::store::postgres::PostgresStore;
use leasehold::store::{Attempt, Claim, Page, Store};
use leasehold::{ErrorKind, LockManager, config};
use store_tests::{Table, connected, run};

use crate::setting::{LONG, manager};

async fn refused(url: &str) -> String {
    let error = PostgresStore::connect(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    error.to_string()
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn the_rights_that_are_documented_are_enough() {
    run(async {
        let table = Table::alone(&[]);
        let client = table.client().await;
        client.batch_execute("CREATE ROLE locks LOGIN").await.unwrap();
        let url = table.url().replace("postgres@", "locks@");
        // It may not make the tables, and says what would.
        let message = refused(&url).await;
        let (_, statements) = message.split_once("run CREATE TABLE").expect("it names the statements");
        client.batch_execute(&format!("CREATE TABLE{statements}")).await.unwrap();
        let message = LockManager::builder(PostgresStore::connect(&url).await.unwrap())
            .build()
            .unwrap()
            .lock("k")
            .try_acquire()
            .await
            .unwrap_err();
        assert_eq!(message.kind(), ErrorKind::Rejected, "{message}");

        let rights = include_str!("../../../../docs/stores-postgres.md");
        let (_, rights) = rights.split_once("```sql\nGRANT").expect("they are documented");
        let (rights, _) = rights.split_once("```").unwrap();
        client.batch_execute(&format!("GRANT{rights}")).await.unwrap();
        let (locks, others) = (manager(&url, LONG).await, manager(&url, LONG).await);
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        assert!(others.lock("k").try_acquire().await.unwrap().is_none());
        guard.extend(LONG).await.unwrap();
        let token = guard.hand_over().await.unwrap();
        let taken = others.lock("k").resume(&token).await.unwrap();
        assert_eq!(locks.holder("k").await.unwrap().unwrap().fencing, taken.fencing_token());
        assert_eq!(locks.list("", Page::first(9)).await.unwrap().entries.len(), 1);
        locks.force_release("k", None).await.unwrap().unwrap();
        let store = connected(true, || PostgresStore::connect(&url)).await.unwrap();
        assert_eq!(store.capabilities().waiting, leasehold::store::Waiting::Hint);
        store.probe().await.unwrap();
        locks.lock("k").try_acquire().await.unwrap().unwrap().release().await.unwrap();
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn other_tables_are_left_alone() {
    run(async {
        let table = Table::new();
        let client = table.client().await;
        client.batch_execute("CREATE TABLE leasehold (key text PRIMARY KEY, note text)").await.unwrap();
        assert!(refused(&table.url()).await.contains("none of ours"));
        // Beside it there is room.
        let url = format!("{}?table=locks", table.url());
        let locks = config::open(&url).await.unwrap().build().unwrap();
        assert!(locks.lock("k").try_acquire().await.unwrap().is_some());
        let version = "COMMENT ON TABLE locks IS 'leasehold leases, version 99'";
        client.batch_execute(version).await.unwrap();
        assert!(config::open(&url).await.unwrap_err().to_string().contains("another version"));
        client.batch_execute("COMMENT ON TABLE locks IS NULL").await.unwrap();
        assert!(config::open(&url).await.unwrap_err().to_string().contains("COMMENT ON TABLE"));
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn schemas_and_tables_keep_leases_apart() {
    run(async {
        let table = Table::new();
        let client = table.client().await;
        let url = format!("{}?schema=tenant_1&table=locks", table.url());
        let error = config::open(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected);
        assert!(error.to_string().contains("schema"), "{error}");
        client.batch_execute("CREATE SCHEMA tenant_1").await.unwrap();
        let one = config::open(&url).await.unwrap().build().unwrap();
        let other = config::open(&table.url()).await.unwrap().build().unwrap();
        let guard = one.lock("k").try_acquire().await.unwrap().unwrap();
        other.lock("k").try_acquire().await.unwrap().unwrap().release().await.unwrap();
        let configured: tokio_postgres::Config = table.url().parse().unwrap();
        let store = PostgresStore::from_config(configured, "tenant_1", "locks").await.unwrap();
        assert_eq!(store.list("", leasehold::store::Page::first(9)).await.unwrap().entries.len(), 1);
        let again = config::open(&url).await.unwrap().build().unwrap();
        assert!(again.lock("k").try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn many_may_make_the_tables_at_once() {
    run(async {
        for _ in 0..5 {
            let table = Table::new();
            let tasks: Vec<_> = (0..10)
                .map(|_| {
                    let url = table.url();
                    tokio::spawn(async move { PostgresStore::connect(&url).await.map(drop) })
                })
                .collect();
            for task in tasks {
                task.await.unwrap().unwrap();
            }
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_table_that_is_dropped_is_told_and_made_anew_with_higher_tokens() {
    run(async {
        let table = Table::new();
        let locks = manager(&table.url(), LONG).await;
        let client = table.client().await;
        let mut last = None;
        for drop in ["TABLE leasehold", "TABLE leasehold, leasehold_waits; DROP SEQUENCE leasehold_fence"] {
            let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
            assert!(guard.fencing_token() > last);
            last = guard.fencing_token();
            client.batch_execute(&format!("DROP {drop}")).await.unwrap();
            let error = locks.lock("other").try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
            let told = error.to_string();
            assert!(told.contains("\"public.leasehold\"") && told.contains("makes it anew"), "{told}");
            let next = locks.lock("k").try_acquire().await.unwrap().unwrap();
            assert!(next.fencing_token() > last);
            last = next.fencing_token();
            next.release().await.unwrap();
            // Dropped, it would go on in the background, and might meet the next table that is missing.
            guard.release().await.ok();
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn tokens_of_a_key_grow_when_the_sequence_is_set_back() {
    run(async {
        let table = Table::new();
        let locks = manager(&table.url(), LONG).await;
        let client = table.client().await;
        let mut last = None;
        for way in ["release", "hand over", "force release", "release"] {
            let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
            assert!(guard.fencing_token() > last, "{way}");
            last = guard.fencing_token();
            client.batch_execute("SELECT setval('leasehold_fence', 1)").await.unwrap();
            match way {
                "release" => guard.release().await.unwrap(),
                "hand over" => {
                    let token = guard.hand_over().await.unwrap();
                    let taken = locks.lock("k").resume(&token).await.unwrap();
                    assert!(taken.fencing_token() > last, "{way}");
                    last = taken.fencing_token();
                    taken.release().await.unwrap();
                }
                _ => {
                    let floor = locks.force_release("k", None).await.unwrap().unwrap().fence_floor;
                    assert!(floor > last, "{way}");
                    last = floor;
                }
            }
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_read_only_user_is_refused() {
    run(async {
        let table = Table::new();
        let role = "CREATE ROLE reader LOGIN SUPERUSER; ALTER ROLE reader SET default_transaction_read_only = on";
        table.client().await.batch_execute(role).await.unwrap();
        assert!(refused(&table.url().replace("postgres@", "reader@")).await.contains("read-only"));
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn whoever_is_not_let_in_is_told_why() {
    run(async {
        let table = Table::alone(&[]);
        let client = table.client().await;
        client.batch_execute("CREATE ROLE locks LOGIN SUPERUSER PASSWORD 'hunter2'").await.unwrap();
        let unknown = table.url().replace("/d", "/nothing");
        assert!(refused(&unknown).await.contains("database"));
        let rules =
            "local all all trust\nhost all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
        std::fs::write(table.server().dir().join("data/pg_hba.conf"), rules).unwrap();
        client.query("SELECT pg_reload_conf()", &[]).await.unwrap();
        let url = table.url().replace("postgres@", "locks@");
        crate::setting::until("the rules hold", async || PostgresStore::connect(&url).await.is_err()).await;
        assert!(refused(&url).await.contains("password"));
        for password in ["wrong", "hunter2x"] {
            let message = refused(&url.replace("locks@", &format!("locks:{password}@"))).await;
            assert!(message.contains("password") && !message.contains(password), "{message}");
        }
        PostgresStore::connect(&url.replace("locks@", "locks:hunter2@")).await.unwrap();
        let file = table.server().dir().join("password");
        std::fs::write(&file, "hunter2\n").unwrap();
        drop(config::open(&format!("{url}?password_file={}", file.display())).await.unwrap());
        // This server has no certificate.
        let error = config::open(&format!("{}?sslmode=require", table.url())).await.unwrap_err();
        assert!(error.to_string().contains("no encryption"), "{error}");
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn tables_that_a_crash_would_empty_are_refused() {
    run(async {
        let table = Table::new();
        drop(table.store().await);
        let client = table.client().await;
        client.batch_execute("ALTER TABLE leasehold SET UNLOGGED").await.unwrap();
        let message = refused(&table.url()).await;
        let (_, mends) = message.split_once("run ").unwrap();
        assert!(message.contains("unlogged"), "{message}");
        client.batch_execute(mends).await.unwrap();
        drop(table.store().await);
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn without_the_table_of_waiters_leases_go_on_over_the_same_connections() {
    run(async {
        let table = Table::new();
        let (locks, others) = (manager(&table.url(), LONG).await, manager(&table.url(), LONG).await);
        let client = table.client().await;
        client.batch_execute("DROP TABLE leasehold_waits").await.unwrap();
        let statement = "SELECT array_agg(pid ORDER BY pid) FROM pg_stat_activity \
            WHERE application_name = 'leasehold' AND datname = current_database()";
        let sessions = async || client.query_one(statement, &[]).await.unwrap().get::<_, Vec<i32>>(0);
        let before = sessions().await;
        for _ in 0..20 {
            let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
            // Nothing is given up: a connection that is silent after that is replaced, as by a server that is busy.
            let waiting = others.lock("k");
            let waiting = async { crate::setting::soon("its turn", waiting.acquire()).await.unwrap() };
            let releasing = async {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                guard.release().await.unwrap();
            };
            let (waited, ()) = tokio::join!(waiting, releasing);
            waited.release().await.unwrap();
        }
        assert_eq!(sessions().await, before);
        // Whoever connects makes it again.
        drop(table.store().await);
        client.query("SELECT FROM leasehold_waits", &[]).await.unwrap();
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_sequence_that_is_gone_is_made_again_and_tokens_go_on_growing() {
    run(async {
        let table = Table::new();
        let (locks, client) = (manager(&table.url(), LONG).await, table.client().await);
        let token = async |locks: &LockManager, name: &str| {
            let guard = locks.lock(name).try_acquire().await.unwrap().unwrap();
            let token = guard.fencing_token().unwrap().get();
            guard.release().await.unwrap();
            token
        };
        let mut last = token(&locks, "k").await;
        for far in [last, 9_000_000_000_000_000] {
            let gone = format!("UPDATE leasehold SET fence = {far}; DROP SEQUENCE leasehold_fence");
            client.batch_execute(&gone).await.unwrap();
            let error = locks.lock("other").try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
            // No table is missing, and no lease.
            let told = error.to_string();
            assert!(told.contains("leasehold_fence") && told.contains("a sequence with higher tokens"), "{told}");
            assert!(!told.contains("gone"), "{told}");
            // All of them find it missing.
            let url = table.url();
            let connecting: Vec<_> = (0..6)
                .map(|_| {
                    let url = url.clone();
                    tokio::spawn(async move { manager(&url, LONG).await })
                })
                .collect();
            let before = last.max(far);
            let mut tokens = vec![token(&locks, "other").await];
            for (number, connected) in connecting.into_iter().enumerate() {
                tokens.push(token(&connected.await.unwrap(), &format!("key {number}")).await);
            }
            assert!(tokens[0] > before && tokens.is_sorted_by(|one, next| one < next), "{before} {tokens:?}");
            last = tokens.pop().unwrap();
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn no_error_shows_a_row() {
    run(async {
        let table = Table::new();
        let locks = manager(&table.url(), LONG).await;
        let client = table.client().await;
        client.batch_execute("ALTER TABLE leasehold ADD CHECK (fence < 0)").await.unwrap();
        let error = locks.lock("k").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        let mut told = format!("{error} {error:?}");
        let mut cause = std::error::Error::source(&error);
        while let Some(next) = cause {
            told.push_str(&format!(" {next} {next:?}"));
            cause = next.source();
        }
        assert!(told.contains("23514") && !told.contains("Failing row") && !told.contains("\\x"), "{told}");
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_lease_that_its_owner_takes_again_after_its_end_began_anew() {
    run(async {
        let table = Table::new();
        let (store, client) = (table.store().await, table.client().await);
        let (key, owner) = (leasehold::Key::new("n", "k").unwrap(), leasehold::OwnerToken::mint().unwrap());
        let claim = Claim::new(&key, &owner, LONG);
        assert!(matches!(store.acquire(&claim).await.unwrap(), Attempt::Acquired(_)));
        let first = store.inspect(&key).await.unwrap().holders.remove(0);
        let over = "UPDATE leasehold SET expires = clock_timestamp(), holder = 'before'";
        client.batch_execute(over).await.unwrap();
        assert!(matches!(store.acquire(&claim).await.unwrap(), Attempt::Acquired(_)));
        let again = store.inspect(&key).await.unwrap().holders.remove(0);
        assert!(again.since > first.since && again.fencing > first.fencing);
        let noted: String = client.query_one("SELECT holder FROM leasehold", &[]).await.unwrap().get(0);
        assert_ne!(noted, "before");
    });
}
