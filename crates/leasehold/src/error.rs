//! One error type for the whole crate: what failed, on which store, for which key, and whether to try again.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::types::Key;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a lease may not be assumed any more.
///
/// Reported by [`LeaseHandle::check`](crate::LeaseHandle::check) and [`LeaseHandle::lost`](crate::LeaseHandle::lost), and
/// carried by errors of kind [`ErrorKind::Lost`] and [`ErrorKind::NotHeld`] where it is known.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LostReason {
    /// The local deadline passed without a confirmed renewal.
    Expired,
    /// The store said that this owner does not hold the key.
    NotHeld,
    /// The connection that carried the lease ended.
    ConnectionLost,
    /// The lease was left to its owner token, by a hand-over or by `keep`.
    HandedOver,
    /// The longest permitted holding time was reached.
    MaxHold,
    /// The guard released the lease.
    Released,
    /// The manager was closed.
    Closed,
}

impl LostReason {
    pub(crate) const ALL: [Self; 7] = [
        Self::Expired,
        Self::NotHeld,
        Self::ConnectionLost,
        Self::HandedOver,
        Self::MaxHold,
        Self::Released,
        Self::Closed,
    ];

    /// A stable lower-case name, for logs and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::NotHeld => "not held",
            Self::ConnectionLost => "connection lost",
            Self::HandedOver => "handed over",
            Self::MaxHold => "longest holding time reached",
            Self::Released => "released",
            Self::Closed => "closed",
        }
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What kind of failure an [`Error`] is; this is what callers decide by.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The manager was closed. Retrying does not help.
    Closed,
    /// Somebody else held the lease when the wait ended. Trying later may help.
    ///
    /// `try_*` and `*_within` report contention as data (`None`); this kind exists for callers that require the lock,
    /// see [`Error::contended`].
    Contended,
    /// The request may or may not have been applied. One that would have taken a lease is being undone.
    Indeterminate,
    /// A URL, an option or the set of compiled features is wrong.
    InvalidConfig,
    /// A key, ttl or owner token is malformed.
    InvalidInput,
    /// The work was running and was stopped because its lease was lost.
    Lost,
    /// The lease expired, was taken by somebody else, or was given back already.
    NotHeld,
    /// The server refused: authentication, permission, schema, read-only.
    Rejected,
    /// No answer, no quorum, or too many waiters: surely not applied, or applied and surely given back.
    /// Trying again may help.
    Unavailable,
    /// This store cannot do that.
    Unsupported,
}

impl ErrorKind {
    /// A stable lower-case name, for logs and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Contended => "contended",
            Self::Indeterminate => "indeterminate",
            Self::InvalidConfig => "invalid config",
            Self::InvalidInput => "invalid input",
            Self::Lost => "lost",
            Self::NotHeld => "not held",
            Self::Rejected => "rejected",
            Self::Unavailable => "unavailable",
            Self::Unsupported => "unsupported",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What was being done when an error arose or an event was observed.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Taking a lease.
    Acquire,
    /// Pushing the end of a lease out, by the caller or by renewal.
    Extend,
    /// Giving a lease back.
    Release,
    /// Passing a held lease on, or taking on one that was passed on.
    Transfer,
    /// An operator removing somebody's lease.
    ForceRelease,
    /// Reading who holds a key.
    Inspect,
    /// Listing held keys.
    List,
    /// Asking the store whether it is reachable.
    Probe,
    /// Connecting to, or opening, a store.
    Connect,
    /// Closing a store.
    Close,
    /// Running work under a lease.
    Run,
}

