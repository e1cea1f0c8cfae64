//! Work under a lock in a transaction of the caller's own tells what scoped work tells everywhere, contention included.

use std::sync::Arc;
use std::time::Duration;

use leasehold::observe::metrics::Metrics;
use leasehold::observe::otel::OtelMetrics;
use leasehold::store::memory::MemoryStore;
use leasehold::store::postgres::{PostgresAdvisoryStore, TransactionLocks};
use leasehold::{Error, Key, LockManager, Wait};
use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider};
use store_tests::{Table, run};
use tokio_postgres::Transaction;

use crate::scenario::{self, SOON, Secrets, at_rest, held, soon};
use crate::story::Story;
use crate::{PASSWORD, URLS, logs, meters, with_password};

const NAMESPACE: &str = "transactions";

/// Those parts of the story that scoped work can play.
const PLAYED: [&str; 8] =
    ["scoped", "scoped-try", "scoped-taken", "overlong", "awaited", "given-up", "scoped-panic", "scoped-dropped"];

const MEASURED: &[&str] = &[
    "leasehold.acquire.duration{outcome=cancelled} 1",
    "leasehold.acquire.duration{outcome=contended} 1",
    "leasehold.acquire.duration{outcome=granted} 8",
    "leasehold.acquire.duration{outcome=timed out} 2",
    "leasehold.contentions{} 6",
    "leasehold.dropped{} 1",
    "leasehold.held{} 0",
    "leasehold.hold.duration{reason=connection lost} 1",
    "leasehold.hold.duration{reason=handed over} 2",
    "leasehold.hold.duration{reason=released} 5",
    "leasehold.lost{reason=connection lost} 1",
    "leasehold.release.failures{type=unavailable} 1",
    "leasehold.waiters{} 0",
];

#[derive(Clone)]
struct Locks {
    transactions: TransactionLocks,
    table: Arc<Table>,
}

