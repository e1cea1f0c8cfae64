//! The open file: transactions, and whether it still is the one that the path leads to.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::fault::{Fault, rejected};
use super::file_system::refuse_network;
use super::host::Host;
use super::layout::{is_half_filled, prepare, recognize, refuse_foreign};
use super::limit::Limit;
use super::place::{Place, create, number, unreachable_file};
use super::room;
use crate::error::Result;

/// An open file of leases.
#[derive(Debug)]
pub(super) struct LeaseFile {
    db: Connection,
    path: PathBuf,
    place: Place,
    limit: Limit,
    /// Whether the connection may be in a state that only opening the file again mends.
    is_spoiled: Cell<bool>,
}

/// What a commit outlives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Survives {
    /// The death of every process. What a power loss may take from it, no process survives either.
    Crash,
    PowerLoss,
}

impl Survives {
    pub(super) fn set(self, db: &Connection) -> rusqlite::Result<()> {
        let pragma = match self {
            Self::Crash => "PRAGMA synchronous = NORMAL",
            Self::PowerLoss => "PRAGMA synchronous = FULL",
        };
        db.execute_batch(pragma)
    }
}

impl LeaseFile {
    /// Opens or creates the file, within the limit.
    ///
    /// Many processes may do so at once: whatever fails because another one is at work is done again from the start.
    pub(super) fn open(path: &Path, host: &Host, limit: &Limit) -> Result<Self> {
        let mut torn = 0;
        loop {
            let fault = match Self::attempt(path, host, limit) {
                Ok(file) => return Ok(file),
                Err(fault) => fault,
            };
            torn += u32::from(fault.may_be_torn());
            if limit.is_over() || !(fault.is_busy() || fault.may_be_torn() && torn < 20) {
                return Err(fault.before_any_lease().explain(path));
            }
            thread::sleep(Duration::from_millis(fastrand::u64(1..=5)));
        }
    }

    fn attempt(path: &Path, host: &Host, limit: &Limit) -> Result<Self, Fault> {
        refuse_network(path, host)?;
        create(path)?;
        let found = fs::metadata(path).map_err(|error| unreachable_file(path, error))?;
        if !found.is_file() {
            return Err(rejected(path, "it is not a regular file: name a file, or a place for a new one").into());
        }
        if found.len() > 0 && !is_half_filled(path) {
            refuse_foreign(path, &found)?;
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut db = Connection::open_with_flags(path, flags)?;
        // A checkpoint takes long, and closing the last connection of a file that was replaced must not touch the
        // files of its successor.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        db.busy_handler(Some(limit.busy_handler()))?;
        if db.is_readonly("main")? {
            return Err(
                rejected(path, "it cannot be written: allow this user to write it, or name another file").into()
            );
        }
        prepare(&db, path, &found, host)?;
        recognize(&db, path, &found, host)?;
        room::keep_size(&db)?;
        let place = Place::of(path).filter(|place| place.file == number(&found)).ok_or(Fault::Replaced)?;
        Ok(Self { db, path: path.to_owned(), place, limit: limit.clone(), is_spoiled: Cell::new(false) })
    }

    /// Whether the path still leads to this file, and the connection works.
    pub(super) fn is_current(&self) -> bool {
        !self.is_spoiled.get() && Place::of(&self.path).as_ref() == Some(&self.place)
    }

    /// What tells this file from every other one, also from one that was given the inode of a deleted file, and its
    /// present from its past in an earlier boot.
    pub(super) fn identity(&self) -> Result<String> {
        let (device, inode) = self.place.file;
        let (born, epoch): (i64, i64) =
            self.read(|db| Ok(db.query_row("SELECT born, epoch FROM meta", [], |row| row.try_into())?))?;
        Ok(format!("{device}:{inode} born {born} epoch {epoch}"))
    }

    /// Changes with every commit of another connection.
    pub(super) fn version(&self) -> Result<i64> {
        self.read(|db| Ok(db.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?))
    }

    /// Work that only reads.
    pub(super) fn read<T>(&self, work: impl FnOnce(&Connection) -> Result<T, Fault>) -> Result<T> {
        self.explained(work(&self.db))
    }

    /// Work in a transaction that has the write lock from its start: all of it is done, or on an error nothing.
    pub(super) fn write<T>(&self, survives: Survives, work: impl Fn(&Connection) -> Result<T, Fault>) -> Result<T> {
        let mut done = self.try_to_write(survives, &work);
        if done.as_ref().is_err_and(Fault::is_full) {
            // If there is none, the next attempt tells.
            room::make(&self.db, &self.path, &self.limit).ok();
            done = self.try_to_write(survives, &work);
        }
        self.explained(done)
    }

    fn try_to_write<T>(
        &self,
        survives: Survives,
        work: impl FnOnce(&Connection) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if survives == Survives::Crash {
            return transaction(&self.db, work);
        }
        Survives::PowerLoss.set(&self.db)?;
        let done = transaction(&self.db, work);
        // Whatever comes of it, the worst is a file that is slower than it must be.
        Survives::Crash.set(&self.db).ok();
        done
    }

    fn explained<T>(&self, done: Result<T, Fault>) -> Result<T> {
        done.map_err(|fault| {
            self.is_spoiled.set(self.is_spoiled.get() || fault.spoils() || !self.db.is_autocommit());
            fault.explain(&self.path)
        })
    }
}

pub(super) fn transaction<T>(db: &Connection, work: impl FnOnce(&Connection) -> Result<T, Fault>) -> Result<T, Fault> {
    db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let done = work(db).and_then(|done| {
        db.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([])).map_err(Fault::Commit)?;
        Ok(done)
    });
    if !db.is_autocommit() {
        // Where this fails, the connection is given up.
        db.execute_batch("ROLLBACK").ok();
    }
    done
}
