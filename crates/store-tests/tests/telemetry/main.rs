//! Telemetry is the engine's: the same scenario tells the same events and measures the same on every store. And nothing
//! of it shows a secret, and neither does anything that the drivers log.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::collections::BTreeMap;
use std::future::Future;

use leasehold::observe::metrics::Metrics;
use leasehold::observe::otel::OtelMetrics;
use leasehold::store::SharedStore;
use leasehold::store::memory::MemoryStore;
use leasehold::store::postgres::{PostgresAdvisoryStore, PostgresStore, PostgresTransactionStore};
use leasehold::store::redis::RedisStore;
use leasehold::store::sqlite::SqliteStore;
use leasehold::{ErrorKind, LockManager};
use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider};
use scenario::Secrets;
use store_tests::{Table, redis, run};

mod logs;
mod meters;
mod scenario;
mod story;

const PASSWORD: &str = "swordfish";

#[test]
fn memory_tells_the_story() {
    run(async {
        let store = MemoryStore::new();
        tells_the_story("memory", async || SharedStore::from(store.clone())).await;
    });
}

#[test]
fn sqlite_tells_the_story() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("leases.db");
        tells_the_story("sqlite", async || SqliteStore::open(&file).await.unwrap().into()).await;
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn redis_tells_the_story() {
    run(async {
        let server = redis().args(["--requirepass", PASSWORD]).start().unwrap();
        let url = format!("redis://:{PASSWORD}@{}", server.address());
        tells_the_story("redis", async || RedisStore::connect(&url).await.unwrap().into()).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn postgres_tells_the_story() {
    run(async {
        let table = Table::new();
        let url = with_password(&table);
        tells_the_story("postgres", async || PostgresStore::connect(&url).await.unwrap().into()).await;
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
        tells_the_story("advisory", async || PostgresAdvisoryStore::connect(&url).await.unwrap().into()).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn postgres_transactions_tell_the_story() {
    run(async {
        let table = Table::new();
        let url = with_password(&table);
        tells_the_story("xact", async || PostgresTransactionStore::connect(&url).await.unwrap().into()).await;
    });
}

/// The server asks for no password, but one may be given.
fn with_password(table: &Table) -> String {
    let url = table.url().replace("postgres@", &format!("postgres:{PASSWORD}@"));
    assert!(url.contains(PASSWORD));
    url
}

async fn tells_the_story<F: Future<Output = SharedStore>>(name: &str, store: impl Fn() -> F) {
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
    let secrets = scenario::play(&locks, &others, &story).await;
    assert_eq!(locks.ping().await.unwrap_err().kind(), ErrorKind::Closed);

    // The call and the lease notice that the time is over independently of each other.
    let over = ["failed lost", "ended longest holding time reached, lost longest holding time reached"];
    let (one, other) = (over.join(", "), format!("{}, {}", over[1], over[0]));
    let told: Vec<_> = story.told().iter().map(|line| line.replace(&one, &other)).collect();
    assert_eq!(told, scenario::TOLD, "on {name}: {told:#?}");
    provider.force_flush().unwrap();
    // The facade is shared by the tests of this process.
    assert_same(name, &meters::of(name, store_name));
    assert_same(name, &meters::exported(&exporter));
    show_nothing(
        &secrets,
        &[story.debug(), logs::all(), meters::all(), format!("{:?}", exporter.get_finished_metrics())],
    );
}

/// What may differ between stores is how often those ask who wait; and how often a lease was renewed is a matter of time.
fn assert_same(name: &str, measured: &BTreeMap<String, i64>) {
    let is_free = |what: &str| what.starts_with("leasehold.polls") || what.starts_with("leasehold.store.operation");
    let may_vary = |what: &str| what.starts_with("leasehold.renewal");
    let fixed: Vec<_> = measured.iter().filter(|(what, _)| !is_free(what) && !may_vary(what)).collect();
    let fixed: Vec<_> = fixed.into_iter().map(|(what, count)| format!("{what} {count}")).collect();
    assert_eq!(fixed, scenario::MEASURED, "on {name}: {fixed:#?}");
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
        for secret in secrets.tokens.iter().map(String::as_str).chain([PASSWORD]) {
            assert!(!shown.contains(secret), "{secret} is shown");
        }
    }
    // So that this looks at what it should.
    let logs = &shown[1];
    for fingerprint in &secrets.fingerprints {
        assert!(logs.contains(fingerprint), "the spans name owners by their fingerprints");
    }
    for span in ["lock.acquire", "lock.with", "lock.renew", "lock.release", "lock.extend"] {
        assert!(logs.contains(span), "{span} in the spans");
    }
}
