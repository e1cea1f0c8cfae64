//! What may stand at the path, and who may use it.

use super::*;

#[tokio::test]
async fn a_foreign_file_is_refused_and_left_as_it_is() {
    let (directory, path) = scratch();
    let fill = |sql: &str| Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    let ours = SqliteStore::open(directory.path().join("ours.db")).await.unwrap();
    ours.close().await.unwrap();
    for (what, make) in [
        ("tables", &(|| fill("CREATE TABLE jobs (id)")) as &dyn Fn()),
        ("tables and a write-ahead log", &|| fill("PRAGMA journal_mode = WAL; CREATE TABLE jobs (id)")),
        ("another application id", &|| fill("PRAGMA application_id = 7")),
        ("no tables", &|| fill("PRAGMA user_version = 1")),
        ("our id and not our tables", &|| fill("PRAGMA application_id = 1279607123; PRAGMA user_version = 1")),
        ("our id and other tables of the same name", &|| {
            fill("PRAGMA application_id = 1279607123; PRAGMA user_version = 1");
            fill("CREATE TABLE meta (boot, epoch); CREATE TABLE leases (key)");
        }),
        ("our tables without their row", &|| fill(include_str!("../schema.sql"))),
        ("text", &|| {
            fs::write(&path, "this is not a database, but a file that is longer than a header\n".repeat(9)).unwrap()
        }),
        ("a few bytes", &|| fs::write(&path, "x").unwrap()),
        ("another version of ours", &|| {
            fs::copy(directory.path().join("ours.db"), &path).unwrap();
            fill("PRAGMA journal_mode = DELETE; PRAGMA user_version = 2");
        }),
    ] {
        make();
        let before = (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().ino(), files(directory.path()));
        let error = SqliteStore::open(&path).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{what}: {error}");
        assert!(error.to_string().contains("leases.db"), "{what}: {error}");
        let after = (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().ino(), files(directory.path()));
        assert!(before == after, "{what}: altered; {:?} {:?}", before.2, after.2);
        fs::remove_file(&path).unwrap();
    }
}

#[tokio::test]
async fn a_foreign_file_in_use_is_left_as_it_is() {
    let (directory, path) = scratch();
    let user = Connection::open(&path).unwrap();
    user.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE jobs (id)").unwrap();
    let all = || files(directory.path()).into_iter().map(|name| fs::read(directory.path().join(name)).unwrap());
    let before: Vec<_> = all().collect();
    assert_eq!(SqliteStore::open(&path).await.unwrap_err().kind(), ErrorKind::Rejected);
    assert_eq!(before.len(), 3);
    assert!(before == all().collect::<Vec<_>>());
}

/// Closing any descriptor of a file drops all locks that the process has on it, unless SQLite does it.
#[tokio::test]
async fn opening_a_file_again_leaves_the_locks_of_this_process() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    granted(&store, &Claim::new(&key("k"), &owner(), TTL)).await;
    assert!(has_lock(&path));
    SqliteStore::open(&path).await.unwrap().close().await.unwrap();
    assert!(has_lock(&path));
}

#[tokio::test]
async fn a_place_without_room_for_a_file_is_refused() {
    let (directory, path) = scratch();
    for (path, says) in [
        (directory.path().to_owned(), "not a regular file"),
        (directory.path().join("missing/leases.db"), "create it (mkdir -p"),
        (PathBuf::from("/proc/leases.db"), "cannot be created"),
        (PathBuf::from("/dev/null"), "not a regular file"),
    ] {
        let error = SqliteStore::open(&path).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(error.to_string().starts_with("failed to connect on sqlite: cannot use /"), "{error}");
    }
    fs::write(&path, "").unwrap();
    SqliteStore::open(&path).await.expect("an empty file is a new one");
}

#[tokio::test]
async fn a_new_file_is_private_unless_its_directory_is_shared() {
    let (directory, path) = scratch();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    for (directory_mode, file_mode) in [(0o755, 0o600), (0o777, 0o600), (0o2770, 0o660)] {
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(directory_mode)).unwrap();
        let store = SqliteStore::open(&path).await.unwrap();
        granted(&store, &Claim::new(&key("k"), &owner(), TTL)).await;
        assert_eq!(files(directory.path()).len(), 3);
        for name in files(directory.path()) {
            assert_eq!(mode(&directory.path().join(&name)), file_mode, "{name:?} in {directory_mode:o}");
            fs::remove_file(directory.path().join(name)).unwrap();
        }
    }
}

#[test]
fn the_default_directory_is_made_private_and_refused_if_others_can_write_it() {
    let directory = tempfile::tempdir().unwrap();
    let parent = directory.path().join("state/leasehold");
    let path = parent.join("leases.db");
    place::make_private_directory(&path).unwrap();
    assert_eq!(fs::metadata(&parent).unwrap().mode() & 0o777, 0o700);
    for (mode, is_private) in [(0o755, true), (0o775, false), (0o2770, false), (0o1777, false), (0o700, true)] {
        fs::set_permissions(&parent, fs::Permissions::from_mode(mode)).unwrap();
        match place::make_private_directory(&path) {
            Ok(()) => assert!(is_private, "{mode:o}"),
            Err(error) => {
                assert!(!is_private && error.kind() == ErrorKind::Rejected, "{mode:o}: {error}");
                assert!(error.to_string().contains("chmod go-w"), "{error}");
            }
        }
    }
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&parent, Some(65_534), None).unwrap();
        let error = place::make_private_directory(&path).unwrap_err();
        assert!(error.to_string().contains("belongs to another user"), "{error}");
    }
}

