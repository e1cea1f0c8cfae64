//! What an error of the server or of the connection means for a lease.

use std::error::Error as StdError;
use std::{fmt, io};

use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::error::{Error, ErrorKind};

/// What a server is told by that takes no writes, whenever that is noticed.
pub(super) const STANDBY: &str = "it is a standby or read-only, which grants nothing: name the primary";

/// The longest text of a server that is repeated.
const MAX_TEXT: usize = 200;

/// Whether a request changes something if it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Change,
    Look,
}

/// What the failure of a request comes to.
///
/// An error by which the server rolled the statement back is a certain answer. One that ended the session, and
/// everything that is not the server's own word, leaves open whether the statement was applied.
pub(super) fn of(error: tokio_postgres::Error, effect: Effect) -> Error {
    match error.as_db_error() {
        Some(told) if is_certain(told) => {
            let (kind, advice) = refused(told.code());
            self::told(kind, told, advice)
        }
        _ => uncertain(error, effect),
    }
}

/// What the failure of a request that changes nothing comes to.
pub(super) fn of_look(error: tokio_postgres::Error) -> Error {
    of(error, Effect::Look)
}

/// What the failure to connect to servers of this name comes to.
pub(super) fn connecting(error: tokio_postgres::Error, server: &str) -> Error {
    if let Some(told) = error.as_db_error() {
        let (kind, advice) = refused(told.code());
        return self::told(kind, told, advice);
    }
    let cause = error.source();
    let system = cause.and_then(|cause| cause.downcast_ref::<io::Error>());
    let encryption = system.and_then(io::Error::get_ref).and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let failed = match (encryption, system, cause) {
        (Some(rustls::Error::InvalidCertificate(why)), ..) => Error::new(
            ErrorKind::InvalidConfig,
            format!(
                "the certificate of {server} is not trusted ({why}): name its authority by ca_file, and the server by a \
                 name that the certificate is for"
            ),
        ),
        // Of several servers none was taken.
        (None, Some(cause), _) if cause.to_string().contains("does not allow writes") => {
            Error::new(ErrorKind::Rejected, format!("{server}: {STANDBY}"))
        }
        (None, Some(system), _) => Error::new(ErrorKind::Unavailable, format!("cannot connect to {server}: {system}")),
        (None, None, Some(cause)) if cause.to_string().contains("does not support TLS") => Error::new(
            ErrorKind::InvalidConfig,
            format!("{server} offers no encryption: let it, or write sslmode=disable"),
        ),
        (None, None, Some(cause)) if cause.to_string().contains("password") => {
            Error::new(ErrorKind::Rejected, format!("{server} asks for a password: name one"))
        }
        (.., Some(cause)) => Error::new(ErrorKind::Unavailable, format!("cannot connect to {server}: {cause}")),
        _ => Error::new(ErrorKind::Unavailable, format!("{server} ended the connection before it let us in")),
    };
    failed.with_source(error)
}

/// Whether tables could not be made because somebody else does at this moment.
pub(super) fn is_made_by_another(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        let known = [SqlState::DUPLICATE_TABLE, SqlState::DUPLICATE_OBJECT, SqlState::UNIQUE_VIOLATION];
        known.contains(code) || *code == SqlState::T_R_DEADLOCK_DETECTED
    })
}

/// An answer that no statement of ours gets.
pub(super) fn unexpected(effect: Effect) -> Error {
    let message = "the server gave an answer that does not fit the question: is something else behind this address?";
    Error::new(if effect == Effect::Change { ErrorKind::Indeterminate } else { ErrorKind::Unavailable }, message)
}

pub(super) fn unexpected_look() -> Error {
    unexpected(Effect::Look)
}

/// Whether the server answered, and the session goes on.
pub(super) fn is_answer(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(is_certain)
}

/// Whether the statement was surely rolled back. A pooler tells the loss of its own connection as an error, too.
fn is_certain(error: &DbError) -> bool {
    let is_error = error.parsed_severity().map_or(error.severity() == "ERROR", |severity| severity == Severity::Error);
    is_error && !error.code().code().starts_with("08")
}

fn uncertain(error: tokio_postgres::Error, effect: Effect) -> Error {
    let kind = match effect {
        Effect::Change => ErrorKind::Indeterminate,
        Effect::Look => ErrorKind::Unavailable,
    };
    match error.as_db_error() {
        Some(told) => {
            let message = format!("the server ended the connection before the answer ({})", short(told.message()));
            Error::new(kind, message).with_source(Told::of(told))
        }
        None => Error::new(kind, "the connection broke before the answer").with_source(error),
    }
}

/// The kind of what the server itself refused, and what to do about it.
fn refused(code: &SqlState) -> (ErrorKind, &'static str) {
    use ErrorKind::{Rejected, Unavailable};
    match code.code() {
        "28P01" | "28000" => (Rejected, "check the user name and the password, and that the user may connect"),
        "3D000" => (Rejected, "name a database that it has"),
        "42501" => (Rejected, "give the user the rights that the documentation of this store lists"),
        // The message itself names what is missing, the table or the sequence.
        "42P01" => (
            Rejected,
            "the next request makes it anew if it may, a table without the leases that were in it, a sequence with \
             higher tokens",
        ),
        "42703" | "42804" => (Rejected, "the table is of another version or none of ours: name another"),
        "42883" => (Rejected, "it lacks a function that this store needs: is it PostgreSQL?"),
        "25006" => (Rejected, STANDBY),
        "40001" | "40P01" => (Unavailable, "others were in the way: try again soon"),
        "55P03" => (Unavailable, "somebody has locked the table: see pg_locks"),
        "57014" => (Unavailable, "it did not get done in time: see statement_timeout"),
        "57P03" => (Unavailable, "it is starting or ending: try again soon"),
        "53300" => (Unavailable, "it has no connection left: raise max_connections or end some"),
        "53100" => (Unavailable, "its disk is full"),
        code => match code.get(..2).unwrap_or_default() {
            "08" | "53" | "55" | "57" | "58" | "XX" => (Unavailable, "see the server's log"),
            _ => (Rejected, "see the server's log"),
        },
    }
}

/// An error in the server's own words.
fn told(kind: ErrorKind, error: &DbError, advice: &str) -> Error {
    let message = format!("the server said \"{} {}\": {advice}", error.code().code(), short(error.message()));
    Error::new(kind, message).with_source(Told::of(error))
}

/// What the server said, without its details: they may show a row, and an owner token with it.
#[derive(Debug)]
struct Told {
    code: String,
    message: String,
}

impl Told {
    fn of(error: &DbError) -> Self {
        Self { code: error.code().code().to_owned(), message: short(error.message()) }
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.message)
    }
}

impl StdError for Told {}

fn short(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(MAX_TEXT).collect()
}
