//! Whether a store will do for tasks: it has to reach the other servers, and to keep what outlives a process.

use std::collections::HashSet;
use std::sync::LazyLock;

use parking_lot::Mutex;

use super::task::Task;
use crate::error::{Error, ErrorKind, Result};
use crate::manager::LockManager;
use crate::store::Expiry;

/// The tasks that were warned about.
static WARNED: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);

/// Refuses a store that will not do, and names the tasks and the fix.
pub(super) fn check(locks: &LockManager, tasks: &[Task], allow_unshared: bool) -> Result<()> {
    let guarded: Vec<_> = tasks.iter().filter(|task| task.is_guarded()).map(|task| task.name.as_str()).collect();
    if !locks.is_shared() && !guarded.is_empty() {
        let what = format!("its exclusion reaches as far as \"{}\", so every server would run", locks.scope());
        if !allow_unshared {
            let fix = "use a store that the servers share, or build with allow_unshared()";
            return refuse(locks, format!("{what} {}: {fix}", quoted(&guarded)));
        }
        let mut warned = WARNED.lock();
        let new: Vec<_> = guarded.into_iter().filter(|name| warned.insert((*name).to_owned())).collect();
        if !new.is_empty() {
            tracing::warn!(store = locks.store_name(), "{what} {}; use a store that they share", quoted(&new));
        }
    }
    let capabilities = locks.capabilities();
    let claims: Vec<_> = tasks.iter().filter(|task| task.one_server).map(|task| task.name.as_str()).collect();
    if !claims.is_empty() && (capabilities.expiry == Expiry::Session || !capabilities.hand_over) {
        let what = "its leases end with their connection, so no tick could stay claimed";
        return refuse(locks, format!("{what}, as {} need: use a store with ttls", quoted(&claims)));
    }
    Ok(())
}

fn refuse(locks: &LockManager, message: String) -> Result<()> {
    Err(Error::new(ErrorKind::Unsupported, message).on_store(locks.store_name()))
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}
