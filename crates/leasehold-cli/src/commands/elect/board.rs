//! What this replica can be asked: whether it leads, and whether it is stuck.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::LeaseHandle;
use leasehold::clock::{Clock, Moment};

/// How often a sign of life is given.
const BEAT: Duration = Duration::from_secs(1);

/// No sign of life for this long means that the campaign is stuck, and so does a job that outlives its lease by this.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// Shared by the campaign, which writes, and those who ask.
#[derive(Clone, Debug)]
pub(super) struct Board {
    name: String,
    clock: Clock,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    lease: Option<LeaseHandle>,
    /// When it was first seen that the lease is over and the job is not.
    over: Option<Moment>,
    alive: Moment,
    rounds: u64,
}

impl Board {
    pub(super) fn new(name: &str) -> Self {
        let clock = Clock::system();
        let state = State { lease: None, over: None, alive: clock.now(), rounds: 0 };
        Self { name: name.to_owned(), clock, state: Arc::new(Mutex::new(state)) }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// From now on this replica leads, for as long as the lease says.
    pub(super) fn leads(&self, lease: LeaseHandle) {
        let mut state = self.state();
        (state.lease, state.over) = (Some(lease), None);
    }

    /// Nothing of the job is left.
    pub(super) fn stands_by(&self) {
        let mut state = self.state();
        (state.lease, state.over) = (None, None);
    }

    /// How long the leadership may still be assumed, asked of the lease at this moment; `None` = this does not lead.
    pub(super) fn leadership(&self) -> Option<Duration> {
        let remaining = self.state().lease.as_ref().map_or(Duration::ZERO, LeaseHandle::remaining);
        (!remaining.is_zero()).then_some(remaining)
    }

    /// Whether the campaign, or the job, goes on as it should.
    pub(super) fn is_healthy(&self) -> bool {
        let (now, mut state) = (self.clock.now(), self.state());
        let is_over = state.lease.as_ref().is_some_and(|lease| lease.check().is_err());
        let over = is_over.then(|| *state.over.get_or_insert(now));
        now.since(state.alive) < STUCK_AFTER && over.is_none_or(|over| now.since(over) < STUCK_AFTER)
    }

    /// Gives signs of life for as long as it is polled, which is by the task that campaigns; never ends.
    pub(super) async fn live(&self) {
        loop {
            self.state().alive = self.clock.now();
            // Notes when a lease is over.
            self.is_healthy();
            tokio::time::sleep(BEAT).await;
        }
    }

    /// Whether this is the first time that it is asked.
    pub(super) fn is_first_round(&self) -> bool {
        let mut state = self.state();
        state.rounds += 1;
        state.rounds == 1
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
