//! An address that comes to lead to another server.

use std::net::SocketAddr;
use std::sync::Arc;

use leasehold::store::postgres::PostgresTransactionStore;
use leasehold::testkit::Proxy;
use leasehold::{ErrorKind, FencingToken, LockManager};
use parking_lot::Mutex;
use store_tests::{Table, run};
use tokio::net::{TcpListener, TcpStream};

use crate::setting::{SHORT, SOON, backend, locks, manager, number, soon, take, until};

/// Higher than any token of the other server.
const APART: u64 = 1 << 62;

/// Leads each new connection to where it was told last.
struct Way {
    address: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
}

impl Way {
    async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, target) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(target)));
        let leads = Arc::clone(&target);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let target = *leads.lock();
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(target).await.unwrap();
                    tokio::io::copy_bidirectional(&mut client, &mut server).await.ok();
                });
            }
        });
        Self { address, target }
    }

    /// A store on one connection there, and the next ones elsewhere.
    async fn parted(&self, table: &Table, target: SocketAddr) -> LockManager {
        let store = PostgresTransactionStore::connect(&table.url_at(self.address)).await.unwrap();
        *self.target.lock() = target;
        // That of the first transaction, which the next one would use.
        let spare = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() \
            AND query LIKE '%ROLLBACK%' AND application_name = 'leasehold'";
        let ended = number(table, &format!("SELECT count(pg_terminate_backend(pid)) {spare}")).await;
        assert_eq!(ended, 1);
        until("it has ended", async || number(table, &format!("SELECT count(*) {spare}")).await == 0).await;
        LockManager::builder(store).ttl(SHORT).build().unwrap()
    }
}

/// As after a failover whose old primary runs on.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_lock_and_its_token_are_of_one_server() {
    run(async {
        let table = Table::alone(&["-c", "wal_level=replica"]);
        drop(table.store().await);
        let other = table.follower(&[]);
        let url = other.url(table.database());
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.query("SELECT pg_promote()", &[]).await.unwrap();
        until("it has taken over", async || PostgresTransactionStore::connect(&url).await.is_ok()).await;
        client.query(&format!("SELECT setval('leasehold_fence', {APART})"), &[]).await.unwrap();
        let there = manager(&url).await;

        let way = Way::to(table.server().address()).await;
        for waits in [false, true] {
            *way.target.lock() = table.server().address();
            let ours = way.parted(&table, other.server().address()).await;
            let holder = if waits { Some(take(&there, "k").await) } else { None };
            let granted = tokio::spawn({
                let lock = ours.lock("k").ttl(SOON);
                async move {
                    loop {
                        match lock.acquire().await {
                            Ok(guard) => break guard,
                            Err(error) => assert!(
                                matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate),
                                "{error}"
                            ),
                        }
                    }
                }
            });
            if let Some(holder) = holder {
                let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
                until("it stands in line", async || {
                    client.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 1
                })
                .await;
                holder.release().await.unwrap();
            }
            let guard = soon("a grant", granted).await.unwrap();
            assert!(guard.fencing_token() > Some(FencingToken::new(APART)), "waits: {waits}: {guard:?}");
            assert!(there.lock("k").try_acquire().await.unwrap().is_none());
            let next = {
                guard.release().await.unwrap();
                take(&there, "k").await
            };
            next.release().await.unwrap();
        }
    });
}

/// The connection that draws says nothing of the one that has the lock, and neither does that one.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_token_drawn_after_a_loss_of_which_nobody_heard_is_no_grant() {
    run(async {
        let table = Table::alone(&[]);
        let (draws, holds) =
            (Proxy::start(table.server().address()).unwrap(), Proxy::start(table.server().address()).unwrap());
        let way = Way::to(draws.address()).await;
        let ours = way.parted(&table, holds.address()).await;
        // Draws wait while somebody is changing the sequence.
        let changing = table.client().await;
        changing.batch_execute("BEGIN; ALTER SEQUENCE leasehold_fence OWNED BY NONE").await.unwrap();
        let asking = tokio::spawn({
            let lock = ours.lock("k");
            async move { lock.try_acquire().await }
        });
        until("it has the lock", async || locks(&table, true).await == 1).await;
        holds.hold();
        let pid = backend(&table, true).await.unwrap();
        table.client().await.query("SELECT pg_terminate_backend($1)", &[&pid]).await.unwrap();
        until("it has lost it", async || locks(&table, true).await == 0).await;
        changing.batch_execute("COMMIT").await.unwrap();
        let error = soon("an answer", asking).await.unwrap().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate), "{error}");
        holds.reset();
        holds.heal();
        take(&manager(&table.url()).await, "k").await.release().await.unwrap();
    });
}
