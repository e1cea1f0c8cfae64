//! What is told about a key that somebody else holds, and by whoever waits for it.

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
    let (waited, longer) = match wait {
        Wait::UpTo(wait) => (
            format!("still held after {}", output::precise(wait)),
            format!("wait longer: -w {}", output::precise(wait.saturating_mul(10))),
        ),
        _ => ("held".to_owned(), "wait for it: -w 30s".to_owned()),
    };
    let (again, key) = (settings.options_again(), output::quoted(name));
    let described = holder.map_or_else(|| "  holder   given back just now\n".to_owned(), output::holder_block);
    format!(
        "busy: \"{name}\" is {waited} (exit {code})\n{described}{}  look     leasehold{again} show {key}        {longer}\n{}",
        store(settings, manager),
        if_dead(manager, &again, &key, holder)
    )
}

/// What becomes of the key if its holder is dead.
fn if_dead(manager: &LockManager, again: &str, key: &str, holder: Option<&Holder>) -> String {
    let Some(left) = holder.and_then(|holder| holder.remaining).map(output::words) else {
        return String::new();
    };
    // This machine looks whether a holder lives before it says that the key is held.
    let end = if manager.capabilities().liveness {
        format!("when that holder dies the key is free at once, or within {left} if its lease outlives it")
    } else {
        format!("if that holder is dead, its lease ends by itself in {left}")
    };
    format!("  {end}\n  if it is known to be dead: leasehold{again} force-release {key}\n")
}

/// The line that says where.
pub(super) fn store(settings: &Settings, manager: &LockManager) -> String {
    format!("  store    {}  namespace {}\n", settings.place(), manager.namespace())
}

/// A signal that ended a wait.
pub(super) fn interrupted(signal: Signal, name: &str) -> Failure {
    stopped(signal, &format!("while waiting for \"{name}\"")).note("it is not held")
}

/// A signal that ended this.
pub(super) fn stopped(signal: Signal, when: &str) -> Failure {
    let code = u8::try_from(signal.as_raw()).unwrap_or_default().saturating_add(exit::SIGNAL);
    Failure::new(code, format!("stopped by {} {when}", signals::name(signal)))
}
