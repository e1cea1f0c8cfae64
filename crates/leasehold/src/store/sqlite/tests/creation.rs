//! A power loss, or a kill, in the middle of making the file: the next one makes it anew.
//!
//! SQLite writes and syncs a journal first, then the pages in any order, then removes the journal. Whatever is on disk
//! in between is not yet a file of leases, and no token was given.

use super::*;

const PAGE: usize = 4096;

/// A journal that says that the file had these pages, and that undoing brings back the first as it was.
fn journal(pages: u32, first: Option<&[u8]>) -> Vec<u8> {
    const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    const NONCE: u32 = 77;
    let (records, sector, page) = (u32::from(first.is_some()), 512, u32::try_from(PAGE).unwrap());
    let mut journal = MAGIC.to_vec();
    journal.extend([records, NONCE, pages, sector, page].into_iter().flat_map(u32::to_be_bytes));
    journal.resize(512, 0);
    if let Some(first) = first {
        let every_200th = (1..PAGE).rev().skip(199).step_by(200).map(|at| u32::from(first[at]));
        let sum = every_200th.fold(NONCE, u32::wrapping_add);
        journal.extend(1_u32.to_be_bytes());
        journal.extend(first);
        journal.extend(sum.to_be_bytes());
    }
    journal
}

/// However slow the disk is.
#[tokio::test]
async fn a_file_that_nobody_else_opens_is_made_without_waiting_for_anybody() {
    let (_directory, path) = scratch();
    let host = Host::present().unwrap();
    StoreThread::start(path, host, Duration::ZERO).await.unwrap();
}

/// A full file before it became a write-ahead file, and after.
async fn made() -> (Vec<u8>, Vec<u8>) {
    let (_directory, path) = scratch();
    SqliteStore::open(&path).await.unwrap().close().await.unwrap();
    let write_ahead = fs::read(&path).unwrap();
    let mut plain = write_ahead.clone();
    assert_eq!(plain[18..20], [2, 2]);
    plain[18..20].fill(1);
    (plain, write_ahead)
}

/// Opens what was left there, and takes a lease.
async fn mends(what: &str, file: &[u8], journal: &[u8]) {
    let (directory, path) = scratch();
    fs::write(&path, file).unwrap();
    fs::write(place::beside(&path, place::JOURNAL), journal).unwrap();
    let store = SqliteStore::open(&path).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    granted(&store, &Claim::new(&key("k"), &owner(), TTL)).await;
    assert_eq!(files(directory.path()), ["leases.db", "leases.db-shm", "leases.db-wal"], "{what}");
    let check: String =
        Connection::open(&path).unwrap().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok", "{what}");
}

#[tokio::test]
async fn what_was_half_filled_is_filled_anew() {
    let (plain, _) = made().await;
    let journal = journal(0, None);
    for length in [0, 1, 27, 511] {
        mends(&format!("{length} bytes of the journal"), &[], &journal[..length]).await;
    }
    for pages in 0..=plain.len() / PAGE {
        for length in [(pages * PAGE).saturating_sub(1), pages * PAGE, pages * PAGE + 1] {
            let length = length.min(plain.len());
            mends(&format!("{length} bytes of the file"), &plain[..length], &journal).await;
        }
        if pages > 0 {
            let mut lacking = plain.clone();
            lacking[(pages - 1) * PAGE..pages * PAGE].fill(0);
            mends(&format!("all but page {pages}"), &lacking, &journal).await;
        }
    }
}

#[tokio::test]
async fn what_was_about_to_become_a_write_ahead_file_becomes_one() {
    let (plain, write_ahead) = made().await;
    let pages = u32::try_from(plain.len() / PAGE).unwrap();
    let journal = journal(pages, Some(&plain[..PAGE]));
    for length in [0, 1, 27, 511, 512, 515, 517, 512 + PAGE, 512 + PAGE + 7, 512 + PAGE + 8] {
        mends(&format!("{length} bytes of the journal"), &plain, &journal[..length]).await;
    }
    mends("the first page is written", &write_ahead, &journal).await;
    let torn: Vec<_> = write_ahead[..512].iter().chain(&plain[512..]).copied().collect();
    mends("a part of the first page is written", &torn, &journal).await;
}
