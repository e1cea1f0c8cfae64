//! Measures through the facade `metrics`: with whatever recorder the program has installed.

use metrics::{Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use super::measure::{self, INSTRUMENTS, Instrument, Kind, Labels, Meter, Value};
use super::{Event, Observer};
use crate::types::Key;

/// Measures every event; the instruments stand in `docs/telemetry.md`.
///
/// Build it after the recorder was installed, so that this one learns of the units. Keys are no labels, since there may
/// be any number of them, unless [`label_keys`](Self::label_keys) says how.
///
/// ```
/// # use leasehold::{LockManager, observe::metrics::Metrics, store::memory::MemoryStore};
/// let locks = LockManager::builder(MemoryStore::new())
///     .observer(Metrics::new().label_keys(|key| key.name().split(':').next().map(str::to_owned)))
///     .build()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    labels: Labels,
}

impl Metrics {
    /// Describes the instruments to the recorder.
    pub fn new() -> Self {
        for it in &INSTRUMENTS {
            match it.kind {
                Kind::Seconds => describe_histogram!(it.name, Unit::Seconds, it.text),
                Kind::UpDown => describe_gauge!(it.name, Unit::Count, it.text),
                Kind::Counter => describe_counter!(it.name, Unit::Count, it.text),
            }
        }
        Self::default()
    }

    /// Has `label` name the group of a key, as the label `leasehold.key`; it must have few values.
    #[must_use]
    pub fn label_keys(mut self, label: impl Fn(&Key) -> Option<String> + Send + Sync + 'static) -> Self {
        self.labels = Labels::of_keys(label);
        self
    }
}

impl Observer for Metrics {
    fn observe(&self, event: &Event) {
        self.labels.measure(event, &Facade);
    }
}

struct Facade;

impl Meter for Facade {
    fn measure(&self, instrument: Instrument, value: Value, labels: Vec<measure::Label>) {
        let name = INSTRUMENTS[instrument as usize].name;
        let labels: Vec<_> = labels.into_iter().map(|(name, value)| Label::new(name, value)).collect();
        match value {
            Value::Seconds(seconds) => histogram!(name, labels).record(seconds),
            #[expect(clippy::cast_precision_loss, reason = "it is 1 or -1")]
            Value::Change(by) => gauge!(name, labels).increment(by as f64),
            Value::Count(by) => counter!(name, labels).increment(by),
        }
    }
}
