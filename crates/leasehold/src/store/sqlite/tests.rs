//! What only this store can get wrong: the file, the boot, the clocks, other processes.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::SystemTime;

use rusqlite::Connection;
use tempfile::TempDir;

use super::*;
use crate::clock::{Clock, Moment};
use crate::store::{HolderInfo, Tie, Wake};

const TTL: Duration = Duration::from_secs(30);
const DAY: Duration = Duration::from_secs(86_400);

fn scratch() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("leases.db");
    (directory, path)
}

fn key(name: &str) -> Key {
    Key::new("test", name).unwrap()
}

fn owner() -> OwnerToken {
    OwnerToken::mint().unwrap()
}

fn other_boot() -> Host {
    host_with(|host| host.boot = "another boot".to_owned())
}

fn host_with(change: impl FnOnce(&mut Host)) -> Host {
    let mut host = Host::present().unwrap();
    change(&mut host);
    host
}

async fn granted(store: &SqliteStore, claim: &Claim<'_>) -> Grant {
    match store.acquire(claim).await.unwrap() {
        Attempt::Acquired(grant) => grant,
        Attempt::Contended(contention) => panic!("held by {:?}", contention.holder),
    }
}

async fn refused(store: &SqliteStore, claim: &Claim<'_>) -> Contention {
    match store.acquire(claim).await.unwrap() {
        Attempt::Acquired(grant) => panic!("granted: {grant:?}"),
        Attempt::Contended(contention) => contention,
    }
}

fn token(grant: &Grant) -> u64 {
    grant.fencing.unwrap().get()
}

#[tokio::test]
async fn a_lease_is_taken_extended_passed_on_and_given_back() {
    let (_directory, path) = scratch();
    let (store, other) = (
        SqliteStore::open(&path).await.unwrap(),
        SqliteStore::open(&path).await.unwrap(),
    );
    let (key, a, b) = (key("k"), owner(), owner());
    let info = HolderInfo {
        host: Some("here".into()),
        pid: Some(7),
        reason: Some("why".into()),
        ..Default::default()
    };

    let first = granted(&store, &Claim::new(&key, &a, TTL).holder(&info)).await;
    assert_eq!(token(&first), 1 << 32);
    assert_eq!(
        token(&granted(&store, &Claim::new(&key, &a, TTL)).await),
        token(&first)
    );
    let contention = refused(&other, &Claim::new(&key, &b, TTL)).await;
    assert!(contention.retry_after.unwrap() <= TTL && contention.wake.is_none());
    assert_eq!(contention.holder.unwrap().info, info);

    assert!(store.extend(&[]).await.unwrap().is_empty());
    let answers = store
        .extend(&[Claim::new(&key, &a, TTL * 2), Claim::new(&key, &b, TTL)])
        .await
        .unwrap();
    assert!(answers[0].as_ref().unwrap().is_some() && answers[1].as_ref().unwrap().is_none());
    let shorter = store
        .extend(&[Claim::new(&key, &a, TTL)])
        .await
        .unwrap()
        .remove(0)
        .unwrap()
        .unwrap();
    assert!(shorter.validity > TTL);

    let passed = other
        .transfer(&a, &Claim::new(&key, &b, TTL))
        .await
        .unwrap()
        .unwrap();
    assert!(token(&passed) > token(&first));
    assert_eq!(
        token(
            &other
                .transfer(&a, &Claim::new(&key, &b, TTL))
                .await
                .unwrap()
                .unwrap()
        ),
        token(&passed)
    );
    assert!(
        other
            .transfer(&a, &Claim::new(&key, &owner(), TTL))
            .await
            .unwrap()
            .is_none()
    );
    assert!(!store.release(&key, &a).await.unwrap());
    assert!(store.release(&key, &b).await.unwrap());
    assert!(!store.release(&key, &b).await.unwrap());
    assert!(other.inspect(&key).await.unwrap().holders.is_empty());
    assert!(token(&granted(&other, &Claim::new(&key, &a, TTL)).await) > token(&passed));

    assert!(other.force_release(&key, Some(&b)).await.unwrap().is_none());
    let removed = store.force_release(&key, Some(&a)).await.unwrap().unwrap();
    assert_eq!(removed.holders[0].owner, a);
    assert!(
        token(&granted(&other, &Claim::new(&key, &b, TTL)).await)
            > removed.fence_floor.unwrap().get()
    );
}

