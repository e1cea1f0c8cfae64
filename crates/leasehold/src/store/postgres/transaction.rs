//! A lock in a transaction of the caller's own: it lives and dies with what is written there.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::{CancelToken, Client, IsolationLevel, SimpleQueryMessage, SimpleQueryRow, Transaction};

use super::advisory::id;
use super::fault::{self, Effect};
use super::tls::{self, Trust};
use super::wire;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::options::Wait;
use crate::types::Key;

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
    let locked = transaction.batch_execute(&format!("SELECT pg_advisory_xact_lock({})", id(key))).await;
    waiting.answered();
    locked.map_err(|error| about(key, locking(error)))
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
/// Those of `work`, and of this crate: [`ErrorKind::Unavailable`] if the server refused for now, and surely nothing was
/// committed; [`ErrorKind::Indeterminate`] if the connection broke: where it did so while committing, the writes may have been
/// committed; [`ErrorKind::NotHeld`] if `work` ended the transaction by a statement of its own, or went on after an error
/// that the server does not forgive: nothing more is committed then, and what `work` committed by a statement of its own
/// stays; [`ErrorKind::Rejected`] for what else the server refuses.
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
///
/// By statements that leave nothing open, so that the transaction sees what is there and holds up nobody.
async fn take(transaction: &Transaction<'_>, key: &Key, wait: Wait, mark: &str) -> Result<bool> {
    let mark = format!("SELECT set_config('leasehold.work', '{mark}', true)");
    let wait = match wait {
        Wait::No | Wait::UpTo(Duration::ZERO) => {
            let row = ask(transaction, &format!("{mark}; SELECT pg_try_advisory_xact_lock({})", id(key))).await;
            return Ok(row.map_err(locking)?.is_some_and(|row| row.get(0) == Some("t")));
        }
        Wait::UpTo(wait) => wait,
        Wait::Forever => Duration::ZERO,
    };
    let most = wait.as_nanos().div_ceil(1_000_000).min(i32::MAX.unsigned_abs().into());
    let limits = "current_setting('lock_timeout'), current_setting('statement_timeout')";
    let limit = format!("set_config('lock_timeout', '{most}', true), set_config('statement_timeout', '0', true)");
    let before = ask(transaction, &format!("{mark}; SELECT {limits}, {limit}")).await.map_err(locking)?;
    let before = before.ok_or_else(fault::unexpected_look)?;
    let quoted = |at| before.get(at).map(|limit| limit.replace('\'', "''")).ok_or_else(fault::unexpected_look);
    let (lock, statement) = (quoted(0)?, quoted(1)?);
    match lock_in_transaction(transaction, key).await {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::Contended => return Ok(false),
        Err(error) => return Err(error),
    }
    let restoring = format!(
        "SELECT set_config('lock_timeout', '{lock}', true), set_config('statement_timeout', '{statement}', true)"
    );
    ask(transaction, &restoring).await.map_err(locking)?;
    Ok(true)
}

/// Commits, if there is something to commit: the server answers the commit of a transaction that has failed or ended as if
/// it had succeeded.
async fn commit(transaction: Transaction<'_>, mark: &str) -> Result<()> {
    let ended = || {
        let message = "the transaction had ended or failed before the work did: nothing more is committed, and what the \
            work committed by a statement of its own stays";
        Error::new(ErrorKind::NotHeld, message)
    };
    let check = format!("SELECT current_setting('leasehold.work', true) = '{mark}'");
    match ask(&transaction, &check).await {
        Ok(Some(row)) if row.get(0) == Some("t") => {}
        Ok(_) => return Err(ended()),
        Err(error) if error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) => {
            return Err(ended().with_source(error));
        }
        Err(error) => return Err(before(error)),
    }
    transaction.commit().await.map_err(|error| fault::of(error, Effect::Change))
}

/// The last row, in text.
async fn ask(
    transaction: &Transaction<'_>,
    statements: &str,
) -> std::result::Result<Option<SimpleQueryRow>, tokio_postgres::Error> {
    let last = |message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    };
    Ok(transaction.simple_query(statements).await?.into_iter().filter_map(last).next_back())
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
