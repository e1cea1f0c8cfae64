//! What is said to the server.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::{CancelToken, SimpleQueryMessage, SimpleQueryRow, Transaction};

use super::TransactionLocks;
use super::held::NotEnded;
use crate::call::Call;
use crate::error::{Error, ErrorKind, LostReason, Operation, Result};
use crate::options::Wait;
use crate::store::postgres::advisory::id;
use crate::store::postgres::fault::{self, Effect};
use crate::store::postgres::sent::Sent;
use crate::store::postgres::tls::{self, Trust};
use crate::types::Key;

/// Several times what a rollback takes, and no long wait for those who see why the work failed only after it.
const ROLLBACK_LIMIT: Duration = Duration::from_secs(5);

/// How often the server is asked to give up a statement that waits, and the first pause in between, which is many times what
/// it takes, so that no second request meets the next statement; doubled each time.
const CANCELS: u32 = 7;
const PAUSE: Duration = Duration::from_secs(1);

/// How long it may take to ask.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);

type Answer<T> = std::result::Result<T, tokio_postgres::Error>;

/// Takes the lock, as long as the session's limits let it wait.
pub(super) async fn lock(
    locks: &TransactionLocks,
    transaction: &Transaction<'_>,
    key: &Key,
    call: &mut Call<'_>,
) -> Result<()> {
    call.asks();
    let at_once = format!("SELECT pg_try_advisory_xact_lock({})", id(key));
    let asked = locks.timed(Operation::Acquire, Error::kind, ask(transaction, &at_once)).await?;
    if is_true(asked.as_ref()) {
        return Ok(());
    }
    call.waits();
    wait_for(transaction, key).await
}

/// Takes the lock, and leaves the transaction's limits as they were. `false` = the wait ended before.
///
/// By statements that leave nothing open, so that the transaction sees what is there and holds up nobody.
pub(super) async fn take(
    locks: &TransactionLocks,
    transaction: &Transaction<'_>,
    key: &Key,
    wait: Wait,
    mark: &str,
    call: &mut Call<'_>,
) -> Result<bool> {
    call.asks();
    let at_once = format!(
        "SELECT set_config('leasehold.work', '{mark}', true); \
         SELECT pg_try_advisory_xact_lock({}), current_setting('lock_timeout'), current_setting('statement_timeout')",
        id(key)
    );
    let asked = locks.timed(Operation::Acquire, Error::kind, ask(transaction, &at_once)).await?;
    if is_true(asked.as_ref()) {
        return Ok(true);
    }
    let wait = match wait {
        Wait::No | Wait::UpTo(Duration::ZERO) => return Ok(false),
        Wait::UpTo(wait) => wait,
        Wait::Forever => Duration::ZERO,
    };
    call.waits();
    let before = asked.ok_or_else(fault::unexpected_look)?;
    let before = |at| before.get(at).map(|limit| limit.replace('\'', "''")).ok_or_else(fault::unexpected_look);
    let (lock, statement) = (before(1)?, before(2)?);
    let most = wait.as_nanos().div_ceil(1_000_000).min(i32::MAX.unsigned_abs().into());
    limit(transaction, &most.to_string(), "0").await?;
    match wait_for(transaction, key).await {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::Contended => return Ok(false),
        Err(error) => return Err(error),
    }
    limit(transaction, &lock, &statement).await?;
    Ok(true)
}

/// Commits, if there is something to commit: the server answers the commit of a transaction that has failed or ended as if
/// it had succeeded.
pub(super) async fn commit(transaction: Transaction<'_>, mark: &str) -> std::result::Result<(), NotEnded> {
    let check = format!("SELECT current_setting('leasehold.work', true) = '{mark}'");
    match last_row(&transaction, &check).await {
        Ok(row) if is_true(row.as_ref()) => {}
        Ok(_) => return Err(NotEnded { error: ended_before(), lost: Some(LostReason::NotHeld) }),
        Err(error) if error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) => {
            return Err(NotEnded { error: ended_before().with_source(error), lost: Some(LostReason::NotHeld) });
        }
        Err(error) => return Err(not_ended(error, Effect::Look)),
    }
    transaction.commit().await.map_err(|error| not_ended(error, Effect::Change))
}

