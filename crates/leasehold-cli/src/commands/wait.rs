//! `wait`: until a key is free, held, or held by somebody else, without taking it.

use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::store::Holder;
use leasehold::{Close, LockManager, Wait};

use super::busy;
use crate::cli::{Global, Until, WaitFor};
use crate::config::{self, Settings};
use crate::exit::{self, Failure};
use crate::output;

/// The first pause between two looks, doubled each time, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Looks at the key until it is as asked for. Nothing is taken, so a signal may end it at any time.
pub(crate) async fn wait(global: &Global, arguments: &WaitFor) -> Result<u8, Failure> {
    let name = config::key_name(&arguments.key)?;
    let settings = Settings::new(global, config::flags(false, arguments.wait.as_deref(), None)?)?;
    let manager = settings.build(settings.open().await?)?;
    let ended = look(&settings, &manager, name, arguments.until).await;
    manager.close(Close::Release).await.ok();
    ended
}

async fn look(settings: &Settings, manager: &LockManager, name: &str, until: Until) -> Result<u8, Failure> {
    let clock = Clock::system();
    let start = clock.now();
    let limit = match settings.wait() {
        Wait::No => Some(Duration::ZERO),
        Wait::UpTo(wait) => Some(wait),
        _ => None,
    };
    let (mut first, mut pause, mut quiet) = (None, PAUSES.0, settings.quiet);
    loop {
        let waited = clock.now().since(start);
        let holder = manager.holder(name).await.map_err(|error| settings.failure(&error))?;
        let now = identity(holder.as_ref());
        let first = first.get_or_insert_with(|| now.clone());
        let reached = match until {
            Until::Free => holder.is_none(),
            Until::Held => holder.is_some(),
            Until::Change => *first != now,
        };
        if reached {
            return Ok(exit::DONE);
        }
        // Judged by the moment before the look, so that the last one is made at the deadline.
        if limit.is_some_and(|limit| waited >= limit) {
            if !settings.quiet {
                output::tell_block(&late(settings, manager, name, until, holder.as_ref()));
            }
            return Ok(exit::BUSY);
        }
        if waited >= busy::SILENT_WAIT && !quiet {
            quiet = true;
            let state = holder
                .as_ref()
                .map_or_else(|| "free".to_owned(), |holder| format!("held by {}", output::holder_in_a_line(holder)));
            output::tell(&format!("waiting for \"{name}\" to {}: {state}", word(until)));
        }
        let left = limit.map_or(pause, |limit| limit.saturating_sub(clock.now().since(start)));
        tokio::time::sleep(pause.min(left)).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// What tells one holding of a key from another.
fn identity(holder: Option<&Holder>) -> Option<String> {
    holder.map(|holder| format!("{:?} {}", holder.fencing, holder.owner.fingerprint()))
}

fn word(until: Until) -> &'static str {
    match until {
        Until::Free => "be free",
        Until::Held => "be held",
        Until::Change => "change hands",
    }
}

fn late(settings: &Settings, manager: &LockManager, name: &str, until: Until, holder: Option<&Holder>) -> String {
    match holder {
        Some(_) => busy::block(settings, manager, name, settings.wait(), exit::BUSY, holder),
        None => format!(
            "\"{name}\" did not {}: it is free (exit {})\n{}",
            word(until),
            exit::BUSY,
            busy::store(settings, manager)
        ),
    }
}
