//! The file: opening and creating it, telling it from other files, transactions, and what its errors mean.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::fault::{Fault, rejected};
use super::host::Host;
use super::lease;
use super::limit::Limit;
use crate::error::Result;

/// "LEAS", as schema.sql sets it.
const APPLICATION_ID: i64 = 0x4c45_4153;
const SCHEMA_VERSION: i64 = 1;

/// An open file of leases.
#[derive(Debug)]
pub(super) struct LeaseFile {
    db: Connection,
    path: PathBuf,
    /// Device and inode. While the file is open no other file can have them.
    place: (u64, u64),
    /// How often a boot was seen for the first time.
    epoch: i64,
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
            // A file that is being created shows for an instant a header without the pages that it speaks of.
            let is_torn = matches!(fault.code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase));
            torn += u32::from(is_torn);
            if limit.is_over() || !(fault.is_busy() || is_torn && torn < 20) {
                return Err(fault.explain(path));
            }
            thread::sleep(Duration::from_millis(fastrand::u64(1..=5)));
        }
    }

    fn attempt(path: &Path, host: &Host, limit: &Limit) -> Result<Self, Fault> {
        create(path)?;
        let found = fs::metadata(path).map_err(|error| unreachable_file(path, error))?;
        if !found.is_file() {
            return Err(rejected(path, "it is not a regular file: name a file, or a place for a new one").into());
        }
        if found.len() > 0 {
            refuse_foreign_header(path)?;
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
        prepare(&db, path, host)?;
        let epoch = see_boot(&db, host)?;
        let place = (found.dev(), found.ino());
        let file = Self { db, path: path.to_owned(), place, epoch };
        if !file.is_current() {
            return Err(Fault::Replaced);
        }
        match lease::sweep(&file, host) {
            Err(error) if error.is_retryable() => {}
            swept => swept?,
        }
        Ok(file)
    }

    /// Whether the path still leads to this file.
    pub(super) fn is_current(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.place)
    }

    /// What tells this file from every other one, also from one that was given the inode of a deleted file, and its
    /// present from its past in an earlier boot.
    pub(super) fn identity(&self) -> Result<String> {
        let (device, inode) = self.place;
        let born = self.read(|db| Ok(number(db, "SELECT born FROM meta")?))?;
        Ok(format!("{device}:{inode} born {born} epoch {}", self.epoch))
    }

    /// Changes with every commit of another connection.
    pub(super) fn version(&self) -> Result<i64> {
        self.read(|db| Ok(db.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?))
    }

    /// Work that only reads.
    pub(super) fn read<T>(&self, work: impl FnOnce(&Connection) -> Result<T, Fault>) -> Result<T> {
        work(&self.db).map_err(|fault| fault.explain(&self.path))
    }

    /// Work in a transaction that has the write lock from its start: all of it is done, or on an error nothing.
    pub(super) fn write<T>(&self, work: impl FnOnce(&Connection) -> Result<T, Fault>) -> Result<T> {
        transaction(&self.db, work).map_err(|fault| fault.explain(&self.path))
    }
}

fn transaction<T>(db: &Connection, work: impl FnOnce(&Connection) -> Result<T, Fault>) -> Result<T, Fault> {
    db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let done = work(db).and_then(|done| {
        db.prepare_cached("COMMIT")?.execute([])?;
        Ok(done)
    });
    if !db.is_autocommit() {
        db.execute_batch("ROLLBACK")?;
    }
    done
}

/// Makes an empty file where there is none, readable by its owner only: it will hold owner tokens.
///
/// In a directory that is shared by a group (group-writable and set-group-id), the group may use it. Made without
/// opening it: closing a descriptor of an SQLite file drops the locks that this process has on it.
fn create(path: &Path) -> Result<(), Fault> {
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    let directory = path.parent().unwrap_or(path);
    let mode = match fs::metadata(directory) {
        Ok(found) if found.is_dir() => found.mode(),
        Ok(_) => {
            return Err(rejected(path, "what should be its directory is none: name another file").into());
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let text = format!("its directory does not exist: create it (mkdir -p {})", directory.display());
            return Err(rejected(path, &text).with_source(error).into());
        }
        Err(error) => return Err(unreachable_file(path, error)),
    };
    match make_file(path) {
        Ok(()) if mode & 0o2020 == 0o2020 => {
            fs::set_permissions(path, Permissions::from_mode(0o660)).map_err(|error| unreachable_file(path, error))
        }
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => {
            let text = format!(
                "it cannot be created: allow this user to write to {}, or name another file",
                directory.display()
            );
            Err(rejected(path, &text).with_source(error).into())
        }
    }
}

