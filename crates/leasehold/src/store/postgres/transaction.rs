//! A lock in a transaction of the caller's own: it lives and dies with what is written there.

use std::pin::pin;
use std::sync::Arc;

use tokio_postgres::{Client, IsolationLevel, Transaction};
use tracing::field::Empty;
use tracing::{Instrument, Span};

use self::held::Held;
use super::wire;
use crate::call::{Call, End, Told};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::manager::LockManager;
use crate::observe::{Teller, outcome};
use crate::options::Wait;
use crate::scoped::caught;
use crate::types::Key;

mod held;
mod statements;

/// The name under which the locks are told.
const STORE: &str = "postgres";

/// Takes the lock of `key` in a transaction of the caller's own, and waits for it as long as the session's `lock_timeout`
/// and `statement_timeout` let it; with `SET LOCAL lock_timeout = '5s'` for at most 5 s.
///
/// The lock ends with the transaction, whatever ends that: what is written in it is committed together with the release, or
/// not at all. It is that of [`PostgresAdvisoryStore`](super::PostgresAdvisoryStore) and
/// [`PostgresTransactionStore`](super::PostgresTransactionStore), and excludes them. A transaction that has it already has it
/// again; a rollback to a savepoint from before gives it back. There is no fencing token, because nothing can be written in
/// the transaction once the lock is gone.
///
/// Use a transaction of the level `READ COMMITTED`, which the server's default is: at any other one it goes on seeing what
/// was there when it began to wait.
///
/// ```no_run
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Key;
/// use leasehold::store::postgres::lock_in_transaction;
///
/// let transaction = client.transaction().await?;
/// lock_in_transaction(&transaction, &Key::new("app", "invoices")?).await?;
/// transaction.execute("UPDATE counters SET last = last + 1", &[]).await?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// After any of them the server refuses everything but a rollback. [`ErrorKind::Contended`] if the session's `lock_timeout`
/// has passed; [`ErrorKind::Unavailable`] if the server gave it up for a deadlock, another limit or a cancel request, or the
/// connection broke, and with it the transaction; [`ErrorKind::Rejected`] for what else the server refuses.
///
/// # Cancel safety
///
/// If dropped while it waits, the server is asked to give the statement up. Dropped in the moment of the answer, that may come
/// late and meet the connection's next statement, which then fails with `57014`. In any case the lock ends with the
/// transaction.
pub async fn lock_in_transaction(transaction: &Transaction<'_>, key: &Key) -> Result<()> {
    TransactionLocks::default().lock(transaction, key).await
}

