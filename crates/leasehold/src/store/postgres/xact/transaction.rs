//! A transaction that does nothing but hold or wait for one lock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::types::Type;
use tokio_postgres::{Error as PgError, SimpleQueryRow};

use super::super::answer;
use super::super::fault::{self, Effect};
use super::super::wire::{self, Parameter};
use super::connections::{Connection, Connections};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Loss;
use crate::types::FencingToken;

/// What is asked in a transaction is asked of that very one, or answered with nothing.
const TRY: &str = "SELECT CASE WHEN {is_ours} THEN pg_try_advisory_xact_lock({lock}) END, pg_backend_pid(), \
    (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint";
const LOCK: &str = "SELECT CASE WHEN {is_ours} THEN pg_advisory_xact_lock({lock})::text IS NOT NULL END";
const CHECK: &str = "SELECT {is_ours}";
const END: &str = "SELECT {is_ours}; ROLLBACK";

/// How long one step may take before the connection is given up, beside a sixth of the ttl: an engine waits no longer, and
/// then asks again.
const LIMITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How long a cancel request may take until the statement has ended: many times what it takes. After that the server is
/// asked to end the session.
const PATIENCE: Duration = Duration::from_secs(2);

/// One that is open.
pub(super) struct Transaction {
    connections: Arc<Connections>,
    connection: Connection,
    /// What it carries as long as it lasts: whoever reads it is in this very transaction.
    id: String,
    lock: i64,
    /// The server's process, and since when the server is there.
    pid: i32,
    server: i64,
    /// How long a step may take.
    limit: Duration,
    /// It has ended, and the connection is somebody else's or none any more.
    is_over: AtomicBool,
    place: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Transaction {
    /// Begins one and asks for a lock, in one round trip. Answers with whether it was free.
    pub(super) async fn begin(connections: &Arc<Connections>, lock: i64, ttl: Duration) -> Result<(Self, bool)> {
        let id = wire::new_id()?;
        let (place, connection) = connections.take(ttl).await?;
        let mut transaction = Self {
            connections: Arc::clone(connections),
            connection,
            id,
            lock,
            pid: 0,
            server: 0,
            limit: (ttl / 6).clamp(LIMITS.0, LIMITS.1),
            is_over: AtomicBool::new(false),
            place: Mutex::new(Some(place)),
        };
        match transaction.in_time(transaction.try_lock()).await {
            Ok((locked, pid, server)) => {
                (transaction.pid, transaction.server) = (pid, server);
                Ok((transaction, locked))
            }
            Err(error) => {
                transaction.abandon().await;
                Err(error)
            }
        }
    }

    async fn try_lock(&self) -> Result<(bool, i32, i64)> {
        let begin = format!("{}; {}", self.connections.begin(&self.id), self.fill_in(TRY));
        let row = self.connection.wire.ask_plainly(&begin).await.map_err(|error| {
            let is_pooled = |told: &DbError| told.message().contains("statement pooling");
            if error.as_db_error().is_some_and(is_pooled) { pooled() } else { failed(error) }
        })?;
        let known = row.as_ref().and_then(|row| Some((row.get(1)?.parse().ok()?, row.get(2)?.parse().ok()?)));
        let (pid, server) = known.ok_or_else(|| fault::unexpected(Effect::Change))?;
        Ok((verdict(row.as_ref()).ok_or_else(pooled)?, pid, server))
    }

    /// Waits for the lock within the server, in its line; `None` = the statement came to another transaction.
    pub(super) async fn lock(&self) -> std::result::Result<Option<bool>, PgError> {
        Ok(verdict(self.connection.wire.ask_plainly(&self.fill_in(LOCK)).await?.as_ref()))
    }

    /// Whether the server's process has the lock, or waits for it; `None` = neither.
    pub(super) async fn standing(&self) -> Result<Option<bool>> {
        let asking: [Parameter<'_>; 2] = [(&self.pid, Type::INT4), (&self.lock, Type::INT8)];
        let standing = self.connections.link.look(include_str!("../sql/xact_standing.sql"), &asking);
        let rows = self.in_time(standing).await?;
        let row = rows.first().ok_or_else(fault::unexpected_look)?;
        self.is_of(answer::get(row, 1, Effect::Look)?)?;
        answer::get(row, 0, Effect::Look)
    }

    /// Draws a token under the lock, which was granted: whoever has it once the token is drawn had it before. From then on
    /// its loss is told.
    pub(super) async fn draw(&self) -> Result<(FencingToken, Loss)> {
        let (fence, server) = self.in_time(self.connections.draw()).await?;
        self.is_of(server)?;
        if !self.checked(Effect::Change).await? {
            return Err(Error::new(ErrorKind::Unavailable, "the session that had the lock ended at once"));
        }
        let loss = Loss::new();
        self.connection.watch.arm(&loss);
        Ok((fence, loss))
    }

    /// Whether it is still the one that was begun: then it has what it was granted.
    pub(super) async fn check(&self) -> Result<bool> {
        self.checked(Effect::Look).await
    }

    /// What it comes to that there is no answer depends on whether something was under way.
    async fn checked(&self, effect: Effect) -> Result<bool> {
        let check = self.fill_in(CHECK);
        let checking = async {
            match self.connection.wire.ask_plainly(&check).await {
                Ok(row) => Ok(verdict(row.as_ref()) == Some(true)),
                // Whatever the server refuses, it has rolled the transaction back: the lock is free.
                Err(error) if error.as_db_error().is_some() => Ok(false),
                Err(error) => Err(fault::of(error, effect)),
            }
        };
        self.in_time(checking).await
    }

    /// Makes sure that everything is asked of one server: a name may have come to lead to another one, which knows nothing of
    /// these locks, and has a sequence of its own.
    fn is_of(&self, server: i64) -> Result<()> {
        if server == self.server {
            return Ok(());
        }
        self.connections.start_anew();
        Err(Error::new(ErrorKind::Unavailable, "its connections led to two servers, so it makes them anew"))
    }

    /// Whether nothing is left of it at the server, as far as that can be known.
    pub(super) fn has_left(&self) -> bool {
        self.place.lock().is_none()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.is_over.load(Ordering::Acquire) || self.connection.wire.has_ended()
    }

    /// Ends it, and with it the lock. `false` = it had ended before.
    pub(super) async fn end(&self) -> Result<bool> {
        let _leaving = self.connections.leaving();
        self.connection.watch.disarm();
        let end = self.fill_in(END);
        let ending = async { self.connection.wire.ask_plainly(&end).await.map_err(failed) };
        match self.in_time(ending).await {
            Ok(row) => {
                self.rest();
                Ok(verdict(row.as_ref()) == Some(true))
            }
            Err(error) => {
                self.abandon().await;
                Err(error)
            }
        }
    }

    /// Leaves the line: has the server give up the statement that waits, and rolls back. The connection is used again only
    /// if both were answered: a cancel request that came late would meet somebody else's statement.
    pub(super) async fn leave(&self, asked: impl Future<Output = std::result::Result<Option<bool>, PgError>>) {
        let _leaving = self.connections.leaving();
        let leaving = async {
            self.connections.cancel(&self.id).await.ok()?;
            asked.await.err()
        };
        let error = tokio::time::timeout(PATIENCE, leaving).await.ok().flatten();
        let is_cancelled = error.is_some_and(|error| error.code() == Some(&SqlState::QUERY_CANCELED));
        let rolling_back = async { self.connection.wire.run("ROLLBACK").await.map_err(failed) };
        if is_cancelled && self.in_time(rolling_back).await.is_ok() {
            self.rest();
        } else {
            self.abandon().await;
        }
    }

    /// Gives the connection up, and has the server end what is left of it.
    pub(super) async fn abandon(&self) {
        // Else it may be somebody else's by now.
        if self.is_over.swap(true, Ordering::AcqRel) {
            return;
        }
        let _leaving = self.connections.leaving();
        self.connection.cut();
        self.connections.end(&self.id).await;
        drop(self.place.lock().take());
    }

    /// Within the time for one step.
    pub(super) async fn in_time<T>(&self, step: impl Future<Output = Result<T>>) -> Result<T> {
        let limit = self.limit;
        tokio::time::timeout(limit, step).await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Indeterminate, format!("the server did not answer within {limit:?}")))
        })
    }

    /// Nothing in it has to be quoted: digits, all of it.
    fn fill_in(&self, statement: &str) -> String {
        let is_ours = format!("current_setting('leasehold.transaction', true) = '{}'", self.id);
        statement.replace("{is_ours}", &is_ours).replace("{lock}", &self.lock.to_string())
    }

    fn rest(&self) {
        if !self.is_over.swap(true, Ordering::AcqRel) {
            self.connections.put_back(self.connection.clone());
            drop(self.place.lock().take());
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        // The server rolls back what it is left with.
        if !*self.is_over.get_mut() {
            self.connection.cut();
        }
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("backend", &self.pid).finish_non_exhaustive()
    }
}

fn failed(error: PgError) -> Error {
    fault::of(error, Effect::Change)
}

/// What a row tells; `None` = nothing, as where the transaction is another one.
fn verdict(row: Option<&SimpleQueryRow>) -> Option<bool> {
    match row?.get(0)? {
        "t" => Some(true),
        "f" => Some(false),
        _ => None,
    }
}

/// There are no transactions of one's own there.
pub(super) fn pooled() -> Error {
    Error::new(
        ErrorKind::Rejected,
        "a pooler lends connections to single statements, so that no transaction is one's own: use one that lends them \
         to transactions, connect past it, or write mode=table",
    )
}
