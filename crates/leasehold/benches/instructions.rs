//! Acquires and releases on memory as often as it is told, for a count of instructions:
//!
//! ```sh
//! # Valgrind does not show programs where the kernel's clock is, so this one asks the C library for it.
//! RUSTFLAGS="--cfg rustix_use_libc" cargo bench -p leasehold --bench instructions --no-default-features --no-run
//! valgrind --tool=callgrind target/release/deps/instructions-<hash> 1000     # and again with 11000
//! ```
//!
//! The difference of two runs is what the cycles between them cost, without start-up.
//!
//! What telemetry costs is told by a second count, of the engine without it. That is the source as it was just before
//! telemetry and this file came in: `git log --diff-filter=A -- crates/leasehold/benches/instructions.rs` shows the change,
//! and the commit before it is the one to build. It needs this file, its section in `Cargo.toml`, today's `Cargo.lock` and
//! the same compiler, so that nothing but the engine differs.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to report")]

use std::hint::black_box;

use leasehold::LockManager;
use leasehold::store::memory::MemoryStore;

fn main() {
    // Cargo passes `--bench`.
    let times = std::env::args().filter_map(|argument| argument.parse::<u32>().ok()).next().unwrap_or(1000);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = LockManager::new(MemoryStore::new());
        let lock = locks.lock("key");
        for _ in 0..times {
            let guard = lock.try_acquire().await.unwrap().unwrap();
            black_box(&guard);
            guard.release().await.unwrap();
        }
    });
}
