//! What the store's thread does for the file when nobody needs it: forgetting old rows, and keeping the log short.

use std::time::Duration;

use rusqlite::{Connection, named_params};

use super::fault::Fault;
use super::file::{LeaseFile, Survives};
use super::host::Host;
use crate::clock::Moment;
use crate::error::Result;

/// How long the thread has had nothing to do before it sees to the file.
const QUIET: Duration = Duration::from_secs(1);
/// How long it lets others go first in the middle of a round.
const PAUSE: Duration = Duration::from_millis(20);
/// How many jobs it does at most before it sees to the rows.
const BUSY: u32 = 1000;
/// How many rows are looked at in one go, which takes less than a millisecond. More than as many jobs can leave behind.
const BATCH: i64 = 2000;
/// How many pages the log may hold when the thread has time to empty it.
const LONG_LOG: i64 = 500;
/// How many pages the log may hold when a process comes to the file. The first one there reads all of them before it can
/// do anything, and one that does not stay for long never has the time to empty it.
const LONG_LOG_AT_START: i64 = 100;

const DAY: i64 = 86_400_000_000_000;

/// What is to be done, and how far it has come.
#[derive(Debug, Default)]
pub(super) struct Upkeep {
    due: Option<Moment>,
    jobs: u32,
    /// The last key that was looked at; empty at the start of a round.
    after: String,
}

impl Upkeep {
    /// When to see to the file, unless there are jobs until then; `None` = not before the next job.
    pub(super) fn due(&self) -> Option<Moment> {
        self.due
    }

    /// Takes note of a job that was done.
    pub(super) fn after_job(&mut self, now: Moment, file: Option<&LeaseFile>, host: &Host) {
        self.due = Some(now + QUIET);
        self.jobs += 1;
        if self.jobs >= BUSY {
            self.jobs = 0;
            self.sweep(file, host);
        }
    }

    /// Sees to the file while nobody needs it. What does not work now is left for another time.
    pub(super) fn when_quiet(&mut self, now: Moment, file: Option<&LeaseFile>, host: &Host) {
        self.sweep(file, host);
        let is_half_way = !self.after.is_empty();
        self.due = is_half_way.then(|| now + PAUSE);
        if let Some(file) = file {
            file.read(|db| shorten_log(db, LONG_LOG)).ok();
        }
    }

    /// Sees to the file before the first job, also for processes that are never idle.
    pub(super) fn at_start(&mut self, file: Option<&LeaseFile>, host: &Host) {
        self.sweep(file, host);
        if let Some(file) = file {
            file.read(|db| shorten_log(db, LONG_LOG_AT_START)).ok();
        }
    }

    /// Removes, among the next rows, what has been over for a day, and nothing that might still stand.
    pub(super) fn sweep(&mut self, file: Option<&LeaseFile>, host: &Host) {
        let next = file.map(|file| sweep(file, host, &self.after));
        self.after = next.and_then(Result::ok).unwrap_or_default();
    }
}

/// Goes through a number of rows after this key; the last one of them, empty if that was the end.
fn sweep(file: &LeaseFile, host: &Host, after: &str) -> Result<String> {
    let now = host.now();
    let bounds = named_params! {
        ":after": after, ":batch": BATCH, ":boot": host.boot, ":up": now.up - DAY, ":wall": now.wall - DAY,
    };
    let (last, rows, idle): (Option<String>, i64, i64) = file.read(|db| {
        let sql = concat!(include_str!("idle.sql"), "SELECT max(key), count(*), total(idle) > 0 FROM batch");
        Ok(db.prepare_cached(sql)?.query_row(bounds, |row| row.try_into())?)
    })?;
    if idle > 0 {
        file.write(Survives::Crash, |db| {
            let rows = "DELETE FROM leases WHERE key IN (SELECT key FROM batch WHERE idle)";
            Ok(db.execute(&format!("{}{rows}", include_str!("idle.sql")), bounds)?)
        })?;
    }
    Ok(last.filter(|_| rows == BATCH).unwrap_or_default())
}

fn shorten_log(db: &Connection, long: i64) -> Result<(), Fault> {
    let pages = |mode| {
        let counts = |row: &rusqlite::Row<'_>| Ok(row.get::<_, i64>(1)? - row.get::<_, i64>(2)?);
        db.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], counts)
    };
    if pages("NOOP")? >= long {
        pages("PASSIVE")?;
    }
    Ok(())
}
