//! Work under a lock: it waits for its turn, or does not; it is stopped if the lease is lost, and the lease is given back
//! whatever becomes of the work.

use leasehold::store::memory::MemoryStore;
use leasehold::{LeaseHandle, LockManager, Result};

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    // A memory store excludes the tasks of one process. Several take, say, `LockManager::connect("redis://host")`.
    let locks = LockManager::new(MemoryStore::new());

    // Whoever comes later waits.
    let ran = locks.with_lock("migrate", async |lease| migrate(&lease).await).await?;
    // The work's own result, and what came of giving the lease back.
    assert_eq!(ran.value, Ok(3));
    ran.release?;

    // Whoever comes later does something else.
    let other = locks.clone();
    let ran = locks
        .try_with_lock("import", async |_| {
            let second = other.try_with_lock("import", async |_| "imported twice").await;
            assert!(second.is_ok_and(|ran| ran.is_none()), "there is no reentrancy");
            "imported"
        })
        .await?;
    assert_eq!(ran.map(|ran| ran.value), Some("imported"));
    Ok(())
}

/// Three steps, none of which must overlap with those of somebody else.
async fn migrate(lease: &LeaseHandle) -> std::result::Result<u32, &'static str> {
    let mut done = 0;
    for _ in 0..3 {
        // Work is stopped at its next await anyway; code without one has to ask.
        if lease.check().is_err() {
            return Err("the lease was lost");
        }
        // A database that remembers the highest number refuses whoever comes late.
        assert!(lease.fencing_token().is_some());
        tokio::task::yield_now().await;
        done += 1;
    }
    Ok(done)
}
