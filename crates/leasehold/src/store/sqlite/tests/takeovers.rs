//! What becomes of a lease that is tied to somebody who is gone.

use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};

use super::*;

/// Has the lease in the file tied to a process that never was: Linux gives no such number.
fn bereave(path: &Path) {
    let db = Connection::open(path).unwrap();
    db.busy_timeout(TTL).unwrap();
    assert_eq!(db.execute("UPDATE leases SET tie_id = 8388608", []).unwrap(), 1);
}

async fn left_by_the_dead(store: &SqliteStore, key: &Key) -> OwnerToken {
    let owner = owner();
    granted(store, &Claim::new(key, &owner, TTL).tie(Tie::Process)).await;
    bereave(store.path());
    owner
}

/// A process in a group of its own, which it leads.
fn sleeper() -> Child {
    Command::new("sleep").arg("600").process_group(0).stdin(Stdio::null()).spawn().unwrap()
}

#[tokio::test]
async fn what_the_dead_left_is_free_and_taken_over_once() {
    let (_directory, path) = scratch();
    let (store, other) = (SqliteStore::open(&path).await.unwrap(), SqliteStore::open(&path).await.unwrap());
    assert!(store.capabilities().liveness);
    let (key, a) = (key("k"), owner());
    let first = granted(&store, &Claim::new(&key, &a, TTL).tie(Tie::Process)).await;
    assert_eq!(refused(&other, &Claim::new(&key, &owner(), TTL)).await.holder.unwrap().owner, a);
    bereave(&path);
    for store in [&store, &other] {
        assert!(store.inspect(&key).await.unwrap().holders.is_empty());
        assert!(store.list("", Page::first(9)).await.unwrap().entries.is_empty());
    }
    let b = owner();
    let second = granted(&other, &Claim::new(&key, &b, TTL).tie(Tie::Process)).await;
    assert!(token(&second) > token(&first));
    assert_eq!(refused(&store, &Claim::new(&key, &owner(), TTL)).await.holder.unwrap().owner, b);
    assert!(store.extend(&[Claim::new(&key, &a, TTL)]).await.unwrap().remove(0).unwrap().is_none());
    assert!(store.transfer(&a, &Claim::new(&key, &owner(), TTL)).await.unwrap().is_none());
    assert!(!store.release(&key, &a).await.unwrap());
    assert_eq!(store.inspect(&key).await.unwrap().holders[0].owner, b);
}

#[tokio::test]
async fn who_has_the_token_may_keep_what_nobody_took_over() {
    let (_directory, path) = scratch();
    let (store, other) = (SqliteStore::open(&path).await.unwrap(), SqliteStore::open(&path).await.unwrap());
    let key = key("k");

    let extended = left_by_the_dead(&store, &key).await;
    assert!(store.extend(&[Claim::new(&key, &extended, TTL)]).await.unwrap().remove(0).unwrap().is_some());
    let thief = owner();
    granted(&other, &Claim::new(&key, &thief, TTL)).await;
    assert!(other.release(&key, &thief).await.unwrap());

    let tied = left_by_the_dead(&store, &key).await;
    let claim = Claim::new(&key, &tied, TTL).tie(Tie::Process);
    assert!(store.extend(&[claim]).await.unwrap().remove(0).unwrap().is_some());
    refused(&other, &Claim::new(&key, &thief, TTL)).await;
    assert!(store.release(&key, &tied).await.unwrap());

    let passed = left_by_the_dead(&store, &key).await;
    let taker = owner();
    assert!(store.transfer(&passed, &Claim::new(&key, &taker, TTL).tie(Tie::Process)).await.unwrap().is_some());
    refused(&other, &Claim::new(&key, &thief, TTL)).await;
    assert!(store.release(&key, &taker).await.unwrap());

    let released = left_by_the_dead(&store, &key).await;
    assert!(store.release(&key, &released).await.unwrap());
    let removed = left_by_the_dead(&store, &key).await;
    assert_eq!(other.force_release(&key, None).await.unwrap().unwrap().holders[0].owner, removed);
}

/// Between the look at the process and the decision others may be quicker.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_takes_over_and_never_beside_a_rescuer() {
    let (_directory, path) = scratch();
    let stores = [
        SqliteStore::open(&path).await.unwrap(),
        SqliteStore::open(&path).await.unwrap(),
        SqliteStore::open(&path).await.unwrap(),
    ];
    let (mut taken, mut rescued) = (0, 0);
    for _ in 0..300 {
        let key = key("k");
        let old = left_by_the_dead(&stores[0], &key).await;
        let [rescuer, takers @ ..] = &stores;
        let rescue = {
            let (rescuer, key) = (rescuer.clone(), key.clone());
            tokio::spawn(async move {
                let new = owner();
                let claim = Claim::new(&key, &new, TTL).tie(Tie::Process);
                rescuer.transfer(&old, &claim).await.unwrap().is_some()
            })
        };
        let takes = takers.clone().map(|taker| {
            let key = key.clone();
            tokio::spawn(async move {
                let owner = owner();
                let claim = Claim::new(&key, &owner, TTL).tie(Tie::Process);
                matches!(taker.acquire(&claim).await.unwrap(), Attempt::Acquired(_))
            })
        });
        let mut winners = u32::from(rescue.await.unwrap());
        rescued += winners;
        for take in takes {
            let won = u32::from(take.await.unwrap());
            winners += won;
            taken += won;
        }
        assert_eq!(winners, 1);
        stores[0].force_release(&key, None).await.unwrap().unwrap();
    }
    println!("{taken} taken over, {rescued} rescued");
}

#[tokio::test]
async fn a_waiter_is_woken_when_the_holder_is_gone() {
    let (_directory, path) = scratch();
    let (store, other) = (SqliteStore::open(&path).await.unwrap(), SqliteStore::open(&path).await.unwrap());
    let (key, a, b) = (key("k"), owner(), owner());
    let mut child = sleeper();
    granted(&store, &Claim::new(&key, &a, TTL).tie(Tie::Process)).await;
    let mut waiting = hint(refused(&other, &Claim::new(&key, &b, TTL).waits(true)).await);
    // Tied anew while somebody waits.
    store.extend(&[Claim::new(&key, &a, TTL).tie(Tie::Group(child.id()))]).await.unwrap();
    poll_once(waiting.as_mut()).await;
    refused(&other, &Claim::new(&key, &b, TTL)).await;
    // Not waited for: a zombie is gone enough, if one has a quiet look at all processes.
    child.kill().unwrap();
    tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("the wake-up was lost");
    while let Attempt::Contended(_) = other.acquire(&Claim::new(&key, &b, TTL)).await.unwrap() {}
    assert_eq!(other.inspect(&key).await.unwrap().holders[0].owner, b);
    child.wait().unwrap();
}

#[tokio::test]
async fn a_page_leaves_out_the_dead_and_leads_on() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    for name in ["a", "b", "c"] {
        granted(&store, &Claim::new(&key(name), &owner(), TTL).tie(Tie::Process)).await;
    }
    Connection::open(&path).unwrap().execute("UPDATE leases SET tie_id = 8388608 WHERE key < 'test:c'", []).unwrap();
    let first = store.list("test:", Page::first(2)).await.unwrap();
    assert!(first.entries.is_empty());
    let second = store.list("test:", Page::after(first.next.unwrap(), 2)).await.unwrap();
    assert_eq!(second.entries.iter().map(|entry| &*entry.key).collect::<Vec<_>>(), ["test:c"]);
    assert!(second.next.is_none());
}