impl Operation {
    /// The verb as it stands in error messages; stable, for metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Extend => "extend",
            Self::Release => "release",
            Self::Transfer => "transfer",
            Self::ForceRelease => "force release",
            Self::Inspect => "inspect",
            Self::List => "list",
            Self::Probe => "probe",
            Self::Connect => "connect",
            Self::Close => "close",
            Self::Run => "run",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failure, with what was tried, on which store, and for which key.
///
/// Cheap to clone and to return: one pointer. `Display` is a single line, a lower-case fragment without a full stop;
/// the cause is in [`source`](StdError::source) and is not repeated. No message holds a password, an owner token
/// or a full URL.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    operation: Option<Operation>,
    store: Option<&'static str>,
    key: Option<Key>,
    message: String,
    lost: Option<LostReason>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind`; `message` is a lower-case fragment that says why.
    ///
    /// Stores need no more than this: the engine adds operation, store and key.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            kind,
            operation: None,
            store: None,
            key: None,
            message: message.into(),
            lost: None,
            source: None,
        }))
    }

    /// "Somebody else holds it" as an error, for callers that require the lock and got `None`.
    ///
    /// ```
    /// # use leasehold::{Error, ErrorKind, Key};
    /// let error = Error::contended(&Key::new("leasehold", "reports:nightly")?);
    /// assert_eq!(error.kind(), ErrorKind::Contended);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn contended(key: &Key) -> Self {
        Self::new(ErrorKind::Contended, "held by another owner").during(Operation::Acquire).on_key(key)
    }

    pub(crate) fn lost(kind: ErrorKind, reason: LostReason) -> Self {
        let mut error = Self::new(kind, reason.as_str());
        error.inner().lost = Some(reason);
        error
    }

    /// Sets the cause.
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.inner().source = Some(Arc::new(source));
        self
    }

    /// Sets the operation, unless one is set already.
    pub fn during(mut self, operation: Operation) -> Self {
        self.inner().operation.get_or_insert(operation);
        self
    }

    /// Sets the store's name, unless one is set already.
    pub fn on_store(mut self, store: &'static str) -> Self {
        self.inner().store.get_or_insert(store);
        self
    }

    /// Sets the key, unless one is set already.
    pub fn on_key(mut self, key: &Key) -> Self {
        self.inner().key.get_or_insert_with(|| key.clone());
        self
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What was being done, if known.
    pub fn operation(&self) -> Option<Operation> {
        self.0.operation
    }

    /// The name of the store, if one was involved.
    pub fn store(&self) -> Option<&'static str> {
        self.0.store
    }

    /// The key, if one was involved.
    pub fn key(&self) -> Option<&Key> {
        self.0.key.as_ref()
    }

    /// Why, without operation, store and key.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// For [`ErrorKind::Lost`] and [`ErrorKind::NotHeld`]: why the lease may not be assumed any more, if known.
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.0.lost
    }

    /// Whether the same call may succeed later without anything being mended: contended or unavailable.
    pub fn is_retryable(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Contended | ErrorKind::Unavailable)
    }

    /// The same failure, told as another kind.
    pub(crate) fn into_kind(mut self, kind: ErrorKind) -> Self {
        self.inner().kind = kind;
        self
    }

    fn inner(&mut self) -> &mut Inner {
        Arc::make_mut(&mut self.0)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { operation, store, key, message, .. } = &*self.0;
        if let Some(operation) = operation {
            write!(f, "failed to {operation}")?;
            if let Some(key) = key {
                write!(f, " \"{}\"", key.name())?;
            }
            if let Some(store) = store {
                write!(f, " on {store}")?;
            }
            f.write_str(": ")?;
        }
        f.write_str(message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, source, .. } = &*self.0;
        write!(f, "Error({kind:?}, {:?}", self.to_string())?;
        if let Some(source) = source {
            write!(f, ", caused by {:?}", source.to_string())?;
        }
        f.write_str(")")
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_one_line_with_the_context() {
        let key = Key::new("leasehold", "reports:nightly").unwrap();
        let error = Error::new(ErrorKind::NotHeld, "not held by this owner")
            .with_source(std::io::Error::other("disk"))
            .during(Operation::Extend)
            .on_store("redis")
            .on_key(&key);
        assert_eq!(error.to_string(), "failed to extend \"reports:nightly\" on redis: not held by this owner");
        assert_eq!(error.source().unwrap().to_string(), "disk");
    }

    #[test]
    fn context_is_set_once() {
        let error = Error::new(ErrorKind::Unavailable, "down")
            .during(Operation::Acquire)
            .during(Operation::Run)
            .on_store("a")
            .on_store("b");
        assert_eq!(error.to_string(), "failed to acquire on a: down");
    }

    #[test]
    fn it_is_one_pointer() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}
