//! The tables that leases are kept in, and the statements on them.

use tokio_postgres::types::Type;

use super::fault;
use super::frequent::Frequent;
use super::wire::{Wire, text};
use crate::error::{Error, ErrorKind, Result};

/// What a table of ours says of itself.
const VERSION: &str = "leasehold leases, version 1";

/// Its columns, in alphabetical order.
const SHAPE: &str = "expires timestamp with time zone, fence bigint, holder text, key text, owner bytea, \
    renewed timestamp with time zone, since timestamp with time zone";

/// The first version that has all that is asked for.
const OLDEST: i32 = 120_000;

/// How often others may get in the way while the tables are made.
const ATTEMPTS: u32 = 5;

/// The session is the one on which the statement was named; or else an error, so that nothing is changed.
const IS_HERE: &str = "CASE WHEN current_setting('leasehold.session', true) = {id} THEN true \
    ELSE current_setting('leasehold.elsewhere') IS NULL END";

const CHECK: &str = "SELECT current_setting('leasehold.session', true) = $1";
const UNLOCK: &str = "SELECT CASE WHEN current_setting('leasehold.session', true) = $1 THEN pg_advisory_unlock($2) END";

/// Names of at most this many bytes leave room for the endings of ours, below the server's limit of 63.
const MAX_NAME: usize = 57;

/// Schema and table together name the channel of notifications.
const MAX_NAMES: usize = 62;

/// Where leases are kept.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    schema: String,
    table: String,
}

impl Default for Names {
    fn default() -> Self {
        Self { schema: "public".to_owned(), table: "leasehold".to_owned() }
    }
}

impl Names {
    pub(crate) fn schema(mut self, name: &str) -> Result<Self> {
        self.schema = checked("schema", name)?;
        self.fitting()
    }

    pub(crate) fn table(mut self, name: &str) -> Result<Self> {
        self.table = checked("table", name)?;
        self.fitting()
    }

    fn fitting(self) -> Result<Self> {
        if self.schema.len() + self.table.len() > MAX_NAMES {
            return Err(invalid(format!("the names of schema and table have more than {MAX_NAMES} bytes together")));
        }
        Ok(self)
    }

    /// What makes the tables, for somebody who may.
    pub(super) fn create(&self) -> String {
        self.fill_in(include_str!("sql/create.sql"))
    }

    /// What makes the table of waiters, where it alone is missing.
    fn create_waits(&self) -> String {
        let create = self.create();
        let waits = create.split_inclusive(';').find(|statement| statement.contains("UNLOGGED"));
        waits.unwrap_or_default().to_owned()
    }

    /// What makes the sequence, where it alone is missing.
    fn create_fence(&self) -> String {
        self.fill_in(&without_comments(include_str!("sql/fence.sql")))
    }

    /// The channel on which releases are told.
    pub(super) fn channel(&self) -> String {
        format!("{}.{}", self.schema, self.table)
    }

    fn fill_in(&self, statement: &str) -> String {
        let name = |ending: &str| format!("\"{}\".\"{}{ending}\"", self.schema, self.table);
        statement
            .replace("{leases}", &name(""))
            .replace("{fence}", &name("_fence"))
            .replace("{waits}", &name("_waits"))
            .replace("{channel}", &self.channel())
            .replace("{version}", VERSION)
            .replace("{holder}", "key, owner, fence, {micros_until_expires}, {since}, {renewed}, holder")
            .replace(
                "{micros_until_expires}",
                "floor(extract(epoch FROM expires - clock_timestamp()) * 1000000)::bigint",
            )
            .replace("{since}", "(extract(epoch FROM since) * 1000000)::bigint")
            .replace("{renewed}", "(extract(epoch FROM renewed) * 1000000)::bigint")
            .replace("{without_flush}", "set_config('synchronous_commit', 'off', true) IS NOT NULL")
    }
}

/// A statement on one line.
fn without_comments(statement: &str) -> String {
    let lines = statement.lines().map(str::trim).filter(|line| !line.starts_with("--"));
    lines.collect::<Vec<_>>().join(" ")
}

