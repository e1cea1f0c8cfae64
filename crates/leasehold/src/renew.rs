//! Renewal: one task per manager over a registry that leases enter and leave themselves.
//!
//! The registry outlives the task: when the runtime that carried the task goes down, the next acquisition starts a new
//! one, which takes on all leases. Due leases go in batches, several in flight, none awaited alone, so that a request
//! that hangs delays nobody else. The task also notices leases whose deadline passed, renewed or not.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tracing::Span;
use tracing::field::Empty;

use crate::clock::Moment;
use crate::engine::{Engine, log};
use crate::error::{Error, ErrorKind, LostReason, Operation, Result};
use crate::lease::{Lease, Reserved, SUSPEND_CHECK, Use};
use crate::observe::{Event, RenewalFailed, Renewed, outcome};
use crate::stealable::stealable;
use crate::store::{Claim, Grant};

/// Leases due within this time of each other are renewed together.
const TOGETHER: Duration = Duration::from_millis(20);

/// The most leases in one request: a few hundred amortise the round trip, and more only delay its answer.
const BATCH: usize = 256;

/// The shortest pause before a failed renewal is tried again.
const RETRY_MIN: Duration = Duration::from_millis(5);

/// The held leases of one manager, by the moment at which the task looks at them next.
#[derive(Debug, Default)]
pub(crate) struct Renewals {
    state: Mutex<State>,
    /// Something is due earlier than the task knows, or the engine is gone.
    earlier: Notify,
    numbers: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    leases: BTreeMap<(Moment, u64), Arc<Lease>>,
    /// Until when the task sleeps; `None` while it was told to look again.
    sleeps_until: Option<Moment>,
    running: bool,
    closed: bool,
}

impl Renewals {
    /// Has a lease looked after; `false` if the manager was closed.
    pub(crate) fn enter(self: &Arc<Self>, lease: &Arc<Lease>) -> bool {
        lease.number.store(self.numbers.fetch_add(1, Ordering::Relaxed), Ordering::Release);
        let start = {
            let mut state = self.state.lock();
            if state.closed {
                return false;
            }
            state.place(lease, next_look(lease, lease.acquired));
            self.wake_if_earlier(&mut state, lease);
            !std::mem::replace(&mut state.running, true)
        };
        if start {
            let running = Running(Arc::clone(self));
            lease.engine.background.spawn(run(running, Arc::downgrade(&lease.engine)));
        }
        true
    }

    /// Forgets a lease that has ended.
    pub(crate) fn leave(&self, lease: &Lease) {
        self.state.lock().remove(lease);
    }

    /// Looks again at when a lease is due, whose last confirmed request was sent at `sent`.
    pub(crate) fn reschedule(&self, lease: &Arc<Lease>, sent: Moment) {
        self.look_at(lease, next_look(lease, sent));
    }

    /// Has the task look at a lease at `moment`, unless the lease has left.
    fn look_at(&self, lease: &Arc<Lease>, moment: Moment) {
        let mut state = self.state.lock();
        if state.remove(lease).is_some() && lease.known_lost().is_none() {
            state.place(lease, moment);
            self.wake_if_earlier(&mut state, lease);
        }
    }

    /// Takes in no more leases, and answers with those that are there.
    pub(crate) fn close(&self) -> Vec<Arc<Lease>> {
        let mut state = self.state.lock();
        state.closed = true;
        state.leases.values().map(Arc::clone).collect()
    }

    pub(crate) fn engine_is_gone(&self) {
        self.earlier.notify_one();
    }

    #[cfg(feature = "testkit")]
    pub(crate) fn len(&self) -> usize {
        self.state.lock().leases.len()
    }

    fn wake_if_earlier(&self, state: &mut State, lease: &Lease) {
        let due = Moment::from_nanos(lease.due.load(Ordering::Acquire));
        if state.sleeps_until.is_some_and(|until| due < until) {
            state.sleeps_until = None;
            self.earlier.notify_one();
        }
    }

