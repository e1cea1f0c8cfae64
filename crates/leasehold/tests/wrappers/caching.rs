//! Locks over caches, through a manager.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use leasehold::store::cache::{Cache, CacheStore};
use leasehold::testkit::Fault;
use leasehold::{LockManager, Operation};
use tokio::time::sleep;

use crate::cache_moka::MokaCache;
use crate::cache_over_store::SeenAsCache;
use crate::support::rig::{Note, Rig, ms, secs, until_nothing_is_left};

#[tokio::test(start_paused = true)]
async fn an_entry_is_the_owner_token_and_nothing_else() {
    let rig = Rig::new();
    let cache = MokaCache::new(rig.clock.clone().into());
    let locks = LockManager::builder(CacheStore::new(cache.clone())).clock(rig.clock.clone().into()).build().unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();
    assert_eq!(cache.get("leasehold:k").await.unwrap().as_deref(), Some(guard.owner_token().as_bytes()));
    assert_eq!(locks.holder("k").await.unwrap().unwrap().owner, *guard.owner_token());
    // Renewed for as long as it is held, and gone then.
    sleep(secs(300)).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
    assert_eq!(cache.get("leasehold:k").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn holders_exclude_each_other_and_every_waiter_has_its_turn() {
    let rig = Rig::new();
    let store = CacheStore::new(MokaCache::new(rig.clock.clone().into()));
    let (held, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let locks = LockManager::builder(store.clone()).clock(rig.clock.clone().into()).build().unwrap();
            let (held, turns) = (Arc::clone(&held), Arc::clone(&turns));
            tokio::spawn(async move {
                let guard = locks.lock("k").acquire().await.unwrap();
                assert!(!held.swap(true, Ordering::SeqCst), "two held it at the same time");
                sleep(ms(70)).await;
                held.store(false, Ordering::SeqCst);
                turns.fetch_add(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(turns.load(Ordering::SeqCst), 20);
}

#[tokio::test(start_paused = true)]
async fn an_add_whose_reply_was_lost_finds_its_own_entry() {
    let rig = Rig::new();
    let store = CacheStore::new(SeenAsCache::new(Arc::new(rig.store.clone())));
    let locks = LockManager::builder(store).clock(rig.clock.clone().into()).build().unwrap();
    rig.store.once(Operation::Acquire, Fault::lose_reply());
    let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
    assert_eq!(rig.holder("k").await.unwrap().owner, *guard.owner_token());
    guard.release().await.unwrap();
    until_nothing_is_left(&locks).await;
    assert!(rig.is_free("k").await);
}

#[tokio::test(start_paused = true)]
async fn what_a_cache_has_not_is_refused() {
    let rig = Rig::new();
    let store = CacheStore::new(MokaCache::new(rig.clock.clone().into()));
    let locks = LockManager::builder(store).clock(rig.clock.clone().into()).build().unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();
    assert_eq!(guard.fencing_token(), None);
    assert_eq!(guard.hand_over().await.unwrap_err().kind(), leasehold::ErrorKind::Unsupported);
    guard.check().unwrap();
    assert!(locks.force_release("k", Some(guard.owner_token())).await.unwrap().is_some());
    assert!(locks.force_release("k", None).await.unwrap().is_none());
}

/// As many as go in one request, each with a round trip of its own.
#[tokio::test(start_paused = true)]
async fn many_leases_are_renewed_over_a_cache_that_is_slow_to_answer() {
    let rig = Rig::new();
    let store = CacheStore::new(SeenAsCache::new(Arc::new(rig.store.clone())));
    let builder = LockManager::builder(store).clock(rig.clock.clone().into()).ttl(secs(6));
    let locks = builder.observer(rig.seen.clone()).build().unwrap();
    let mut guards = Vec::new();
    for number in 0..256 {
        guards.push(locks.lock(&number.to_string()).acquire().await.unwrap());
    }
    rig.store.always(Operation::Extend, Fault::delay_reply(ms(30)));
    sleep(secs(60)).await;
    guards.iter().for_each(|guard| guard.check().unwrap());
    assert!(rig.seen.count(|note| matches!(note, Note::Renewed(_))) >= 256 * 20);
    assert_eq!(rig.seen.count(|note| matches!(note, Note::RenewalFailed(..))), 0);
}
