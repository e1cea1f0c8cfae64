//! Fencing a database write: a holder that woke up too late is refused by the database, whatever it believes.
//!
//! `cargo run -p leasehold --example fenced_write`

#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::time::Duration;

use leasehold::store::memory::MemoryStore;
use leasehold::{FencingToken, LockManager, Renew, fence};
use rusqlite::Connection;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let mut database = Connection::open_in_memory()?;
    database.execute_batch(fence::SQLITE.create)?;
    database.execute_batch("CREATE TABLE balances (account TEXT PRIMARY KEY, amount INTEGER NOT NULL)")?;
    database
        .execute_batch("CREATE TABLE documents (id TEXT PRIMARY KEY, content TEXT NOT NULL, fence INTEGER NOT NULL)")?;

    let locks = LockManager::new(MemoryStore::new());
    let lock = locks.lock("accounts").ttl(Duration::from_secs(2)).renew(Renew::Off);
    let early = lock.acquire().await?;
    let token = early.fencing_token().ok_or("no token")?;
    assert!(transfer(&mut database, token, 10)?);

    // The holder stands still, for a garbage collection or a suspend; its lease ends and somebody else works.
    let late = lock.acquire().await?;
    let newer = late.fencing_token().ok_or("no token")?;
    assert!(transfer(&mut database, newer, 20)?);
    assert!(store(&database, newer, "new")?);

    // It wakes up and goes on where it was.
    assert!(!transfer(&mut database, token, 30)?, "a late write went through");
    assert!(!store(&database, token, "old")?, "a late write went through");
    let amount: i64 = database.query_row("SELECT amount FROM balances", [], |row| row.get(0))?;
    let content: String = database.query_row("SELECT content FROM documents", [], |row| row.get(0))?;
    assert_eq!((amount, content.as_str()), (20, "new"));
    println!("token {token} was refused after token {newer}");
    Ok(())
}

/// Any number of writes under one token: the first statement of their transaction admits it, or nothing is written.
fn transfer(database: &mut Connection, token: FencingToken, amount: i64) -> Result<bool> {
    let transaction = database.transaction()?;
    let token = i64::try_from(token.get())?;
    if transaction.execute(fence::SQLITE.admit, ("accounts", token))? == 0 {
        return Ok(false); // and rolled back
    }
    transaction.execute("INSERT OR REPLACE INTO balances VALUES ('main', ?1)", [amount])?;
    transaction.commit()?;
    Ok(true)
}

/// One write, whose row keeps the token.
fn store(database: &Connection, token: FencingToken, content: &str) -> Result<bool> {
    let token = i64::try_from(token.get())?;
    Ok(database.execute(fence::SQLITE.upsert, ("readme", content, token))? == 1)
}