#[cfg(target_os = "linux")]
fn make_file(path: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    Ok(mknodat(CWD, path, FileType::RegularFile, Mode::RUSR | Mode::WUSR, 0)?)
}

#[cfg(not(target_os = "linux"))]
fn make_file(_: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

fn unreachable_file(path: &Path, error: io::Error) -> Fault {
    // Deleted since it was made: the next attempt makes it again.
    if error.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() {
        return Fault::Replaced;
    }
    let text = "it cannot be reached: check the path and its permissions, or name another file";
    rejected(path, text).with_source(error).into()
}

/// Looks at the header as it stands on disk, without a lock, a journal or anything else that could alter a file that
/// is not ours.
fn refuse_foreign_header(path: &Path) -> Result<(), Fault> {
    const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/');
    let path_in_url = percent_encode(path.as_os_str().as_encoded_bytes(), PATH);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let db = Connection::open_with_flags(format!("file:{path_in_url}?immutable=1"), flags)?;
    if number(&db, "PRAGMA application_id")? != APPLICATION_ID {
        return Err(foreign(path));
    }
    refuse_other_version(&db, path)
}

fn refuse_other_version(db: &Connection, path: &Path) -> Result<(), Fault> {
    match number(db, "PRAGMA user_version")? {
        SCHEMA_VERSION => Ok(()),
        other => Err(rejected(
            path,
            &format!(
                "its layout is version {other}, this program knows version {SCHEMA_VERSION}: \
                 use the same version everywhere, or name another file"
            ),
        )
        .into()),
    }
}

fn foreign(path: &Path) -> Fault {
    rejected(path, "it belongs to another program and was left alone: name another file").into()
}

/// Fills an empty file, checks a full one, and sets how this connection works.
///
/// Filled before it becomes a write-ahead file, so that the header on disk is ours from the first commit on.
fn prepare(db: &Connection, path: &Path, host: &Host) -> Result<(), Fault> {
    if number(db, "PRAGMA application_id")? != APPLICATION_ID {
        transaction(db, |db| {
            // Somebody else may have filled it since.
            match number(db, "PRAGMA application_id")? {
                APPLICATION_ID => return Ok(()),
                0 if number(db, "SELECT count(*) FROM sqlite_schema")? == 0 => {}
                _ => return Err(foreign(path)),
            }
            db.execute_batch(include_str!("schema.sql"))?;
            db.execute("INSERT INTO meta VALUES (1, ?1, ?2, 1, 0)", (host.now().wall, &host.boot))?;
            Ok(())
        })?;
    }
    refuse_other_version(db, path)?;
    // Fails where a table is missing or unlike ours, before anything is altered.
    number(db, "SELECT born + epoch + last_token + EXISTS (SELECT ends, wall_ends, tie FROM leases) FROM meta")?;
    let mode: String = db.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        let text = "its file system cannot share memory between processes: name a file on a local file system";
        return Err(rejected(path, text).into());
    }
    // Survives the death of every process. What a power loss may take from it, no holder survives either.
    db.execute_batch("PRAGMA synchronous = NORMAL")?;
    Ok(())
}

/// Counts a boot that the file has not seen, and surely keeps the count before any token is given in that boot.
fn see_boot(db: &Connection, host: &Host) -> Result<i64, Fault> {
    let read = |db: &Connection| {
        db.query_row("SELECT boot, epoch FROM meta", [], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))
    };
    let (boot, epoch) = read(db)?;
    if boot == host.boot {
        return Ok(epoch);
    }
    db.execute_batch("PRAGMA synchronous = FULL")?;
    let epoch = transaction(db, |db| {
        let (boot, epoch) = read(db)?;
        if boot == host.boot {
            return Ok(epoch);
        }
        let epoch = epoch.saturating_add(1);
        db.execute("UPDATE meta SET boot = ?1, epoch = ?2", (&host.boot, epoch))?;
        Ok(epoch)
    })?;
    db.execute_batch("PRAGMA synchronous = NORMAL")?;
    Ok(epoch)
}

fn number(db: &Connection, sql: &str) -> rusqlite::Result<i64> {
    db.query_row(sql, [], |row| row.get(0))
}