#[tokio::test]
async fn an_expired_lease_is_free_and_not_its_owners_any_more() {
    let (_directory, path) = scratch();
    let (key, a, b) = (key("k"), owner(), owner());
    let store = SqliteStore::open(&path).await.unwrap();
    granted(&store, &Claim::new(&key, &a, TTL)).await;
    let late = host_with(|host| host.clock = ahead(TTL));
    let late = SqliteStore::open_on(&path, late).await.unwrap();
    assert!(late.inspect(&key).await.unwrap().holders.is_empty());
    assert!(
        late.list("", Page::first(9))
            .await
            .unwrap()
            .entries
            .is_empty()
    );
    assert!(
        late.extend(&[Claim::new(&key, &a, TTL)])
            .await
            .unwrap()
            .remove(0)
            .unwrap()
            .is_none()
    );
    assert!(
        late.transfer(&a, &Claim::new(&key, &b, TTL))
            .await
            .unwrap()
            .is_none()
    );
    assert!(late.force_release(&key, None).await.unwrap().is_none());
    assert!(!late.release(&key, &a).await.unwrap());
    granted(&late, &Claim::new(&key, &b, TTL)).await;
}

#[tokio::test]
async fn a_new_boot_raises_the_epoch_before_the_first_grant() {
    let (_directory, path) = scratch();
    let (key, a) = (key("k"), owner());
    let store = SqliteStore::open(&path).await.unwrap();
    granted(&store, &Claim::new(&key, &a, TTL)).await;
    store.release(&key, &a).await.unwrap();
    store.close().await.unwrap();
    let store = SqliteStore::open_on(&path, other_boot()).await.unwrap();
    assert_eq!(
        token(&granted(&store, &Claim::new(&key, &a, TTL)).await),
        2 << 32
    );
    let again = SqliteStore::open_on(&path, other_boot()).await.unwrap();
    assert!(again.release(&key, &a).await.unwrap());
    assert_eq!(
        token(&granted(&again, &Claim::new(&key, &a, TTL)).await),
        (2 << 32) + 1
    );
}

#[tokio::test]
async fn after_a_reboot_a_tied_lease_is_free_and_an_untied_one_stands_until_its_wall_clock_end() {
    let (_directory, path) = scratch();
    let (tied, untied, a, b, c) = (key("tied"), key("untied"), owner(), owner(), owner());
    let before = SqliteStore::open_on(&path, other_boot()).await.unwrap();
    let first = granted(&before, &Claim::new(&tied, &a, TTL).tie(Tie::Process)).await;
    granted(&before, &Claim::new(&untied, &a, TTL)).await;
    let after = SqliteStore::open(&path).await.unwrap();
    assert!(
        after
            .extend(&[Claim::new(&tied, &a, TTL)])
            .await
            .unwrap()
            .remove(0)
            .unwrap()
            .is_none()
    );
    assert!(token(&granted(&after, &Claim::new(&tied, &b, TTL)).await) > token(&first));
    refused(&after, &Claim::new(&untied, &b, TTL)).await;

    let late = host_with(|host| host.wall = || wall_now_plus(DAY));
    let late = SqliteStore::open_on(&path, late).await.unwrap();
    assert!(
        late.inspect(&untied).await.unwrap().holders.is_empty(),
        "its wall-clock end has passed"
    );

    after
        .transfer(&a, &Claim::new(&untied, &c, TTL))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        late.inspect(&untied).await.unwrap().holders.len(),
        1,
        "it was rewritten to this boot"
    );
    assert!(after.release(&untied, &c).await.unwrap());
}

#[tokio::test]
async fn the_wall_clock_decides_nothing_within_a_boot() {
    let (_directory, path) = scratch();
    let (key, a, b) = (key("k"), owner(), owner());
    let store = SqliteStore::open(&path).await.unwrap();
    granted(&store, &Claim::new(&key, &a, TTL)).await;
    for wall in [|| wall_now_plus(DAY * 3), || SystemTime::UNIX_EPOCH] {
        let host = host_with(|host| host.wall = wall);
        let other = SqliteStore::open_on(&path, host).await.unwrap();
        let contention = refused(&other, &Claim::new(&key, &b, TTL)).await;
        assert!(contention.retry_after.unwrap() <= TTL);
    }
    assert!(store.release(&key, &a).await.unwrap());
}

