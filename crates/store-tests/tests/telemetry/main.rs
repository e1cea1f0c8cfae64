//! Telemetry is the engine's: the same scenario tells the same events and measures the same on every store. And nothing
//! of it shows a secret, and neither does anything that the drivers log.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fmt::Write as _;
use std::future::Future;
use std::time::Duration;

use leasehold::observe::metrics::Metrics;
use leasehold::observe::otel::OtelMetrics;
use leasehold::store::SharedStore;
use leasehold::store::memory::MemoryStore;
use leasehold::store::postgres::{PostgresAdvisoryStore, PostgresStore, PostgresTransactionStore};
use leasehold::store::redis::RedisStore;
use leasehold::store::sqlite::SqliteStore;
use leasehold::{Close, ErrorKind, Key, LockManager, LostReason, Renew};
use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider};
use scenario::Secrets;
use store_tests::{Table, redis, run};

mod logs;
mod meters;
mod scenario;
mod story;
mod transactions;

const PASSWORD: &str = "swordfish";

/// How the URLs of the stores begin, with a password or without.
const URLS: [&str; 2] = ["redis://", "postgres://"];

#[test]
fn memory_tells_the_story() {
    run(async {
        let store = MemoryStore::new();
        tells_the_story("memory", async || SharedStore::from(store.clone()), None).await;
    });
}

#[test]
fn sqlite_tells_the_story() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("leases.db");
        tells_the_story("sqlite", async || SqliteStore::open(&file).await.unwrap().into(), None).await;
    });
}

