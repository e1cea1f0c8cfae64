//! A lock in a transaction of the caller's own: it lives and dies with what is written there.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{CancelToken, Client, IsolationLevel, Row, Transaction};

use super::advisory::id;
use super::fault::{self, Effect};
use super::tls::{self, Trust};
use super::wire::{self, Parameter};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::options::Wait;
use crate::types::Key;

const LOCK: &str = "SELECT pg_advisory_xact_lock($1)";
const TRY_LOCK: &str = "SELECT pg_try_advisory_xact_lock($1)";
const CHECK: &str = "SELECT current_setting('leasehold.work', true) = $1";

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
/// has passed; [`ErrorKind::Unavailable`] if the server gave it up for a deadlock, another limit or a cancel request;
/// [`ErrorKind::Indeterminate`] if the connection broke, and with it the transaction; [`ErrorKind::Rejected`] for what else
/// the server refuses.
///
/// # Cancel safety
///
/// If dropped while it waits, the server is asked to give the statement up. Dropped in the moment of the answer, that may come
/// late and meet the connection's next statement, which then fails with `57014`. In any case the lock ends with the
/// transaction.
pub async fn lock_in_transaction(transaction: &Transaction<'_>, key: &Key) -> Result<()> {
    let waiting = GivenUp(Some(transaction.cancel_token()));
    let locked = transaction.query_typed(LOCK, &[(&id(key), Type::INT8)]).await;
    waiting.answered();
    locked.map(drop).map_err(|error| about(key, locking(error)))
}

/// Runs `work` in a transaction that has the lock of `key`, and commits: the release and what `work` wrote happen together,
/// or neither does. `None` = somebody else had the lock when the wait ended; `work` did not run.
///
/// The transaction is rolled back if `work` fails, panics, or is dropped with this future. Nothing stops `work` when the
/// server ends the session: what it writes after that is refused, and what it wrote before is undone. The locks are those of
/// [`lock_in_transaction`]; the level is `READ COMMITTED`. The wait is not cut short by the session's `lock_timeout` and `statement_timeout`, which hold for
/// `work` as before.
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
/// Those of `work`, and of this crate: [`ErrorKind::Unavailable`] if the server refused for now, and surely nothing was
/// committed; [`ErrorKind::Indeterminate`] if the connection broke: where it did so while committing, the writes may have been
/// committed; [`ErrorKind::NotHeld`] if `work` ended the transaction by a statement of its own, or went on after an error
/// that the server does not forgive: nothing is committed then; [`ErrorKind::Rejected`] for what else the server refuses.
///
/// # Cancel safety
///
/// If dropped, the transaction is rolled back; a statement that waits for the lock is given up first, as there.
pub async fn with_lock_in_transaction<T, E: From<Error>>(
    client: &mut Client,
    key: &Key,
    wait: Wait,
    work: impl AsyncFnOnce(&Transaction<'_>) -> std::result::Result<T, E>,
) -> std::result::Result<Option<T>, E> {
    let failed = |error: Error| E::from(about(key, error));
    let begun = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await;
    let begun = begun.map_err(|error| failed(before(error)))?;
    let mark = wire::new_id().map_err(&failed)?;
    if !take(&begun, key, wait, &mark).await.map_err(&failed)? {
        begun.rollback().await.map_err(|error| failed(before(error)))?;
        return Ok(None);
    }
    match work(&begun).await {
        Ok(value) => {
            commit(begun, &mark).await.map_err(failed)?;
            Ok(Some(value))
        }
        Err(error) => {
            // It was the work that failed; what it wrote is undone, at the latest with the connection.
            begun.rollback().await.ok();
            Err(error)
        }
    }
}

/// Takes the lock, and leaves the transaction's limits as they were. `false` = the wait ended before.
async fn take(transaction: &Transaction<'_>, key: &Key, wait: Wait, mark: &String) -> Result<bool> {
    let marking = "SELECT set_config('leasehold.work', $1, true)";
    let wait = match wait {
        Wait::No | Wait::UpTo(Duration::ZERO) => {
            ask(transaction, marking, &[(mark, Type::TEXT)]).await.map_err(locking)?;
            let locked = ask(transaction, TRY_LOCK, &[(&id(key), Type::INT8)]).await.map_err(locking)?;
            return Ok(verdict(&locked) == Some(true));
        }
        Wait::UpTo(wait) => wait,
        Wait::Forever => Duration::ZERO,
    };
    let limit = wait.as_nanos().div_ceil(1_000_000).min(i32::MAX.unsigned_abs().into()).to_string();
    let limiting: [Parameter<'_>; 2] = [(mark, Type::TEXT), (&limit, Type::TEXT)];
    let before = ask(transaction, include_str!("sql/work_limits.sql"), &limiting).await.map_err(locking)?;
    let before = before.first().ok_or_else(fault::unexpected_look)?;
    let limit = |at| before.try_get::<_, &str>(at).map_err(|_| fault::unexpected_look());
    let (lock, statement) = (limit(0)?, limit(1)?);
    match lock_in_transaction(transaction, key).await {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::Contended => return Ok(false),
        Err(error) => return Err(error),
    }
    let restoring = "SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true)";
    ask(transaction, restoring, &[(&lock, Type::TEXT), (&statement, Type::TEXT)]).await.map_err(locking)?;
    Ok(true)
}

/// Commits, if there is something to commit: the server answers the commit of a transaction that has failed or ended as if
/// it had succeeded.
async fn commit(transaction: Transaction<'_>, mark: &String) -> Result<()> {
    let ended = || {
        let message = "the transaction had ended or failed before the work did, and nothing is committed by it";
        Error::new(ErrorKind::NotHeld, message)
    };
    match ask(&transaction, CHECK, &[(mark, Type::TEXT)]).await {
        Ok(rows) if verdict(&rows) == Some(true) => {}
        Ok(_) => return Err(ended()),
        Err(error) if error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) => {
            return Err(ended().with_source(error));
        }
        Err(error) => return Err(before(error)),
    }
    transaction.commit().await.map_err(|error| fault::of(error, Effect::Change))
}

async fn ask(
    transaction: &Transaction<'_>,
    statement: &str,
    parameters: &[Parameter<'_>],
) -> std::result::Result<Vec<Row>, tokio_postgres::Error> {
    transaction.query_typed(statement, parameters).await
}

fn verdict(rows: &[Row]) -> Option<bool> {
    rows.first()?.try_get(0).ok().flatten()
}

/// What a failure to lock means. Only the limit for locks says that somebody has it.
fn locking(error: tokio_postgres::Error) -> Error {
    if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) {
        return Error::new(ErrorKind::Contended, "held by somebody else until the wait ended").with_source(error);
    }
    before(error)
}

/// What a failure before anything is committed means: whatever was done is undone.
fn before(error: tokio_postgres::Error) -> Error {
    fault::of(error, Effect::Look)
}

fn about(key: &Key, error: Error) -> Error {
    error.during(Operation::Acquire).on_store("postgres").on_key(key)
}

/// A statement that waits, and is given up by the server if nobody waits for it any more.
struct GivenUp(Option<CancelToken>);

impl GivenUp {
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for GivenUp {
    fn drop(&mut self) {
        let Some(token) = self.0.take() else { return };
        // Who reads the request may cancel this statement and no more, so it does not matter whom it is told to.
        let (Ok(runtime), Ok(tls)) = (tokio::runtime::Handle::try_current(), tls::connector(Trust::Anybody)) else {
            return;
        };
        runtime.spawn(async move { token.cancel_query(tls).await.ok() });
    }
}