/// A name that means the same in every statement, quoted or not in a psql session.
fn checked(what: &str, name: &str) -> Result<String> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let starts_well = name.starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
    if !starts_well || name.len() > MAX_NAME || !name.bytes().all(is_plain) {
        return Err(invalid(format!(
            "option {what:?} is no name: use a to z, 0 to 9 and _, at most {MAX_NAME} of them"
        )));
    }
    Ok(name.to_owned())
}

/// The statements on the tables of these names.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) acquire: Frequent,
    pub(super) extend: String,
    pub(super) release: Frequent,
    pub(super) transfer: String,
    pub(super) force_release: String,
    pub(super) inspect: String,
    pub(super) list: String,
    pub(super) look: String,
    pub(super) mark: String,
    pub(super) tell: String,
    pub(super) waiting: String,
    pub(super) sweep: String,
    pub(super) sweep_waits: String,
    pub(super) try_lock: Frequent,
    pub(super) unlock: Frequent,
    pub(super) check: Frequent,
    pub(super) draw: String,
}

impl Statements {
    pub(super) fn on(names: &Names) -> Self {
        // As they go over the network each time.
        let fill_in = |statement: &str| names.fill_in(&without_comments(statement));
        let frequent = |number, statement: &str, parameters: usize| {
            let (statement, here) = (fill_in(statement), IS_HERE.replace("{id}", &format!("${}", parameters + 1)));
            let (plain, named) = (statement.replace("{is_here}", "true"), statement.replace("{is_here}", &here));
            Frequent::new(number, plain, Some(named))
        };
        Self {
            acquire: frequent(0, include_str!("sql/acquire.sql"), 4),
            release: frequent(1, include_str!("sql/release.sql"), 2),
            try_lock: Frequent::new(2, fill_in(include_str!("sql/try_lock.sql")), None),
            unlock: Frequent::new(3, UNLOCK.to_owned(), None),
            check: Frequent::new(4, CHECK.to_owned(), None),
            extend: fill_in(include_str!("sql/extend.sql")),
            transfer: fill_in(include_str!("sql/transfer.sql")),
            force_release: fill_in(include_str!("sql/force_release.sql")),
            inspect: fill_in(include_str!("sql/inspect.sql")),
            list: fill_in(include_str!("sql/list.sql")),
            look: fill_in(include_str!("sql/look.sql")),
            mark: fill_in(include_str!("sql/mark.sql")),
            tell: fill_in(include_str!("sql/tell.sql")),
            waiting: fill_in(include_str!("sql/waiting.sql")),
            sweep: fill_in(include_str!("sql/sweep.sql")),
            sweep_waits: fill_in(include_str!("sql/sweep_waits.sql")),
            draw: fill_in(include_str!("sql/xact_draw.sql")),
        }
    }
}

/// What the server is like for us.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// We may mark that we wait.
    pub(super) may_wait: bool,
    /// What was answered is on disk.
    pub(super) is_durable: bool,
}

/// What there is beside the table of leases.
#[derive(Clone, Copy, Debug)]
struct Found {
    facts: Facts,
    has_fence: bool,
    has_waits: bool,
}

/// Makes sure that this is a server that grants leases, with tables for them; makes those that are missing.
pub(super) async fn prepare(wire: &Wire, names: &Names) -> Result<Facts> {
    for attempt in 1.. {
        let (kind, create) = match look(wire, names).await? {
            Some(Found { facts, has_fence: true, has_waits }) => {
                // Where this user may not make it waiters ask again and again.
                if !has_waits && attempt < ATTEMPTS {
                    let made = wire.run(&names.create_waits()).await;
                    if made.as_ref().err().is_none_or(fault::is_made_by_another) {
                        continue;
                    }
                }
                return Ok(facts);
            }
            Some(_) => ("sequence", names.create_fence()),
            None => ("table", names.create()),
        };
        match wire.run(&create).await {
            Ok(()) => {}
            // Somebody else makes them right now; then they are there in the end.
            Err(error) if attempt < ATTEMPTS && fault::is_made_by_another(&error) => {}
            Err(error) => return Err(missing(names, kind, &create, error)),
        }
        if attempt > ATTEMPTS {
            break;
        }
    }
    Err(Error::new(ErrorKind::Unavailable, "the tables for leases come and go"))
}

