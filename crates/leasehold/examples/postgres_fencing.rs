//! A holder that wakes up too late, and a table that refuses what it writes.
//!
//! `DATABASE_URL=postgres://user@host/database cargo run -p leasehold --features postgres --example postgres_fencing`

use std::error::Error;
use std::time::Duration;

use leasehold::store::postgres::PostgresStore;
use leasehold::{LockGuard, LockManager, Renew};
use tokio_postgres::{Client, NoTls};

const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS reports (name text PRIMARY KEY, body text NOT NULL, fence bigint NOT NULL)";

/// Writes unless somebody has written with a higher token.
const WRITE: &str = "INSERT INTO reports AS report (name, body, fence) VALUES ($1, $2, $3) \
    ON CONFLICT (name) DO UPDATE SET body = excluded.body, fence = excluded.fence \
    WHERE report.fence <= excluded.fence";

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").map_err(|_| "DATABASE_URL names none: postgres://user@host/database")?;
    assert!(!late_write(&url).await?, "the late write was refused");
    Ok(())
}

/// Whether the write of a holder that came too late was taken.
pub(crate) async fn late_write(url: &str) -> Result<bool> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let connection = tokio::spawn(connection);
    client.batch_execute(TABLE).await?;

    // It works without renewal, and for longer than it has asked for: so would one whose machine stood still.
    let slow = LockManager::builder(PostgresStore::connect(url).await?).renew(Renew::Off).build()?;
    let slow = slow.lock("report").ttl(Duration::from_secs(6)).acquire().await?;
    assert!(write(&client, &slow, "half of it").await?);

    let next = LockManager::new(PostgresStore::connect(url).await?);
    let next = next.lock("report").acquire().await?;
    assert!(write(&client, &next, "all of it").await?);

    // By now it should have looked (`slow.check()`); but between a look and a write there is always time to stand still.
    let taken = write(&client, &slow, "the other half").await?;
    next.release().await?;
    drop(client);
    connection.await??;
    Ok(taken)
}

async fn write(client: &Client, lease: &LockGuard, body: &str) -> Result<bool> {
    let token = lease.fencing_token().ok_or("this store gives no tokens")?;
    let fence = i64::try_from(token.get())?;
    Ok(client.execute(WRITE, &[&"nightly", &body, &fence]).await? == 1)
}
