//! What went wrong with the file, and what that means to a caller.

use std::path::Path;

use rusqlite::ErrorCode;

use crate::error::{Error, ErrorKind};

const UNEXPECTED: &str = "does not hold what it should: name another file";

/// A failure while the file is at hand.
#[derive(Debug)]
pub(super) enum Fault {
    Sql(rusqlite::Error),
    /// The path leads to another file than a moment ago.
    Replaced,
    Told(Error),
}

impl Fault {
    pub(super) fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Sql(error) => error.sqlite_error_code(),
            Self::Replaced | Self::Told(_) => None,
        }
    }

    /// Whether it may pass by itself, because another process is at work.
    pub(super) fn is_busy(&self) -> bool {
        use ErrorCode::{DatabaseBusy, DatabaseLocked, FileLockingProtocolFailed, SchemaChanged};
        match self {
            Self::Replaced => true,
            _ => matches!(self.code(), Some(DatabaseBusy | DatabaseLocked | FileLockingProtocolFailed | SchemaChanged)),
        }
    }

    /// The error that a caller gets.
    ///
    /// Nothing here is indeterminate: a transaction that failed was rolled back.
    pub(super) fn explain(self, path: &Path) -> Error {
        use ErrorCode::{
            AuthorizationForStatementDenied, CannotOpen, DatabaseCorrupt, DiskFull, NotADatabase, PermissionDenied,
            ReadOnly, SystemIoFailure, Unknown,
        };
        if self.is_busy() {
            let error = told(ErrorKind::Unavailable, path, "is busy: another process keeps writing to it");
            return match self {
                Self::Sql(source) => error.with_source(source),
                Self::Replaced | Self::Told(_) => error,
            };
        }
        let (kind, text) = match self.code() {
            Some(ReadOnly | PermissionDenied | CannotOpen | AuthorizationForStatementDenied) => (
                ErrorKind::Rejected,
                "cannot be written: allow this user to write the file and its directory, or name another file",
            ),
            Some(NotADatabase) => {
                (ErrorKind::Rejected, "belongs to another program and was left alone: name another file")
            }
            Some(DatabaseCorrupt) => (ErrorKind::Rejected, "is damaged: move it away when no lease is held"),
            Some(Unknown) | None => (ErrorKind::Rejected, UNEXPECTED),
            Some(SystemIoFailure) => (ErrorKind::Unavailable, "cannot be read or written: the disk reports an error"),
            Some(DiskFull) => (ErrorKind::Unavailable, "cannot be written: the disk is full"),
            _ => (ErrorKind::Unavailable, "failed"),
        };
        match self {
            Self::Told(error) => error,
            Self::Replaced => told(kind, path, text),
            Self::Sql(source) => told(kind, path, text).with_source(source),
        }
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Told(error)
    }
}

/// A refusal of the file at `path`; `why` says what is wrong and what to do.
pub(super) fn rejected(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Rejected, format!("cannot use {}: {why}", path.display()))
}

fn told(kind: ErrorKind, path: &Path, text: &str) -> Error {
    Error::new(kind, format!("the file {} {text}", path.display()))
}
