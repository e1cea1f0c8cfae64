//! Each right that is documented as needed is needed, and each that is not can be missing.

use leasehold::store::postgres::PostgresStore;
use leasehold::store::{Page, Store, Waiting};
use leasehold::{Error, ErrorKind, LockManager, Renew};
use store_tests::{Table, connected, run};
use tokio_postgres::Client;

use crate::setting::{LONG, granted, soon, until_within};
use crate::sweeping::{AT_LAST, ROWS, left, some_grants};

/// Without one of these nothing is granted.
const NEEDED: [&str; 5] = [
    "USAGE ON SCHEMA public",
    "SELECT ON leasehold",
    "INSERT ON leasehold",
    "UPDATE ON leasehold",
    "USAGE ON SEQUENCE leasehold_fence",
];

/// Without one of these waiters ask again and again.
const FOR_WAITERS: [&str; 3] = ["SELECT ON leasehold_waits", "INSERT ON leasehold_waits", "UPDATE ON leasehold_waits"];

/// A server with a role that has the rights of the documentation.
async fn limited() -> (Table, Client, String) {
    let table = Table::alone(&[]);
    drop(table.store().await);
    let documented = include_str!("../../../../docs/stores-postgres.md");
    let (_, rights) = documented.split_once("```sql\nGRANT").expect("they are documented");
    let (rights, _) = rights.split_once("```").unwrap();
    let client = table.client().await;
    let roles = "REVOKE ALL ON SCHEMA public FROM PUBLIC; CREATE ROLE locks LOGIN";
    client.batch_execute(&format!("{roles}; GRANT{rights}")).await.unwrap();
    let url = table.url().replace("postgres@", "locks@");
    (table, client, url)
}

/// Everything that a store can do; answers with how its waiters wait.
async fn everything(url: &str, hears: bool) -> Result<Waiting, Error> {
    let open = async || connected(hears, || PostgresStore::connect(url)).await;
    let (ours, theirs) = (open().await?, open().await?);
    let waiting = ours.capabilities().waiting;
    let manager = |store: PostgresStore| LockManager::builder(store).ttl(LONG).renew(Renew::Off).build();
    let (locks, others) = (manager(ours.clone())?, manager(theirs)?);
    let guard = locks.lock("k").try_acquire().await?.expect("nobody has it");
    assert!(others.lock("k").try_acquire().await?.is_none());
    guard.extend(LONG).await?;
    let token = guard.hand_over().await?;
    let taken = others.lock("k").resume(&token).await?;
    assert_eq!(locks.holder("k").await?.expect("it is held").fencing, taken.fencing_token());
    assert_eq!(ours.list("", Page::first(9)).await?.entries.len(), 1);
    ours.probe().await?;
    locks.force_release("k", None).await?.expect("it was held");
    let guard = locks.lock("k").try_acquire().await?.expect("nobody has it");
    let lock = others.lock("k");
    let (next, released) = tokio::join!(soon("its turn", lock.acquire()), guard.release());
    released?;
    next?.release().await?;
    Ok(waiting)
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn nothing_that_is_documented_as_needed_is_too_much() {
    run(async {
        let (_table, client, url) = limited().await;
        assert_eq!(everything(&url, true).await.unwrap(), Waiting::Hint);
        for right in NEEDED {
            client.batch_execute(&format!("REVOKE {right} FROM locks")).await.unwrap();
            let error = everything(&url, false).await.expect_err(right);
            assert_eq!(error.kind(), ErrorKind::Rejected, "{right}: {error}");
            let told = error.to_string();
            assert!(told.contains("42501") && told.contains("the rights that the documentation"), "{right}: {told}");
            // What was refused has left nothing behind.
            let held = "SELECT FROM leasehold WHERE owner <> '' AND expires > clock_timestamp()";
            assert!(client.query(held, &[]).await.unwrap().is_empty(), "{right}");
            client.batch_execute(&format!("GRANT {right} TO locks")).await.unwrap();
        }
        for right in FOR_WAITERS {
            client.batch_execute(&format!("REVOKE {right} FROM locks")).await.unwrap();
            let waiting = everything(&url, false).await.unwrap_or_else(|error| panic!("{right}: {error}"));
            assert_eq!(waiting, Waiting::Poll, "{right}");
            client.batch_execute(&format!("GRANT {right} TO locks")).await.unwrap();
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn without_the_right_to_delete_rows_stay_and_nothing_else() {
    run(async {
        let (_table, client, url) = limited().await;
        client.batch_execute(ROWS).await.unwrap();
        // Marks that stay keep no lease.
        client.batch_execute("REVOKE DELETE ON leasehold_waits FROM locks").await.unwrap();
        let open = async || {
            let store = connected(true, || PostgresStore::connect(&url)).await.unwrap();
            assert_eq!(store.capabilities().waiting, Waiting::Hint);
            LockManager::builder(store).ttl(LONG).build().unwrap()
        };
        let locks = open().await;
        until_within(AT_LAST, "the old rows are gone", async || {
            some_grants(&locks, "k").await;
            left(&client, "old", "leasehold").await == 0
        })
        .await;
        assert_eq!(left(&client, "new", "leasehold").await, 700);
        assert_eq!(left(&client, "old", "leasehold_waits").await, 300);
        drop(locks);

        client
            .batch_execute("REVOKE DELETE ON leasehold FROM locks; TRUNCATE leasehold, leasehold_waits")
            .await
            .unwrap();
        client.batch_execute(ROWS).await.unwrap();
        let locks = open().await;
        let held = granted(&locks, "held").await;
        for _ in 0..10 {
            some_grants(&locks, "k").await;
        }
        assert_eq!(left(&client, "old", "leasehold").await, 1500);
        held.extend(LONG).await.unwrap();
        held.release().await.unwrap();
        assert_eq!(everything(&url, true).await.unwrap(), Waiting::Hint);
    });
}