/// Labels go by the part of a key in front of a colon; a key without one has none.
#[test]
fn keys_are_labels_where_they_are_mapped() {
    run(async {
        logs::capture();
        meters::install();
        let label = |key: &Key| key.name().split_once(':').map(|(group, _)| group.to_owned());
        let exporter = InMemoryMetricExporter::default();
        let provider = SdkMeterProvider::builder().with_periodic_exporter(exporter.clone()).build();
        let locks = LockManager::builder(MemoryStore::new())
            .namespace("labelled")
            .observer(Metrics::new().label_keys(label))
            .observer(OtelMetrics::new(&provider.meter("leasehold")).label_keys(label))
            .build()
            .unwrap();
        for name in ["import:1", "import:2", "export:1", "plain"] {
            locks.lock(name).acquire().await.unwrap().release().await.unwrap();
        }
        for name in ["import:3", "plain"] {
            let brief = locks.lock(name).ttl(Duration::from_secs(1)).renew(Renew::Off).acquire().await.unwrap();
            assert_eq!(brief.lost().await, LostReason::Expired);
        }
        locks.close(Close::Release).await.unwrap();
        // The end of a lease may be told by the renewal task, on a thread of its own.
        scenario::at_rest(&locks).await;
        provider.force_flush().unwrap();
        for measured in [meters::of("labelled", "memory"), meters::exported(&exporter)] {
            let of = |instrument: &str| -> Vec<_> {
                measured
                    .iter()
                    .filter(|(what, _)| what.starts_with(instrument))
                    .map(|(what, it)| (&**what, *it))
                    .collect()
            };
            assert_eq!(
                of("leasehold.acquire"),
                [
                    ("leasehold.acquire.duration{key=export,outcome=granted}", 1),
                    ("leasehold.acquire.duration{key=import,outcome=granted}", 3),
                    ("leasehold.acquire.duration{outcome=granted}", 2),
                ]
            );
            let held = ["leasehold.held{key=export}", "leasehold.held{key=import}", "leasehold.held{}"];
            assert_eq!(of("leasehold.held"), held.map(|held| (held, 0)));
            let lost = ["leasehold.lost{key=import,reason=expired}", "leasehold.lost{reason=expired}"];
            assert_eq!(of("leasehold.lost"), lost.map(|lost| (lost, 1)));
        }
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn redis_tells_the_story() {
    run(async {
        let server = redis().args(["--requirepass", PASSWORD]).start().unwrap();
        let url = format!("redis://:{PASSWORD}@{}", server.address());
        let refused = format!("redis://:not-{PASSWORD}@{}", server.address());
        tells_the_story("redis", async || RedisStore::connect(&url).await.unwrap().into(), Some(&refused)).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn postgres_tells_the_story() {
    run(async {
        let table = Table::new();
        let url = with_password(&table);
        let store = async || PostgresStore::connect(&url).await.unwrap().into();
        tells_the_story("postgres", store, Some(&nowhere("table"))).await;
        // What the driver tells of statements that have a name bears their parameters.
        assert!(logs::all().contains("executing statement"), "the driver's own lines are looked at");
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn postgres_advisory_tells_the_story() {
    run(async {
        let table = Table::new();
        let url = with_password(&table);
        let store = async || PostgresAdvisoryStore::connect(&url).await.unwrap().into();
        tells_the_story("advisory", store, Some(&nowhere("advisory"))).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn postgres_transactions_tell_the_story() {
    run(async {
        let table = Table::new();
        let url = with_password(&table);
        let store = async || PostgresTransactionStore::connect(&url).await.unwrap().into();
        tells_the_story("xact", store, Some(&nowhere("xact"))).await;
    });
}

/// The server asks for no password, but one may be given.
fn with_password(table: &Table) -> String {
    let url = table.url().replace("postgres@", &format!("postgres:{PASSWORD}@"));
    assert!(url.contains(PASSWORD));
    url
}

/// Where nobody listens.
fn nowhere(mode: &str) -> String {
    format!("postgres://postgres:{PASSWORD}@127.0.0.1:1/postgres?mode={mode}")
}

/// `refused` is where connecting fails.
async fn tells_the_story<F: Future<Output = SharedStore>>(name: &str, store: impl Fn() -> F, refused: Option<&str>) {
    logs::capture();
    meters::install();
    let story = story::Story::default();
    let exporter = InMemoryMetricExporter::default();
    let provider = SdkMeterProvider::builder().with_periodic_exporter(exporter.clone()).build();
    let others = LockManager::builder(store().await).namespace(name).build().unwrap();
    let locks = LockManager::builder(store().await)
        .namespace(name)
        .observer(story.clone())
        .observer(Metrics::new())
        .observer(OtelMetrics::new(&provider.meter("leasehold")))
        .build()
        .unwrap();
    let store_name = locks.store_name();
    let passes = locks.capabilities().hand_over;
    assert_eq!(passes, !matches!(name, "advisory" | "xact"));
    let refusal = match refused {
        Some(url) => refusal(url).await,
        None => String::new(),
    };
    let secrets = scenario::play(&locks, &others, &story, passes).await;
    assert_eq!(locks.ping().await.unwrap_err().kind(), ErrorKind::Closed);

    let told = story.told();
    assert_eq!(told, scenario::told(passes), "on {name}: {told:#?}");
    provider.force_flush().unwrap();
    // The facade is shared by the tests of this process.
    assert_same(name, &meters::of(name, store_name), passes);
    assert_same(name, &meters::exported(&exporter), passes);
    show_nothing(
        &secrets,
        &[story.debug(), logs::all(), meters::all(), format!("{:?}", exporter.get_finished_metrics()), refusal],
    );
}

/// All that the error says of a connection that was refused.
async fn refusal(url: &str) -> String {
    let error = LockManager::connect(url).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Rejected | ErrorKind::Unavailable), "{error}");
    let mut shown = format!("{error}\n{error:?}\n{error:#?}\n");
    let mut source = error.source();
    while let Some(cause) = source {
        writeln!(shown, "{cause}\n{cause:?}\n{cause:#?}").unwrap();
        source = cause.source();
    }
    shown
}

/// What may differ between stores is how often those ask who wait; and how often a lease was renewed is a matter of time.
fn assert_same(name: &str, measured: &BTreeMap<String, i64>, passes: bool) {
    let is_free = |what: &str| what.starts_with("leasehold.polls") || what.starts_with("leasehold.store.operation");
    let may_vary = |what: &str| what.starts_with("leasehold.renewal");
    let fixed: Vec<_> = measured.iter().filter(|(what, _)| !is_free(what) && !may_vary(what)).collect();
    let fixed: Vec<_> = fixed.into_iter().map(|(what, count)| format!("{what} {count}")).collect();
    assert_eq!(fixed, scenario::measured(passes), "on {name}: {fixed:#?}");
    assert!(measured.keys().all(|what| !what.contains("key=")), "keys are no labels");
    for what in [
        "leasehold.polls{}",
        "leasehold.renewal.slack{}",
        "leasehold.renewals{outcome=ok}",
        "leasehold.store.operation.duration{operation=acquire,outcome=ok}",
        "leasehold.store.operation.duration{operation=extend,outcome=ok}",
        "leasehold.store.operation.duration{operation=release,outcome=ok}",
        "leasehold.store.operation.duration{operation=close,outcome=ok}",
    ] {
        assert!(measured.get(what).is_some_and(|count| *count > 0), "on {name}: {what} in {measured:#?}");
    }
}

fn show_nothing(secrets: &Secrets, shown: &[String]) {
    for shown in shown {
        for secret in secrets.tokens().iter().map(String::as_str).chain([PASSWORD]).chain(URLS) {
            assert!(!shown.contains(secret), "{secret} is shown");
        }
    }
    // So that this looks at what it should.
    let logs = &shown[1];
    for fingerprint in secrets.fingerprints() {
        assert!(logs.contains(&fingerprint), "the spans name owners by their fingerprints");
    }
    for span in ["lock.acquire", "lock.with", "lock.renew", "lock.release", "lock.extend", "lock.resume"] {
        assert!(logs.contains(span), "{span} in the spans");
    }
}