#[tokio::test]
async fn slashes_at_the_start_of_a_path_mean_nothing() {
    let (_directory, path) = scratch();
    for slashes in ["", "/", "//"] {
        let store = SqliteStore::open(format!("{slashes}{}", path.display())).await.unwrap();
        store.release(&key("k"), &owner()).await.unwrap();
    }
}

#[tokio::test]
async fn a_probe_tells_of_a_log_that_nobody_could_shorten() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    let warnings = async || {
        let findings = store.probe().await.unwrap().findings;
        findings.into_iter().filter(|finding| finding.level == Level::Warn).collect::<Vec<_>>()
    };
    assert!(warnings().await.is_empty());
    let log = fs::OpenOptions::new().write(true).open(place::beside(&path, place::LOG)).unwrap();
    log.set_len(LONG_LOG + 1).unwrap();
    assert!(warnings().await[0].what.contains("leases.db-wal is larger than 64 MiB"));
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
    tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("the wake-up was lost");
    assert!(store.extend(&[Claim::new(&key, &a, TTL)]).await.unwrap().remove(0).unwrap().is_none());
    assert!(!store.release(&key, &a).await.unwrap());

    granted(&store, &Claim::new(&key, &a, TTL)).await;
    let elsewhere = directory.path().join("new.db");
    let successor = SqliteStore::open(&elsewhere).await.unwrap();
    granted(&successor, &Claim::new(&key, &b, TTL)).await;
    successor.close().await.unwrap();
    for suffix in ["", "-wal", "-shm"] {
        fs::rename(directory.path().join(format!("new.db{suffix}")), format!("{}{suffix}", path.display())).unwrap();
    }
    assert!(store.extend(&[Claim::new(&key, &a, TTL)]).await.unwrap().remove(0).unwrap().is_none());
    assert_eq!(refused(&store, &Claim::new(&key, &a, TTL)).await.holder.unwrap().owner, b);
    assert_ne!(store.probe().await.unwrap().identity, identity);

    fs::remove_dir_all(directory.path()).unwrap();
    let error = store.extend(&[Claim::new(&key, &b, TTL)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
}

#[tokio::test]
async fn another_user_is_refused_with_advice() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can start a process of another user");
        return;
    }
    let (directory, path) = scratch();
    SqliteStore::open(&path).await.unwrap().close().await.unwrap();
    let program = super::sharing::program(directory.path());
    for (directory_mode, file_mode) in [(0o755, 0o600), (0o755, 0o644), (0o777, 0o444), (0o755, 0o666)] {
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(directory_mode)).unwrap();
        for name in files(directory.path()).into_iter().filter(|name| name != "program") {
            fs::set_permissions(directory.path().join(name), fs::Permissions::from_mode(file_mode)).unwrap();
        }
        if file_mode == 0o666 {
            for suffix in ["-wal", "-shm"] {
                fs::remove_file(format!("{}{suffix}", path.display())).unwrap();
            }
        }
        let output = Command::new(&program)
            .args(["--exact", "store::sqlite::tests::places::other_user", "--ignored", "--nocapture"])
            .env("LEASEHOLD_OTHERS_FILE", &path)
            .current_dir("/")
            .uid(65_534)
            .gid(65_534)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{file_mode:o}: {text}");
        assert!(text.contains("told: Rejected"), "{file_mode:o}: {text}");
        assert!(text.contains("allow this user") && text.contains("leases.db"), "{file_mode:o}: {text}");
    }
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

#[test]
fn the_default_place_follows_the_user() {
    let place = |root, state: Option<&str>, home: Option<&str>| {
        default_path(root, state.map(Into::into), home.map(Into::into)).map(|path| path.display().to_string())
    };
    for (root, state, home, expected) in [
        (false, Some("/s"), Some("/h"), "/s/leasehold/leases.db"),
        (true, Some("/s"), Some("/root"), "/s/leasehold/leases.db"),
        (true, None, Some("/root"), "/var/lib/leasehold/leases.db"),
        (true, Some(""), None, "/var/lib/leasehold/leases.db"),
        (false, None, Some("/h"), "/h/.local/state/leasehold/leases.db"),
        (false, Some("relative"), Some("/h"), "/h/.local/state/leasehold/leases.db"),
    ] {
        assert_eq!(place(root, state, home).unwrap(), expected);
    }
    for (state, home) in [(None, None), (Some(""), Some("")), (Some("a"), Some("b"))] {
        let error = place(false, state, home).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("--store sqlite:///path"), "{error}");
    }
}

#[tokio::test]
async fn a_damaged_file_is_refused() {
    let (_directory, path) = scratch();
    SqliteStore::open(&path).await.unwrap().close().await.unwrap();
    Connection::open(&path).unwrap().execute_batch("PRAGMA journal_mode = DELETE").unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[4096..].fill(0x55);
    fs::write(&path, bytes).unwrap();
    let error = SqliteStore::open(&path).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    assert!(error.to_string().contains("is damaged: move it away"), "{error}");
}
