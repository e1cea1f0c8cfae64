//! The way to the server breaks while a transaction of the caller's own has a lock, or is to get it.

use std::time::Duration;

use leasehold::store::postgres::with_lock_in_transaction;
use leasehold::testkit::{Accident, Proxy};
use leasehold::{Error, ErrorKind, Key, Wait};
use store_tests::{Table, run};
use tokio_postgres::{Client, NoTls, Transaction};

use crate::setting::{at_rest, manager, number, soon, take, until};

const ROWS: &str = "SELECT count(*) FROM written";

async fn through(proxy: &Proxy, table: &Table) -> Client {
    let (client, connection) = tokio_postgres::connect(&table.url_at(proxy.address()), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn write(client: &mut Client, key: &Key) -> Result<Option<()>, Error> {
    let ran = with_lock_in_transaction(client, key, Wait::No, async |transaction| {
        transaction.execute("INSERT INTO written VALUES (1)", &[]).await.unwrap();
        Ok::<_, Error>(())
    });
    soon("an answer", ran).await
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn what_is_lost_in_a_transaction_of_ones_own_is_told_as_what_it_is() {
    run(async {
        let table = Table::new();
        table.client().await.batch_execute("CREATE TABLE written (number bigint)").await.unwrap();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let key = Key::new("leasehold", "deploy").unwrap();
        let mut written = 0;
        for (part, kind) in [
            ("START TRANSACTION", ErrorKind::Unavailable),
            ("pg_try_advisory_xact_lock", ErrorKind::Unavailable),
            ("current_setting('leasehold.work'", ErrorKind::Unavailable),
            ("COMMIT\0", ErrorKind::Indeterminate),
        ] {
            for (is_applied, accident) in [(false, Accident::lose_request()), (true, Accident::lose_reply())] {
                let mut client = through(&proxy, &table).await;
                proxy.once(accident.containing(part));
                let error = write(&mut client, &key).await.expect_err(part);
                assert_eq!(error.kind(), kind, "{part}, applied: {is_applied}: {error}");
                at_rest(&table).await;
                written += i64::from(is_applied && part == "COMMIT\0");
                assert_eq!(number(&table, ROWS).await, written, "{part}, applied: {is_applied}");
                let mut client = through(&proxy, &table).await;
                write(&mut client, &key).await.unwrap().expect("nobody has it");
                written += 1;
            }
        }
    });
}

/// What asks the server to give up the statement meets silence, once.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_dropped_wait_is_given_up_although_a_request_for_that_is_lost() {
    run(async {
        let table = Table::new();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let key = Key::new("leasehold", "deploy").unwrap();
        let guard = take(&manager(&table.url()).await, "deploy").await;
        let mut client = through(&proxy, &table).await;
        let waiting = tokio::spawn(async move {
            let work = async |_: &Transaction<'_>| Ok::<_, Error>(());
            with_lock_in_transaction(&mut client, &key, Wait::Forever, work).await.map(|_| ())
        });
        until("it waits", async || crate::setting::locks(&table, false).await == 1).await;
        // Whether the other end encrypts is asked first.
        proxy.once(Accident::lose_reply().silently().containing(80_877_103_u32.to_be_bytes()));
        waiting.abort();
        until("it is given up", async || crate::setting::locks(&table, false).await == 0).await;
        assert_eq!(proxy.pending(), 0);
        guard.release().await.unwrap();
        at_rest(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_wait_whose_connection_breaks_is_no_contention() {
    run(async {
        let table = Table::new();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let key = Key::new("leasehold", "deploy").unwrap();
        let guard = take(&manager(&table.url()).await, "deploy").await;
        let mut client = through(&proxy, &table).await;
        let work = async |_: &Transaction<'_>| Ok::<_, Error>(());
        let waiting = with_lock_in_transaction(&mut client, &key, Wait::UpTo(Duration::from_secs(60)), work);
        let (ran, ()) = soon("the end of the wait", async {
            tokio::join!(waiting, async {
                until("it waits", async || crate::setting::locks(&table, false).await == 1).await;
                proxy.reset();
            })
        })
        .await;
        assert_eq!(ran.unwrap_err().kind(), ErrorKind::Unavailable);
        guard.release().await.unwrap();
        at_rest(&table).await;
    });
}
