//! A server that follows another one.

use std::process::Command;

use leasehold::store::postgres::PostgresStore;
use leasehold::{ErrorKind, LostReason, config};
use store_tests::{Postgres, Table, run};

use crate::fencing::Resource;
use crate::setting::{LONG, manager, soon, until};

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_standby_is_refused_and_one_that_takes_over_may_not_know_of_a_lease() {
    run(async {
        let table = Table::alone(&["-c", "wal_level=replica"]);
        let before = manager(&table.url(), LONG).await;
        let early = before.lock("k").try_acquire().await.unwrap().unwrap();
        let standby = follower(&table);
        let url = standby.url(table.database());
        let error = PostgresStore::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(error.to_string().contains("standby"), "{error}");
        // Of several, too.
        let several = url.replace("@", &format!("@{},", standby.server().address()));
        let error = PostgresStore::connect(&several).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(error.to_string().contains("standby"), "{error}");

        // From here on it hears nothing. This is the violation that the documentation speaks of.
        let client = client(&url).await;
        let last = before.lock("last").try_acquire().await.unwrap().unwrap();
        until("it has heard", async || knows(&client, "last").await).await;
        last.check().unwrap();
        client.batch_execute("ALTER SYSTEM SET primary_conninfo = ''").await.unwrap();
        client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        let hears = "SELECT FROM pg_stat_wal_receiver";
        until("it is deaf", async || client.query(hears, &[]).await.unwrap().is_empty()).await;
        let late = before.lock("late").try_acquire().await.unwrap().unwrap();
        table.server().kill().unwrap();
        client.query("SELECT pg_promote()", &[]).await.unwrap();
        until("it has taken over", async || PostgresStore::connect(&url).await.is_ok()).await;
        let after = manager(&url, LONG).await;
        assert!(soon("an answer", after.lock("k").try_acquire()).await.unwrap().is_none());
        let again = soon("an answer", after.lock("late").try_acquire()).await.unwrap().expect("granted twice");
        again.check().unwrap();
        late.check().unwrap();
        // Both take it for theirs. A table that compares tokens lets one of them write, since the sequence told the standby
        // of more tokens than were lost.
        let resource = Resource::new().await;
        assert!(resource.upsert(&late, "before").await && resource.upsert(&again, "after").await);
        assert!(!resource.upsert(&late, "late").await && !resource.update(&late, "late").await);
        assert_eq!(resource.body().await, "after");
        early.check().unwrap();
    });
}

/// Their locks are nowhere but in the memory of the server that granted them.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn one_that_takes_over_knows_of_no_lock_of_a_session_or_transaction() {
    run(async {
        for mode in ["advisory", "xact"] {
            let table = Table::alone(&["-c", "wal_level=replica"]);
            let open = async |url: &str| config::open(&format!("{url}?mode={mode}")).await;
            let before = open(&table.url()).await.unwrap().build().unwrap();
            before.lock("first").try_acquire().await.unwrap().unwrap().release().await.unwrap();
            let standby = follower(&table);
            let url = standby.url(table.database());
            let error = open(&url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{mode}: {error}");
            let late = before.lock("k").try_acquire().await.unwrap().unwrap();
            client(&url).await.query("SELECT pg_promote()", &[]).await.unwrap();
            until("it has taken over", async || open(&url).await.is_ok()).await;
            // The old one still runs, and its holder works: this is the violation that the documentation speaks of.
            let after = open(&url).await.unwrap().build().unwrap();
            let again = soon("an answer", after.lock("k").try_acquire()).await.unwrap().expect("granted twice");
            again.check().unwrap();
            late.check().unwrap();
            // When that one ends, its holder is told, and told so by nobody who took over.
            table.server().kill().unwrap();
            assert_eq!(soon("the loss", late.lost()).await, LostReason::ConnectionLost, "{mode}");
            again.release().await.unwrap();
        }
    });
}

async fn client(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn knows(client: &tokio_postgres::Client, key: &str) -> bool {
    let statement = "SELECT FROM leasehold WHERE key = 'leasehold:' || $1::text";
    client.query(statement, &[&key]).await.is_ok_and(|rows| !rows.is_empty())
}

/// A server that follows this one.
fn follower(table: &Table) -> Postgres {
    let copy = tempfile::tempdir().unwrap();
    let port = table.server().port().to_string();
    let folder = copy.path().join("copy");
    let copied = Command::new(Postgres::programs().join("pg_basebackup"))
        .args(["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-R", "-X", "stream", "-c", "fast", "-D"])
        .arg(&folder)
        .status();
    assert!(copied.unwrap().success());
    Postgres::copy(&folder, &[])
}
