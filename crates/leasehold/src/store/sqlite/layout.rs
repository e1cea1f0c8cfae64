//! What the file holds before any lease: whose file it is, which layout it has, and which boots it has seen.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rusqlite::{Connection, OpenFlags};

use super::fault::{Fault, rejected};
use super::file::{Survives, transaction};
use super::host::Host;
use super::place::{JOURNAL, LOG, SHARED_MEMORY, beside, number, stamp, unreachable_file};

/// "LEAS", as schema.sql sets it.
const APPLICATION_ID: i64 = 0x4c45_4153;
const SCHEMA_VERSION: i64 = 1;

/// How many pages of the log are written into the file within a commit, if the thread never had the time before.
const LONGEST_LOG: u32 = 4000;

/// Whether somebody began to fill the empty file and has not finished, or never will, after a kill or a power loss.
///
/// As it stands on disk it then tells nothing; SQLite, as soon as the file is read, waits for the one or empties it
/// again after the other.
pub(super) fn is_half_filled(path: &Path) -> bool {
    // How a journal begins, and where it says how many pages the file had before.
    const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    const PAGES_BEFORE: Range<usize> = 16..20;
    let mut header = [0; PAGES_BEFORE.end];
    let is_read = File::open(beside(path, JOURNAL)).and_then(|mut journal| journal.read_exact(&mut header)).is_ok();
    is_read && header.starts_with(&MAGIC) && header[PAGES_BEFORE] == [0; 4]
}

/// Looks at the file as it stands on disk, without a lock, a journal or anything else that could alter a file that
/// is not ours.
pub(super) fn refuse_foreign(path: &Path, found: &Metadata) -> Result<(), Fault> {
    const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/');
    let path_in_url = percent_encode(path.as_os_str().as_encoded_bytes(), PATH);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let db = Connection::open_with_flags(format!("file://{path_in_url}?immutable=1"), flags)?;
    if integer(&db, "PRAGMA application_id")? != APPLICATION_ID {
        return Err(foreign(path));
    }
    refuse_other_version(&db, path)?;
    let place: String = db.query_row("SELECT place FROM meta", [], |row| row.get(0))?;
    // The log of one file would be taken for that of another.
    if place != stamp(found) && [LOG, SHARED_MEMORY].iter().any(|suffix| beside(path, suffix).exists()) {
        return Err(Fault::Restored);
    }
    Ok(())
}

/// Fills an empty file, checks a full one, and sets how this connection works.
///
/// Filled before it becomes a write-ahead file, so that the header on disk is ours from the first commit on.
pub(super) fn prepare(db: &Connection, path: &Path, found: &Metadata, host: &Host) -> Result<(), Fault> {
    if integer(db, "PRAGMA application_id")? != APPLICATION_ID {
        transaction(db, |db| {
            // Somebody else may have filled it since.
            match integer(db, "PRAGMA application_id")? {
                APPLICATION_ID => Ok(()),
                0 if integer(db, "SELECT count(*) FROM sqlite_schema")? == 0 => fill(db, path, found, host),
                _ => Err(foreign(path)),
            }
        })?;
    }
    refuse_other_version(db, path)?;
    // Fails where a table is missing or unlike ours, before anything is altered.
    integer(
        db,
        "SELECT born + epoch + last_token + EXISTS (SELECT ends, wall_ends, tie FROM leases)
            + EXISTS (SELECT filler FROM room) FROM meta",
    )?;
    let mode: String = db.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        let text = "its file system cannot share memory between processes: name a file on a local file system";
        return Err(rejected(path, text).into());
    }
    // Reading makes the log, without which the file counts as replaced.
    integer(db, "SELECT count(*) FROM meta")?;
    db.pragma_update(None, "wal_autocheckpoint", LONGEST_LOG)?;
    Survives::Crash.set(db)?;
    Ok(())
}

fn fill(db: &Connection, path: &Path, found: &Metadata, host: &Host) -> Result<(), Fault> {
    // Whoever still has a deleted file open must not share memory with this one, which shares none before it is full.
    if fs::metadata(path).ok().as_ref().map(number) != Some(number(found)) {
        return Err(Fault::Replaced);
    }
    match fs::remove_file(beside(path, SHARED_MEMORY)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unreachable_file(path, error)),
        _ => {}
    }
    db.execute_batch(include_str!("schema.sql"))?;
    let insert = "INSERT INTO meta (one, born, place, log, boot, epoch, last_token) VALUES (1, ?1, ?2, '', '', 0, 0)";
    db.execute(insert, (host.now().wall, stamp(found)))?;
    Ok(())
}

/// Raises the epoch if more tokens may have been given than the file tells: before this boot, with another log, or
/// in the file that this one is a copy of.
pub(super) fn recognize(db: &Connection, path: &Path, found: &Metadata, host: &Host) -> Result<(), Fault> {
    let log = fs::metadata(beside(path, LOG)).map_err(|_| Fault::Replaced)?;
    let present = (stamp(found), stamp(&log), host.boot.clone());
    let seen: (String, String, String) = db.query_row("SELECT place, log, boot FROM meta", [], |row| row.try_into())?;
    if seen == present {
        return Ok(());
    }
    let (place, log, boot) = present;
    // The epoch has to be in the file itself before anything speaks of what it was raised for: not even a power loss
    // or a lost log may take it back.
    Survives::PowerLoss.set(db)?;
    transaction(db, |db| Ok(db.execute("UPDATE meta SET epoch = min(epoch + 1, 2147483648), place = ?1", [place])?))?;
    let is_blocked: bool = db.query_row("PRAGMA wal_checkpoint(FULL)", [], |row| row.get(0))?;
    if is_blocked {
        return Err(Fault::Busy);
    }
    transaction(db, |db| Ok(db.execute("UPDATE meta SET log = ?1, boot = ?2", [log, boot])?))?;
    Survives::Crash.set(db)?;
    Ok(())
}

fn refuse_other_version(db: &Connection, path: &Path) -> Result<(), Fault> {
    match integer(db, "PRAGMA user_version")? {
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

fn integer(db: &Connection, sql: &str) -> rusqlite::Result<i64> {
    db.query_row(sql, [], |row| row.get(0))
}