/// What is there; `None` = there are no tables.
async fn look(wire: &Wire, names: &Names) -> Result<Option<Found>> {
    let statement = names.fill_in(include_str!("sql/facts.sql"));
    let rows = wire.ask(&statement, &[text(&names.schema), (&names.table, Type::TEXT)]).await;
    let rows = rows.map_err(fault::of_look)?;
    let row = rows.first().ok_or_else(fault::unexpected_look)?;
    let get = |at| row.try_get::<_, bool>(at).map_err(|_| fault::unexpected_look());
    let get_text = |at| row.try_get::<_, Option<&str>>(at).map_err(|_| fault::unexpected_look());
    if get(0)? {
        return Err(rejected(format!("the server: {}", fault::STANDBY)));
    }
    if get(1)? {
        return Err(rejected(
            "transactions are read-only here: set default_transaction_read_only to off for this user",
        ));
    }
    match get_text(2)? {
        Some("UTF8") => {}
        encoding => {
            let encoding = encoding.unwrap_or_default();
            return Err(rejected(format!("the database's encoding is {encoding}: use a database in UTF8")));
        }
    }
    // A crash would empty it, and a replica has nothing of it.
    if let Some(name) = get_text(9)? {
        let kind = if name == names.table { "TABLE" } else { "SEQUENCE" };
        let name = format!("{}.{name}", names.schema);
        return Err(rejected(format!(
            "{name} is unlogged and would be empty after a crash: run ALTER {kind} {name} SET LOGGED"
        )));
    }
    if row.try_get::<_, i32>(3).map_err(|_| fault::unexpected_look())? < OLDEST {
        return Err(rejected("the server is too old: use PostgreSQL 12 or later"));
    }
    let table = names.channel();
    match (get_text(6)?, get_text(5)?) {
        _ if !get(4)? => Err(rejected(format!("there is no schema {:?}: create it, or name another", names.schema))),
        (None, _) => Ok(None),
        (Some(SHAPE), Some(VERSION)) => {
            let may_wait = row.try_get::<_, Option<bool>>(7).map_err(|_| fault::unexpected_look())?;
            let facts = Facts { may_wait: may_wait == Some(true), is_durable: get(8)? };
            Ok(Some(Found { facts, has_fence: get(10)?, has_waits: may_wait.is_some() }))
        }
        (Some(SHAPE), Some(other)) if other.starts_with("leasehold") => {
            Err(rejected(format!("table {table} is of another version: use a release that knows it, or another table")))
        }
        (Some(SHAPE), None) => Err(rejected(format!(
            "table {table} has lost its comment: run COMMENT ON TABLE {table} IS '{VERSION}', if it is one of ours"
        ))),
        _ => Err(rejected(format!("table {table} is none of ours: name another by ?table="))),
    }
}

fn missing(names: &Names, kind: &str, create: &str, error: tokio_postgres::Error) -> Error {
    let ending = if kind == "table" { "" } else { "_fence" };
    let name = format!("{}{ending}", names.channel());
    let sql = create.split_whitespace().collect::<Vec<_>>().join(" ");
    if error.code() == Some(&tokio_postgres::error::SqlState::INSUFFICIENT_PRIVILEGE) {
        return rejected(format!("there is no {kind} {name}, and this user may not make it: run {sql}"));
    }
    fault::of(error, fault::Effect::Change)
}

fn rejected(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Rejected, message)
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_short() {
        let names = Names::default().schema("a_1").unwrap().table("_b").unwrap();
        assert_eq!(names.channel(), "a_1._b");
        assert!(names.create().contains(r#"CREATE TABLE "a_1"."_b" ("#));
        for name in ["", "1a", "A", "a-b", "a\"b", "a.b", "ä", &"a".repeat(58)] {
            assert_eq!(Names::default().table(name).unwrap_err().kind(), ErrorKind::InvalidConfig, "{name}");
        }
        Names::default().schema(&"a".repeat(40)).unwrap().table(&"b".repeat(23)).unwrap_err();
    }

    #[test]
    fn statements_are_whole() {
        let statements = format!("{:?}", Statements::on(&Names::default()));
        // What shows them has braces of its own, and an array without elements is written by two.
        let own = ["Statements {", "Frequent {", " }", "'{}'"];
        let left = own.iter().fold(statements, |statements, own| statements.replace(own, ""));
        assert!(!left.contains(['{', '}']), "{left}");
    }
}
