//! What each event measures, and that the table of the manual says so.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::*;
use crate::error::{Error, LostReason};
use crate::observe::{
    Acquired, Acquiring, Cancelled, Contended, Dropped, Ended, Failed, Lost, Missed, Polled, Released, RenewalFailed,
    Renewed, Resumed, Skipped, StoreCall, TickLost, TimedOut, WaitEnded, Waiting,
};
use crate::options::Wait;

const MANUAL: &str = include_str!("../../../../../docs/telemetry.md");

const STORE: &str = "memory";

/// What is not the will of a lease's holder.
const LOSSES: [LostReason; 5] =
    [LostReason::Expired, LostReason::NotHeld, LostReason::ConnectionLost, LostReason::MaxHold, LostReason::Closed];

const LENGTH: Duration = Duration::from_millis(1500);

/// What was measured, without the store.
#[derive(Default)]
struct Notes(RefCell<Vec<Note>>);

struct Note {
    instrument: Instrument,
    value: Value,
    labels: Vec<Label>,
}

impl Meter for Notes {
    fn measure(&self, instrument: Instrument, value: Value, mut labels: Vec<Label>) {
        assert_eq!(labels.remove(0), ("leasehold.store", STORE.into()));
        self.0.borrow_mut().push(Note { instrument, value, labels });
    }
}

fn key() -> Key {
    Key::new("app", "import:1").unwrap()
}

fn measured(labels: &Labels, event: &Event) -> Vec<Note> {
    let notes = Notes::default();
    labels.measure(event, &notes);
    notes.0.into_inner()
}

/// On one line each, with the namespace where there is one.
fn lines(event: impl Into<Event>) -> Vec<String> {
    let told = measured(&Labels::default(), &event.into());
    let line = |note: &Note| {
        let amount = match note.value {
            Value::Seconds(seconds) => format!("{seconds} s"),
            Value::Change(by) => format!("{by:+}"),
            Value::Count(by) => by.to_string(),
        };
        let labels: Vec<_> = note.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("{} {amount} {}", INSTRUMENTS[note.instrument as usize].name, labels.join(" ")).trim_end().to_owned()
    };
    told.iter().map(line).collect()
}

macro_rules! told {
    ($name:ident { $($field:ident $(: $value:expr)?),* }) => {
        Event::$name($name { store: STORE, $($field $(: $value)?),* })
    };
}

fn failed_call(operation: Operation, waited: Option<Duration>) -> Event {
    told!(Failed { operation, key: Some(key()), kind: ErrorKind::Unavailable, waited })
}

fn store_call(failed: Option<ErrorKind>) -> Event {
    told!(StoreCall { operation: Operation::ForceRelease, duration: LENGTH, failed })
}

fn skipped(reason: &'static str) -> Event {
    told!(Skipped { task: "report".to_owned(), reason })
}

fn renewal_failed() -> Event {
    let (kind, error) = (ErrorKind::Unavailable, Error::new(ErrorKind::Unavailable, "it is out"));
    told!(RenewalFailed { key: key(), kind, error, remaining: LENGTH })
}

fn tick_lost() -> Event {
    told!(TickLost { task: "report".to_owned(), tick: "2026-01-01T00:00:00Z".to_owned() })
}

/// Each with all that it can say for a label.
fn every_event() -> Vec<Event> {
    let (waited, attempts, fencing, held) = (LENGTH, 1, None, LENGTH);
    let mut events = vec![
        told!(Acquiring { key: key(), wait: Wait::No }),
        told!(Waiting { key: key() }),
        told!(Polled { key: key() }),
        told!(WaitEnded { key: key(), waited }),
        told!(Acquired { key: key(), waited, attempts, fencing }),
        told!(Contended { key: key(), waited, attempts }),
        told!(TimedOut { key: key(), waited, attempts }),
        told!(Cancelled { key: key(), waited, attempts }),
        told!(Resumed { key: key(), waited, fencing }),
        failed_call(Operation::Acquire, Some(waited)),
        told!(Renewed { key: key(), slack: LENGTH }),
        renewal_failed(),
        told!(Released { key: key(), held, failed: Some(ErrorKind::NotHeld) }),
        told!(Dropped { key: key(), release_sent: true }),
        store_call(None),
        store_call(Some(ErrorKind::Unavailable)),
        told!(Missed { events: 3 }),
        tick_lost(),
    ];
    events.extend(["condition", "still_running", "other_server", "too_late", "given_up"].map(skipped));
    events.extend(LostReason::ALL.map(|reason| told!(Ended { key: key(), reason, held })));
    events.extend(LOSSES.map(|reason| told!(Lost { key: key(), reason, held })));
    events
}

