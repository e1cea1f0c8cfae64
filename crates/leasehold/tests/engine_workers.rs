//! Code that blocks one worker of its runtime, as handlers do: leases are renewed and given back by the others.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use leasehold::observe::{Event, Observer};
use leasehold::store::memory::MemoryStore;
use leasehold::testkit::{Fault, FaultStore, Residue};
use leasehold::{Clock, LockManager, Operation};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

/// Long enough to be renewed in time on a busy machine, short enough to wait for three of them.
const TTL: Duration = Duration::from_secs(4);
/// The ttl where nobody is to be waiting for it.
const LONG: Duration = Duration::from_secs(600);
/// Five times and more of what anything here needs on a busy machine.
const SOON: Duration = Duration::from_secs(15);

fn two_workers() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

fn locks(runtime: &Runtime, store: &MemoryStore, ttl: Duration) -> LockManager {
    runtime.block_on(async { LockManager::builder(store.clone()).ttl(ttl).build().unwrap() })
}

/// Work that blocks, as a task of the runtime sees it, and how the test lets it go on.
fn blocking() -> (impl FnOnce() + Send + 'static, Receiver<()>, Sender<()>) {
    let ((reached, blocks), (go_on, let_go)) = (channel(), channel());
    let block = move || {
        reached.send(()).unwrap();
        let_go.recv().ok();
    };
    (block, blocks, go_on)
}

/// For three ttls others, on a runtime of their own, do not get the key.
fn nobody_gets(store: &MemoryStore, key: &str) {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let others = LockManager::builder(store.clone()).build().unwrap();
        let until = Clock::system().now() + 3 * TTL;
        while Clock::system().now() < until {
            assert!(others.lock(key).try_acquire().await.unwrap().is_none(), "the lease was not renewed");
            sleep(Duration::from_millis(20)).await;
        }
    });
}

/// Others, on a runtime of their own, get the key long before its ttl ends.
fn somebody_gets(store: &MemoryStore, key: &str) {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let others = LockManager::builder(store.clone()).build().unwrap();
        others.lock(key).acquire_within(SOON).await.unwrap().unwrap().release().await.unwrap();
    });
}

#[test]
fn the_first_lease_of_a_manager_is_renewed_while_its_worker_is_blocked() {
    let (store, runtime) = (MemoryStore::new(), two_workers());
    let lock = locks(&runtime, &store, TTL).lock("job");
    let (block, blocks, go_on) = blocking();
    let work = runtime.spawn(async move {
        let guard = lock.acquire().await.unwrap();
        block();
        guard.check().unwrap();
        guard.release().await.unwrap();
    });
    blocks.recv_timeout(SOON).unwrap();
    nobody_gets(&store, "job");
    drop(go_on);
    runtime.block_on(work).unwrap();
}

/// The renewal task sleeps then, and the next lease wakes it.
#[test]
fn a_later_lease_is_renewed_while_its_worker_is_blocked() {
    let (store, runtime) = (MemoryStore::new(), two_workers());
    let locks = locks(&runtime, &store, TTL);
    runtime.block_on(async {
        locks.lock("earlier").acquire().await.unwrap().release().await.unwrap();
        // Long enough for the task to find that nothing is left to do; nothing depends on it.
        sleep(TTL).await;
    });
    let (block, blocks, go_on) = blocking();
    let work = runtime.spawn(async move {
        let ran = locks.with_lock("job", async |lease| {
            block();
            lease.check()
        });
        ran.await.unwrap().into_value().unwrap().unwrap();
    });
    blocks.recv_timeout(SOON).unwrap();
    nobody_gets(&store, "job");
    drop(go_on);
    runtime.block_on(work).unwrap();
}

#[test]
fn leases_that_others_take_meanwhile_are_renewed_as_well() {
    let (store, runtime) = (MemoryStore::new(), two_workers());
    let locks = locks(&runtime, &store, TTL);
    let (lock, (block, blocks, go_on)) = (locks.lock("job"), blocking());
    let work = runtime.spawn(async move {
        let guard = lock.acquire().await.unwrap();
        block();
        guard.release().await.unwrap();
    });
    blocks.recv_timeout(SOON).unwrap();
    let held = runtime.block_on(locks.lock("held").acquire()).unwrap();
    let also = runtime.block_on(runtime.spawn(async move { locks.lock("also").acquire().await.unwrap() })).unwrap();
    nobody_gets(&store, "held");
    held.check().unwrap();
    also.check().unwrap();
    drop(go_on);
    runtime.block_on(work).unwrap();
}

#[test]
fn a_guard_that_was_dropped_before_is_given_back() {
    let (store, runtime) = (MemoryStore::new(), two_workers());
    let lock = locks(&runtime, &store, LONG).lock("job");
    let (block, blocks, go_on) = blocking();
    let work = runtime.spawn(async move {
        drop(lock.acquire().await.unwrap());
        block();
    });
    blocks.recv_timeout(SOON).unwrap();
    somebody_gets(&store, "job");
    drop(go_on);
    runtime.block_on(work).unwrap();
}

#[test]
fn an_acquire_that_was_dropped_before_is_undone() {
    let (store, runtime) = (MemoryStore::new(), two_workers());
    let faulty = FaultStore::new(store.clone());
    faulty.once(Operation::Acquire, Fault::delay_reply(LONG));
    let (block, blocks, go_on) = blocking();
    let work = runtime.spawn(async move {
        let locks = LockManager::builder(faulty).ttl(LONG).build().unwrap();
        assert!(timeout(Duration::from_millis(100), locks.lock("job").acquire()).await.is_err());
        block();
    });
    blocks.recv_timeout(SOON).unwrap();
    somebody_gets(&store, "job");
    drop(go_on);
    runtime.block_on(work).unwrap();
}

/// Blocks when it is told of the lease, once.
#[derive(Debug)]
struct Blocks(Mutex<(Sender<()>, Receiver<()>)>);

impl Observer for Blocks {
    fn observe(&self, event: &Event) {
        if matches!(event, Event::Acquired(it) if it.key.name() == "job") {
            let ends = self.0.lock();
            ends.0.send(()).unwrap();
            ends.1.recv().ok();
        }
    }
}

#[test]
fn an_observer_that_blocks_a_worker_costs_no_lease() {
    let (store, runtime) = (MemoryStore::new(), two_workers());
    let ((reached, blocks), (go_on, let_go)) = (channel(), channel());
    let observer = Blocks(Mutex::new((reached, let_go)));
    let builder = LockManager::builder(store.clone()).ttl(TTL).observer(observer);
    let locks = runtime.block_on(async { builder.build().unwrap() });
    // So that the renewal task, which tells elsewhere, sleeps when the call ends.
    let first = runtime.block_on(locks.lock("first").acquire()).unwrap();
    while Residue::of(&locks).events > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let lock = locks.lock("job");
    let work = runtime.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
    blocks.recv_timeout(SOON).unwrap();
    let held = runtime.block_on(locks.lock("held").acquire()).unwrap();
    nobody_gets(&store, "job");
    held.check().unwrap();
    first.check().unwrap();
    drop(go_on);
    runtime.block_on(work).unwrap();
}
