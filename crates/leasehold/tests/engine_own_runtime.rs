//! Leases whose renewals have a thread of their own, and what those know that have not.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use leasehold::observe::{Event, Observer};
use leasehold::store::Store;
use leasehold::store::memory::MemoryStore;
use leasehold::testkit::{Fault, FaultStore, Residue};
use leasehold::{Clock, Close, ErrorKind, Key, LockGuard, LockManager, LostReason, Operation, OwnRuntime};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

/// Long enough to be renewed in time on a busy machine, short enough to wait for three of them.
const TTL: Duration = Duration::from_secs(4);
/// Five times and more of what anything here needs on a busy machine.
const SOON: Duration = Duration::from_secs(15);

const WORKERS: usize = 2;

fn workers() -> Runtime {
    Builder::new_multi_thread().worker_threads(WORKERS).enable_time().build().unwrap()
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

fn on_a_thread_of_its_own(store: impl Store) -> LockManager {
    LockManager::builder(store).ttl(TTL).own_runtime(OwnRuntime::start().unwrap()).build().unwrap()
}

/// Blocks every worker of the runtime for three ttls; the barrier lets go when all are blocked.
fn block(runtime: &Runtime) -> Arc<Barrier> {
    let blocked = Arc::new(Barrier::new(WORKERS + 1));
    for _ in 0..WORKERS {
        let blocked = Arc::clone(&blocked);
        runtime.spawn(async move {
            blocked.wait();
            thread::sleep(3 * TTL);
        });
    }
    blocked
}

/// What others saw while the holder's workers were blocked: whether somebody else was granted the lease. From then on the
/// holder is told so, each time it asks.
fn others_meanwhile(store: &MemoryStore, guard: &LockGuard) -> bool {
    let runtime = current_thread();
    runtime.block_on(async {
        let others = LockManager::builder(store.clone()).build().unwrap();
        let until = Clock::system().now() + 3 * TTL;
        let mut granted = false;
        while Clock::system().now() < until {
            let other = others.lock("job").try_acquire().await.unwrap();
            granted |= other.is_some();
            if granted {
                assert!(guard.check().is_err(), "two held it at the same time");
            }
            if let Some(other) = other {
                other.release().await.unwrap();
            }
            sleep(Duration::from_millis(20)).await;
        }
        granted
    })
}

#[test]
fn a_lease_is_held_while_every_worker_is_blocked() {
    let (store, runtime) = (MemoryStore::new(), workers());
    let locks = on_a_thread_of_its_own(store.clone());
    let guard = runtime.block_on(locks.lock("job").acquire()).unwrap();
    block(&runtime).wait();
    assert!(!others_meanwhile(&store, &guard), "the lease was not renewed");
    guard.check().unwrap();
    runtime.block_on(guard.release()).unwrap();
}

#[test]
fn without_a_thread_of_its_own_it_is_lost_and_its_holder_is_told_the_truth() {
    let (store, runtime) = (MemoryStore::new(), workers());
    let locks = runtime.block_on(async { LockManager::builder(store.clone()).ttl(TTL).build().unwrap() });
    let guard = runtime.block_on(locks.lock("job").acquire()).unwrap();
    block(&runtime).wait();
    assert!(others_meanwhile(&store, &guard), "who renewed it?");
    assert_eq!(guard.check().unwrap_err().lost_reason(), Some(LostReason::Expired));
    assert!(guard.remaining().is_zero());
    let error = runtime.block_on(guard.release()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld);
}

#[test]
fn work_that_blocks_its_only_thread_keeps_its_lease_or_is_told() {
    let blocking = async |_| thread::sleep(3 * TTL / 2);
    let locks = on_a_thread_of_its_own(MemoryStore::new());
    let ran = current_thread().block_on(locks.with_lock("job", blocking)).unwrap();
    ran.release.unwrap();
    let runtime = current_thread();
    let ran = runtime.block_on(async {
        let locks = LockManager::builder(MemoryStore::new()).ttl(TTL).build().unwrap();
        locks.with_lock("job", blocking).await.unwrap()
    });
    assert_eq!(ran.release.unwrap_err().kind(), ErrorKind::NotHeld);
}

/// Blocks for two ttls when a release was answered.
#[derive(Debug)]
struct Blocks(std::sync::mpsc::SyncSender<()>);

impl Observer for Blocks {
    fn observe(&self, event: &Event) {
        if matches!(event, Event::StoreCall(call) if call.operation == Operation::Release) {
            self.0.send(()).unwrap();
            thread::sleep(2 * TTL);
        }
    }
}

#[test]
fn an_observer_that_blocks_on_the_release_of_a_dropped_guard_costs_no_other_lease() {
    let (begins, blocked) = std::sync::mpsc::sync_channel(1);
    let store = FaultStore::new(MemoryStore::new());
    // So that whoever drops the guard has long told what it had to tell.
    store.once(Operation::Release, Fault::delay(TTL / 6));
    let builder = LockManager::builder(store).ttl(TTL).own_runtime(OwnRuntime::start().unwrap());
    let locks = builder.observer(Blocks(begins)).build().unwrap();
    let runtime = current_thread();
    let (dropped, held) = runtime.block_on(async {
        (locks.lock("dropped").acquire().await.unwrap(), locks.lock("held").acquire().await.unwrap())
    });
    drop(dropped);
    blocked.recv_timeout(SOON).unwrap();
    thread::sleep(3 * TTL / 2);
    held.check().unwrap();
}

#[test]
fn the_guard_may_outlive_the_runtime_that_it_was_acquired_on() {
    let store = MemoryStore::new();
    let locks = on_a_thread_of_its_own(store.clone());
    let first = workers();
    let guard = first.block_on(locks.lock("job").acquire()).unwrap();
    first.shutdown_timeout(SOON);
    thread::sleep(3 * TTL / 2);
    guard.check().unwrap();
    // Given back there, although there is no runtime here.
    drop(guard);
    current_thread().block_on(async {
        let freed = locks.lock("job").acquire_within(SOON).await.unwrap();
        freed.unwrap().release().await.unwrap();
        locks.close(Close::Release).await.unwrap();
    });
}

#[tokio::test]
async fn a_dropped_acquire_leaves_nothing() {
    let store = FaultStore::new(MemoryStore::new());
    let locks = on_a_thread_of_its_own(store.clone());
    for round in 0..200_u64 {
        let delay = Duration::from_micros(round * 37 % 2000);
        let fault = if round % 2 == 0 { Fault::delay(delay) } else { Fault::delay_reply(delay) };
        store.once(Operation::Acquire, fault);
        let lock = locks.lock(&format!("k{}", round % 7));
        _ = timeout(Duration::from_micros(round * 53 % 2000), lock.acquire()).await;
    }
    let rest = async {
        while !Residue::of(&locks).is_none() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, rest).await.unwrap();
    for number in 0..7 {
        let key = Key::new("leasehold", &format!("k{number}")).unwrap();
        assert!(store.inspect(&key).await.unwrap().holders.is_empty(), "{key}");
    }
}

#[tokio::test]
async fn waiters_are_served_in_order_through_the_thread() {
    let locks = on_a_thread_of_its_own(MemoryStore::new());
    let guard = locks.lock("job").acquire().await.unwrap();
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..10 {
        let (lock, served) = (locks.lock("job"), served.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            served.send(number).unwrap();
            guard.release().await.unwrap();
        });
        tokio::task::yield_now().await;
    }
    guard.release().await.unwrap();
    for number in 0..10 {
        assert_eq!(timeout(SOON, order.recv()).await.unwrap(), Some(number));
    }
}