#[tokio::test]
async fn opening_sweeps_what_has_been_over_for_a_day_and_nothing_else() {
    let (_directory, path) = scratch();
    let (short, long, a) = (key("short"), key("long"), owner());
    let store = SqliteStore::open(&path).await.unwrap();
    granted(&store, &Claim::new(&short, &a, TTL)).await;
    granted(&store, &Claim::new(&long, &a, DAY)).await;
    let rows = || {
        Connection::open(&path)
            .unwrap()
            .query_row("SELECT count(*) FROM leases", [], |row| row.get(0))
    };
    for (later, left) in [(DAY, 2), (DAY + TTL * 2, 1), (DAY * 3, 0)] {
        let host = host_with(|host| host.clock = ahead(later));
        SqliteStore::open_on(&path, host).await.unwrap();
        assert_eq!(rows(), Ok::<i64, _>(left), "after {later:?}");
    }
}

#[tokio::test]
async fn the_tie_is_written_by_the_first_grant_and_by_extensions_that_give_one() {
    let (_directory, path) = scratch();
    let (key, a) = (key("k"), owner());
    let store = SqliteStore::open(&path).await.unwrap();
    let tie = || {
        let db = Connection::open(&path).unwrap();
        db.query_row(
            "SELECT tie, tie_id, tie_start IS NOT NULL FROM leases",
            [],
            |row| {
                Ok((
                    row.get::<_, i64>(0)?,
                    row.get::<_, Option<u32>>(1)?,
                    row.get::<_, bool>(2)?,
                ))
            },
        )
        .unwrap()
    };
    let me = std::process::id();
    granted(&store, &Claim::new(&key, &a, TTL).tie(Tie::Process)).await;
    assert_eq!(tie(), (1, Some(me), true));
    store.extend(&[Claim::new(&key, &a, TTL)]).await.unwrap();
    assert_eq!(tie(), (1, Some(me), true));
    store
        .extend(&[Claim::new(&key, &a, TTL).tie(Tie::Nothing)])
        .await
        .unwrap();
    assert_eq!(tie(), (0, None, false));
    granted(&store, &Claim::new(&key, &a, TTL).tie(Tie::Process)).await;
    assert_eq!(tie(), (0, None, false), "a late repeat does not tie again");
    store
        .extend(&[Claim::new(&key, &a, TTL).tie(Tie::Group(me))])
        .await
        .unwrap();
    assert_eq!(tie(), (2, Some(me), true));
}

#[tokio::test]
async fn the_fencing_counter_ends_in_an_error() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    let set = |sql: &str| Connection::open(&path).unwrap().execute(sql, []).unwrap();
    for sql in [
        "UPDATE meta SET last_token = 9223372036854775806",
        "UPDATE meta SET last_token = 0, epoch = 2147483647",
    ] {
        set(sql);
        granted(&store, &Claim::new(&key("last"), &owner(), TTL)).await;
        set("UPDATE meta SET epoch = epoch + 1 WHERE last_token < 9223372036854775807");
        let error = store
            .acquire(&Claim::new(&key("over"), &owner(), TTL))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        set("DELETE FROM leases");
    }
}

#[tokio::test]
async fn listing_goes_in_byte_order_by_prefix_and_page() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    for name in ["b", "a:2", "a:10", "ä", "a%", "A"] {
        granted(&store, &Claim::new(&key(name), &owner(), TTL)).await;
    }
    let names = |listing: &Listing| {
        listing
            .entries
            .iter()
            .map(|entry| entry.key.clone())
            .collect::<Vec<_>>()
    };
    let all = store.list("test:", Page::first(100)).await.unwrap();
    assert_eq!(
        names(&all),
        [
            "test:A",
            "test:a%",
            "test:a:10",
            "test:a:2",
            "test:b",
            "test:ä"
        ]
    );
    assert!(all.next.is_none());
    let first = store.list("test:a", Page::first(2)).await.unwrap();
    assert_eq!(names(&first), ["test:a%", "test:a:10"]);
    let second = store
        .list("test:a", Page::after(first.next.unwrap(), 2))
        .await
        .unwrap();
    assert_eq!(names(&second), ["test:a:2"]);
    assert!(second.next.is_none());
    assert!(
        store
            .list("test:a:3", Page::first(1))
            .await
            .unwrap()
            .entries
            .is_empty()
    );
}