/// Rolls back. The answer is not waited for without end: it comes after that to whatever the work asked last.
pub(super) async fn roll_back(transaction: Transaction<'_>) -> std::result::Result<(), NotEnded> {
    match tokio::time::timeout(ROLLBACK_LIMIT, transaction.rollback()).await {
        Ok(answer) => answer.map_err(|error| not_ended(error, Effect::Look)),
        Err(_) => {
            let message = format!("the rollback was not answered within {ROLLBACK_LIMIT:?}");
            Err(NotEnded { error: Error::new(ErrorKind::Indeterminate, message), lost: None })
        }
    }
}

/// What a failure before anything is committed means: whatever was done is undone.
pub(super) fn before(error: tokio_postgres::Error) -> Error {
    fault::of(error, Effect::Look)
}

fn ended_before() -> Error {
    let message = "the transaction had ended or failed before the work did: nothing more is committed, and what the \
        work committed by a statement of its own stays";
    Error::new(ErrorKind::NotHeld, message)
}

/// A transaction that the server refuses to commit has ended by that, and its locks with it.
fn not_ended(error: tokio_postgres::Error, effect: Effect) -> NotEnded {
    let lost = (!fault::is_answer(&error)).then_some(LostReason::ConnectionLost);
    NotEnded { error: fault::of(error, effect), lost }
}

async fn limit(transaction: &Transaction<'_>, lock: &str, statement: &str) -> Result<()> {
    let limits = format!(
        "SELECT set_config('lock_timeout', '{lock}', true), set_config('statement_timeout', '{statement}', true)"
    );
    ask(transaction, &limits).await.map(drop)
}

async fn wait_for(transaction: &Transaction<'_>, key: &Key) -> Result<()> {
    let statement = format!("SELECT pg_advisory_xact_lock({})", id(key));
    let Some(sent) = Sent::to(transaction.client(), &statement) else {
        return Err(Error::new(ErrorKind::Unavailable, "the connection has ended"));
    };
    let mut waiting = Waiting(Some((sent, transaction.cancel_token())));
    let locked = match &mut waiting.0 {
        Some((sent, _)) => sent.answered().await,
        None => Ok(()),
    };
    waiting.0 = None;
    locked.map_err(locking)
}

/// The last row, in text.
async fn last_row(transaction: &Transaction<'_>, statements: &str) -> Answer<Option<SimpleQueryRow>> {
    let last = |message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    };
    Ok(transaction.simple_query(statements).await?.into_iter().filter_map(last).next_back())
}

async fn ask(transaction: &Transaction<'_>, statements: &str) -> Result<Option<SimpleQueryRow>> {
    last_row(transaction, statements).await.map_err(locking)
}

fn is_true(row: Option<&SimpleQueryRow>) -> bool {
    row.is_some_and(|row| row.get(0) == Some("t"))
}

/// What a failure to lock means. Only the limit for locks says that somebody has it.
fn locking(error: tokio_postgres::Error) -> Error {
    if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) {
        return Error::new(ErrorKind::Contended, "held by somebody else until the wait ended").with_source(error);
    }
    before(error)
}

/// A statement that waits, and is given up by the server if nobody waits for it any more.
struct Waiting(Option<(Sent, CancelToken)>);

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some((mut sent, token)) = self.0.take() else { return };
        // Who reads the request may cancel this statement and no more, so it does not matter whom it is told to.
        let (Ok(runtime), Ok(tls)) = (tokio::runtime::Handle::try_current(), tls::connector(Trust::Anybody)) else {
            return;
        };
        runtime.spawn(async move {
            let mut pause = PAUSE;
            for _ in 0..CANCELS {
                let cancelling = async {
                    tokio::time::timeout(CANCEL_LIMIT, token.cancel_query(tls.clone())).await.ok();
                    tokio::time::sleep(pause).await;
                };
                // One that came before the statement was discarded; one that comes after it would meet the next one.
                tokio::select! { biased;
                    _ = sent.answered() => return,
                    () = cancelling => pause *= 2,
                }
            }
        });
    }
}