#[tokio::test]
async fn the_thread_ends_with_the_last_who_uses_it() {
    for close in [true, false] {
        let runtime = OwnRuntime::start().unwrap();
        let (mark, gone) = tokio::sync::oneshot::channel::<()>();
        let stays = async move {
            tokio::spawn(async move {
                let _mark = mark;
                std::future::pending::<()>().await;
            });
        };
        runtime.run(stays).await.unwrap();
        let locks = LockManager::builder(MemoryStore::new()).own_runtime(runtime).build().unwrap();
        let guard = locks.lock("job").acquire().await.unwrap();
        if close {
            locks.close(Close::Release).await.unwrap();
        }
        drop(locks);
        drop(guard);
        assert!(timeout(SOON, gone).await.unwrap().is_err());
    }
}

#[tokio::test]
async fn a_panic_on_the_thread_goes_on_where_it_is_awaited_and_nowhere_else() {
    let runtime = OwnRuntime::start().unwrap();
    let elsewhere = runtime.clone();
    let work = tokio::spawn(async move { elsewhere.run::<()>(async { panic!("on purpose") }).await });
    assert!(work.await.unwrap_err().is_panic());
    assert_eq!(
        runtime.run(async { thread::current().name().map(str::to_owned) }).await.unwrap().as_deref(),
        Some("leasehold")
    );
    // From within it is no detour.
    let inner = runtime.clone();
    assert_eq!(runtime.run(async move { inner.run(async { 7 }).await }).await.unwrap().unwrap(), 7);
}
