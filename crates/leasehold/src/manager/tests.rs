#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use super::*;
use crate::lease::Terms;
use crate::store::memory::MemoryStore;
use crate::store::{Attempt, Claim, Store, Tie};
use crate::testkit::{FaultStore, TestClock};
use crate::undo::{Target, Undo};
use crate::wait::hold;
use crate::{Clock, LockGuard, Renew};

const TTL: Duration = Duration::from_secs(30);

/// A manager and a guard as a forked child finds them: made by another process, that is; and what is asked of the
/// store from there.
async fn inherited() -> (LockManager, LockGuard, MemoryStore, FaultStore) {
    let clock = Clock::from(TestClock::start());
    let memory = MemoryStore::with_clock(clock.clone());
    let asked = FaultStore::new(memory.clone());
    let mut manager = LockManager::builder(asked.clone()).clock(clock.clone()).build().unwrap();
    Arc::get_mut(&mut manager.engine).unwrap().pid += 1;
    let (key, owner) = (Key::new(manager.namespace(), "k").unwrap(), OwnerToken::mint().unwrap());
    let sent = clock.now();
    let Attempt::Acquired(grant) = memory.acquire(&Claim::new(&key, &owner, TTL)).await.unwrap() else {
        panic!("it was free");
    };
    let engine = Arc::clone(&manager.engine);
    let undo = Undo::new(Target { engine, key, owner, ttl: TTL, back_to: None, ticket: None });
    let terms = Terms { ttl: TTL, renew: Renew::Automatic, max_hold: None, tie: Tie::Process, unsettled: 0 };
    let guard = LockGuard::new(hold(undo, sent, grant, &terms).unwrap());
    (manager, guard, memory, asked)
}

async fn owner(memory: &MemoryStore, key: &Key) -> Option<OwnerToken> {
    memory.inspect(key).await.unwrap().holders.pop().map(|holder| holder.owner)
}

#[tokio::test(start_paused = true)]
async fn a_manager_in_a_forked_child_refuses_every_call_and_asks_nothing() {
    let (manager, guard, memory, asked) = inherited().await;
    let owner_before = owner(&memory, guard.key()).await.unwrap();
    let lock = manager.lock("k");
    let closed = [
        lock.try_acquire().await.map(drop),
        lock.clone().ttl(Duration::ZERO).try_acquire().await.map(drop),
        lock.acquire_within(TTL).await.map(drop),
        lock.acquire().await.map(drop),
        lock.resume(&owner_before).await.map(drop),
        lock.release_by(&owner_before).await,
        lock.extend_by(&owner_before, TTL).await,
        manager.with_lock("k", async |_| ()).await.map(drop),
        manager.force_release("k", None).await.map(drop),
        manager.holder("k").await.map(drop),
        manager.ping().await.map(drop),
        manager.close(Close::Release).await,
    ];
    for (number, refused) in closed.into_iter().enumerate() {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Closed, "call {number}");
    }
    drop((lock, manager));
    assert_eq!(asked.total_calls(), 0);
    assert_eq!(owner(&memory, guard.key()).await, Some(owner_before));
}

#[tokio::test(start_paused = true)]
async fn a_guard_in_a_forked_child_is_inert() {
    let (manager, guard, memory, asked) = inherited().await;
    let key = guard.key().clone();
    let handle = guard.handle();
    let held_by = owner(&memory, &key).await;
    assert!(held_by.is_some());
    for refused in [guard.extend(TTL).await, guard.keep().await, guard.hand_over().await.map(drop)] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NotHeld);
    }
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
    tokio::time::sleep(TTL / 2).await;
    assert_eq!(owner(&memory, &key).await, held_by);
    tokio::time::sleep(TTL).await;
    assert_eq!(handle.check().unwrap_err().lost_reason(), Some(LostReason::Expired), "it was not renewed");
    assert_eq!(asked.total_calls(), 0);
    drop(manager);

    let (_manager, guard, memory, asked) = inherited().await;
    drop(guard);
    tokio::time::sleep(TTL / 2).await;
    assert!(owner(&memory, &key).await.is_some(), "dropping it gave nothing back");
    assert_eq!(asked.total_calls(), 0);
}
