//! What settings come to: one value for each, checked, and the store that they open.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::source::Said;
use super::url::{Parts, no_store};
use super::{Config, invalid, redacted, value};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::manager::{LockManager, LockManagerBuilder};
use crate::options::{DEFAULT_TTL, MAX_OPERATION_LIMIT, MAX_TTL, MIN_TTL, Wait};
use crate::own_runtime::OwnRuntime;
use crate::store::breaker::{Breaker, DEFAULT_PATIENCE};
use crate::store::retry::Retry;
use crate::store::{SharedStore, Store};
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
    /// For how long requests are retried that were surely not applied; `None` = they are not.
    pub retry: Option<Duration>,
    /// How long the circuit breaker stays open; `None` = there is none.
    pub breaker: Option<Duration>,
    /// Whether the store's connections and the renewals have a thread of their own.
    pub own_runtime: bool,
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
        let opened = async {
            if !self.own_runtime {
                return Ok((self.open_store().await?, None));
            }
            // The connections belong to the runtime in which they are opened.
            let (runtime, this) = (OwnRuntime::start()?, self.clone());
            let store = runtime.run(async move { this.open_store().await }).await??;
            Ok((store, Some(runtime)))
        };
        let (store, runtime) = opened.await.map_err(|error: Error| error.during(Operation::Connect))?;
        let builder = LockManager::builder(store.through(|store| self.in_front(store)))
            .namespace(&self.namespace)
            .ttl(self.ttl)
            .wait(self.wait)
            .operation_limit(self.op_timeout);
        Ok(match runtime {
            Some(runtime) => builder.own_runtime(runtime),
            None => builder,
        })
    }

    async fn open_store(&self) -> Result<SharedStore> {
        let parts = Parts::parse(&self.store)?;
        let Some(limit) = self.connect_timeout else {
            return parts.open(self.password.clone()).await;
        };
        tokio::time::timeout(limit, parts.open(self.password.clone())).await.unwrap_or_else(|_| {
            let message = format!("no answer within the connect_timeout of {limit:?}");
            Err(Error::new(ErrorKind::Unavailable, message))
        })
    }

    /// Puts in front of the store what the settings ask for: the breaker outside, since it should not count retries.
    fn in_front(&self, mut store: Arc<dyn Store>) -> Arc<dyn Store> {
        if let Some(within) = self.retry {
            // The engine would not hear the last answer otherwise.
            store = Arc::new(Retry::from_arc(store).within(within.min(self.op_timeout * 3 / 4)));
        }
        if let Some(pause) = self.breaker {
            // A store that hangs would not be noticed otherwise.
            let patience = DEFAULT_PATIENCE.min(self.op_timeout / 2);
            store = Arc::new(Breaker::from_arc(store).pause(pause).patience(patience));
        }
        store
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
        let password = if parts.wants_password() { self.read_password()? } else { None };
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
        let retry = value(self.chosen(&self.retry, options.retry), "retry", ErrorKind::InvalidConfig)?;
        let breaker = value(self.chosen(&self.breaker, options.breaker), "breaker", ErrorKind::InvalidConfig)?;
        let own_runtime = self.chosen(&self.own_runtime, options.own_runtime);
        Ok(Resolved {
            retry: retry.filter(|within| !within.is_zero()),
            breaker: breaker.filter(|pause| !pause.is_zero()),
            own_runtime: value(own_runtime, "own_runtime", ErrorKind::InvalidConfig)?.unwrap_or(false),
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
