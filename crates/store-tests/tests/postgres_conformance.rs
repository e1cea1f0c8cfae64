//! The suite that every store has to pass, against a PostgreSQL server.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::Result;
use leasehold::store::Store;
use leasehold::store::postgres::{PostgresAdvisoryStore, PostgresStore, PostgresTransactionStore};
use leasehold::testkit::Proxy;
use leasehold::testkit::conformance::{Fixture, Outage, cases};
use parking_lot::Mutex;
use store_tests::{Pooler, Table, connected, run};

/// What every machine keeps up with.
const TTL: Duration = Duration::from_millis(300);

leasehold::conformance! {
    #[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
    postgres_table, Remote::new(Table::new()), without: [places]
}

leasehold::conformance! {
    #[cfg_attr(not(all(has_postgres, has_pgbouncer)), ignore = "postgres and pgbouncer are not both installed")]
    table_of_pooled_sessions, Pooled::lending("session"), without: [outages, places]
}

leasehold::conformance! {
    #[cfg_attr(not(all(has_postgres, has_pgbouncer)), ignore = "postgres and pgbouncer are not both installed")]
    table_of_pooled_transactions, Pooled::lending("transaction"), without: [outages, places, wakes]
}

leasehold::conformance! {
    #[cfg_attr(not(all(has_postgres, has_pgbouncer)), ignore = "postgres and pgbouncer are not both installed")]
    table_of_pooled_statements, Pooled::lending("statement"), without: [outages, places, wakes]
}

leasehold::conformance! {
    #[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
    postgres_advisory, Sessions::new(Table::new()), without: [expiry, hand_over, lists, outages, places, removal]
}

leasehold::conformance! {
    #[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
    postgres_xact, Transactions::new(Table::new()), without: [expiry, hand_over, lists, outages, removal]
}

leasehold::conformance! {
    #[cfg_attr(not(all(has_postgres, has_pgbouncer)), ignore = "postgres and pgbouncer are not both installed")]
    xact_of_pooled_transactions, Transactions::pooled(), without: [expiry, hand_over, lists, outages, removal]
}

/// A database of its own, and its clients: what they hold would not outlive them.
struct Sessions {
    table: Table,
    clients: Mutex<Vec<Arc<dyn Store>>>,
}

impl Sessions {
    fn new(table: Table) -> Self {
        Self { table, clients: Mutex::default() }
    }
}

#[async_trait]
impl Fixture for Sessions {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        let url = self.table.url();
        let client: Arc<dyn Store> = Arc::new(connected(true, || PostgresAdvisoryStore::connect(&url)).await?);
        self.clients.lock().push(Arc::clone(&client));
        Ok(client)
    }

    fn ttl(&self) -> Duration {
        TTL
    }
}

/// The same, where each lock has a connection: so many are held or waited for by a case.
const AT_A_TIME: usize = 110;

struct Transactions {
    url: String,
    _place: (Table, Option<Pooler>),
    clients: Mutex<Vec<Arc<dyn Store>>>,
}

impl Transactions {
    fn new(table: Table) -> Self {
        Self { url: table.url(), _place: (table, None), clients: Mutex::default() }
    }

    fn pooled() -> Self {
        let table = Table::new();
        let pooler = Pooler::with(table.clone(), "transaction", "default_pool_size = 150");
        Self { url: pooler.url(), _place: (table, Some(pooler)), clients: Mutex::default() }
    }
}

#[async_trait]
impl Fixture for Transactions {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        let store = connected(false, || PostgresTransactionStore::connect(&self.url)).await?.limited_to(AT_A_TIME);
        let client: Arc<dyn Store> = Arc::new(store);
        self.clients.lock().push(Arc::clone(&client));
        Ok(client)
    }

    fn ttl(&self) -> Duration {
        TTL
    }
}

/// What holds a lock does not outlive its connection, so of the cases of an outage these can hold: the second where answers
/// are late, and the store sets its own limits.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn an_outage_of_a_session_or_transaction_is_neither_contention_nor_a_loss() {
    for (name, mode, outage) in [
        ("an_outage_is_not_contention", "advisory", Fault::Broken),
        ("an_outage_is_not_contention", "xact", Fault::Broken),
        ("an_outage_is_not_contention", "xact", Fault::Silent),
        ("an_outage_is_not_a_loss", "xact", Fault::Silent),
    ] {
        let case = cases().iter().find(|case| case.name() == name).unwrap();
        run(async move {
            let place = Failing { remote: Remote::new(Table::new()), mode, fault: outage };
            case.run(&place).await.unwrap_or_else(|failure| panic!("{name} in mode {mode}: {failure}"));
        });
    }
}

#[derive(Clone, Copy)]
enum Fault {
    /// Every connection breaks, and no other can be made.
    Broken,
    /// Nothing is answered.
    Silent,
}

/// A network that can fail, in front of locks that end with their session.
struct Failing {
    remote: Remote,
    mode: &'static str,
    fault: Fault,
}

#[async_trait]
impl Fixture for Failing {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        let url = self.remote.table.url_at(self.remote.proxy.address());
        match self.mode {
            "advisory" => Ok(Arc::new(connected(true, || PostgresAdvisoryStore::connect(&url)).await?)),
            _ => Ok(Arc::new(connected(false, || PostgresTransactionStore::connect(&url)).await?)),
        }
    }

    /// Such a store sets its own limits by it, also while the place is not out.
    fn ttl(&self) -> Duration {
        3 * TTL
    }

    async fn outage(&self) -> Option<Outage> {
        match self.fault {
            Fault::Broken => self.remote.outage().await,
            Fault::Silent => {
                self.remote.proxy.replies().hold();
                Some(Box::new(Heal(Arc::clone(&self.remote.proxy))))
            }
        }
    }
}

/// A database of its own behind a pooler.
struct Pooled {
    pooler: Pooler,
    lends_sessions: bool,
}

impl Pooled {
    fn lending(lent: &str) -> Self {
        Self { pooler: Pooler::start(Table::new(), lent), lends_sessions: lent == "session" }
    }
}

#[async_trait]
impl Fixture for Pooled {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        let url = self.pooler.url();
        Ok(Arc::new(connected(self.lends_sessions, || PostgresStore::connect(&url)).await?))
    }

    fn ttl(&self) -> Duration {
        TTL
    }
}

/// A database of its own behind a network that can fail.
struct Remote {
    proxy: Arc<Proxy>,
    table: Table,
}

impl Remote {
    fn new(table: Table) -> Self {
        Self { proxy: Arc::new(Proxy::start(table.server().address()).unwrap()), table }
    }
}

#[async_trait]
impl Fixture for Remote {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        let url = self.table.url_at(self.proxy.address());
        Ok(Arc::new(connected(true, || PostgresStore::connect(&url)).await?))
    }

    fn ttl(&self) -> Duration {
        TTL
    }

    /// Every connection breaks, and no other can be made.
    async fn outage(&self) -> Option<Outage> {
        self.proxy.refuse();
        while self.proxy.connections() > 0 {
            // Again: one that is too new is not met.
            self.proxy.reset();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Some(Box::new(Heal(Arc::clone(&self.proxy))))
    }
}

struct Heal(Arc<Proxy>);

impl Drop for Heal {
    fn drop(&mut self) {
        self.0.heal();
    }
}
