//! What went wrong with the file, and what that means to a caller.

use std::path::Path;

use rusqlite::ErrorCode;

use crate::error::{Error, ErrorKind};

const UNEXPECTED: &str = "does not hold what it should: name another file";
const RESTORED: &str = "it was copied or restored here beside the -wal and -shm of another file: \
    end all that use it and remove -wal and -shm, too";

/// A failure while the file is at hand.
#[derive(Debug)]
pub(super) enum Fault {
    Sql(rusqlite::Error),
    /// What a commit itself came to; the transaction may stand.
    Commit(rusqlite::Error),
    /// Another process is at work.
    Busy,
    /// The path leads to another file than a moment ago.
    Replaced,
    /// The file was put beside the log of another one, or is just being recognized as a copy.
    Restored,
    Told(Error),
}

impl Fault {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Sql(error) | Self::Commit(error) => error.sqlite_error_code(),
            Self::Busy | Self::Replaced | Self::Restored | Self::Told(_) => None,
        }
    }

    /// Whether it may pass by itself, because another process is at work.
    pub(super) fn is_busy(&self) -> bool {
        use ErrorCode::{DatabaseBusy, DatabaseLocked, FileLockingProtocolFailed, SchemaChanged};
        match self {
            Self::Busy | Self::Replaced => true,
            _ => matches!(self.code(), Some(DatabaseBusy | DatabaseLocked | FileLockingProtocolFailed | SchemaChanged)),
        }
    }

    /// Whether it may pass by itself within moments, because the file is just being made: it then shows for an instant
    /// a header without the pages that it speaks of.
    pub(super) fn may_be_torn(&self) -> bool {
        matches!(self, Self::Restored)
            || matches!(self.code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
    }

    /// Whether there was no page or no room on the disk for it, so that surely nothing was written.
    pub(super) fn is_full(&self) -> bool {
        self.code() == Some(ErrorCode::DiskFull)
    }

    /// Whether the connection should not be used any more.
    pub(super) fn spoils(&self) -> bool {
        use ErrorCode::{DatabaseCorrupt, NotADatabase, SystemIoFailure};
        matches!(self.code(), Some(DatabaseCorrupt | NotADatabase | SystemIoFailure))
    }

    /// The same where no lease was asked for yet, so that nothing that matters can be uncertain.
    pub(super) fn before_any_lease(self) -> Self {
        match self {
            Self::Commit(error) => Self::Sql(error),
            fault => fault,
        }
    }

    /// The error that a caller gets.
    ///
    /// Indeterminate only where a commit failed half-way: any other transaction that failed was rolled back.
    pub(super) fn explain(self, path: &Path) -> Error {
        use ErrorCode::{
            AuthorizationForStatementDenied, CannotOpen, DatabaseCorrupt, DiskFull, NotADatabase, PermissionDenied,
            ReadOnly, SystemIoFailure, Unknown,
        };
        if self.is_busy() {
            let error = told(ErrorKind::Unavailable, path, "is busy: another process keeps writing to it");
            return match self {
                Self::Sql(source) | Self::Commit(source) => error.with_source(source),
                _ => error,
            };
        }
        let is_full = self.is_full();
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
            Some(SystemIoFailure) => (
                ErrorKind::Unavailable,
                "cannot be read or written: the disk reports an error, or a part of the file was deleted",
            ),
            Some(DiskFull) => (ErrorKind::Unavailable, "cannot be written: the disk is full, make room on it"),
            _ => (ErrorKind::Unavailable, "failed"),
        };
        match self {
            Self::Told(error) => error,
            Self::Restored => rejected(path, RESTORED),
            Self::Busy | Self::Replaced => told(kind, path, text),
            Self::Commit(source) if !is_full => told(ErrorKind::Indeterminate, path, text).with_source(source),
            Self::Sql(source) | Self::Commit(source) => told(kind, path, text).with_source(source),
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
