//! What settings come to: one value for each, checked, and the store that they open.

use std::fmt;
use std::time::Duration;

use super::source::Said;
use super::url::{Parts, no_store};
use super::{Config, invalid, redacted, value};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::manager::{LockManager, LockManagerBuilder};
use crate::options::{DEFAULT_TTL, MAX_OPERATION_LIMIT, MAX_TTL, MIN_TTL, Wait};
use crate::types::{DEFAULT_NAMESPACE, check_namespace};

/// What holds in the end.
#[non_exhaustive]
#[derive(Clone)]
pub struct Resolved {
    /// The store's URL; may hold a password, see [`redacted`].
    pub store: String,
    /// The namespace of all keys.
    pub namespace: String,
    /// The ttl of locks that set none.
    pub ttl: Duration,
    /// How long [`Lock::run`](crate::Lock::run) waits on locks that do not say so.
    pub wait: Wait,
    /// The longest time of a single store operation.
    pub op_timeout: Duration,
    /// How long opening the store may take; `None` = as long as the store lets it.
    pub connect_timeout: Option<Duration>,
    /// For a URL that takes a password and may hold none.
    password: Option<String>,
}

impl Resolved {
    /// Opens the store and prepares a manager.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] after `connect_timeout`, else what opening the store comes to. No message holds the
    /// URL.
    ///
    /// # Cancel safety
    ///
    /// A file may have been created if the future is dropped; nothing else remains.
    pub async fn open(&self) -> Result<LockManagerBuilder> {
        let opening = async {
            let parts = Parts::parse(&self.store)?;
            let Some(limit) = self.connect_timeout else {
                return parts.open(self.password.clone()).await;
            };
            tokio::time::timeout(limit, parts.open(self.password.clone())).await.unwrap_or_else(|_| {
                let message = format!("no answer within the connect_timeout of {limit:?}");
                Err(Error::new(ErrorKind::Unavailable, message))
            })
        };
        let store = opening.await.map_err(|error| error.during(Operation::Connect))?;
        Ok(LockManager::builder(store)
            .namespace(&self.namespace)
            .ttl(self.ttl)
            .wait(self.wait)
            .operation_limit(self.op_timeout))
    }
}

impl fmt::Debug for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolved")
            .field("store", &redacted(&self.store))
            .field("namespace", &self.namespace)
            .field("ttl", &self.ttl)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// What holds in the end, defaults included, checked as far as it can be without the store.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if no store is named or it is unknown, for an unknown option in its URL, and for
    /// malformed values; [`ErrorKind::InvalidInput`] for a ttl that is malformed or out of range. The message says
    /// where it stands and what there is; it never holds the URL.
    pub fn resolve(&self) -> Result<Resolved> {
        let store = match &self.store {
            Some(said) => said.value("store", ErrorKind::InvalidConfig)?,
            None => return Err(no_store()),
        };
        let parts = Parts::parse(&store)?;
        let password = if parts.takes_password() { self.read_password()? } else { None };
        let options = parts.options;
        let namespace = self.chosen(&self.namespace, options.namespace);
        let namespace = value(namespace, "namespace", ErrorKind::InvalidConfig)?;
        if let Some(namespace) = &namespace {
            check_namespace(namespace)?;
        }
        let ttl = self.chosen(&self.ttl, options.ttl);
        let ttl = value(ttl.map(in_range), "ttl", ErrorKind::InvalidInput)?;
        let op_timeout = self.chosen(&self.op_timeout, options.op_timeout);
        let connect_timeout = self.chosen(&self.connect_timeout, options.connect_timeout);
        Ok(Resolved {
            namespace: namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
            ttl: ttl.unwrap_or(DEFAULT_TTL),
            wait: value(self.wait.clone(), "wait", ErrorKind::InvalidConfig)?.unwrap_or(Wait::Forever),
            op_timeout: value(op_timeout, "op_timeout", ErrorKind::InvalidConfig)?.unwrap_or(MAX_OPERATION_LIMIT),
            connect_timeout: value(connect_timeout, "connect_timeout", ErrorKind::InvalidConfig)?,
            password,
            store,
        })
    }
}

fn in_range(said: Said<Duration>) -> Said<Duration> {
    let value = said.value.and_then(|ttl| {
        if ttl < MIN_TTL || ttl > MAX_TTL {
            return Err(invalid(format!("{ttl:?} is not between {MIN_TTL:?} and 24h")));
        }
        Ok(ttl)
    });
    Said { value, ..said }
}
