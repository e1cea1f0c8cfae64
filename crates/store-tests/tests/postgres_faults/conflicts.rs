//! Others have the same rows: the server gives up a statement of ours, and that is never told as somebody who holds.

use leasehold::store::postgres::PostgresStore;
use leasehold::store::{Attempt, Claim, Store};
use leasehold::{ErrorKind, Key, OwnerToken};
use store_tests::{Table, run};

use crate::setting::{LONG, manager, soon, until};

/// Somebody waits for a lock that is not advisory.
const BLOCKED: &str = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_serialization_failure_is_no_contention() {
    run(async {
        let table = Table::alone(&[]);
        let client = table.client().await;
        let strict = "CREATE ROLE strict LOGIN SUPERUSER; \
            ALTER ROLE strict SET default_transaction_isolation = 'serializable'";
        client.batch_execute(strict).await.unwrap();
        let locks = manager(&table.url().replace("postgres@", "strict@"), LONG).await;
        locks.lock("k").try_acquire().await.unwrap().unwrap().release().await.unwrap();
        let looker = table.client().await;
        for end in ["COMMIT", "ROLLBACK"].repeat(3) {
            client.batch_execute("BEGIN; UPDATE leasehold SET renewed = clock_timestamp()").await.unwrap();
            let lock = locks.lock("k");
            let ending = async {
                let blocked = async || !looker.query(BLOCKED, &[]).await.unwrap().is_empty();
                until("the claim waits for the row", blocked).await;
                client.batch_execute(end).await.unwrap();
            };
            let (answer, ()) = tokio::join!(soon("an answer", lock.try_acquire()), ending);
            answer.unwrap().expect("nobody has it").release().await.unwrap();
        }
        assert!(table.server().log().contains("could not serialize access"), "nothing was in the way");
    });
}

/// As where many are strict about one row: each of them meets others again and again, and the server's word is that it
/// should ask again.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_serialization_failure_is_no_error_although_it_comes_ten_times() {
    run(async {
        let table = Table::new();
        let locks = manager(&table.url(), LONG).await;
        let client = table.client().await;
        let in_the_way = "CREATE SEQUENCE met; \
            CREATE FUNCTION meet() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                IF nextval('met') <= 10 THEN RAISE 'could not serialize access' USING ERRCODE = '40001'; END IF; \
                RETURN new; \
            END $$; \
            CREATE TRIGGER meets BEFORE INSERT ON leasehold FOR EACH ROW EXECUTE FUNCTION meet()";
        client.batch_execute(in_the_way).await.unwrap();
        let guard = soon("an answer", locks.lock("k").try_acquire()).await.unwrap().expect("nobody has it");
        assert_eq!(client.query_one("SELECT last_value FROM met", &[]).await.unwrap().get::<_, i64>(0), 11);
        guard.release().await.unwrap();
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_deadlock_costs_no_lease() {
    run(async {
        // The server looks for a deadlock once in each wait; the other statement has to have begun by then.
        let table = Table::alone(&["-c", "deadlock_timeout=10s"]);
        let store = PostgresStore::connect(&table.url()).await.unwrap();
        let owner = OwnerToken::mint().unwrap();
        let keys = ["a", "b", "c"].map(|name| Key::new("", name).unwrap());
        let claims: Vec<_> = keys.iter().map(|key| Claim::new(key, &owner, LONG)).collect();
        for claim in &claims {
            assert!(matches!(store.acquire(claim).await.unwrap(), Attempt::Acquired(_)));
        }
        let (client, looker) = (table.client().await, table.client().await);
        // So that it is not the other one that is ended.
        client.batch_execute("SET deadlock_timeout = '2min'").await.unwrap();
        // Whichever the batch comes to first, the others are in the opposite order.
        for first in &keys {
            let lock = format!("BEGIN; SELECT FROM leasehold WHERE key = '{}' FOR UPDATE", first.as_stored());
            client.batch_execute(&lock).await.unwrap();
            let other = async {
                let blocked = async || !looker.query(BLOCKED, &[]).await.unwrap().is_empty();
                until("the batch waits for the row", blocked).await;
                client.batch_execute("SELECT FROM leasehold FOR UPDATE; COMMIT").await.unwrap();
            };
            let (answers, ()) = soon("both go on", async { tokio::join!(store.extend(&claims), other) }).await;
            match answers {
                Ok(answers) => assert!(answers.into_iter().all(|answer| answer.unwrap().is_some())),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
        assert!(table.server().log().contains("deadlock detected"), "nothing was in the way");
        assert!(store.extend(&claims).await.unwrap().into_iter().all(|answer| answer.unwrap().is_some()));
    });
}
