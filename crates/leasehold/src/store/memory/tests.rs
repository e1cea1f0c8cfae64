use std::time::Duration;

use super::*;
use crate::testkit::{History, Record};

const TTL: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn abandoned_keys_are_swept() {
    let store = store();
    for index in 0..1000 {
        assert!(is_granted(&store, &key(&index.to_string()), &owner()).await);
    }
    tokio::time::advance(TTL).await;
    for index in 0..2000 {
        let (key, owner) = (key(&format!("later {index}")), owner());
        assert!(is_granted(&store, &key, &owner).await);
        assert!(store.release(&key, &owner).await.unwrap());
    }
    assert_eq!(store.0.table.lock().spots(), 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_after_a_storm_of_dropped_places() {
    let store = store();
    let key = key("storm");
    let holder = owner();
    assert!(is_granted(&store, &key, &holder).await);
    let places: Vec<_> = futures(&store, &key, 500).await;
    for (index, place) in places.into_iter().enumerate() {
        if index == 250 {
            assert!(store.release(&key, &holder).await.unwrap());
        }
        drop(place);
    }
    assert_eq!(store.0.table.lock().spots(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_place_that_fired_gives_nothing_back() {
    let store = store();
    let key = key("fired");
    let holder = owner();
    assert!(is_granted(&store, &key, &holder).await);
    let waiter = owner();
    let mut place = wait(&store, &key, &waiter).await.unwrap();
    assert!(store.release(&key, &holder).await.unwrap());
    (&mut place).await;
    (&mut place).await;
    drop(place);
    assert_eq!(store.inspect(&key).await.unwrap().holders[0].owner, waiter);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_was_seen_survives_its_unpolled_place() {
    let store = store();
    let key = key("seen");
    let holder = owner();
    assert!(is_granted(&store, &key, &holder).await);
    let waiter = owner();
    let place = wait(&store, &key, &waiter).await.unwrap();
    assert!(store.release(&key, &holder).await.unwrap());
    assert!(is_granted(&store, &key, &waiter).await);
    drop(place);
    assert_eq!(store.inspect(&key).await.unwrap().holders[0].owner, waiter);
}

#[tokio::test(start_paused = true)]
async fn the_waiter_s_ttl_counts_from_its_grant() {
    let store = store();
    let key = key("late");
    let holder = owner();
    assert!(is_granted(&store, &key, &holder).await);
    let place = wait(&store, &key, &owner()).await.unwrap();
    tokio::time::advance(TTL / 2).await;
    assert!(store.release(&key, &holder).await.unwrap());
    assert_eq!(store.inspect(&key).await.unwrap().holders[0].remaining, Some(TTL));
    place.await;
}

#[tokio::test(start_paused = true)]
async fn what_people_read_counts_back_from_the_present() {
    let store = store();
    let key = key("read");
    let holder = owner();
    assert!(is_granted(&store, &key, &holder).await);
    tokio::time::advance(TTL / 2).await;
    let seen = store.inspect(&key).await.unwrap().holders.remove(0);
    let age = wall_now().duration_since(seen.since.unwrap()).unwrap();
    assert!(age >= TTL / 2 && age < TTL, "{age:?}");
    assert_eq!(seen.since, seen.renewed);
    assert_eq!(seen.remaining, Some(TTL / 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_storm_over_threads_excludes_and_leaves_nothing() {
    let store = MemoryStore::new();
    let history = Arc::new(History::new());
    let workers: Vec<_> =
        (0..8).map(|worker| tokio::spawn(storm(store.clone(), worker, Arc::clone(&history)))).collect();
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(history.check(), []);
    assert!(history.len() > 100, "{}", history.len());
    assert_eq!(store.0.table.lock().spots(), 0);
}

/// Waits for one of two keys again and again, and gives up at every possible moment.
async fn storm(store: MemoryStore, worker: u64, history: Arc<History>) {
    let keys = [key("one"), key("other")];
    for round in 0..400 {
        let (key, owner) = (&keys[usize::from(fastrand::bool())], owner());
        let mut place = wait(&store, key, &owner).await;
        if let Some(place) = &mut place {
            match fastrand::u8(..4) {
                0 => continue,
                1 => {
                    let moment = Duration::from_micros(fastrand::u64(..2000));
                    if tokio::time::timeout(moment, place).await.is_err() {
                        continue;
                    }
                }
                _ => place.await,
            }
        }
        // Granted at once, or told that it is our turn.
        assert!(is_granted(&store, key, &owner).await);
        let from = store.0.clock.now();
        if fastrand::bool() {
            tokio::task::yield_now().await;
        }
        let until = store.0.clock.now();
        let token = store.inspect(key).await.unwrap().holders[0].fencing;
        history.record(Record::new(key.clone(), worker * 1000 + round, from, until).fencing(token));
        assert!(store.release(key, &owner).await.unwrap());
    }
}

fn store() -> MemoryStore {
    MemoryStore::with_clock(Clock::tokio())
}

fn key(name: &str) -> Key {
    Key::new("memory", name).unwrap()
}

fn owner() -> OwnerToken {
    OwnerToken::mint().unwrap()
}

async fn is_granted(store: &MemoryStore, key: &Key, owner: &OwnerToken) -> bool {
    matches!(store.acquire(&Claim::new(key, owner, TTL)).await.unwrap(), Attempt::Acquired(_))
}

async fn wait(store: &MemoryStore, key: &Key, owner: &OwnerToken) -> Option<crate::store::BoxFuture> {
    match store.acquire(&Claim::new(key, owner, TTL).waits(true)).await.unwrap() {
        Attempt::Contended(Contention { wake: Some(Wake::Place(place)), .. }) => Some(place),
        _ => None,
    }
}

async fn futures(store: &MemoryStore, key: &Key, count: usize) -> Vec<crate::store::BoxFuture> {
    let mut places = Vec::new();
    for _ in 0..count {
        places.push(wait(store, key, &owner()).await.unwrap());
    }
    places
}
