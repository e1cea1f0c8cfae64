//! A file of which a part was deleted, or that was replaced by an earlier one, while processes use it.

use super::actors::Actor;
use super::*;
use crate::store::sqlite::place::{LOG, SHARED_MEMORY, beside};

/// Whoever comes first takes it; all others, also those that come later, see it held.
fn only_the_first_takes_it(actors: &mut [Actor], path: &Path) {
    let mut latecomer = Actor::start(path);
    for name in ["x", "y", "z"] {
        assert_eq!(actors[0].tell(&format!("take {name}")), "taken");
        for actor in actors[1..].iter_mut().chain([&mut latecomer]) {
            assert_eq!(actor.tell(&format!("take {name}")), "held");
        }
        assert_eq!(actors[0].tell(&format!("extend {name}")), "extended");
        actors.rotate_left(1);
    }
    let check: String =
        Connection::open(path).unwrap().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}

#[test]
fn deleted_shared_memory_makes_no_second_holder() {
    let (_directory, path) = scratch();
    let mut actors = [Actor::start(&path), Actor::start(&path)];
    assert_eq!(actors[0].tell("take k"), "taken");
    assert_eq!(actors[1].tell("take k"), "held");
    fs::remove_file(beside(&path, SHARED_MEMORY)).unwrap();
    let mut latecomer = Actor::start(&path);
    assert_eq!(latecomer.tell("take k"), "held");
    assert_eq!(latecomer.tell("take l"), "taken");
    assert_eq!(actors[0].tell("take l"), "held");
    assert_eq!(actors[0].tell("extend k"), "extended");
    only_the_first_takes_it(&mut actors, &path);
}

#[test]
fn a_deleted_log_makes_no_second_holder() {
    let (_directory, path) = scratch();
    let mut actors = [Actor::start(&path), Actor::start(&path)];
    assert_eq!(actors[0].tell("take k"), "taken");
    assert_eq!(actors[1].tell("take k"), "held");
    let db = Connection::open(&path).unwrap();
    db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
    fs::remove_file(beside(&path, LOG)).unwrap();
    let mut latecomer = Actor::start(&path);
    drop(db);
    assert_eq!(latecomer.tell("take l"), "taken");
    assert_eq!(actors[0].tell("take l"), "held");
    only_the_first_takes_it(&mut actors, &path);
}

#[test]
fn a_deleted_file_makes_no_second_holder_in_the_new_one() {
    let (_directory, path) = scratch();
    let mut actors = [Actor::start(&path), Actor::start(&path), Actor::start(&path)];
    assert_eq!(actors[0].tell("take k"), "taken");
    assert_eq!(actors[1].tell("take k"), "held");
    fs::remove_file(&path).unwrap();
    // The first makes the new file, and a newcomer opens it, while the others still have the old one open.
    assert_eq!(actors[0].tell("extend k"), "lost");
    assert_eq!(Actor::start(&path).tell("take k"), "taken");
    only_the_first_takes_it(&mut actors, &path);
}

/// The locks that a process has on the shared memory of a file go with any other descriptor of it that is closed.
#[tokio::test]
async fn a_store_whose_file_was_deleted_keeps_its_locks_on_the_new_one() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    granted(&store, &Claim::new(&key("k"), &owner(), TTL)).await;
    fs::remove_file(&path).unwrap();
    granted(&store, &Claim::new(&key("k"), &owner(), TTL)).await;
    for path in [path.clone(), beside(&path, SHARED_MEMORY)] {
        assert!(has_lock(&path), "{}", path.display());
    }
}

#[tokio::test]
async fn a_lost_log_takes_no_token_back() {
    let (_directory, path) = scratch();
    let (key, mut highest) = (key("k"), 0);
    for is_emptied in [false, false, true, false] {
        let store = SqliteStore::open(&path).await.unwrap();
        for _ in 0..3 {
            let owner = owner();
            let grant = granted(&store, &Claim::new(&key, &owner, TTL)).await;
            assert!(token(&grant) > highest, "{} after {highest}", token(&grant));
            highest = token(&grant);
            store.release(&key, &owner).await.unwrap();
        }
        store.close().await.unwrap();
        if is_emptied {
            // As another program leaves it that was the last to use the file.
            Connection::open(&path).unwrap().execute("PRAGMA optimize", []).unwrap();
        }
        for suffix in [LOG, SHARED_MEMORY] {
            fs::remove_file(beside(&path, suffix)).ok();
        }
    }
}

#[tokio::test]
async fn a_restored_file_is_refused_beside_the_log_of_another_and_starts_a_new_epoch_without() {
    let (_directory, path) = scratch();
    let (key, a, b) = (key("k"), owner(), owner());
    let (backup, elsewhere) = (path.with_extension("bak"), path.with_extension("copy"));
    let store = SqliteStore::open(&path).await.unwrap();
    fs::copy(&path, &backup).unwrap();
    let last = token(&granted(&store, &Claim::new(&key, &a, TTL)).await);
    fs::copy(&backup, &elsewhere).unwrap();
    fs::rename(&backup, &path).unwrap();

    for error in [SqliteStore::open(&path).await.unwrap_err(), store.probe().await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Rejected);
        assert!(error.to_string().contains("remove -wal and -shm, too"), "{error}");
    }
    for suffix in [LOG, SHARED_MEMORY] {
        fs::remove_file(beside(&path, suffix)).unwrap();
    }
    assert!(token(&granted(&store, &Claim::new(&key, &b, TTL)).await) >> 32 > last >> 32);
    let copy = SqliteStore::open(&elsewhere).await.unwrap();
    assert!(token(&granted(&copy, &Claim::new(&key, &b, TTL)).await) >> 32 > last >> 32);
    copy.close().await.unwrap();
    SqliteStore::open(&elsewhere).await.expect("its own log is not that of another");
}
