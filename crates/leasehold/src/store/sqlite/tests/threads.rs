//! The thread, its order, and a file that cannot be used just now.

use super::*;

#[tokio::test]
async fn a_busy_file_is_unavailable_and_never_contention() {
    let (_directory, path) = scratch();
    let (key, a, b) = (key("k"), owner(), owner());
    let store = SqliteStore::open(&path).await.unwrap();
    granted(&store, &Claim::new(&key, &a, TTL)).await;
    let blocker = Connection::open(&path).unwrap();
    blocker.execute_batch("BEGIN EXCLUSIVE").unwrap();

    let ttl = Duration::from_secs(4);
    let started = Clock::system().now();
    let free = self::key("free");
    let error = store.acquire(&Claim::new(&free, &b, ttl)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("busy"), "{error}");
    let error = store.extend(&[Claim::new(&key, &a, ttl)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(Clock::system().now().since(started) < ttl * 5 / 6 * 2, "each may wait a sixth of the ttl");
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
    let (first, second, third) =
        (Claim::new(&taken, &b, TTL), Claim::new(&skipped, &c, TTL), Claim::new(&late, &d, TTL));
    let (blocked, mut acquired, mut dropped) = (Box::pin(blocked), store.acquire(&first), store.acquire(&second));
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
    assert!(matches!(acquired.await.unwrap(), Attempt::Acquired(_)), "the release behind it went first");
    granted(&store, &third).await;
    assert!(store.inspect(&skipped).await.unwrap().holders.is_empty());
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
    assert_eq!(clone.release(&key, &a).await.unwrap_err().kind(), ErrorKind::Closed);
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
    assert_eq!(store.probe().await.unwrap_err().kind(), ErrorKind::Unavailable);
    store.close().await.unwrap();
}

#[tokio::test]
async fn debug_shows_the_path_and_no_secret() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    assert_eq!(format!("{store:?}"), format!("SqliteStore {{ path: {path:?}, .. }}"));
    assert!(store.capabilities().is_shared());
}