    /// Takes what is due, each with its operation reserved; what is not to be renewed yet is placed anew.
    fn due(&self, now: Moment) -> Batch {
        let looked_at: Vec<_> = {
            let state = self.state.lock();
            // What falls due a little later goes along, but only then: a lease with a short interval, or a short pause
            // before its next try, would otherwise be taken again at once.
            match state.leases.first_key_value() {
                Some(((first, _), _)) if *first <= now => {
                    state.leases.range(..(now + TOGETHER, 0)).map(|(_, lease)| Arc::clone(lease)).collect()
                }
                _ => Vec::new(),
            }
        };
        let mut due = Vec::new();
        for lease in looked_at {
            // Asked without the lock, since a loss is logged, which is foreign code. The lease stays in the registry
            // meanwhile, where closing finds it.
            let interval = if lease.lost().is_some() { None } else { lease.renewal_interval() };
            let reserved = interval.and_then(|_| reserve(&lease, now));
            let look_at = match (interval, &reserved) {
                (None, _) => lease.valid_until(),
                // The caller's own operation is in flight.
                (Some(_), None) => (now + 2 * TOGETHER).min(lease.valid_until()),
                // In flight. If the runtime takes the request down, a later task finds the lease soon after.
                (Some(_), Some(_)) => now + lease.limit() + 2 * TOGETHER,
            };
            let mut state = self.state.lock();
            if state.remove(&lease).is_some() && lease.known_lost().is_none() {
                state.place(&lease, look_at);
                due.extend(reserved.map(|reserved| (Arc::clone(&lease), reserved)));
            }
        }
        due
    }

    /// When the task has to look next; `None` = not before somebody wakes it.
    fn first_due(&self) -> Option<Moment> {
        let mut state = self.state.lock();
        let first = state.leases.first_key_value().map(|((due, _), _)| *due);
        state.sleeps_until = Some(first.unwrap_or(Moment::FAR));
        first
    }
}

impl State {
    fn place(&mut self, lease: &Arc<Lease>, due: Moment) {
        lease.due.store(due.as_nanos(), Ordering::Release);
        self.leases.insert((due, lease.number.load(Ordering::Acquire)), Arc::clone(lease));
    }

    fn remove(&mut self, lease: &Lease) -> Option<Arc<Lease>> {
        let due = Moment::from_nanos(lease.due.swap(0, Ordering::AcqRel));
        self.leases.remove(&(due, lease.number.load(Ordering::Acquire)))
    }
}

/// A caller may have let an extend begin and not polled it since. Its limit then never comes, so near the end the lease
/// is renewed all the same.
fn reserve(lease: &Arc<Lease>, now: Moment) -> Option<Reserved> {
    let near_end = || lease.valid_until().since(now) < lease.ttl() / 4;
    lease.try_reserve(Use::Renewal).or_else(|| near_end().then(|| lease.reserve_beside_extend()).flatten())
}

/// When to look at a lease whose last confirmed request was sent at `sent`.
fn next_look(lease: &Lease, sent: Moment) -> Moment {
    let deadline = lease.valid_until();
    let Some(interval) = lease.renewal_interval() else { return deadline };
    // A store may have granted less than was asked: an attempt and another must fit before the end all the same. The
    // longest holding time is no such end, which renewals could push out.
    let validity = lease.stands_until().since(sent);
    (sent + if interval > validity * 2 / 3 { validity / 3 } else { interval }).min(deadline)
}

/// The mark of a running task; its drop lets the next acquisition start another.
struct Running(Arc<Renewals>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.running = false;
        state.sleeps_until = None;
    }
}

async fn run(running: Running, engine: Weak<Engine>) {
    let renewals = &running.0;
    let mut batches = JoinSet::new();
    loop {
        let pause = {
            let Some(engine) = engine.upgrade() else {
                return;
            };
            if engine.is_forked() {
                // A current-thread runtime that was forked goes on here; the parent renews its leases itself.
                return;
            }
            for batch in into_batches(renewals.due(engine.clock.now())) {
                batches.spawn(stealable(renew(Arc::clone(&engine), batch)));
            }
            engine.teller.tell_apart();
            renewals.first_due().map(|due| due.since(engine.clock.now()).min(SUSPEND_CHECK))
        };
        let sleep = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep => {}
            () = renewals.earlier.notified() => {}
            // A batch that panicked in the store has failed; its leases are found again when they are due.
            Some(_) = batches.join_next() => {}
        }
    }
}

type Batch = Vec<(Arc<Lease>, Reserved)>;

/// Leases that failed in company go alone, so that one bad key cannot take the others down.
fn into_batches(due: Batch) -> Vec<Batch> {
    let (alone, together): (Batch, Batch) = due.into_iter().partition(|(lease, _)| lease.alone.load(Ordering::Acquire));
    let mut batches: Vec<Batch> = alone.into_iter().map(|single| vec![single]).collect();
    let mut together = together.into_iter().peekable();
    while together.peek().is_some() {
        batches.push(together.by_ref().take(BATCH).collect());
    }
    batches
}