impl Locks {
    async fn with_lock<T>(
        &self,
        name: &str,
        wait: Wait,
        work: impl AsyncFnOnce(&Transaction<'_>) -> T,
    ) -> Result<Option<T>, Error> {
        let mut client = self.table.client().await;
        let work = async |transaction: &Transaction<'_>| Ok(work(transaction).await);
        self.transactions.with_lock(&mut client, &key(name), wait, work).await
    }

    async fn lock(&self, name: &str) -> Result<(), Error> {
        let mut client = self.table.client().await;
        client.batch_execute("SET lock_timeout = '100ms'").await.unwrap();
        let transaction = client.transaction().await.unwrap();
        self.transactions.lock(&transaction, &key(name)).await
    }
}

fn key(name: &str) -> Key {
    Key::new(NAMESPACE, name).unwrap()
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn transactions_of_ones_own_tell_the_same() {
    run(async {
        logs::capture();
        meters::install();
        let (table, story) = (Arc::new(Table::new()), Story::default());
        let url = with_password(&table);
        // Of another store, whose name is not told.
        let exporter = InMemoryMetricExporter::default();
        let provider = SdkMeterProvider::builder().with_periodic_exporter(exporter.clone()).build();
        let manager = LockManager::builder(MemoryStore::new())
            .observer(story.clone())
            .observer(Metrics::new())
            .observer(OtelMetrics::new(&provider.meter("leasehold")))
            .build()
            .unwrap();
        let others = PostgresAdvisoryStore::connect(&url).await.unwrap();
        let others = LockManager::builder(others).namespace(NAMESPACE).build().unwrap();
        let locks = Locks { transactions: TransactionLocks::told_to_observers_of(&manager), table };

        scoped(&locks, &others).await;
        in_the_way(&locks, &others, &story).await;
        cut_short(&locks, &manager).await;
        at_rest(&manager).await;
        let (mut told, mut expected) = (story.told(), Vec::new());
        told.sort();
        let is_played = |line: &&&str| PLAYED.contains(&line.split(':').next().unwrap());
        expected.extend(scenario::told(true).iter().filter(is_played).map(|line| (*line).to_owned()));
        assert_eq!(expected.len(), PLAYED.len());
        expected.extend([
            "by-hand: acquiring, acquired, ended handed over".to_owned(),
            "by-hand-awaited: acquiring, waiting, wait ended, acquired, ended handed over".to_owned(),
            "by-hand-overlong: acquiring, waiting, wait ended, timed out".to_owned(),
            "cut: acquiring, acquired, ended connection lost, lost connection lost, release failed unavailable"
                .to_owned(),
        ]);
        expected.sort();
        assert_eq!(told, expected, "{told:#?}");
        provider.force_flush().unwrap();
        for measured in [meters::of(NAMESPACE, "postgres"), meters::exported(&exporter)] {
            let is_fixed = |what: &str| !what.starts_with("leasehold.store.operation");
            let fixed: Vec<_> = measured.iter().filter(|(what, _)| is_fixed(what)).collect();
            let fixed: Vec<_> = fixed.into_iter().map(|(what, count)| format!("{what} {count}")).collect();
            assert_eq!(fixed, MEASURED, "{fixed:#?}");
        }
        let exported = format!("{:?}", exporter.get_finished_metrics());
        for shown in [story.debug(), logs::all(), meters::all(), exported] {
            for secret in [PASSWORD].into_iter().chain(URLS) {
                assert!(!shown.contains(secret), "{secret} is shown");
            }
        }
    });
}

async fn scoped(locks: &Locks, others: &LockManager) {
    locks.with_lock("scoped", Wait::Forever, async |_| ()).await.unwrap().unwrap();
    locks.with_lock("scoped-try", Wait::No, async |_| ()).await.unwrap().unwrap();
    let taken = held(others, "scoped-taken", &Secrets::default()).await;
    assert!(locks.with_lock("scoped-taken", Wait::No, async |_| ()).await.unwrap().is_none());
    taken.release().await.unwrap();
    locks.lock("by-hand").await.unwrap();
}

async fn in_the_way(locks: &Locks, others: &LockManager, story: &Story) {
    let overlong = held(others, "overlong", &Secrets::default()).await;
    let brief = Wait::UpTo(Duration::from_millis(20));
    assert!(locks.with_lock("overlong", brief, async |_| ()).await.unwrap().is_none());
    let by_hand = held(others, "by-hand-overlong", &Secrets::default()).await;
    locks.lock("by-hand-overlong").await.unwrap_err();

    let awaited = held(others, "awaited", &Secrets::default()).await;
    let waiter = locks.clone();
    let waiter = tokio::spawn(async move { waiter.with_lock("awaited", Wait::UpTo(SOON), async |_| ()).await });
    soon(story.until("awaited: acquiring, waiting")).await;
    awaited.release().await.unwrap();
    soon(waiter).await.unwrap().unwrap().unwrap();

    let given_up = held(others, "given-up", &Secrets::default()).await;
    let waiter = locks.clone();
    let waiter = tokio::spawn(async move { waiter.with_lock("given-up", Wait::Forever, async |_| ()).await });
    soon(story.until("given-up: acquiring, waiting")).await;
    waiter.abort();
    waiter.await.unwrap_err();

    let released = held(others, "by-hand-awaited", &Secrets::default()).await;
    let mut client = locks.table.client().await;
    let transaction = client.transaction().await.unwrap();
    let key = key("by-hand-awaited");
    let (locked, ()) = tokio::join!(locks.transactions.lock(&transaction, &key), async {
        soon(story.until("by-hand-awaited: acquiring, waiting")).await;
        released.release().await.unwrap();
    });
    locked.unwrap();
    for guard in [overlong, by_hand, given_up] {
        guard.release().await.unwrap();
    }
}

async fn cut_short(locks: &Locks, manager: &LockManager) {
    let panicking = locks.clone();
    #[expect(clippy::panic, reason = "that is the test")]
    let work = tokio::spawn(async move {
        panicking.with_lock("scoped-panic", Wait::Forever, async |_| panic!("by design")).await.map(|_: Option<()>| ())
    });
    assert!(work.await.unwrap_err().is_panic());

    let (started, has_started) = tokio::sync::oneshot::channel();
    let dropped = locks.clone();
    let work = tokio::spawn(async move {
        let work = async move |_: &Transaction<'_>| {
            started.send(()).unwrap();
            std::future::pending::<()>().await;
        };
        dropped.with_lock("scoped-dropped", Wait::Forever, work).await
    });
    soon(has_started).await.unwrap();
    work.abort();
    work.await.unwrap_err();
    at_rest(manager).await;

    let cut = locks.with_lock("cut", Wait::No, async |transaction| {
        transaction.batch_execute("SELECT pg_terminate_backend(pg_backend_pid())").await.unwrap_err();
    });
    cut.await.unwrap_err();
}
