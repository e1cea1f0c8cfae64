//! Room on the disk: what holds a lease must be able to renew it when there is none left.
//!
//! A renewal writes only pages that the file has, to the log. A full disk keeps the log from growing; but once all of
//! it has been written back into the file, it begins anew and needs no room. That works only if the file does not have
//! to grow for it, so no page is used before the disk has it.

use std::path::Path;

use rusqlite::Connection;

use super::fault::Fault;
use super::file::transaction;
use super::limit::Limit;

/// How much the file grows by: room for some hundred leases.
const GROWTH: u32 = 256 << 10;

/// A disk with less room than this counts as full: what grows is written twice, and others write, too.
const FULL: u64 = 1 << 20;

/// Beyond any size of a file.
const NO_LIMIT: u32 = 4_294_967_294;

/// From now on whatever needs a page that the file does not have fails as on a full disk.
pub(super) fn keep_size(db: &Connection) -> Result<(), Fault> {
    limit_pages(db, 1)
}

/// Has the log begin anew, and the file grow if the disk has room for that.
pub(super) fn make(db: &Connection, path: &Path, limit: &Limit) -> Result<(), Fault> {
    begin_log_anew(db, limit)?;
    if rustix::fs::statvfs(path).is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < FULL) {
        return Ok(());
    }
    limit_pages(db, NO_LIMIT)?;
    let grown = grow(db, limit);
    keep_size(db)?;
    grown
}

fn grow(db: &Connection, limit: &Limit) -> Result<(), Fault> {
    transaction(db, |db| Ok(db.execute("INSERT INTO room (filler) VALUES (zeroblob(?1))", [GROWTH])?))?;
    begin_log_anew(db, limit)?;
    transaction(db, |db| Ok(db.execute("DELETE FROM room", [])?))?;
    Ok(())
}

fn begin_log_anew(db: &Connection, limit: &Limit) -> Result<(), Fault> {
    // One that is still read goes on where it was. Readers are not waited for: nobody else could write meanwhile.
    limit.at_once(|| db.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())))?;
    Ok(())
}

/// SQLite takes the present number of pages for any that is lower.
fn limit_pages(db: &Connection, pages: u32) -> Result<(), Fault> {
    db.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
    Ok(())
}
