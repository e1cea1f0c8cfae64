//! The server stands still, or has room for nobody else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use leasehold::store::postgres::PostgresTransactionStore;
use leasehold::{Clock, Error, ErrorKind, LockGuard, LockManager, LostReason, Renew};
use store_tests::{Table, run};
use tokio_postgres::{Client, NoTls};

use crate::setting::{at_rest, granted, locks, manager, obtained, soon, take, until, waiter};

const TTL: Duration = Duration::from_secs(6);

/// How long the server stands still after that, and then somebody works: with the ttl less than a place may be silent.
const BEYOND: Duration = Duration::from_millis(1500);

/// Room to connect anew in the middle of a call, and a look at each place every few seconds.
const ROOMY: Duration = Duration::from_secs(30);

async fn roomy(url: &str) -> LockManager {
    let builder = LockManager::builder(PostgresTransactionStore::connect(url).await.unwrap()).ttl(ROOMY);
    builder.renew(Renew::Every(Duration::from_secs(1))).build().unwrap()
}

/// Waits until a lock was renewed, again and again.
async fn renewed(guard: &LockGuard) {
    let end = || Clock::system().now() + guard.remaining();
    let before = end();
    until("renewals", async || end() > before + Duration::from_secs(3)).await;
}

async fn short(url: &str) -> LockManager {
    LockManager::builder(PostgresTransactionStore::connect(url).await.unwrap()).ttl(TTL).build().unwrap()
}

/// Whoever works believes that nobody else does.
struct Work(Arc<AtomicU32>);

