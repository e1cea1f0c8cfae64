//! Three replicas with one timetable: each tick runs on one of them.
//!
//! They are three managers on one file here; in real life three servers, on Redis or PostgreSQL.
//!
//! `cargo run -p leasehold --features schedule --example cron`

#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::LockManager;
use leasehold::schedule::{Scheduler, Task, Tick, Ticks, Timetable, WallClock};
use leasehold::store::sqlite::SqliteStore;
use tokio::task::JoinSet;

/// Who has run which tick.
type Log = Arc<Mutex<BTreeMap<Tick, Vec<usize>>>>;

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let log = Log::default();
    let mut replicas = JoinSet::new();
    for number in 1..=3 {
        let store = SqliteStore::open(directory.path().join("leases.db")).await?;
        replicas.spawn(replica(number, LockManager::new(store), Arc::clone(&log)));
    }
    while let Some(ended) = replicas.join_next().await {
        ended??;
    }
    let log = log.lock().map_err(|_| "a replica panicked")?;
    for (tick, replicas) in log.iter() {
        assert_eq!(replicas.len(), 1, "{tick} ran on {replicas:?}");
        println!("{tick} ran on replica {}", replicas[0]);
    }
    Ok(())
}

async fn replica(number: usize, locks: LockManager, log: Log) -> leasehold::Result<()> {
    // In real life: Timetable::cron("30 2 * * *", "Europe/Berlin")?, and `Scheduler::look` every hour or so, since claims
    // stand for a day at most.
    let timetable = Timetable::every(Duration::from_millis(100))?;
    let task = Task::new("report").timetable(timetable.clone()).on_one_server();
    let scheduler = Scheduler::builder(&locks).task(task.without_overlapping(Duration::from_secs(60))).build()?;
    let mut ticks = Ticks::new(timetable, WallClock::system());
    for _ in 0..10 {
        let Some(due) = ticks.next().await else { break };
        let report = async |run: leasehold::schedule::Run| {
            // A run whose server crashed is told to the next one, which may do its work as well.
            for lost in run.lost() {
                println!("replica {number}: {lost}");
            }
            if let Ok(mut log) = log.lock() {
                log.entry(due.tick).or_default().push(number);
            }
        };
        if let Some(skipped) = scheduler.run("report", due.tick, report).await?.skipped() {
            println!("replica {number}: {skipped}");
        }
    }
    Ok(())
}
