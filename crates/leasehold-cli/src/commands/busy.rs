//! What is told about a key that somebody else holds, by whoever does not run anything under it.

use std::future::pending;
use std::time::Duration;

use leasehold::store::Holder;
use leasehold::{Lock, LockManager, Wait};
use rustix::process::Signal;

use crate::config::Settings;
use crate::exit::{self, Failure};
use crate::output;
use crate::signals;

/// After this long people are told for whom they wait.
pub(super) const SILENT_WAIT: Duration = Duration::from_secs(2);

/// Says once who is waited for; never ends.
pub(super) async fn announce(lock: &Lock, name: &str, quiet: bool) {
    if quiet {
        return pending().await;
    }
    let holder = loop {
        tokio::time::sleep(SILENT_WAIT).await;
        // Free at this moment, or no answer: the wait itself will tell.
        if let Ok(Some(holder)) = lock.holder().await {
            break holder;
        }
    };
    output::tell(&format!("waiting for \"{name}\": held by {}", output::holder_in_a_line(&holder)));
    pending().await
}

/// The block for a key that is still held.
pub(super) fn block(
    settings: &Settings,
    manager: &LockManager,
    name: &str,
    wait: Wait,
    code: u8,
    holder: Option<&Holder>,
) -> String {
    let waited = match wait {
        Wait::UpTo(wait) => format!("still held after {}", output::precise(wait)),
        _ => "held".to_owned(),
    };
    let (again, key) = (settings.options_again(), output::quoted(name));
    let holder = holder.map_or_else(|| "  holder   given back just now\n".to_owned(), output::holder_block);
    format!(
        "busy: \"{name}\" is {waited} (exit {code})\n{holder}{}  look     leasehold{again} show {key}\n  \
         if that holder is known to be dead: leasehold{again} force-release {key}\n",
        store(settings, manager)
    )
}

/// The line that says where.
pub(super) fn store(settings: &Settings, manager: &LockManager) -> String {
    format!("  store    {}  namespace {}\n", settings.place(), manager.namespace())
}

/// A signal that ended a wait.
pub(super) fn interrupted(signal: Signal, name: &str) -> Failure {
    let code = u8::try_from(signal.as_raw()).unwrap_or_default().saturating_add(exit::SIGNAL);
    Failure::new(code, format!("stopped by {} while waiting for \"{name}\"; it is not held", signals::name(signal)))
}
