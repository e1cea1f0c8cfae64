//! Measures with a meter of OpenTelemetry, and carries trace contexts through environments of processes.
//!
//! Spans come from `tracing`; a layer such as `tracing-opentelemetry` makes spans of OpenTelemetry of them.

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, UpDownCounter};

use super::measure::{BOUNDS, INSTRUMENTS, Instrument, Kind, Label, Labels, Meter, Value};
use super::{Event, Observer};
use crate::types::Key;

mod environment;

pub use self::environment::{TRACEPARENT, TRACESTATE, from_environment, into_environment};

/// Measures every event; the instruments stand in `docs/telemetry.md`.
///
/// Keys are no attributes, since there may be any number of them, unless [`label_keys`](Self::label_keys) says how.
///
/// ```
/// # use leasehold::{LockManager, observe::otel::OtelMetrics, store::memory::MemoryStore};
/// let meter = opentelemetry::global::meter("leasehold");
/// let locks = LockManager::builder(MemoryStore::new()).observer(OtelMetrics::new(&meter)).build()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct OtelMetrics {
    instruments: Vec<Made>,
    labels: Labels,
}

#[derive(Clone, Debug)]
enum Made {
    Seconds(Histogram<f64>),
    UpDown(UpDownCounter<i64>),
    Counter(Counter<u64>),
}

impl OtelMetrics {
    /// Makes the instruments.
    pub fn new(meter: &opentelemetry::metrics::Meter) -> Self {
        let make = |it: &super::measure::Description| match it.kind {
            Kind::Seconds => {
                let made = meter.f64_histogram(it.name).with_unit(it.unit).with_description(it.text);
                Made::Seconds(made.with_boundaries(BOUNDS.to_vec()).build())
            }
            Kind::UpDown => {
                Made::UpDown(meter.i64_up_down_counter(it.name).with_unit(it.unit).with_description(it.text).build())
            }
            Kind::Counter => {
                Made::Counter(meter.u64_counter(it.name).with_unit(it.unit).with_description(it.text).build())
            }
        };
        Self { instruments: INSTRUMENTS.iter().map(make).collect(), labels: Labels::default() }
    }

    /// Has `label` name the group of a key, as the attribute `leasehold.key`; it must have few values.
    #[must_use]
    pub fn label_keys(mut self, label: impl Fn(&Key) -> Option<String> + Send + Sync + 'static) -> Self {
        self.labels = Labels::of_keys(label);
        self
    }
}

impl Observer for OtelMetrics {
    fn observe(&self, event: &Event) {
        self.labels.measure(event, self);
    }
}

impl Meter for OtelMetrics {
    fn measure(&self, instrument: Instrument, value: Value, labels: Vec<Label>) {
        let labels: Vec<_> = labels.into_iter().map(|(name, value)| KeyValue::new(name, value)).collect();
        match (self.instruments.get(instrument as usize), value) {
            (Some(Made::Seconds(made)), Value::Seconds(seconds)) => made.record(seconds, &labels),
            (Some(Made::UpDown(made)), Value::Change(by)) => made.add(by, &labels),
            (Some(Made::Counter(made)), Value::Count(by)) => made.add(by, &labels),
            // Each instrument is measured by its own kind of value only.
            _ => {}
        }
    }
}