async fn renew(engine: Arc<Engine>, mut batch: Batch) {
    // Those that ended before this task began to run.
    batch.retain(|(lease, _)| lease.known_lost().is_none());
    if batch.is_empty() {
        return;
    }
    let in_company = batch.len() > 1;
    // Until they succeed: a batch that panics in the store never gets to say that it failed.
    batch.iter().for_each(|(lease, _)| lease.alone.store(true, Ordering::Release));
    let sent = engine.clock.now();
    let shortest = batch.iter().map(|(lease, _)| lease.valid_until().since(sent)).min().unwrap_or_default();
    let limit = batch.iter().map(|(lease, _)| lease.limit()).min().unwrap_or_default().min(shortest / 3);
    let span = span(&batch, limit);
    let answers = {
        let claims: Vec<_> = batch.iter().map(|(lease, _)| Claim::new(&lease.key, &lease.owner, lease.ttl())).collect();
        let answers = engine.ask(Operation::Extend, None, limit, engine.store().extend(&claims)).await;
        answers.and_then(|answers| {
            if answers.len() == claims.len() {
                return Ok(answers);
            }
            Err(Error::new(ErrorKind::Indeterminate, "the store answered another number of claims than it was asked"))
        })
    };
    record(&span, &answers);
    let mut answers = answers.map(Vec::into_iter);
    for (lease, reserved) in batch {
        let answer = match &mut answers {
            Ok(answers) => answers.next().unwrap_or(Ok(None)),
            Err(error) => Err(error.clone()),
        };
        settle(&engine, &lease, sent, in_company, answer);
        drop(reserved);
    }
    engine.teller.tell_apart();
}

/// A renewal belongs to no call, so its span has no parent. It is not entered: a subscriber that panics then must not
/// take the batch with it.
fn span(batch: &Batch, limit: Duration) -> Span {
    let mut span = Span::none();
    let Some((first, _)) = batch.first() else { return span };
    log(|| {
        span = tracing::debug_span!(
            parent: None,
            "lock.renew",
            namespace = first.key.namespace(),
            store = first.engine.store().name(),
            leases = batch.len(),
            limit = limit.as_secs_f64(),
            key = Empty,
            owner = Empty,
            fencing = Empty,
            ttl = Empty,
            renewed = Empty,
            outcome = Empty,
        );
        if batch.len() == 1 && !span.is_disabled() {
            span.record("key", first.key.name());
            span.record("ttl", first.ttl().as_secs_f64());
            first.record_on(&span);
        }
    });
    span
}

fn record(span: &Span, answers: &Result<Vec<Result<Option<Grant>>>>) {
    if span.is_disabled() {
        return;
    }
    log(|| match answers {
        Ok(answers) => {
            let renewed = answers.iter().filter(|answer| matches!(answer, Ok(Some(_)))).count();
            span.record("renewed", renewed);
            span.record("outcome", if renewed == answers.len() { outcome::OK } else { outcome::PARTLY });
        }
        Err(error) => _ = span.record("outcome", error.kind().as_str()),
    });
}

/// Warns of a failed renewal only when it gets serious: most are made good by the next try.
fn tell_failure(lease: &Lease, error: &Error, remaining: Duration) {
    let (key, store, remaining_seconds) = (lease.key.name(), lease.engine.store().name(), remaining.as_secs_f64());
    log(|| {
        if remaining < lease.ttl() / 2 {
            tracing::warn!(key, store, remaining = remaining_seconds, %error, "renewal failed");
        } else {
            tracing::debug!(key, store, remaining = remaining_seconds, %error, "renewal failed");
        }
    });
}

/// Applies the answer to one renewal and decides when to look at the lease next.
fn settle(engine: &Engine, lease: &Arc<Lease>, sent: Moment, in_company: bool, answer: Result<Option<Grant>>) {
    let now = engine.clock.now();
    match answer {
        Ok(Some(grant)) => {
            let slack = lease.valid_until().since(now);
            if lease.confirm(sent, lease.ttl(), &grant) {
                lease.alone.store(false, Ordering::Release);
                lease.note(|store| Event::Renewed(Renewed { store, key: lease.key.clone(), slack }));
                engine.renewals.reschedule(lease, sent);
            }
        }
        Ok(None) => {
            // If the lease ended otherwise meanwhile, that reason stays.
            _ = lease.end(LostReason::NotHeld);
            engine.renewals.leave(lease);
        }
        // Nobody misses a renewal of what was given back meanwhile, and a loss was told already.
        Err(_) if lease.lost().is_some() => engine.renewals.leave(lease),
        Err(error) => {
            let remaining = lease.valid_until().since(now);
            tell_failure(lease, &error, remaining);
            let (key, kind) = (lease.key.clone(), error.kind());
            lease.note(|store| Event::RenewalFailed(RenewalFailed { store, key, kind, error, remaining }));
            let pause = if in_company { Duration::ZERO } else { (remaining / 8).max(RETRY_MIN) };
            // Whoever asks for frequent renewals wants to know soon.
            let pause = lease.renewal_interval().map_or(pause, |interval| pause.min(interval.max(RETRY_MIN)));
            engine.renewals.look_at(lease, (now + pause).min(lease.valid_until()));
        }
    }
}