#[test]
fn each_skip_and_each_lost_tick_is_counted() {
    assert_eq!(lines(skipped("still_running")), ["leasehold.skipped 1 leasehold.reason=still_running"]);
    assert_eq!(lines(tick_lost()), ["leasehold.ticks.lost 1"]);
}

#[test]
fn failures_are_measured_with_their_kind() {
    let of_app = "leasehold.namespace=app";
    assert_eq!(
        lines(renewal_failed()),
        [format!("leasehold.renewals 1 {of_app} leasehold.outcome=failed error.type=unavailable")]
    );
    let operation = "leasehold.store.operation.duration 1.5 s leasehold.operation=force release";
    assert_eq!(lines(store_call(None)), [format!("{operation} leasehold.outcome=ok")]);
    assert_eq!(
        lines(store_call(Some(ErrorKind::Unavailable))),
        [format!("{operation} leasehold.outcome=failed error.type=unavailable")]
    );
    assert_eq!(
        lines(failed_call(Operation::Acquire, Some(LENGTH))),
        [format!("leasehold.acquire.duration 1.5 s {of_app} leasehold.outcome=failed error.type=unavailable")]
    );
    assert_eq!(lines(failed_call(Operation::Extend, None)), [""; 0]);
    let (key, held) = (key(), LENGTH);
    assert_eq!(
        lines(told!(Released { key: key.clone(), held, failed: Some(ErrorKind::NotHeld) })),
        [format!("leasehold.release.failures 1 {of_app} error.type=not held")]
    );
    assert_eq!(lines(told!(Released { key, held, failed: None })), [""; 0]);
}

#[test]
fn what_was_missed_is_counted_by_events() {
    assert_eq!(lines(told!(Missed { events: 3 })), ["leasehold.missed 3"]);
}

/// A row of the manual's table: the instrument, its kind, its unit and its labels.
fn rows() -> Vec<[&'static str; 4]> {
    let section = MANUAL.split("\n## Metrics\n").nth(1).unwrap();
    let row = |line: &'static str| {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        cells.try_into().unwrap()
    };
    section.lines().take_while(|line| !line.starts_with('#')).filter(|line| line.starts_with("| `")).map(row).collect()
}

#[test]
fn the_manual_has_every_instrument() {
    let row = |it: &Description| {
        let kind = match it.kind {
            Kind::Seconds => "histogram",
            Kind::UpDown => "up and down",
            Kind::Counter => "counter",
        };
        [format!("`{}`", it.name), kind.to_owned(), it.unit.to_owned()]
    };
    let described: Vec<_> =
        rows().into_iter().map(|[name, kind, unit, _]| [name, kind, unit].map(str::to_owned)).collect();
    assert_eq!(described, INSTRUMENTS.iter().map(row).collect::<Vec<_>>());
}

#[test]
fn the_manual_has_every_label_and_no_other() {
    let notes: Vec<_> = every_event().iter().flat_map(|event| measured(&Labels::default(), event)).collect();
    for (index, [name, kind, _, labels]) in rows().into_iter().enumerate() {
        let notes: Vec<_> = notes.iter().filter(|note| note.instrument as usize == index).collect();
        assert!(!notes.is_empty(), "{name} is not measured");
        for note in &notes {
            let measures = match note.value {
                Value::Seconds(_) => "histogram",
                Value::Change(_) => "up and down",
                Value::Count(_) => "counter",
            };
            assert_eq!(kind, measures, "{name}");
            let has_namespace = note.labels.iter().any(|(label, _)| *label == "leasehold.namespace");
            assert_eq!(has_namespace, !labels.contains("no namespace"), "{name}");
        }
        let told = notes.iter().flat_map(|note| &note.labels).filter(|(label, _)| *label != "leasehold.namespace");
        let mut told: BTreeSet<&str> = told.flat_map(|(label, value)| [*label, &**value]).collect();
        let mut described: BTreeSet<&str> = labels.split('`').skip(1).step_by(2).collect();
        if labels.contains("or that of a loss") {
            described.extend(LostReason::ALL.map(LostReason::as_str));
        }
        // Kinds of errors and operations are not listed there.
        for free in ["unavailable", "force release"] {
            told.remove(free);
        }
        assert_eq!(told, described, "{name}");
    }
}

#[test]
fn keys_are_labels_where_they_are_mapped() {
    let labels = Labels::of_keys(|key| key.name().split_once(':').map(|(group, _)| group.to_owned()));
    for note in every_event().iter().flat_map(|event| measured(&labels, event)) {
        let find = |name: &str| note.labels.iter().find(|(label, _)| *label == name).map(|(_, value)| &**value);
        assert_eq!(find("leasehold.key"), find("leasehold.namespace").map(|_| "import"), "{:?}", note.instrument);
    }
}
