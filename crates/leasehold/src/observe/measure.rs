//! What is measured of which event: the same for every way to measure.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Event, outcome};
use crate::error::{ErrorKind, Operation};
use crate::types::Key;

/// How a call or a request ended that `error.type` says more of.
const FAILED: &str = "failed";

/// An instrument, by its place in [`INSTRUMENTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instrument {
    Acquire,
    Hold,
    StoreOperation,
    RenewalSlack,
    Held,
    Waiters,
    Contentions,
    Polls,
    Renewals,
    Lost,
    ReleaseFailures,
    Dropped,
    Missed,
    Skipped,
    TicksLost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Seconds,
    UpDown,
    Counter,
}

pub(super) struct Description {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    #[cfg_attr(not(feature = "otel"), expect(dead_code, reason = "the facade has units of its own"))]
    pub(super) unit: &'static str,
    pub(super) text: &'static str,
}

const fn describe(name: &'static str, kind: Kind, unit: &'static str, text: &'static str) -> Description {
    Description { name, kind, unit, text }
}

pub(super) const INSTRUMENTS: [Description; 15] = [
    describe("leasehold.acquire.duration", Kind::Seconds, "s", "From the call for a lease to its end"),
    describe("leasehold.hold.duration", Kind::Seconds, "s", "From the grant of a lease to its end"),
    describe("leasehold.store.operation.duration", Kind::Seconds, "s", "From a request to the store to its answer"),
    describe("leasehold.renewal.slack", Kind::Seconds, "s", "Validity that was left when a renewal was confirmed"),
    describe("leasehold.held", Kind::UpDown, "{lease}", "Leases that are held"),
    describe("leasehold.waiters", Kind::UpDown, "{call}", "Calls that wait for a lease"),
    describe("leasehold.contentions", Kind::Counter, "{call}", "Calls that did not get the lease at once"),
    describe(
        "leasehold.polls",
        Kind::Counter,
        "{request}",
        "Requests to the store by calls that wait, but for the first",
    ),
    describe("leasehold.renewals", Kind::Counter, "{renewal}", "Renewals, confirmed or failed"),
    describe("leasehold.lost", Kind::Counter, "{lease}", "Leases that ended against their holder's will"),
    describe("leasehold.release.failures", Kind::Counter, "{release}", "Releases that failed, or found the lease gone"),
    describe("leasehold.dropped", Kind::Counter, "{guard}", "Guards that were dropped without being released"),
    describe(
        "leasehold.missed",
        Kind::Counter,
        "{event}",
        "Events that were not measured, because an observer blocked",
    ),
    describe("leasehold.skipped", Kind::Counter, "{run}", "Scheduled runs that were skipped"),
    describe("leasehold.ticks.lost", Kind::Counter, "{tick}", "Scheduled runs that were found unfinished"),
];

/// How long store operations and waits take, in seconds: the bounds that OpenTelemetry advises for durations of requests,
/// and a few above for waits and holds.
#[cfg(feature = "otel")]
pub(super) const BOUNDS: [f64; 19] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
    14400.0,
];

/// A label, with its value.
pub(super) type Label = (&'static str, Cow<'static, str>);

/// Takes measurements.
pub(super) trait Meter {
    fn measure(&self, instrument: Instrument, value: Value, labels: Vec<Label>);
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Seconds(f64),
    Change(i64),
    Count(u64),
}

type KeyLabel = dyn Fn(&Key) -> Option<String> + Send + Sync;

/// Which label a key has, if any.
#[derive(Clone, Default)]
pub(super) struct Labels(Option<Arc<KeyLabel>>);

