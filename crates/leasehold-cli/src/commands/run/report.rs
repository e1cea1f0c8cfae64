//! What `run` tells about a key that is busy, a lease that was acquired, and a lease that was lost.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use leasehold::observe::{Event, Observer};
use leasehold::{FencingToken, LockGuard, LockManager, LostReason, Renew};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::request::Request;
use super::status::Status;
use crate::child::{Cause, Ending, Limits, OnLost};
use crate::config::Settings;
use crate::exit::{self, Failure};
use crate::output;
use crate::signals;

/// Renewals, as far as they are told of: how many there were, and which failed since the last one that did not.
#[derive(Clone, Debug)]
pub(in crate::commands) struct Renewals {
    tally: Arc<Mutex<Tally>>,
    confirmed: Arc<Notify>,
    status: Status,
}

#[derive(Clone, Debug, Default)]
struct Tally {
    confirmed: u64,
    failures: Option<Failures>,
}

#[derive(Clone, Debug)]
struct Failures {
    count: u32,
    since: Timestamp,
    latest: leasehold::Error,
}

impl Renewals {
    pub(in crate::commands) fn new(status: &Status) -> Self {
        Self { tally: Arc::default(), confirmed: Arc::default(), status: status.clone() }
    }

    /// Tells of each that was confirmed.
    pub(in crate::commands) fn confirmed(&self) -> &Notify {
        &self.confirmed
    }

    /// How many were confirmed.
    pub(in crate::commands) fn count(&self) -> u64 {
        self.tally().confirmed
    }

    fn tally(&self) -> Tally {
        self.tally.lock().map(|tally| tally.clone()).unwrap_or_default()
    }
}

impl Observer for Renewals {
    fn observe(&self, event: &Event) {
        let Ok(mut tally) = self.tally.lock() else {
            return;
        };
        match event {
            Event::Renewed(renewed) => {
                *tally = Tally { confirmed: tally.confirmed + 1, failures: None };
                drop(tally);
                self.confirmed.notify_one();
                self.status.tell("renewed", json!({"slack_ms": output::millis(renewed.slack)}));
            }
            Event::RenewalFailed(failed) => {
                let latest = failed.error.clone();
                let (count, since) = tally.failures.as_ref().map_or((0, Timestamp::now()), |it| (it.count, it.since));
                tally.failures = Some(Failures { count: count + 1, since, latest });
            }
            _ => {}
        }
    }
}

/// The line for a lease that was acquired, for those who asked for it.
pub(in crate::commands) fn acquired(
    settings: &Settings,
    manager: &LockManager,
    guard: &LockGuard,
    waited: Duration,
    limits: Limits,
) -> String {
    let fencing = guard.fencing_token().map_or_else(|| "none".to_owned(), |token| token.to_string());
    format!(
        "acquired \"{}\" after {}: fencing token {fencing}, ttl {}, TERM {} before its end; store {}  namespace {}",
        guard.key(),
        output::precise(waited),
        output::precise(manager.ttl()),
        output::precise(limits.kill_after),
        settings.place(),
        manager.namespace()
    )
}

/// The same for programs.
pub(in crate::commands) fn acquired_as_json(manager: &LockManager, guard: &LockGuard, waited: Duration) -> Value {
    json!({
        "key": guard.key().name(),
        "namespace": manager.namespace(),
        "fencing": guard.fencing_token().map(FencingToken::get),
        "waited_ms": output::millis(waited),
        "ttl_ms": output::millis(manager.ttl()),
    })
}

/// The line for a lease that was lost under a command that runs on, as was asked for.
pub(in crate::commands) fn going_on(name: &str, reason: LostReason) -> String {
    format!(
        "warning: the lease on \"{name}\" is lost ({reason}) and the command runs on (--on-lost continue): exclusion is \
         given up, somebody else may hold the key"
    )
}

/// A reason in one word, for programs.
pub(in crate::commands) fn word(reason: LostReason) -> &'static str {
    match reason {
        LostReason::Expired => "expired",
        LostReason::NotHeld => "not_held",
        LostReason::ConnectionLost => "connection_lost",
        LostReason::MaxHold => "max_hold",
        _ => "ended",
    }
}

/// The block for a lease that was lost while the command ran.
pub(in crate::commands) fn lost(
    settings: &Settings,
    request: &Request<'_>,
    renewals: &Renewals,
    ending: &Ending,
) -> String {
    let Request { name, renew, on_lost, .. } = *request;
    let signal = match on_lost {
        OnLost::Signal(signal) => signal,
        OnLost::Continue => Signal::TERM,
    };
    let what = match ending.cause {
        Some(Cause::Lost(LostReason::Expired)) => "ended while nobody could renew it",
        Some(Cause::Lost(_)) => "is not held any more",
        _ if renew == Renew::Off => "ends and is not renewed (--no-renew)",
        _ => "could not be renewed",
    };
    let failures = renewals.tally().failures;
    let why = match (ending.cause, failures) {
        (Some(Cause::Lost(LostReason::Expired)), None) => {
            "this process or the machine stood still past the lease's end".to_owned()
        }
        (Some(Cause::Lost(reason)), None) => format!("the store says: {reason}"),
        (_, Some(Failures { count, since, latest })) => {
            let times = if count == 1 { "renewal" } else { "renewals" };
            format!(
                "{count} {times} failed since {}: {}",
                since.strftime("%H:%M:%SZ"),
                Failure::from_error(&latest, false)
            )
        }
        (_, None) if renew == Renew::Off => "its ttl was over: raise --ttl, or let it be renewed".to_owned(),
        (_, None) => "no renewal was confirmed in time".to_owned(),
    };
    let (end, gone) = (output::clock_time(ending.lease_end), output::clock_time(ending.gone));
    let effect = match ending.cause {
        Some(Cause::Lost(reason)) if reason != LostReason::Expired => {
            format!("somebody else may have held the key since the last renewal; the job was gone at {gone}")
        }
        _ if ending.gone < ending.lease_end => {
            format!("nobody else could hold the key before {end}; the job was gone at {gone}")
        }
        _ => format!("somebody else may have held the key since {end}; the job was gone at {gone}"),
    };
    let advice = match ending.cause {
        Some(Cause::Lost(LostReason::Expired)) => "outlast such stops: a longer --ttl",
        Some(Cause::Lost(_)) => "see who holds it before you start again",
        _ if renew == Renew::Off => "more time: a longer --ttl",
        _ => "outlast such outages: a longer --ttl",
    };
    format!(
        "lost: the lease on \"{name}\" {what}; {} (exit {})\n  why      {why}\n  effect   {effect}\n  \
         store    {}\n  look     leasehold{} show {}        {advice}\n",
        stopped(ending, signal),
        exit::LOST,
        settings.place(),
        settings.options_again(),
        output::quoted(name),
    )
}

/// `TERM sent to group 9021, gone after 1.2s`.
pub(in crate::commands) fn stopped(ending: &Ending, signal: Signal) -> String {
    let Some(stopping) = ending.stopping else {
        return "nothing of it was left".to_owned();
    };
    let after = output::precise(ending.gone.since(stopping));
    if ending.refused {
        return format!("group {} could not be signalled (it runs as another user), gone after {after}", ending.group);
    }
    let signal = signals::name(signal);
    let signals = match (ending.warned, ending.killed) {
        (true, true) => format!("{signal} and KILL"),
        (false, true) => "KILL".to_owned(),
        _ => signal.to_owned(),
    };
    format!("{signals} sent to group {}, gone after {after}", ending.group)
}