#[tokio::test]
async fn waiters_are_woken_by_this_store_and_by_others() {
    let (_directory, path) = scratch();
    let (store, other) = (
        SqliteStore::open(&path).await.unwrap(),
        SqliteStore::open(&path).await.unwrap(),
    );
    let (key, a, b) = (key("k"), owner(), owner());
    for releaser in [&store, &other] {
        granted(&store, &Claim::new(&key, &a, TTL)).await;
        let wake = hint(refused(&store, &Claim::new(&key, &b, TTL).waits(true)).await);
        drop(hint(
            refused(&store, &Claim::new(&key, &b, TTL).waits(true)).await,
        ));
        other.extend(&[Claim::new(&key, &a, TTL)]).await.unwrap();
        assert!(releaser.release(&key, &a).await.unwrap());
        tokio::time::timeout(Duration::from_secs(5), wake)
            .await
            .expect("the wake-up was lost");
    }
    granted(&store, &Claim::new(&key, &a, TTL)).await;
    let wake = hint(refused(&other, &Claim::new(&key, &b, TTL).waits(true)).await);
    other.close().await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), wake)
        .await
        .expect("a waiter outlived its store");
}

fn hint(contention: Contention) -> crate::store::BoxFuture {
    match contention.wake {
        Some(Wake::Hint(wake)) => wake,
        other => panic!("no hint: {other:?}"),
    }
}

#[tokio::test]
async fn a_foreign_file_is_refused_and_left_as_it_is() {
    let (directory, path) = scratch();
    let fill = |sql: &str| Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    let ours = SqliteStore::open(directory.path().join("ours.db"))
        .await
        .unwrap();
    ours.close().await.unwrap();
    for (what, make) in [
        ("tables", &(|| fill("CREATE TABLE jobs (id)")) as &dyn Fn()),
        ("tables and a write-ahead log", &|| {
            fill("PRAGMA journal_mode = WAL; CREATE TABLE jobs (id)")
        }),
        ("another application id", &|| {
            fill("PRAGMA application_id = 7")
        }),
        ("no tables", &|| fill("PRAGMA user_version = 1")),
        ("our id and not our tables", &|| {
            fill("PRAGMA application_id = 1279607123; PRAGMA user_version = 1")
        }),
        ("our id and other tables of the same name", &|| {
            fill("PRAGMA application_id = 1279607123; PRAGMA user_version = 1");
            fill("CREATE TABLE meta (boot, epoch); CREATE TABLE leases (key)");
        }),
        ("our tables without their row", &|| {
            fill(include_str!("schema.sql"))
        }),
        ("text", &|| {
            fs::write(
                &path,
                "this is not a database, but a file that is longer than a header\n".repeat(9),
            )
            .unwrap()
        }),
        ("a few bytes", &|| fs::write(&path, "x").unwrap()),
        ("another version of ours", &|| {
            fs::copy(directory.path().join("ours.db"), &path).unwrap();
            fill("PRAGMA journal_mode = DELETE; PRAGMA user_version = 2");
        }),
    ] {
        make();
        let before = (
            fs::read(&path).unwrap(),
            fs::metadata(&path).unwrap().ino(),
            files(directory.path()),
        );
        let error = SqliteStore::open(&path).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{what}: {error}");
        assert!(error.to_string().contains("leases.db"), "{what}: {error}");
        let after = (
            fs::read(&path).unwrap(),
            fs::metadata(&path).unwrap().ino(),
            files(directory.path()),
        );
        assert!(
            before == after,
            "{what}: altered; {:?} {:?}",
            before.2,
            after.2
        );
        fs::remove_file(&path).unwrap();
    }
}

