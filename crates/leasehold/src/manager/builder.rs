//! Options of a manager.

use std::sync::Arc;
use std::time::Duration;

use super::LockManager;
use crate::clock::Clock;
use crate::engine::{Engine, Settings};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::holder;
use crate::observe::Observer;
use crate::options::{Backoff, DEFAULT_MAX_WAITERS, DEFAULT_TTL, MAX_OPERATION_LIMIT, Margin, Renew, Wait};
use crate::own_runtime::OwnRuntime;
use crate::store::{Fencing, HolderInfo, Hosted, Scope, SharedStore};
use crate::types::{DEFAULT_NAMESPACE, check_namespace};

/// Options of a [`LockManager`].
#[derive(Debug)]
#[must_use = "nothing happens until `build`"]
pub struct LockManagerBuilder {
    store: SharedStore,
    clock: Clock,
    observers: Vec<Arc<dyn Observer>>,
    own_runtime: Option<OwnRuntime>,
    settings: Settings,
    scope: Scope,
    fencing: Fencing,
}

impl LockManagerBuilder {
    pub(super) fn new(store: SharedStore) -> Self {
        Self {
            store,
            clock: Clock::system(),
            observers: Vec::new(),
            own_runtime: None,
            settings: Settings {
                namespace: DEFAULT_NAMESPACE.to_owned(),
                ttl: DEFAULT_TTL,
                renew: Renew::Automatic,
                wait: Wait::Forever,
                backoff: Backoff::default(),
                margin: Margin::default(),
                operation_limit: MAX_OPERATION_LIMIT,
                max_hold: None,
                max_waiters: DEFAULT_MAX_WAITERS,
                holder: Some(Arc::new(holder::this_process())),
            },
            scope: Scope::None,
            fencing: Fencing::None,
        }
    }

    /// Sets the namespace of all keys: at most 64 of `A-Z a-z 0-9 . _ -`; empty = keys are stored as they are.
    pub fn namespace(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.settings.namespace);
        self
    }

    /// Sets the ttl of locks that set none.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// Sets when leases are renewed whose lock does not say so.
    pub fn renew(mut self, renew: Renew) -> Self {
        self.settings.renew = renew;
        self
    }

    /// Sets how long [`Lock::run`](crate::Lock::run) waits on locks that do not say so.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.settings.wait = wait;
        self
    }

    /// Sets how polling slows down.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.settings.backoff = backoff;
        self
    }

    /// Sets what is taken off local deadlines.
    pub fn margin(mut self, margin: Margin) -> Self {
        self.settings.margin = margin;
        self
    }

    /// Sets the longest time of a single store operation, at most [`MAX_OPERATION_LIMIT`]; a sixth of the ttl limits it
    /// further.
    pub fn operation_limit(mut self, limit: Duration) -> Self {
        self.settings.operation_limit = limit;
        self
    }

    /// Sets how many waiters may stand in line for one key.
    pub fn max_waiters(mut self, max_waiters: usize) -> Self {
        self.settings.max_waiters = max_waiters;
        self
    }

    /// Sets after which time a lease counts as lost even though it could be renewed.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.settings.max_hold = Some(max_hold);
        self
    }

    /// Sets the clock by which leases are judged.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Adds an observer, which is told of every event.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Has renewals and other background work done, and the store asked, on a thread of their own: whatever blocks the
    /// runtime of the callers does not keep leases from being renewed. Each request takes a way to that thread and back.
    ///
    /// Connections that the store has opened already stay where they were opened, see [`OwnRuntime::run`].
    pub fn own_runtime(mut self, runtime: OwnRuntime) -> Self {
        self.own_runtime = Some(runtime);
        self
    }

    /// Sets what people may read about the holder, in place of host, process id and program name.
    pub fn holder_info(mut self, info: HolderInfo) -> Self {
        self.settings.holder = Some(Arc::new(holder::tidied(info)));
        self
    }

    /// Tells nothing about the holder, not even a reason or label given later.
    pub fn without_holder_info(mut self) -> Self {
        self.settings.holder = None;
        self
    }

    /// Refuses a store whose exclusion does not reach as far as `scope`.
    pub fn require_scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// Refuses a store whose fencing tokens cannot be trusted as far as `fencing`.
    pub fn require_fencing(mut self, fencing: Fencing) -> Self {
        self.fencing = fencing;
        self
    }

    /// The manager.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the store does not reach or fence as far as required;
    /// [`ErrorKind::InvalidConfig`] for a malformed namespace, a number of waiters of zero, or an operation limit of zero or
    /// above [`MAX_OPERATION_LIMIT`];
    /// [`ErrorKind::InvalidInput`] for a ttl or renewal interval out of range.
    pub fn build(self) -> Result<LockManager> {
        let store = self.store.store();
        let capabilities = store.capabilities();
        let refuse =
            |kind, message: String| Err(Error::new(kind, message).during(Operation::Connect).on_store(store.name()));
        if capabilities.scope < self.scope {
            return refuse(
                ErrorKind::Unsupported,
                format!("its exclusion reaches as far as \"{}\", required is \"{}\"", capabilities.scope, self.scope),
            );
        }
        if capabilities.fencing < self.fencing {
            return refuse(
                ErrorKind::Unsupported,
                format!("its fencing is {:?}, required is {:?}", capabilities.fencing, self.fencing),
            );
        }
        check_namespace(&self.settings.namespace)?;
        let limit = self.settings.operation_limit;
        if limit.is_zero() || limit > MAX_OPERATION_LIMIT {
            let message =
                format!("invalid operation limit {limit:?}: it must be positive and at most {MAX_OPERATION_LIMIT:?}");
            return refuse(ErrorKind::InvalidConfig, message);
        }
        if self.settings.max_waiters == 0 {
            return refuse(ErrorKind::InvalidConfig, "invalid number of waiters: it must be positive".to_owned());
        }
        let manager = self.assemble();
        let ttl = manager.engine.check_ttl(manager.ttl())?;
        manager.engine.settings.renew.check(ttl)?;
        Ok(manager)
    }

    pub(super) fn assemble(self) -> LockManager {
        let store = match &self.own_runtime {
            Some(runtime) => self.store.through(|store| Arc::new(Hosted::new(store, runtime.clone()))),
            None => self.store,
        };
        LockManager { engine: Engine::new(store, self.clock, self.observers, self.own_runtime, self.settings) }
    }
}
