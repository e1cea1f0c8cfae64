//! Statements that are asked again and again, and get a name for that on a session of our own.
//!
//! A statement without a name is parsed and planned each time, which takes the server longer than to carry it out. One with
//! a name stays on its session: where a pooler lends sessions it would be missing, or be somebody else's. So names are
//! given only where notifications have shown that there is no such pooler, and what is named looks besides whether it
//! came to its session.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Row, Statement};

use super::wire::{ATTEMPTS, Parameter, Wire, gives_way, is_in_the_way, text};

/// How many there are.
const COUNT: usize = 5;

/// Which use of a statement on a connection names it, and which one that it failed for: commands use theirs once.
const NAMED_AT: (u32, u32) = (2, 256);

/// A statement that is asked often.
#[derive(Debug)]
pub(super) struct Frequent {
    number: usize,
    plain: String,
    /// As it is named: with one more parameter, by which it knows its session, unless it does so anyway.
    named: Option<String>,
}

impl Frequent {
    pub(super) const fn new(number: usize, plain: String, named: Option<String>) -> Self {
        assert!(number < COUNT);
        Self { number, plain, named }
    }
}

/// Those that have a name on a connection.
#[derive(Default)]
pub(super) struct Named([Slot; COUNT]);

#[derive(Default)]
struct Slot {
    uses: AtomicU32,
    statement: OnceLock<Statement>,
}

impl Wire {
    /// Asks as [`ask`](Self::ask).
    pub(super) async fn ask_often(&self, asked: &Frequent, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        for attempt in 1..ATTEMPTS {
            match self.ask_often_once(asked, parameters).await {
                Err(error) if is_in_the_way(&error) => gives_way(attempt).await,
                answer => return answer,
            }
        }
        self.ask_often_once(asked, parameters).await
    }

    /// Asks as [`ask_once`](Self::ask_once).
    pub(super) async fn ask_often_once(
        &self,
        asked: &Frequent,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        let slot = &self.named.0[asked.number];
        if !self.may_name() {
            return self.ask_once(&asked.plain, parameters).await;
        }
        if let Some(statement) = slot.statement.get() {
            match self.ask_named(statement, asked, parameters).await {
                // It was not carried out: there is a pooler after all.
                Err(error) if is_elsewhere(&error) => self.name_no_more(),
                answer => return answer,
            }
        } else {
            let uses = slot.uses.fetch_add(1, Ordering::Relaxed);
            if uses % NAMED_AT.1 == NAMED_AT.0 {
                let plain = self.ask_once(&asked.plain, parameters);
                return tokio::join!(biased; plain, self.name(slot, asked, parameters)).0;
            }
        }
        self.ask_once(&asked.plain, parameters).await
    }

    async fn ask_named(
        &self,
        statement: &Statement,
        asked: &Frequent,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        let mut values: Vec<_> = parameters.iter().map(|(value, _)| *value).collect();
        if asked.named.is_some() {
            values.push(self.id());
        }
        self.flown(self.client().query(statement, &values)).await
    }

    async fn name(&self, slot: &Slot, asked: &Frequent, parameters: &[Parameter<'_>]) {
        let mut types: Vec<_> = parameters.iter().map(|(_, is)| is.clone()).collect();
        let statement = asked.named.as_ref().inspect(|_| types.push(Type::TEXT)).unwrap_or(&asked.plain);
        let id = [text(self.id())];
        let (known, named) = tokio::join!(biased;
            self.ask_once("SELECT set_config('leasehold.session', $1, false)", &id),
            self.client().prepare_typed(statement, &types),
        );
        if let (Ok(_), Ok(named)) = (known, named) {
            slot.statement.set(named).ok();
        }
    }
}

/// Whether the statement came to a session where it has no name, or is another process's.
fn is_elsewhere(error: &Error) -> bool {
    let known = [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::UNDEFINED_OBJECT];
    error.code().is_some_and(|code| known.contains(code))
}