fn files(directory: &Path) -> Vec<OsString> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_foreign_file_in_use_is_left_as_it_is() {
    let (directory, path) = scratch();
    let user = Connection::open(&path).unwrap();
    user.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE jobs (id)")
        .unwrap();
    let all = || {
        files(directory.path())
            .into_iter()
            .map(|name| fs::read(directory.path().join(name)).unwrap())
    };
    let before: Vec<_> = all().collect();
    assert_eq!(
        SqliteStore::open(&path).await.unwrap_err().kind(),
        ErrorKind::Rejected
    );
    assert_eq!(before.len(), 3);
    assert!(before == all().collect::<Vec<_>>());
}

/// Closing any descriptor of a file drops all locks that the process has on it, unless SQLite does it.
#[tokio::test]
async fn opening_a_file_again_leaves_the_locks_of_this_process() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    granted(&store, &Claim::new(&key("k"), &owner(), TTL)).await;
    let inode = format!(":{} ", fs::metadata(&path).unwrap().ino());
    // While other processes change theirs, a look may miss a line.
    let has_lock = || {
        (0..1000).any(|_| {
            let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
            locks.lines().any(|line| line.contains(&inode))
        })
    };
    assert!(has_lock());
    SqliteStore::open(&path)
        .await
        .unwrap()
        .close()
        .await
        .unwrap();
    assert!(has_lock());
}

#[tokio::test]
async fn a_place_without_room_for_a_file_is_refused() {
    let (directory, path) = scratch();
    for (path, says) in [
        (directory.path().to_owned(), "not a regular file"),
        (
            directory.path().join("missing/leases.db"),
            "create it (mkdir -p",
        ),
        (PathBuf::from("/proc/leases.db"), "cannot be created"),
        (PathBuf::from("/dev/null"), "not a regular file"),
    ] {
        let error = SqliteStore::open(&path).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(
            error
                .to_string()
                .starts_with("failed to connect on sqlite: cannot use /"),
            "{error}"
        );
    }
    fs::write(&path, "").unwrap();
    SqliteStore::open(&path)
        .await
        .expect("an empty file is a new one");
}

