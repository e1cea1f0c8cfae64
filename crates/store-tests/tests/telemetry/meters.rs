//! What was measured, by the facade `metrics` and by OpenTelemetry, in one form: the instrument with its labels, and how
//! much of it; of histograms, how often.

use std::collections::BTreeMap;
use std::sync::{Arc, Once};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use opentelemetry_sdk::metrics::InMemoryMetricExporter;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
use parking_lot::Mutex;

type Labels = Vec<(String, String)>;

static MEASURED: Mutex<BTreeMap<(String, Labels), i64>> = Mutex::new(BTreeMap::new());

/// Has everything that goes through the facade noted.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| metrics::set_global_recorder(Notes).unwrap());
}

/// What was measured in this namespace, and of requests to this store.
pub(crate) fn of(namespace: &str, store: &str) -> BTreeMap<String, i64> {
    let is_ours = |labels: &Labels| {
        let find = |name: &str| labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str());
        find("leasehold.store") == Some(store) && find("leasehold.namespace").is_none_or(|label| label == namespace)
    };
    let measured = MEASURED.lock();
    measured
        .iter()
        .filter(|((_, labels), _)| is_ours(labels))
        .map(|((name, labels), it)| (line(name, labels), *it))
        .collect()
}

/// Everything, as it was noted.
pub(crate) fn all() -> String {
    format!("{:?}", MEASURED.lock())
}

/// What OpenTelemetry would send away.
pub(crate) fn exported(exporter: &InMemoryMetricExporter) -> BTreeMap<String, i64> {
    let finished = exporter.get_finished_metrics().unwrap();
    let mut lines = BTreeMap::new();
    let mut note = |name: &str, attributes: &mut dyn Iterator<Item = &opentelemetry::KeyValue>, amount| {
        let labels = attributes.map(|it| (it.key.to_string(), it.value.to_string())).collect();
        lines.insert(line(name, &labels), amount);
    };
    // The latest has the sums.
    let latest = finished.last().unwrap();
    for metric in latest.scope_metrics().flat_map(|scope| scope.metrics()) {
        match metric.data() {
            AggregatedMetrics::F64(MetricData::Histogram(it)) => {
                assert_eq!(metric.unit(), "s");
                let count = |count: u64| i64::try_from(count).unwrap();
                it.data_points().for_each(|it| note(metric.name(), &mut it.attributes(), count(it.count())));
            }
            AggregatedMetrics::U64(MetricData::Sum(it)) => {
                let count = |count: u64| i64::try_from(count).unwrap();
                it.data_points().for_each(|it| note(metric.name(), &mut it.attributes(), count(it.value())));
            }
            AggregatedMetrics::I64(MetricData::Sum(it)) => {
                it.data_points().for_each(|it| note(metric.name(), &mut it.attributes(), it.value()));
            }
            other => panic!("no such instrument: {other:?}"),
        }
    }
    lines
}

/// Without what tells stores apart.
fn line(name: &str, labels: &Labels) -> String {
    let mut labels: Vec<_> = labels
        .iter()
        .filter(|(name, _)| !matches!(name.as_str(), "leasehold.store" | "leasehold.namespace"))
        .map(|(name, value)| format!("{}={value}", name.rsplit('.').next().unwrap()))
        .collect();
    labels.sort();
    format!("{name}{{{}}}", labels.join(","))
}

struct Notes;

#[derive(Debug)]
struct Note(String, Labels);

impl Note {
    fn of(key: &Key) -> Arc<Self> {
        let labels = key.labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
        Arc::new(Self(key.name().to_owned(), labels))
    }

    fn add(&self, by: i64) {
        *MEASURED.lock().entry((self.0.clone(), self.1.clone())).or_default() += by;
    }
}

impl CounterFn for Note {
    fn increment(&self, by: u64) {
        self.add(i64::try_from(by).unwrap());
    }

    fn absolute(&self, _: u64) {}
}

impl GaugeFn for Note {
    #[expect(clippy::cast_possible_truncation, reason = "it is 1 or -1")]
    fn increment(&self, by: f64) {
        self.add(by as i64);
    }

    fn decrement(&self, _: f64) {}

    fn set(&self, _: f64) {}
}

impl HistogramFn for Note {
    fn record(&self, seconds: f64) {
        assert!((0.0..100.0).contains(&seconds), "{} in seconds: {seconds}", self.0);
        self.add(1);
    }
}

impl Recorder for Notes {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, unit: Option<Unit>, _: SharedString) {
        assert_eq!(unit, Some(Unit::Seconds));
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Note::of(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Note::of(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Note::of(key))
    }
}