impl Labels {
    pub(super) fn of_keys(label: impl Fn(&Key) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(label)))
    }

    fn of(&self, store: &'static str, key: Option<&Key>) -> Vec<Label> {
        let mut labels: Vec<Label> = vec![("leasehold.store", store.into())];
        if let Some(key) = key {
            labels.push(("leasehold.namespace", key.namespace().to_owned().into()));
            let label = self.0.as_ref().and_then(|label| label(key));
            labels.extend(label.map(|label| ("leasehold.key", label.into())));
        }
        labels
    }

    /// What `event` measures.
    pub(super) fn measure(&self, event: &Event, meter: &impl Meter) {
        let count = |instrument, labels| meter.measure(instrument, Value::Count(1), labels);
        let change = |instrument, by, labels| meter.measure(instrument, Value::Change(by), labels);
        let seconds = |instrument, duration: Duration, labels| {
            meter.measure(instrument, Value::Seconds(duration.as_secs_f64()), labels);
        };
        let acquire = |store, key: &Key, waited, how: &'static str, failed: Option<ErrorKind>| {
            let mut labels = with(self.of(store, Some(key)), "leasehold.outcome", how);
            labels.extend(failed.map(|kind| ("error.type", kind.as_str().into())));
            seconds(Instrument::Acquire, waited, labels);
        };
        match event {
            Event::Waiting(it) => {
                change(Instrument::Waiters, 1, self.of(it.store, Some(&it.key)));
                count(Instrument::Contentions, self.of(it.store, Some(&it.key)));
            }
            Event::WaitEnded(it) => change(Instrument::Waiters, -1, self.of(it.store, Some(&it.key))),
            Event::Polled(it) => count(Instrument::Polls, self.of(it.store, Some(&it.key))),
            Event::Acquired(it) => {
                change(Instrument::Held, 1, self.of(it.store, Some(&it.key)));
                acquire(it.store, &it.key, it.waited, outcome::GRANTED, None);
            }
            Event::Resumed(it) => {
                change(Instrument::Held, 1, self.of(it.store, Some(&it.key)));
                acquire(it.store, &it.key, it.waited, outcome::RESUMED, None);
            }
            Event::Contended(it) => {
                count(Instrument::Contentions, self.of(it.store, Some(&it.key)));
                acquire(it.store, &it.key, it.waited, outcome::CONTENDED, None);
            }
            Event::TimedOut(it) => acquire(it.store, &it.key, it.waited, outcome::TIMED_OUT, None),
            Event::Cancelled(it) => acquire(it.store, &it.key, it.waited, outcome::CANCELLED, None),
            Event::Failed(it) => {
                if let (Operation::Acquire, Some(key), Some(waited)) = (it.operation, &it.key, it.waited) {
                    acquire(it.store, key, waited, FAILED, Some(it.kind));
                }
            }
            Event::Renewed(it) => {
                seconds(Instrument::RenewalSlack, it.slack, self.of(it.store, Some(&it.key)));
                let labels = with(self.of(it.store, Some(&it.key)), "leasehold.outcome", outcome::OK);
                count(Instrument::Renewals, labels);
            }
            Event::RenewalFailed(it) => {
                let labels = with(self.of(it.store, Some(&it.key)), "leasehold.outcome", FAILED);
                count(Instrument::Renewals, with(labels, "error.type", it.kind.as_str()));
            }
            Event::Ended(it) => {
                change(Instrument::Held, -1, self.of(it.store, Some(&it.key)));
                let labels = with(self.of(it.store, Some(&it.key)), "leasehold.reason", it.reason.as_str());
                seconds(Instrument::Hold, it.held, labels);
            }
            Event::Lost(it) => {
                let labels = self.of(it.store, Some(&it.key));
                count(Instrument::Lost, with(labels, "leasehold.reason", it.reason.as_str()));
            }
            Event::Released(it) => {
                if let Some(kind) = it.failed {
                    let labels = self.of(it.store, Some(&it.key));
                    count(Instrument::ReleaseFailures, with(labels, "error.type", kind.as_str()));
                }
            }
            Event::Dropped(it) => count(Instrument::Dropped, self.of(it.store, Some(&it.key))),
            Event::StoreCall(it) => {
                let how = if it.failed.is_some() { FAILED } else { outcome::OK };
                let labels = with(self.of(it.store, None), "leasehold.operation", it.operation.as_str());
                let mut labels = with(labels, "leasehold.outcome", how);
                labels.extend(it.failed.map(|kind| ("error.type", kind.as_str().into())));
                seconds(Instrument::StoreOperation, it.duration, labels);
            }
            Event::Missed(it) => {
                meter.measure(Instrument::Missed, Value::Count(it.events), self.of(it.store, None));
            }
            Event::Skipped(it) => {
                count(Instrument::Skipped, with(self.of(it.store, None), "leasehold.reason", it.reason));
            }
            Event::TickLost(it) => count(Instrument::TicksLost, self.of(it.store, None)),
            Event::Acquiring(_) => {}
        }
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Labels(by key)" } else { "Labels" })
    }
}

fn with(mut labels: Vec<Label>, name: &'static str, value: &'static str) -> Vec<Label> {
    labels.push((name, value.into()));
    labels
}

#[cfg(test)]
mod tests;
