//! What becomes of old rows and of the log.

use super::*;
use crate::store::sqlite::file::LeaseFile;
use crate::store::sqlite::upkeep::Upkeep;

const OLD: i64 = 15_000;

/// Rows of another boot that ended long ago.
fn add_old_rows(path: &Path) {
    let rows = format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {OLD})
        INSERT INTO leases (key, owner, token, boot, ends, wall_ends, tie, since, renewed)
        SELECT 'test:old' || i, x'61', 1, 'old', 0, 0, 0, 0, 0 FROM n"
    );
    Connection::open(path).unwrap().execute_batch(&rows).unwrap();
}

fn rows(path: &Path) -> i64 {
    Connection::open(path).unwrap().query_row("SELECT count(*) FROM leases", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn old_rows_are_swept_in_batches_and_others_stay() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    let (first, last, a) = (key("a"), key("z"), owner());
    for key in [&first, &last] {
        granted(&store, &Claim::new(key, &a, TTL)).await;
    }
    add_old_rows(&path);
    let sweep = async |mut upkeep: Upkeep| {
        let path = path.clone();
        let work = move |worker: &mut Worker| {
            let (file, host) = worker.file()?;
            upkeep.sweep(Some(file), host);
            // Counted before the thread may go on by itself.
            Ok((upkeep, rows(&path)))
        };
        store.ask(Urgency::Normal, TTL, work).await.unwrap()
    };
    let (mut upkeep, mut left) = sweep(Upkeep::default()).await;
    assert!(left < OLD && left > OLD / 2, "{left}");
    for _ in 0..OLD / 2000 {
        (upkeep, left) = sweep(upkeep).await;
    }
    assert_eq!(left, 2);
    // A round ended with that; the next one begins with the first row.
    add_old_rows(&path);
    assert!(sweep(upkeep).await.1 < OLD);
    assert!(store.release(&first, &a).await.unwrap() && store.release(&last, &a).await.unwrap());
}

#[tokio::test]
async fn a_listing_reads_so_many_rows_and_goes_on_from_there() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    granted(&store, &Claim::new(&key("z"), &owner(), TTL)).await;
    add_old_rows(&path);
    let first = store.list("test:", Page::first(10)).await.unwrap();
    assert!(first.entries.is_empty());
    let second = store.list("test:", Page::after(first.next.unwrap(), 10)).await.unwrap();
    assert_eq!(second.entries[0].key, "test:z");
    assert!(second.next.is_none());
}

#[tokio::test]
async fn a_page_has_room_for_one_entry_at_least() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    for name in ["a", "b"] {
        granted(&store, &Claim::new(&key(name), &owner(), TTL)).await;
    }
    let first = store.list("", Page::first(0)).await.unwrap();
    assert_eq!((first.entries.len(), first.next.as_deref()), (1, Some("test:a")));
}

#[tokio::test]
async fn a_quiet_thread_removes_old_rows_and_empties_the_log() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    add_old_rows(&path);
    granted(&store, &Claim::new(&key("k"), &owner(), TTL)).await;
    let watcher = Connection::open(&path).unwrap();
    let log = || {
        let counts = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?));
        watcher.query_row("PRAGMA wal_checkpoint(NOOP)", [], counts).unwrap()
    };
    let is_done = async {
        while rows(&path) > 1 || log().0 - log().1 >= 500 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_done).await.expect("the thread left it as it was");
    assert_eq!(store.list("", Page::first(9)).await.unwrap().entries.len(), 1);
}

#[tokio::test]
async fn processes_that_do_not_stay_leave_a_short_log() {
    let (directory, path) = scratch();
    let mut longest = 0;
    for _ in 0..200 {
        let store = SqliteStore::open(&path).await.unwrap();
        let (key, owner) = (key("k"), owner());
        granted(&store, &Claim::new(&key, &owner, TTL)).await;
        assert!(store.release(&key, &owner).await.unwrap());
        store.close().await.unwrap();
        longest = std::fs::metadata(directory.path().join("leases.db-wal")).unwrap().len();
    }
    // A page with its header, and what one of them adds beyond a hundred.
    assert!(longest < 110 * (4096 + 24), "{longest}");
}