/// Runs `work` in a transaction that has the lock of `key`, and commits: the release and what `work` wrote happen together,
/// or neither does. `None` = somebody else had the lock when the wait ended; `work` did not run.
///
/// The transaction is rolled back if `work` fails, panics, or is dropped with this future. Nothing stops `work` when the
/// server ends the session: what it writes after that is refused, and what it wrote before is undone. The locks are those of
/// [`lock_in_transaction`]; the level is `READ COMMITTED`. The wait is not cut short by the session's `lock_timeout` and
/// `statement_timeout`, which hold for `work` as before. The server ends the wait; where its answer does not come, only
/// dropping the future or the connection's own limits do.
///
/// ```no_run
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use leasehold::store::postgres::with_lock_in_transaction;
/// use leasehold::{Key, Wait};
///
/// let key = Key::new("app", "invoices")?;
/// let wait = Wait::UpTo(Duration::from_secs(5));
/// let number = with_lock_in_transaction(client, &key, wait, async |transaction| {
///     let row = transaction.query_one("UPDATE counters SET last = last + 1 RETURNING last", &[]).await?;
///     Ok::<i64, Box<dyn std::error::Error>>(row.get(0))
/// })
/// .await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// Those of `work`, and of this crate: [`ErrorKind::Unavailable`] if the server refused for now or the connection broke, and
/// surely nothing was committed; [`ErrorKind::Indeterminate`] if it broke while committing: the writes may have been
/// committed; [`ErrorKind::NotHeld`] if `work` ended the transaction by a statement of its own, or went on after an error
/// that the server does not forgive: nothing more is committed then, and what `work` committed by a statement of its own
/// stays; [`ErrorKind::Rejected`] for what else the server refuses.
///
/// # Cancel safety
///
/// If dropped, the transaction is rolled back; a statement that waits for the lock is given up first, as there. Dropped
/// while it commits, the writes may have been committed. It needs a runtime with time enabled: a rollback is waited for 5 s at
/// most.
pub async fn with_lock_in_transaction<T, E: From<Error>>(
    client: &mut Client,
    key: &Key,
    wait: Wait,
    work: impl AsyncFnOnce(&Transaction<'_>) -> std::result::Result<T, E>,
) -> std::result::Result<Option<T>, E> {
    TransactionLocks::default().with_lock(client, key, wait, work).await
}

/// Locks in transactions of the caller's own, of which the observers of a manager are told.
///
/// ```no_run
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::store::postgres::{PostgresStore, TransactionLocks};
/// use leasehold::{Key, LockManager, Wait};
///
/// let locks = LockManager::new(PostgresStore::connect("postgres://localhost/app").await?);
/// let in_transactions = TransactionLocks::told_to_observers_of(&locks);
/// let key = Key::new("app", "invoices")?;
/// let ran = in_transactions
///     .with_lock(client, &key, Wait::No, async |transaction| {
///         transaction.execute("UPDATE counters SET last = last + 1", &[]).await?;
///         Ok::<_, Box<dyn std::error::Error>>(())
///     })
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TransactionLocks {
    teller: Arc<Teller>,
    clock: Clock,
    /// The process that made it: in a forked child nobody is told.
    pid: u32,
}

impl Default for TransactionLocks {
    /// No observer is told; spans there are all the same.
    fn default() -> Self {
        Self { teller: Teller::new(STORE, Vec::new()), clock: Clock::system(), pid: std::process::id() }
    }
}

impl TransactionLocks {
    /// Has the observers of `locks` told, by the name `postgres`, whatever the store of `locks` is.
    ///
    /// Nothing else is taken from it: the locks exclude those of
    /// [`PostgresAdvisoryStore`](super::PostgresAdvisoryStore) and
    /// [`PostgresTransactionStore`](super::PostgresTransactionStore) in the same database, and no others.
    pub fn told_to_observers_of(locks: &LockManager) -> Self {
        let engine = locks.engine();
        Self { teller: Arc::clone(&engine.teller), clock: engine.clock.clone(), pid: engine.pid }
    }

    /// As [`lock_in_transaction`]. Nobody can tell when the transaction ends, so the lock counts as handed over to it at
    /// once.
    ///
    /// # Errors
    ///
    /// As [`lock_in_transaction`].
    ///
    /// # Cancel safety
    ///
    /// As [`lock_in_transaction`].
    pub async fn lock(&self, transaction: &Transaction<'_>, key: &Key) -> Result<()> {
        let lock = async |call: &mut Call<'_>| statements::lock(self, transaction, key, call).await.map(Some);
        self.call(key, Wait::Forever, lock).await?;
        Held::by(self, key).by_the_transaction();
        Ok(())
    }

    /// As [`with_lock_in_transaction`].
    ///
    /// # Errors
    ///
    /// As [`with_lock_in_transaction`].
    ///
    /// # Cancel safety
    ///
    /// As [`with_lock_in_transaction`].
    pub async fn with_lock<T, E: From<Error>>(
        &self,
        client: &mut Client,
        key: &Key,
        wait: Wait,
        work: impl AsyncFnOnce(&Transaction<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<Option<T>, E> {
        let span = tracing::debug_span!(
            "lock.with",
            namespace = key.namespace(),
            key = key.name(),
            store = STORE,
            wait = wait.seconds(),
            outcome = Empty,
        );
        pin!(self.scoped(client, key, wait, work, &span)).instrument(span.clone()).await
    }

    async fn scoped<T, E: From<Error>>(
        &self,
        client: &mut Client,
        key: &Key,
        wait: Wait,
        work: impl AsyncFnOnce(&Transaction<'_>) -> std::result::Result<T, E>,
        span: &Span,
    ) -> std::result::Result<Option<T>, E> {
        let failed = |error: Error| {
            span.record("outcome", error.kind().as_str());
            E::from(about(key, error))
        };
        let begun = self.call(key, wait, async move |call| self.begin(client, key, wait, call).await).await;
        let Some((transaction, mark)) = begun.map_err(failed)? else {
            span.record("outcome", outcome::NOT_RUN);
            return Ok(None);
        };
        let held = Held::by(self, key);
        match caught(async { work(&transaction).await }).await {
            Ok(Ok(value)) => {
                held.until(statements::commit(transaction, &mark)).await.map_err(failed)?;
                span.record("outcome", outcome::RAN);
                Ok(Some(value))
            }
            Ok(Err(error)) => {
                span.record("outcome", outcome::RAN);
                // It was the work that failed; what it wrote is undone, at the latest with the connection.
                held.until(statements::roll_back(transaction)).await.ok();
                Err(error)
            }
            Err(panic) => {
                span.record("outcome", outcome::PANICKED);
                held.until(statements::roll_back(transaction)).await.ok();
                std::panic::resume_unwind(panic)
            }
        }
    }

    /// Begins a transaction that has the lock, and a mark by which it is known again.
    async fn begin<'a>(
        &self,
        client: &'a mut Client,
        key: &Key,
        wait: Wait,
        call: &mut Call<'_>,
    ) -> Result<Option<(Transaction<'a>, String)>> {
        let begun = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await;
        let (begun, mark) = (begun.map_err(statements::before)?, wire::new_id()?);
        if statements::take(self, &begun, key, wait, &mark, call).await? {
            return Ok(Some((begun, mark)));
        }
        begun.rollback().await.map_err(statements::before)?;
        Ok(None)
    }

    /// A call for the lock, as observers and spans see it.
    async fn call<T>(
        &self,
        key: &Key,
        wait: Wait,
        ask: impl AsyncFnOnce(&mut Call<'_>) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let span = tracing::debug_span!(
            "lock.acquire",
            namespace = key.namespace(),
            key = key.name(),
            store = STORE,
            wait = wait.seconds(),
            outcome = Empty,
            waited = Empty,
            attempts = Empty,
            error = Empty,
        );
        if std::process::id() != self.pid {
            self.teller.fall_silent();
        }
        let asked = async {
            let told = Told { teller: &self.teller, clock: &self.clock, store: STORE };
            let mut call = Call::begin(told, key, &span, wait);
            let answer = ask(&mut call).await;
            call.end(match &answer {
                Ok(Some(_)) => End::Granted(None),
                Ok(None) => End::NotGranted,
                Err(error) if error.kind() == ErrorKind::Contended => End::NotGranted,
                Err(error) => End::Failed(error),
            });
            answer.map_err(|error| about(key, error))
        };
        pin!(asked).instrument(span.clone()).await
    }
}

fn about(key: &Key, error: Error) -> Error {
    error.during(Operation::Acquire).on_store(STORE).on_key(key)
}