impl Work {
    fn begin(at_work: &Arc<AtomicU32>) -> Self {
        assert_eq!(at_work.fetch_add(1, Ordering::SeqCst), 0, "somebody else is at work");
        Self(Arc::clone(at_work))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// No answer, and no word of somebody else.
fn is_honest(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate)
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_server_that_stands_still_longer_than_the_ttl_costs_the_lease_in_time() {
    run(async {
        let table = Table::alone(&[]);
        let (ours, theirs, patient) =
            (short(&table.url()).await, short(&table.url()).await, manager(&table.url()).await);
        let (at_work, is_over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let guard = granted(&ours, "kept").await;
        let (lock, working) = (ours.lock("k"), Arc::clone(&at_work));
        let work = tokio::spawn(async move {
            let has_begun = AtomicBool::new(false);
            loop {
                let worked = lock.run(async |_| {
                    let _work = Work::begin(&working);
                    has_begun.store(true, Ordering::SeqCst);
                    std::future::pending::<()>().await;
                });
                match worked.await {
                    // A busy machine may leave it without an answer at first.
                    Err(error) if is_honest(&error) && !has_begun.load(Ordering::SeqCst) => {}
                    worked => break worked,
                }
            }
        });
        until("it works", async || at_work.load(Ordering::SeqCst) == 1).await;
        let waiting = waiter(&table, &patient, "k", 0).await;
        // Behind him is one with as little time as the one who works.
        let (lock, working) = (short(&table.url()).await.lock("k"), Arc::clone(&at_work));
        let is_paused = Arc::new(AtomicBool::new(false));
        let stands_still = Arc::clone(&is_paused);
        let hasty = tokio::spawn(async move {
            let guard = loop {
                match lock.acquire().await {
                    Err(error) if is_honest(&error) && !stands_still.load(Ordering::SeqCst) => {}
                    answer => break answer?,
                }
            };
            drop(Work::begin(&working));
            guard.release().await
        });
        until("both stand in line", async || locks(&table, false).await == 2).await;
        // Somebody asks all the time, before, meanwhile and after.
        let asking = {
            let (at_work, is_over) = (Arc::clone(&at_work), Arc::clone(&is_over));
            tokio::spawn(async move {
                let mut errors = 0;
                while !is_over.load(Ordering::SeqCst) {
                    match soon("an answer", theirs.lock("k").try_acquire()).await {
                        Ok(Some(guard)) => {
                            let work = Work::begin(&at_work);
                            tokio::task::yield_now().await;
                            drop(work);
                            if let Err(error) = guard.release().await {
                                assert!(is_honest(&error), "{error}");
                            }
                        }
                        Ok(None) => {}
                        Err(error) => {
                            assert!(is_honest(&error), "{error}");
                            errors += 1;
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                errors
            })
        };
        is_paused.store(true, Ordering::SeqCst);
        let paused = table.pause();
        let stopped = soon("the work is stopped", work).await.unwrap().unwrap_err();
        assert_eq!((stopped.kind(), stopped.lost_reason()), (ErrorKind::Lost, Some(LostReason::Expired)));
        assert_eq!(at_work.load(Ordering::SeqCst), 0);
        assert_eq!(soon("the loss", guard.lost()).await, LostReason::Expired);
        guard.check().unwrap_err();
        tokio::time::sleep(BEYOND).await;
        assert!(!waiting.is_finished());
        drop(paused);
        // What the server was left with is rolled back, and whoever stood in line is next.
        let next = soon("its turn", waiting).await.unwrap();
        let working = Work::begin(&at_work);
        tokio::time::sleep(BEYOND).await;
        next.check().unwrap();
        drop(working);
        next.release().await.unwrap();
        is_over.store(true, Ordering::SeqCst);
        assert!(soon("the last answer", asking).await.unwrap() > 0, "it asked while there was no answer");
        if let Err(error) = soon("its turn, or word", hasty).await.unwrap() {
            assert!(is_honest(&error), "{error}");
        }
        // The server keeps the lock of a holder that hangs; this one knows that it has lost it.
        assert!(patient.lock("kept").try_acquire().await.unwrap().is_none());
        let token = guard.fencing_token();
        guard.check().unwrap_err();
        guard.release().await.unwrap_err();
        for name in ["kept", "k"] {
            let again = obtained(&ours.lock(name).ttl(ROOMY)).await;
            assert!(again.fencing_token() > token);
            again.release().await.unwrap();
        }
        at_rest(&table).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_server_that_stands_still_for_less_than_the_ttl_costs_no_lease() {
    run(async {
        let table = Table::alone(&[]);
        let (ours, others) = (manager(&table.url()).await, manager(&table.url()).await);
        let guard = take(&ours, "k").await;
        let waiting = waiter(&table, &others, "k", 0).await;
        let paused = table.pause();
        // Others are impatient meanwhile.
        for _ in 0..6 {
            let lock = ours.lock("other");
            if let Ok(answer) = tokio::time::timeout(Duration::from_millis(500), lock.try_acquire()).await {
                answer.unwrap_err();
            }
        }
        guard.check().unwrap();
        drop(paused);
        until("it is extended", async || guard.extend(Duration::from_secs(30)).await.is_ok()).await;
        assert!(!waiting.is_finished());
        guard.release().await.unwrap();
        soon("its turn", waiting).await.unwrap().release().await.unwrap();
        granted(&ours, "other").await.release().await.unwrap();
        at_rest(&table).await;
    });
}

/// Takes every connection that is left, also those of clients that are just ending, each within a
/// transaction, as an application whose pool is used up.
async fn fill(table: &Table, pool: &mut Vec<Client>) {
    let mut refused = 0;
    while refused < 10 {
        match tokio_postgres::connect(&table.url(), NoTls).await {
            Ok((client, connection)) => {
                tokio::spawn(connection);
                client.batch_execute("BEGIN").await.unwrap();
                pool.push(client);
                refused = 0;
            }
            Err(error) => {
                assert_eq!(error.code().unwrap().code(), "53300", "{error}");
                refused += 1;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

fn says_that_it_is_full(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("max_connections"), "{error}");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn locks_go_on_where_no_connection_is_left_for_others() {
    run(async {
        let table = Table::alone(&["-c", "max_connections=20", "-c", "superuser_reserved_connections=0"]);
        let (ours, theirs) = (roomy(&table.url()).await, roomy(&table.url()).await);
        let guard = take(&ours, "k").await;
        let waiting = waiter(&table, &theirs, "k", 0).await;
        let mut pool = Vec::new();
        fill(&table, &mut pool).await;
        // Held, renewed and waited for.
        renewed(&guard).await;
        tokio::time::sleep(ROOMY / 3).await;
        guard.check().unwrap();
        assert!(!waiting.is_finished());
        // What needs one more is told so, whether somebody has the lock or nobody.
        for name in ["nobody's", "k"] {
            says_that_it_is_full(&soon("an answer", theirs.lock(name).try_acquire()).await.unwrap_err());
        }
        says_that_it_is_full(&soon("an answer", ours.lock("nobody's").acquire()).await.unwrap_err());
        says_that_it_is_full(&PostgresTransactionStore::connect(&table.url()).await.unwrap_err());
        guard.release().await.unwrap();
        let next = soon("its turn", waiting).await.unwrap();
        // The connection of the first is free for another lock.
        take(&ours, "another").await.release().await.unwrap();
        assert!(ours.lock("k").try_acquire().await.unwrap().is_none());
        next.check().unwrap();
        // With room again there is no lock that cannot be had.
        pool.clear();
        let mut guards = Vec::new();
        for name in ["nobody's", "another", "third"] {
            until("there is room", async || match soon("an answer", ours.lock(name).try_acquire()).await {
                Ok(guard) => {
                    guards.push(guard.unwrap());
                    true
                }
                Err(error) => {
                    assert!(is_honest(&error), "{error}");
                    false
                }
            })
            .await;
        }
        drop(guards);
        next.release().await.unwrap();
        at_rest(&table).await;
    });
}

/// The connection of the store that holds no lock cannot be made anew.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_lock_outlives_the_connection_for_everything_else() {
    run(async {
        let table = Table::alone(&["-c", "max_connections=20", "-c", "superuser_reserved_connections=0"]);
        let ours = roomy(&table.url()).await;
        let guard = take(&ours, "k").await;
        // So that there is a connection for one more lock.
        take(&ours, "another").await.release().await.unwrap();
        let (client, mut pool) = (table.client().await, Vec::new());
        fill(&table, &mut pool).await;
        let draws = "SELECT pid FROM pg_stat_activity WHERE application_name = 'leasehold' AND query LIKE '%nextval%'";
        let ended: i32 = client.query_one(draws, &[]).await.unwrap().get(0);
        client.query("SELECT pg_terminate_backend($1)", &[&ended]).await.unwrap();
        let gone = async || client.query("SELECT FROM pg_stat_activity WHERE pid = $1", &[&ended]).await.unwrap();
        until("it has ended", async || gone().await.is_empty()).await;
        fill(&table, &mut pool).await;
        // The lock is granted, and the token cannot be drawn: so it is given back.
        says_that_it_is_full(&soon("an answer", ours.lock("another").try_acquire()).await.unwrap_err());
        renewed(&guard).await;
        guard.check().unwrap();
        let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        until("one lock is left", async || client.query_one(held, &[]).await.unwrap().get::<_, i64>(0) == 1).await;
        guard.release().await.unwrap();
        drop((pool, client));
        until("there is room", async || tokio_postgres::connect(&table.url(), NoTls).await.is_ok()).await;
        for name in ["k", "another"] {
            take(&ours, name).await.release().await.unwrap();
        }
        at_rest(&table).await;
    });
}