#[tokio::test]
async fn what_is_tied_to_nothing_is_on_disk_before_it_is_answered() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    let synchronous = |survives: Survives| {
        store.ask(Urgency::Normal, TTL, move |worker| {
            let (file, _) = worker.file()?;
            let level = |db: &Connection| Ok(db.query_row("PRAGMA synchronous", [], |row| row.get::<_, i64>(0))?);
            Ok((file.write(survives, level)?, file.read(level)?))
        })
    };
    assert_eq!(synchronous(Survives::PowerLoss).await.unwrap(), (2, 1));
    assert_eq!(synchronous(Survives::Crash).await.unwrap(), (1, 1));

    let (key, owner, other) = (key("k"), owner(), owner());
    let survives = async |claim: &Claim<'_>| {
        let requests = [lease::Request::from(claim)];
        let granted = requests[0].survives();
        let work = move |worker: &mut Worker| worker.file()?.0.read(|db| lease::survives(db, &requests));
        (granted, store.ask(Urgency::Normal, TTL, work).await.unwrap())
    };
    let (bare, tied) = (Claim::new(&key, &owner, TTL), Claim::new(&key, &owner, TTL).tie(Tie::Process));
    let untied = Claim::new(&key, &owner, TTL).tie(Tie::Nothing);
    granted(&store, &tied).await;
    assert_eq!(survives(&tied).await, (Survives::Crash, Survives::Crash));
    assert_eq!(survives(&untied).await, (Survives::PowerLoss, Survives::PowerLoss));
    assert_eq!(survives(&bare).await, (Survives::PowerLoss, Survives::Crash), "the renewal of a tied lease");
    store.extend(&[untied]).await.unwrap();
    assert_eq!(survives(&bare).await.1, Survives::PowerLoss, "the renewal of an untied lease");
    store.transfer(&owner, &Claim::new(&key, &other, TTL).tie(Tie::Process)).await.unwrap().unwrap();
    assert_eq!(survives(&bare).await.1, Survives::Crash);
}

#[tokio::test]
async fn a_connection_that_may_be_broken_is_given_up() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    let (key, owner) = (key("k"), owner());
    granted(&store, &Claim::new(&key, &owner, TTL)).await;
    let is_current_after = |work: fn(&LeaseFile) -> Result<()>| {
        store.ask(Urgency::Normal, TTL, move |worker| {
            let (file, _) = worker.file()?;
            let kind = work(file).unwrap_err().kind();
            Ok((kind, file.is_current()))
        })
    };
    const DISK_FAILED: i32 = 10;
    let disk = is_current_after(|file| {
        let error = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(DISK_FAILED), None);
        file.read(|_| Err(error.into()))
    });
    assert_eq!(disk.await.unwrap(), (ErrorKind::Unavailable, false));
    let commit = is_current_after(|file| {
        let error = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(DISK_FAILED), None);
        file.read(|_| Err(fault::Fault::Commit(error)))
    });
    assert_eq!(commit.await.unwrap(), (ErrorKind::Indeterminate, false));
    let half_way = is_current_after(|file| {
        file.read(|db| {
            db.execute_batch("BEGIN IMMEDIATE; DELETE FROM leases")?;
            Err(fault::Fault::Busy)
        })
    });
    assert_eq!(half_way.await.unwrap(), (ErrorKind::Unavailable, false));
    let busy = is_current_after(|file| file.read(|_| Err(fault::Fault::Busy)));
    assert_eq!(busy.await.unwrap(), (ErrorKind::Unavailable, true));
    assert!(store.release(&key, &owner).await.unwrap());
}
