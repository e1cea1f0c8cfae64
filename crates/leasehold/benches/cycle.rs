//! What one acquire and release cost: nanoseconds and allocations on memory (store alone, engine, line, scope, a thread
//! of its own, wrappers) and on SQLite. Run with `cargo bench -p leasehold --bench cycle`; compare ratios within one run only.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark that fails has nothing to report")]

use std::hint::black_box;
use std::time::Duration;

use leasehold::store::breaker::Breaker;
use leasehold::store::memory::MemoryStore;
use leasehold::store::retry::Retry;
use leasehold::store::{Attempt, Claim, Store};
use tokio::runtime::Runtime;

use leasehold::{Clock, Key, LockManager, OwnRuntime, OwnerToken, Renew};

const TTL: Duration = Duration::from_secs(30);

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    println!("{:<44} {:>9} {:>12}", "acquire + release", "ns", "allocations");
    memory(&runtime);
    #[cfg(feature = "sqlite")]
    sqlite(&runtime);
}

fn memory(runtime: &Runtime) {
    let store = MemoryStore::new();
    let key = Key::new("bench", "key").unwrap();
    let dynamic: &dyn Store = &store;
    measure(runtime, "token from the operating system", 200_000, async || {
        black_box(OwnerToken::mint().unwrap());
    });
    let owner = OwnerToken::mint().unwrap();
    measure(runtime, "memory store alone, through dyn Store", 500_000, async || {
        let granted = dynamic.acquire(&Claim::new(&key, &owner, TTL)).await.unwrap();
        assert!(matches!(granted, Attempt::Acquired(_)));
        assert!(dynamic.release(&key, &owner).await.unwrap());
    });

    let locks = runtime.block_on(async { LockManager::new(store) });
    let lock = locks.lock("key");
    let unrenewed = lock.clone().renew(Renew::Off);
    measure(runtime, "engine, try_acquire, no renewal", 200_000, async || {
        unrenewed.try_acquire().await.unwrap().unwrap().release().await.unwrap();
    });
    measure(runtime, "engine, try_acquire", 200_000, async || {
        lock.try_acquire().await.unwrap().unwrap().release().await.unwrap();
    });
    measure(runtime, "engine, acquire (through the local line)", 200_000, async || {
        lock.acquire().await.unwrap().release().await.unwrap();
    });
    measure(runtime, "scoped, run", 200_000, async || {
        lock.run(async |_| ()).await.unwrap().unwrap().into_value().unwrap();
    });
    let guard = runtime.block_on(lock.acquire()).unwrap();
    measure(runtime, "guard.check()", 2_000_000, async || guard.check().unwrap());
    runtime.block_on(guard.release()).unwrap();

    let own = OwnRuntime::start().unwrap();
    let locks = LockManager::builder(MemoryStore::new()).own_runtime(own).build().unwrap();
    let lock = locks.lock("key");
    measure(runtime, "engine, try_acquire, on a thread of its own", 20_000, async || {
        lock.try_acquire().await.unwrap().unwrap().release().await.unwrap();
    });
    let locks = LockManager::new(Breaker::new(Retry::new(MemoryStore::new())));
    let lock = locks.lock("key");
    measure(runtime, "engine, try_acquire, breaker and retry", 200_000, async || {
        lock.try_acquire().await.unwrap().unwrap().release().await.unwrap();
    });
}

#[cfg(feature = "sqlite")]
fn sqlite(runtime: &Runtime) {
    use leasehold::store::Tie;
    use leasehold::store::sqlite::SqliteStore;

    let directory = tempfile::tempdir().unwrap();
    let store = runtime.block_on(SqliteStore::open(directory.path().join("leases.db"))).unwrap();
    let key = Key::new("bench", "key").unwrap();
    let owner = OwnerToken::mint().unwrap();
    measure(runtime, "sqlite store alone", 5_000, async || {
        store.acquire(&Claim::new(&key, &owner, TTL).tie(Tie::Process)).await.unwrap();
        assert!(store.release(&key, &owner).await.unwrap());
    });
    let locks = runtime.block_on(async { LockManager::new(store.clone()) });
    let lock = locks.lock("key");
    measure(runtime, "sqlite, engine, try_acquire", 5_000, async || {
        lock.try_acquire().await.unwrap().unwrap().release().await.unwrap();
    });
    let own = OwnRuntime::start().unwrap();
    let locks = LockManager::builder(store).own_runtime(own).build().unwrap();
    let lock = locks.lock("key");
    measure(runtime, "sqlite, engine, on a thread of its own", 5_000, async || {
        lock.try_acquire().await.unwrap().unwrap().release().await.unwrap();
    });
}

/// The best of five rounds, since everything that disturbs only adds.
fn measure(runtime: &Runtime, what: &str, times: u32, mut once: impl AsyncFnMut()) {
    let clock = Clock::system();
    let mut round = |times: u32| {
        runtime.block_on(async {
            let started = clock.now();
            for _ in 0..times {
                once().await;
            }
            clock.now().since(started) / times
        })
    };
    let best = (0..5).map(|_| round(times / 5)).min().unwrap_or_default();
    let allocations = allocation_counter::measure(|| _ = round(100)).count_total;
    println!("{what:<44} {:>9} {:>12.1}", best.as_nanos(), f64::from(u32::try_from(allocations).unwrap()) / 100.0);
}
