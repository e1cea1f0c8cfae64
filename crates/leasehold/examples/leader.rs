//! Leader election with hand-over on shutdown: the leader stops its work, gives its leadership back, and another replica
//! leads at once, without waiting for the ttl.
//!
//! `cargo run -p leasehold --example leader`

#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::time::Duration;

use leasehold::election::Candidate;
use leasehold::store::sqlite::SqliteStore;
use leasehold::{LeaseHandle, LockManager, Result};

#[tokio::main]
pub(crate) async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("leases.db");
    let one = replica(&file).await?;
    let first = one.elected().await?;
    let two = replica(&file).await?;
    println!("the first replica leads, with token {:?}", first.fencing_token());
    assert!(!two.is_leader());

    // The work of the leader, which stops when the leadership is lost, or at shutdown.
    let shutdown = tokio::time::sleep(Duration::from_millis(50));
    tokio::select! {
        ended = lead(&first) => ended?,
        reason = first.lost() => println!("the leadership is lost: {reason}"),
        () = shutdown => println!("the first replica shuts down"),
    }
    one.resign().await?;
    assert!(first.check().is_err());

    let second = tokio::time::timeout(Duration::from_secs(10), two.elected()).await??;
    println!("the second replica leads, with token {:?}", second.fencing_token());
    assert!(second.fencing_token() > first.fencing_token());
    two.resign().await?;
    Ok(())
}

async fn replica(file: &std::path::Path) -> Result<Candidate> {
    let locks = LockManager::new(SqliteStore::open(file).await?);
    // The others would wait for this long if it crashed.
    Ok(Candidate::campaign(locks.lock("scheduler").ttl(Duration::from_secs(30))))
}

async fn lead(leadership: &LeaseHandle) -> Result<()> {
    loop {
        // Before each step: a replica that slept finds out here.
        leadership.check()?;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