#[tokio::test]
async fn a_new_file_is_private_unless_its_directory_is_shared() {
    let (directory, path) = scratch();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    for (directory_mode, file_mode) in [(0o755, 0o600), (0o777, 0o600), (0o2770, 0o660)] {
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(directory_mode)).unwrap();
        let store = SqliteStore::open(&path).await.unwrap();
        granted(&store, &Claim::new(&key("k"), &owner(), TTL)).await;
        for name in files(directory.path()) {
            assert_eq!(
                mode(&directory.path().join(&name)),
                file_mode,
                "{name:?} in {directory_mode:o}"
            );
            fs::remove_file(directory.path().join(name)).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_can_create_the_file_at_once() {
    for _ in 0..20 {
        let (_directory, path) = scratch();
        let opening: Vec<_> = (0..16)
            .map(|_| tokio::spawn(SqliteStore::open(path.clone())))
            .collect();
        let mut tokens = Vec::new();
        for (n, store) in opening.into_iter().enumerate() {
            let store = store.await.unwrap().unwrap();
            tokens.push(token(
                &granted(&store, &Claim::new(&key(&n.to_string()), &owner(), TTL)).await,
            ));
        }
        assert_eq!(
            tokens,
            (0..16).map(|n| (1 << 32) + n).collect::<Vec<_>>(),
            "one file, one counter"
        );
    }
}

#[tokio::test]
async fn a_file_that_is_deleted_or_replaced_takes_its_leases_with_it() {
    let (directory, path) = scratch();
    let (key, a, b) = (key("k"), owner(), owner());
    let store = SqliteStore::open(&path).await.unwrap();
    let identity = store.probe().await.unwrap().identity;

    granted(&store, &Claim::new(&key, &a, TTL)).await;
    let waiting = hint(refused(&store, &Claim::new(&key, &b, TTL).waits(true)).await);
    for name in files(directory.path()) {
        fs::remove_file(directory.path().join(name)).unwrap();
    }
    tokio::time::timeout(Duration::from_secs(5), waiting)
        .await
        .expect("the wake-up was lost");
    assert!(
        store
            .extend(&[Claim::new(&key, &a, TTL)])
            .await
            .unwrap()
            .remove(0)
            .unwrap()
            .is_none()
    );
    assert!(!store.release(&key, &a).await.unwrap());

    granted(&store, &Claim::new(&key, &a, TTL)).await;
    let elsewhere = directory.path().join("new.db");
    let successor = SqliteStore::open(&elsewhere).await.unwrap();
    granted(&successor, &Claim::new(&key, &b, TTL)).await;
    successor.close().await.unwrap();
    for suffix in ["", "-wal", "-shm"] {
        fs::rename(
            directory.path().join(format!("new.db{suffix}")),
            format!("{}{suffix}", path.display()),
        )
        .unwrap();
    }
    assert!(
        store
            .extend(&[Claim::new(&key, &a, TTL)])
            .await
            .unwrap()
            .remove(0)
            .unwrap()
            .is_none()
    );
    assert_eq!(
        refused(&store, &Claim::new(&key, &a, TTL))
            .await
            .holder
            .unwrap()
            .owner,
        b
    );
    assert_ne!(store.probe().await.unwrap().identity, identity);

    fs::remove_dir_all(directory.path()).unwrap();
    let error = store
        .extend(&[Claim::new(&key, &b, TTL)])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
}

#[tokio::test]
async fn a_busy_file_is_unavailable_and_never_contention() {
    let (_directory, path) = scratch();
    let (key, a, b) = (key("k"), owner(), owner());
    let store = SqliteStore::open(&path).await.unwrap();
    granted(&store, &Claim::new(&key, &a, TTL)).await;
    let blocker = Connection::open(&path).unwrap();
    blocker.execute_batch("BEGIN EXCLUSIVE").unwrap();

    let ttl = Duration::from_millis(400);
    let started = Clock::system().now();
    let free = self::key("free");
    let error = store
        .acquire(&Claim::new(&free, &b, ttl))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("busy"), "{error}");
    let error = store
        .extend(&[Claim::new(&key, &a, ttl)])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(
        Clock::system().now().since(started) < ttl * 5 / 6 * 2,
        "each may wait a sixth of the ttl"
    );
    refused(&store, &Claim::new(&key, &b, ttl)).await;

    blocker.execute_batch("ROLLBACK").unwrap();
    granted(&store, &Claim::new(&free, &b, ttl)).await;
    assert!(store.release(&key, &a).await.unwrap());
}

#[tokio::test]
async fn what_gives_back_goes_first_and_what_nobody_waits_for_is_left_out() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    let (taken, skipped, late, a) = (key("taken"), key("skipped"), key("late"), owner());
    granted(&store, &Claim::new(&taken, &a, TTL)).await;
    let (open_gate, gate) = std::sync::mpsc::channel::<()>();
    let blocked = store.ask(Urgency::Must, TTL, move |_| {
        gate.recv().ok();
        Ok(())
    });
    let (b, c, d) = (owner(), owner(), owner());
    let (first, second, third) = (
        Claim::new(&taken, &b, TTL),
        Claim::new(&skipped, &c, TTL),
        Claim::new(&late, &d, TTL),
    );
    let (blocked, mut acquired, mut dropped) = (
        Box::pin(blocked),
        store.acquire(&first),
        store.acquire(&second),
    );
    let mut blocked = blocked;
    for _ in 0..2 {
        poll_once(blocked.as_mut()).await;
        poll_once(acquired.as_mut()).await;
        poll_once(dropped.as_mut()).await;
    }
    drop(dropped);
    let mut release = store.release(&taken, &a);
    poll_once(release.as_mut()).await;
    drop(release);
    open_gate.send(()).unwrap();
    assert!(
        matches!(acquired.await.unwrap(), Attempt::Acquired(_)),
        "the release behind it went first"
    );
    granted(&store, &third).await;
    assert!(store.inspect(&skipped).await.unwrap().holders.is_empty());
}

