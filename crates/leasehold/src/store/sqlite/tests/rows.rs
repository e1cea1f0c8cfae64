//! What becomes of a row.

use super::*;

#[tokio::test]
async fn a_lease_is_taken_extended_passed_on_and_given_back() {
    let (_directory, path) = scratch();
    let (store, other) = (SqliteStore::open(&path).await.unwrap(), SqliteStore::open(&path).await.unwrap());
    let (key, a, b) = (key("k"), owner(), owner());
    let info = Arc::new(HolderInfo {
        host: Some("here".into()),
        pid: Some(7),
        reason: Some("why".into()),
        ..Default::default()
    });

    let first = granted(&store, &Claim::new(&key, &a, TTL).holder(&info)).await;
    assert_eq!(token(&first), 1 << 32);
    assert_eq!(token(&granted(&store, &Claim::new(&key, &a, TTL)).await), token(&first));
    let contention = refused(&other, &Claim::new(&key, &b, TTL)).await;
    assert!(contention.retry_after.unwrap() <= TTL && contention.wake.is_none());
    assert_eq!(contention.holder.unwrap().info, info);

    assert!(store.extend(&[]).await.unwrap().is_empty());
    let answers = store.extend(&[Claim::new(&key, &a, TTL * 2), Claim::new(&key, &b, TTL)]).await.unwrap();
    assert!(answers[0].as_ref().unwrap().is_some() && answers[1].as_ref().unwrap().is_none());
    let shorter = store.extend(&[Claim::new(&key, &a, TTL)]).await.unwrap().remove(0).unwrap().unwrap();
    assert!(shorter.validity > TTL);

    let passed = other.transfer(&a, &Claim::new(&key, &b, TTL)).await.unwrap().unwrap();
    assert!(token(&passed) > token(&first));
    assert_eq!(token(&other.transfer(&a, &Claim::new(&key, &b, TTL)).await.unwrap().unwrap()), token(&passed));
    assert!(other.transfer(&a, &Claim::new(&key, &owner(), TTL)).await.unwrap().is_none());
    assert!(!store.release(&key, &a).await.unwrap());
    assert!(store.release(&key, &b).await.unwrap());
    assert!(!store.release(&key, &b).await.unwrap());
    assert!(other.inspect(&key).await.unwrap().holders.is_empty());
    assert!(token(&granted(&other, &Claim::new(&key, &a, TTL)).await) > token(&passed));

    assert!(other.force_release(&key, Some(&b)).await.unwrap().is_none());
    let removed = store.force_release(&key, Some(&a)).await.unwrap().unwrap();
    assert_eq!(removed.holders[0].owner, a);
    assert!(token(&granted(&other, &Claim::new(&key, &b, TTL)).await) > removed.fence_floor.unwrap().get());
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
    assert!(late.list("", Page::first(9)).await.unwrap().entries.is_empty());
    assert!(late.extend(&[Claim::new(&key, &a, TTL)]).await.unwrap().remove(0).unwrap().is_none());
    assert!(late.transfer(&a, &Claim::new(&key, &b, TTL)).await.unwrap().is_none());
    assert!(late.force_release(&key, None).await.unwrap().is_none());
    assert!(!late.release(&key, &a).await.unwrap());
    granted(&late, &Claim::new(&key, &b, TTL)).await;
}

#[tokio::test]
async fn the_tie_is_written_by_the_first_grant_and_by_extensions_that_give_one() {
    let (_directory, path) = scratch();
    let (key, a) = (key("k"), owner());
    let store = SqliteStore::open(&path).await.unwrap();
    let tie = || {
        let db = Connection::open(&path).unwrap();
        db.query_row("SELECT tie, tie_id, tie_start IS NOT NULL FROM leases", [], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, Option<u32>>(1)?, row.get::<_, bool>(2)?))
        })
        .unwrap()
    };
    let me = std::process::id();
    granted(&store, &Claim::new(&key, &a, TTL).tie(Tie::Process)).await;
    assert_eq!(tie(), (1, Some(me), true));
    store.extend(&[Claim::new(&key, &a, TTL)]).await.unwrap();
    assert_eq!(tie(), (1, Some(me), true));
    store.extend(&[Claim::new(&key, &a, TTL).tie(Tie::Nothing)]).await.unwrap();
    assert_eq!(tie(), (0, None, false));
    granted(&store, &Claim::new(&key, &a, TTL).tie(Tie::Process)).await;
    assert_eq!(tie(), (0, None, false), "a late repeat does not tie again");
    store.extend(&[Claim::new(&key, &a, TTL).tie(Tie::Group(me))]).await.unwrap();
    assert_eq!(tie(), (2, Some(me), true));
}

#[tokio::test]
async fn listing_goes_in_byte_order_by_prefix_and_page() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    for name in ["b", "a:2", "a:10", "ä", "a%", "A"] {
        granted(&store, &Claim::new(&key(name), &owner(), TTL)).await;
    }
    let names = |listing: &Listing| listing.entries.iter().map(|entry| entry.key.clone()).collect::<Vec<_>>();
    let all = store.list("test:", Page::first(100)).await.unwrap();
    assert_eq!(names(&all), ["test:A", "test:a%", "test:a:10", "test:a:2", "test:b", "test:ä"]);
    assert!(all.next.is_none());
    let first = store.list("test:a", Page::first(2)).await.unwrap();
    assert_eq!(names(&first), ["test:a%", "test:a:10"]);
    let second = store.list("test:a", Page::after(first.next.unwrap(), 2)).await.unwrap();
    assert_eq!(names(&second), ["test:a:2"]);
    assert!(second.next.is_none());
    assert!(store.list("test:a:3", Page::first(1)).await.unwrap().entries.is_empty());
}

#[tokio::test]
async fn the_fencing_counter_ends_in_an_error() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    let set = |sql: &str| Connection::open(&path).unwrap().execute(sql, []).unwrap();
    for sql in
        ["UPDATE meta SET last_token = 9223372036854775806", "UPDATE meta SET last_token = 0, epoch = 2147483647"]
    {
        set(sql);
        granted(&store, &Claim::new(&key("last"), &owner(), TTL)).await;
        set("UPDATE meta SET epoch = epoch + 1 WHERE last_token < 9223372036854775807");
        let error = store.acquire(&Claim::new(&key("over"), &owner(), TTL)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        set("DELETE FROM leases");
    }
}

#[tokio::test]
async fn waiters_are_woken_by_this_store_and_by_others() {
    let (_directory, path) = scratch();
    let (store, other) = (SqliteStore::open(&path).await.unwrap(), SqliteStore::open(&path).await.unwrap());
    let (key, a, b) = (key("k"), owner(), owner());
    for releaser in [&store, &other] {
        granted(&store, &Claim::new(&key, &a, TTL)).await;
        let wake = hint(refused(&store, &Claim::new(&key, &b, TTL).waits(true)).await);
        drop(hint(refused(&store, &Claim::new(&key, &b, TTL).waits(true)).await));
        other.extend(&[Claim::new(&key, &a, TTL)]).await.unwrap();
        assert!(releaser.release(&key, &a).await.unwrap());
        tokio::time::timeout(Duration::from_secs(20), wake).await.expect("the wake-up was lost");
    }
    granted(&store, &Claim::new(&key, &a, TTL)).await;
    let wake = hint(refused(&other, &Claim::new(&key, &b, TTL).waits(true)).await);
    other.close().await.unwrap();
    tokio::time::timeout(Duration::from_secs(20), wake).await.expect("a waiter outlived its store");
}
