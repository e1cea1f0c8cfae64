//! A `run` inside of another on the same key: it would wait for its own parent.

use std::env;

use leasehold::{Lock, LockManager};

use crate::config::{self, Settings};
use crate::exit::{self, Failure};

/// Refuses a key that is held by the `run` that started this process.
///
/// The environment tells of that lease; the fencing token tells whether it is still the one that stands.
pub(super) async fn refuse(settings: &Settings, manager: &LockManager, lock: &Lock, name: &str) -> Result<(), Failure> {
    let variable = |name: &str| env::var(name).ok();
    let is_here = variable("LEASEHOLD_KEY").as_deref() == Some(name)
        && variable("LEASEHOLD_NAMESPACE").as_deref() == Some(manager.namespace())
        && variable("LEASEHOLD_LEASE_STORE").is_some_and(|place| config::is_same_place(&place, &settings.place()));
    let token: Option<u64> = variable("LEASEHOLD_FENCING_TOKEN").and_then(|token| token.parse().ok());
    let Some(token) = token.filter(|_| is_here) else {
        return Ok(());
    };
    match lock.holder().await {
        Ok(Some(holder)) if holder.fencing.is_some_and(|fencing| fencing.get() == token) => Err(Failure::new(
            exit::USAGE,
            format!(
                "\"{name}\" is held by the run that started this command: it would wait for its own parent: \
                 use another key, or run the command without a lease of its own"
            ),
        )),
        // Free, somebody else's, or no answer: asking for the key will tell.
        _ => Ok(()),
    }
}
