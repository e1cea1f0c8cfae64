//! What every handle of one manager shares: the store and how it is asked, the clock, the local lines, the renewals,
//! and the work that goes on in the background.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{OnceCell, watch};
use tokio::time::timeout;

use crate::background::Background;
use crate::call::Told;
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::line::Lines;
use crate::observe::{Event, Failed, Observer, StoreCall, Teller};
use crate::options::{Backoff, Close, MAX_TTL, MIN_TTL, Margin, Renew, Wait};
use crate::own_runtime::OwnRuntime;
use crate::renew::Renewals;
use crate::store::{Capabilities, Expiry, HolderInfo, Inspection, Scope, SharedStore, Store};
use crate::types::Key;

/// The first pause before a request whose outcome is unknown is repeated; doubled each time.
const REPEAT_PAUSE: Duration = Duration::from_millis(10);

/// How long a waiter trusts a timer that does not count suspend.
const SLEEP_CHECK: Duration = Duration::from_secs(10);

/// What a manager was built with.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) namespace: String,
    pub(crate) ttl: Duration,
    pub(crate) renew: Renew,
    pub(crate) wait: Wait,
    pub(crate) backoff: Backoff,
    pub(crate) margin: Margin,
    pub(crate) operation_limit: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) max_waiters: usize,
    pub(crate) holder: Option<Arc<HolderInfo>>,
}

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) clock: Clock,
    pub(crate) settings: Settings,
    pub(crate) lines: Lines,
    pub(crate) renewals: Arc<Renewals>,
    pub(crate) background: Background,
    shared: SharedStore,
    capabilities: Capabilities,
    pub(crate) teller: Arc<Teller>,
    closed: watch::Sender<Option<Close>>,
    /// Whether this was the store's last manager; set when it leaves.
    last: OnceLock<bool>,
    /// What came of closing the store.
    store_closed: OnceCell<Result<()>>,
    /// The process that built this engine: in a forked child its guards are inert.
    pub(crate) pid: u32,
}

impl Engine {
    pub(crate) fn new(
        shared: SharedStore,
        clock: Clock,
        observers: Vec<Arc<dyn Observer>>,
        own_runtime: Option<OwnRuntime>,
        settings: Settings,
    ) -> Arc<Self> {
        shared.enter();
        let capabilities = shared.store().capabilities();
        if capabilities.scope == Scope::None {
            log(|| tracing::warn!(store = shared.store().name(), "this store excludes nobody"));
        }
        Arc::new(Self {
            capabilities,
            lines: Lines::new(settings.max_waiters),
            renewals: Arc::default(),
            background: Background::on(own_runtime),
            closed: watch::Sender::new(None),
            last: OnceLock::new(),
            store_closed: OnceCell::new(),
            pid: std::process::id(),
            teller: Teller::new(shared.store().name(), observers),
            shared,
            clock,
            settings,
        })
    }

    pub(crate) fn store(&self) -> &dyn Store {
        self.shared.store()
    }

    pub(crate) fn shared(&self) -> &SharedStore {
        &self.shared
    }

    pub(crate) fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// How long one store operation for a lease of `ttl` may take.
    pub(crate) fn limit(&self, ttl: Duration) -> Duration {
        self.settings.operation_limit.min(ttl / 6)
    }

    /// How long a store operation that is about no lease may take.
    pub(crate) fn read_limit(&self) -> Duration {
        self.settings.operation_limit
    }

