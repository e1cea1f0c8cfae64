//! When a breaker lets an acquire through, and what its outcome changes.

use std::time::Duration;

use super::{Breaker, Phase};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::store::Attempt;

/// Counts turns, so that the outcome of a request from before a change has no say after it; but a probe that succeeds
/// late, when another has taken its turn, closes it all the same.
#[derive(Debug, Default)]
pub(super) struct State {
    at: At,
    turn: u64,
    /// The turn with which it opened; later ones are of probes.
    opened: u64,
    last: Option<Error>,
}

#[derive(Clone, Copy, Debug)]
enum At {
    Closed { failures: u32 },
    Open { until: Moment },
    HalfOpen { since: Moment },
}

impl Default for At {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

/// Why an acquire is not let through.
#[derive(Debug)]
pub(super) struct Refusal {
    /// `None` = a probe is under way.
    pub(super) probes_in: Option<Duration>,
    pub(super) last: Option<Error>,
}

/// What came of an acquire.
#[derive(Debug)]
pub(super) enum Outcome {
    Success,
    Failure(Error),
    /// It was dropped early, or the answer says nothing of the store's health.
    Nothing,
}

impl Outcome {
    pub(super) fn of(answer: &Result<Attempt>) -> Self {
        match answer {
            Ok(Attempt::Acquired(_) | Attempt::Contended(_)) => Self::Success,
            Err(error) => match error.kind() {
                ErrorKind::Unavailable | ErrorKind::Indeterminate => Self::Failure(error.clone()),
                _ => Self::Nothing,
            },
        }
    }
}

impl State {
    pub(super) fn phase(&self, now: Moment) -> Phase {
        match self.at {
            At::Closed { .. } => Phase::Closed,
            At::Open { until } => Phase::Open(until.since(now)),
            At::HalfOpen { .. } => Phase::HalfOpen,
        }
    }

    /// The turn of an acquire that may pass.
    pub(super) fn enter(&mut self, now: Moment, pause: Duration) -> std::result::Result<u64, Refusal> {
        let probes_in = match self.at {
            At::Closed { .. } => return Ok(self.turn),
            At::Open { until } if now < until => Some(until.since(now)),
            // A caller that neither polls nor drops its probe must not keep everybody out.
            At::HalfOpen { since } if now.since(since) < pause => None,
            At::Open { .. } | At::HalfOpen { .. } => {
                self.turn_to(At::HalfOpen { since: now });
                return Ok(self.turn);
            }
        };
        Err(Refusal { probes_in, last: self.last.clone() })
    }

    pub(super) fn settle(&mut self, turn: u64, outcome: Outcome, now: Moment, failures: u32, pause: Duration) {
        let is_late_probe = turn > self.opened && !matches!(self.at, At::Closed { .. });
        if turn != self.turn && !(is_late_probe && matches!(outcome, Outcome::Success)) {
            return;
        }
        match (outcome, self.at) {
            (Outcome::Success, At::Closed { .. }) => self.at = At::default(),
            (Outcome::Success, _) => {
                self.last = None;
                self.turn_to(At::default());
            }
            (Outcome::Failure(error), At::Closed { failures: before }) if before + 1 < failures => {
                self.last = Some(error);
                self.at = At::Closed { failures: before + 1 };
            }
            (Outcome::Failure(error), before) => {
                self.last = Some(error);
                self.turn_to(At::Open { until: now + pause });
                if matches!(before, At::Closed { .. }) {
                    self.opened = self.turn;
                }
            }
            (Outcome::Nothing, At::HalfOpen { .. }) => self.turn_to(At::Open { until: now }),
            (Outcome::Nothing, _) => {}
        }
    }

    const fn turn_to(&mut self, at: At) {
        self.at = at;
        self.turn += 1;
    }
}

/// An acquire that was let through. Dropped without an outcome, it decides by how long there was no answer.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    breaker: &'a Breaker,
    turn: u64,
    started: Moment,
    patience: Duration,
    is_settled: bool,
}

impl<'a> Pass<'a> {
    pub(super) const fn new(breaker: &'a Breaker, turn: u64, started: Moment, patience: Duration) -> Self {
        Self { breaker, turn, started, patience, is_settled: false }
    }

    pub(super) fn settle(mut self, outcome: Outcome) {
        self.is_settled = true;
        self.breaker.settle(self.turn, outcome);
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        // The operation limit is the engine's, which drops the call when it is over; but so does a caller who has other
        // things to do.
        let silent_for = self.breaker.clock.now().since(self.started);
        let outcome = if silent_for < self.patience {
            Outcome::Nothing
        } else {
            Outcome::Failure(Error::new(ErrorKind::Unavailable, format!("no answer for {silent_for:.1?}")))
        };
        self.breaker.settle(self.turn, outcome);
    }
}