async fn poll_once<F: Future + ?Sized>(mut future: std::pin::Pin<&mut F>) {
    std::future::poll_fn(|context| {
        assert!(future.as_mut().poll(context).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn a_closed_store_answers_closed_and_its_leases_stand() {
    let (_directory, path) = scratch();
    let (key, a) = (key("k"), owner());
    let store = SqliteStore::open(&path).await.unwrap();
    let clone = store.clone();
    granted(&store, &Claim::new(&key, &a, TTL)).await;
    store.close().await.unwrap();
    store.close().await.unwrap();
    assert_eq!(
        clone.release(&key, &a).await.unwrap_err().kind(),
        ErrorKind::Closed
    );
    let other = SqliteStore::open(&path).await.unwrap();
    assert_eq!(other.inspect(&key).await.unwrap().holders.len(), 1);
}

#[tokio::test]
async fn a_panic_on_the_thread_hangs_nobody() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    let (open_gate, gate) = std::sync::mpsc::channel::<()>();
    let panics = store.ask(Urgency::Normal, TTL, move |_| -> Result<()> {
        gate.recv().ok();
        panic!("as the test wants it")
    });
    let behind = store.ask(Urgency::Normal, TTL, |_| Ok(()));
    let (mut panics, mut behind) = (Box::pin(panics), Box::pin(behind));
    poll_once(panics.as_mut()).await;
    poll_once(behind.as_mut()).await;
    open_gate.send(()).unwrap();
    assert_eq!(panics.await.unwrap_err().kind(), ErrorKind::Indeterminate);
    assert_eq!(behind.await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(
        store.probe().await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    store.close().await.unwrap();
}

/// One of the processes of the race below: takes every round's key once and keeps it.
#[tokio::test]
#[ignore = "started by racing_processes_have_one_winner_per_round"]
async fn racer() {
    let Some(path) = env::var_os("LEASEHOLD_RACE_FILE") else {
        return;
    };
    let store = SqliteStore::open(&path).await.unwrap();
    println!("ready");
    while !Path::new(&path).with_extension("go").exists() {
        std::thread::sleep(Duration::from_micros(100));
    }
    for round in 0..ROUNDS {
        let (key, owner) = (key(&round.to_string()), owner());
        let claim = Claim::new(&key, &owner, DAY);
        let won = loop {
            match store.acquire(&claim).await {
                Ok(attempt) => break matches!(attempt, Attempt::Acquired(_)),
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
        };
        println!("round {round} {}", if won { "won" } else { "lost" });
    }
}

const ROUNDS: usize = 500;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn holders_never_overlap_and_tokens_grow() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let (_directory, path) = scratch();
    let (held, highest) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let hammer = |store: SqliteStore, held: Arc<AtomicBool>, highest: Arc<AtomicU64>| async move {
        let key = key("k");
        let mut grants = 0;
        while grants < 200 {
            let owner = owner();
            let Attempt::Acquired(grant) =
                store.acquire(&Claim::new(&key, &owner, TTL)).await.unwrap()
            else {
                continue;
            };
            assert!(!held.swap(true, Ordering::SeqCst), "two holders");
            assert!(highest.swap(token(&grant), Ordering::SeqCst) < token(&grant));
            grants += 1;
            tokio::task::yield_now().await;
            assert!(held.swap(false, Ordering::SeqCst));
            assert!(store.release(&key, &owner).await.unwrap());
        }
    };
    let mut hammers = Vec::new();
    for _ in 0..4 {
        let store = SqliteStore::open(&path).await.unwrap();
        hammers.push(tokio::spawn(hammer(
            store,
            Arc::clone(&held),
            Arc::clone(&highest),
        )));
    }
    for hammer in hammers {
        hammer.await.unwrap();
    }
}

#[test]
fn racing_processes_have_one_winner_per_round() {
    let (_directory, path) = scratch();
    let mut racers: Vec<_> = (0..20)
        .map(|_| {
            Command::new(env::current_exe().unwrap())
                .args([
                    "--exact",
                    "store::sqlite::tests::racer",
                    "--ignored",
                    "--nocapture",
                ])
                .env("LEASEHOLD_RACE_FILE", &path)
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut outputs: Vec<_> = racers
        .iter_mut()
        .map(|racer| BufReader::new(racer.stdout.take().unwrap()))
        .collect();
    for output in &mut outputs {
        let ready = output
            .lines()
            .map_while(|line| line.ok())
            .any(|line| line.ends_with("ready"));
        assert!(ready, "a racer ended before the race");
    }
    fs::write(path.with_extension("go"), "").unwrap();
    let mut wins = [0; ROUNDS];
    for (racer, mut output) in racers.into_iter().zip(outputs) {
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        let ended = racer.wait_with_output().unwrap();
        assert!(
            ended.status.success(),
            "{text}{}",
            String::from_utf8_lossy(&ended.stderr)
        );
        let mut answers = 0;
        for line in text.lines().filter_map(|line| line.strip_prefix("round ")) {
            let (round, answer) = line.split_once(' ').unwrap();
            answers += 1;
            wins[round.parse::<usize>().unwrap()] += usize::from(answer == "won");
        }
        assert_eq!(answers, ROUNDS);
    }
    assert_eq!(wins, [1; ROUNDS]);
}

/// The part of the test below that has to be another user.
#[tokio::test]
#[ignore = "started by another_user_is_refused_with_advice"]
async fn other_user() {
    let Some(path) = env::var_os("LEASEHOLD_OTHERS_FILE") else {
        return;
    };
    let error = SqliteStore::open(path).await.unwrap_err();
    println!("told: {:?} {error}", error.kind());
}

#[tokio::test]
async fn another_user_is_refused_with_advice() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can start a process of another user");
        return;
    }
    let (directory, path) = scratch();
    SqliteStore::open(&path)
        .await
        .unwrap()
        .close()
        .await
        .unwrap();
    // The build directory may be closed to others.
    let program = directory.path().join("program");
    fs::copy(env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    for (directory_mode, file_mode) in [
        (0o755, 0o600),
        (0o755, 0o644),
        (0o777, 0o444),
        (0o755, 0o666),
    ] {
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(directory_mode)).unwrap();
        for name in files(directory.path())
            .into_iter()
            .filter(|name| name != "program")
        {
            fs::set_permissions(
                directory.path().join(name),
                fs::Permissions::from_mode(file_mode),
            )
            .unwrap();
        }
        if file_mode == 0o666 {
            for suffix in ["-wal", "-shm"] {
                fs::remove_file(format!("{}{suffix}", path.display())).unwrap();
            }
        }
        let output = Command::new(&program)
            .args([
                "--exact",
                "store::sqlite::tests::other_user",
                "--ignored",
                "--nocapture",
            ])
            .env("LEASEHOLD_OTHERS_FILE", &path)
            .current_dir("/")
            .uid(65_534)
            .gid(65_534)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{file_mode:o}: {text}");
        assert!(text.contains("told: Rejected"), "{file_mode:o}: {text}");
        assert!(
            text.contains("allow this user") && text.contains("leases.db"),
            "{file_mode:o}: {text}"
        );
    }
}

#[test]
fn the_default_place_follows_the_user() {
    let place = |root, state: Option<&str>, home: Option<&str>| {
        default_path(root, state.map(Into::into), home.map(Into::into))
            .map(|path| path.display().to_string())
    };
    for (root, state, home, expected) in [
        (false, Some("/s"), Some("/h"), "/s/leasehold/leases.db"),
        (true, Some("/s"), Some("/root"), "/s/leasehold/leases.db"),
        (true, None, Some("/root"), "/var/lib/leasehold/leases.db"),
        (true, Some(""), None, "/var/lib/leasehold/leases.db"),
        (
            false,
            None,
            Some("/h"),
            "/h/.local/state/leasehold/leases.db",
        ),
        (
            false,
            Some("relative"),
            Some("/h"),
            "/h/.local/state/leasehold/leases.db",
        ),
    ] {
        assert_eq!(place(root, state, home).unwrap(), expected);
    }
    for (state, home) in [(None, None), (Some(""), Some("")), (Some("a"), Some("b"))] {
        let error = place(false, state, home).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(
            error.to_string().contains("--store sqlite:///path"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn debug_shows_the_path_and_no_secret() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    assert_eq!(
        format!("{store:?}"),
        format!("SqliteStore {{ path: {path:?}, .. }}")
    );
    assert!(store.capabilities().is_shared());
}

/// A boot-time clock that runs this much ahead.
fn ahead(by: Duration) -> Clock {
    #[derive(Debug)]
    struct Ahead(Duration);
    impl crate::clock::TimeSource for Ahead {
        fn now(&self) -> Moment {
            Clock::system().now() + self.0
        }
    }
    Clock::from_source(Ahead(by))
}

fn wall_now_plus(by: Duration) -> SystemTime {
    crate::clock::wall_now() + by
}