    /// Checks a ttl and rounds it up to what the store can keep.
    pub(crate) fn check_ttl(&self, ttl: Duration) -> Result<Duration> {
        let min = self.capabilities.min_ttl.max(MIN_TTL);
        if ttl < min || ttl > MAX_TTL {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("invalid ttl {ttl:?}: it must be at least {min:?} and at most {MAX_TTL:?}"),
            ));
        }
        // No ttl that is let in, and no step, comes near what 64 bits hold.
        let nanos = |length: Duration| u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        let step = nanos(self.capabilities.ttl_step);
        let ttl = if step <= 1 { ttl } else { Duration::from_nanos(nanos(ttl).div_ceil(step).saturating_mul(step)) };
        if self.settings.margin.of(ttl) >= ttl / 2 {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("invalid ttl {ttl:?}: the safety margin would leave less than half of it"),
            ));
        }
        Ok(ttl)
    }

    /// Whether a lease may outlive the process, or connection, that took it.
    pub(crate) fn check_hand_over(&self) -> Result<()> {
        if !self.capabilities.hand_over || self.capabilities.expiry == Expiry::Session {
            return Err(Error::new(ErrorKind::Unsupported, "its leases cannot outlive their connection or process"));
        }
        Ok(())
    }

    /// Who holds a key.
    pub(crate) async fn inspect(&self, key: &Key) -> Result<Inspection> {
        let asked = match self.check_usable() {
            Ok(()) => self.ask(Operation::Inspect, Some(key), self.read_limit(), self.store().inspect(key)).await,
            Err(error) => Err(error),
        };
        self.reported(asked, Operation::Inspect, Some(key))
    }

    /// Asks the store once, for at most `limit`.
    pub(crate) async fn ask<T>(
        &self,
        operation: Operation,
        key: Option<&Key>,
        limit: Duration,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let started = self.teller.is_heard().then(|| self.clock.now());
        let answer = timeout(limit, call).await.unwrap_or_else(|_| {
            let kind = match operation {
                Operation::Inspect | Operation::List | Operation::Probe | Operation::Close => ErrorKind::Unavailable,
                _ => ErrorKind::Indeterminate,
            };
            Err(Error::new(kind, format!("no answer within {limit:?}")))
        });
        if let Some(started) = started {
            let failed = answer.as_ref().err().map(Error::kind);
            let duration = self.clock.now().since(started);
            self.teller.note(|store| Event::StoreCall(StoreCall { store, operation, duration, failed }));
        }
        answer.map_err(|error| self.in_context(error, operation, key))
    }

    /// Asks the store, and asks again within one more `limit` while the outcome is unknown.
    ///
    /// The request must be one that may be repeated. `unsettled` counts the requests that have no certain answer; it is
    /// raised before each is sent, so that whoever owns the count knows of them also when this future is dropped.
    /// Answers with the moment at which the answered request was sent.
    pub(crate) async fn settle<T, F: Future<Output = Result<T>> + Send>(
        &self,
        operation: Operation,
        key: &Key,
        limit: Duration,
        unsettled: &mut u32,
        mut call: impl FnMut() -> F + Send,
    ) -> (Moment, Result<T>) {
        let mut give_up: Option<Moment> = None;
        let mut pause = REPEAT_PAUSE.min(limit / 8);
        loop {
            *unsettled += 1;
            let sent = self.clock.now();
            let budget = give_up.map_or(limit, |give_up| give_up.since(sent));
            let answer = self.ask(operation, Some(key), budget, call()).await;
            let error = match answer {
                Err(error) if error.kind() == ErrorKind::Indeterminate => error,
                Err(error) if give_up.is_some() => {
                    // This repeat was refused for certain, the request before it was not.
                    *unsettled -= 1;
                    error.into_kind(ErrorKind::Indeterminate)
                }
                answer => {
                    *unsettled -= 1;
                    return (sent, answer);
                }
            };
            let now = self.clock.now();
            if now + pause >= *give_up.get_or_insert(now + limit) {
                return (sent, Err(error));
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }

    /// As [`settle`](Self::settle), until the manager is closed; a request in flight is then among the `unsettled`.
    pub(crate) async fn settle_while_open<T, F: Future<Output = Result<T>> + Send>(
        &self,
        operation: Operation,
        key: &Key,
        limit: Duration,
        unsettled: &mut u32,
        call: impl FnMut() -> F + Send,
    ) -> (Moment, Result<T>) {
        tokio::select! {
            // The answer first: it costs least where the store answers at once.
            biased;
            answer = self.settle(operation, key, limit, unsettled, call) => answer,
            () = self.closed() => (self.clock.now(), Err(closed_error())),
        }
    }

    /// Sleeps until the clock shows `moment`, or for a moment longer.
    pub(crate) async fn sleep_until(&self, moment: Moment) {
        loop {
            let left = moment.since(self.clock.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(SLEEP_CHECK)).await;
        }
    }

    /// Notes an error that ends a call; in a forked child nobody is told.
    pub(crate) fn failed(&self, operation: Operation, key: Option<&Key>, error: &Error) {
        if self.is_forked() {
            return;
        }
        let kind = error.kind();
        self.teller.note(|store| Event::Failed(Failed { store, operation, key: key.cloned(), kind, waited: None }));
    }

    /// An answer as the caller gets it: an error has its context, and the observers were told.
    pub(crate) fn reported<T>(&self, answer: Result<T>, operation: Operation, key: Option<&Key>) -> Result<T> {
        let answer = answer.map_err(|error| {
            self.failed(operation, key, &error);
            self.in_context(error, operation, key)
        });
        self.teller.tell();
        answer
    }

    pub(crate) fn told(&self) -> Told<'_> {
        Told { teller: &self.teller, clock: &self.clock, store: self.teller.store() }
    }

    pub(crate) fn in_context(&self, error: Error, operation: Operation, key: Option<&Key>) -> Error {
        let error = error.during(operation).on_store(self.store().name());
        match key {
            Some(key) => error.on_key(key),
            None => error,
        }
    }

    /// How the manager was closed, if it was.
    pub(crate) fn closing(&self) -> Option<Close> {
        *self.closed.borrow()
    }

    /// Whether a call may start: the manager is open, and this is the process that built it.
    pub(crate) fn check_usable(&self) -> Result<()> {
        // First, for nobody must be told of it.
        if self.is_forked() {
            return Err(Error::new(ErrorKind::Closed, "the lock manager belongs to the parent process: build another"));
        }
        self.check_open()
    }

    /// Whether a call that has started may go on.
    pub(crate) fn check_open(&self) -> Result<()> {
        match self.closing() {
            None => Ok(()),
            Some(_) => Err(closed_error()),
        }
    }

    /// Resolves when the manager is closed.
    pub(crate) async fn closed(&self) {
        if self.closed.subscribe().wait_for(Option::is_some).await.is_err() {
            // Cannot be: the sender lives as long as `self`.
            std::future::pending().await
        }
    }

    /// Marks the manager as closed, unless it was closed before.
    pub(crate) fn start_closing(&self, mode: Close) {
        self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            closed.get_or_insert(mode);
            first
        });
    }

    /// Leaves the store, and closes it if this was its last manager; whoever comes later waits for the same answer.
    pub(crate) async fn leave_store(&self) -> Result<()> {
        if !self.is_last() {
            return Ok(());
        }
        let close = || self.ask(Operation::Close, None, self.read_limit(), self.store().close());
        self.store_closed.get_or_init(close).await.clone()
    }

    fn is_last(&self) -> bool {
        *self.last.get_or_init(|| self.shared.leave())
    }

    /// Whether this process is a forked child of the one that built the engine.
    pub(crate) fn is_forked(&self) -> bool {
        let is_forked = self.pid != std::process::id();
        if is_forked {
            self.teller.fall_silent();
        }
        is_forked
    }
}

pub(crate) fn closed_error() -> Error {
    Error::new(ErrorKind::Closed, "the lock manager was closed")
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        self.is_last();
        self.renewals.engine_is_gone();
    }
}

/// Logs. A subscriber that panics must not take a renewal or a lease with it.
pub(crate) fn log(write: impl FnOnce()) {
    // There is nobody left to tell.
    catch_unwind(AssertUnwindSafe(write)).ok();
}
