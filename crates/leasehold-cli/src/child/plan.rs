//! When a job has to be told to stop: decided from moments alone.

use std::time::Duration;

use leasehold::LostReason;
use leasehold::clock::Moment;
use rustix::process::Signal;

/// The longest grace after the store said that somebody else may hold the key.
const GRACE_AFTER_LOSS: Duration = Duration::from_secs(1);

/// A second TERM or INT within this is a KILL, however short the grace is.
const SHORTEST_PATIENCE: Duration = Duration::from_secs(1);

/// What limits a job beside its lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The grace between TERM and KILL.
    pub(crate) kill_after: Duration,
    /// How long the job may run.
    pub(crate) max_runtime: Option<Duration>,
    /// What a job is told whose lease is lost.
    pub(crate) on_lost: OnLost,
}

/// What a job is told whose lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLost {
    /// This signal, and KILL when the time is over.
    Signal(Signal),
    /// Nothing: it runs on.
    Continue,
}

/// Why a job was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The lease was about to end.
    Ending,
    /// The lease was lost.
    Lost(LostReason),
    /// It ran for as long as it may.
    MaxRuntime,
    /// The process that was started had ended, and others of its group had not when the time was over.
    LeftBehind,
}

/// The state that decides which signal is due.
#[derive(Debug)]
pub(super) struct Plan {
    limits: Limits,
    /// When the job has run for as long as it may.
    run_end: Moment,
    kill_at: Moment,
    /// The latest TERM or INT that was passed on.
    passed_on: Option<Moment>,
    /// Until when the lease may be assumed.
    pub(super) lease_end: Moment,
    pub(super) cause: Option<Cause>,
    /// Why the lease was lost under a job that runs on.
    pub(super) given_up: Option<LostReason>,
    /// When the job was first told to stop by this plan.
    pub(super) stopping: Option<Moment>,
    pub(super) warned: bool,
    pub(super) killed: bool,
}

impl Plan {
    pub(super) fn new(limits: Limits, started: Moment, lease_end: Moment) -> Self {
        Self {
            limits,
            run_end: limits.max_runtime.map_or(Moment::FAR, |length| started + length),
            kill_at: Moment::FAR,
            passed_on: None,
            lease_end,
            cause: None,
            given_up: None,
            stopping: None,
            warned: false,
            killed: false,
        }
    }

    /// Notes how long the lease may now be assumed.
    pub(super) fn extend(&mut self, lease_end: Moment) {
        self.lease_end = lease_end;
    }

    /// The signal that is due now, if any; each is given once.
    pub(super) fn decide(&mut self, now: Moment, lost: Option<LostReason>, leader_ended: bool) -> Option<Signal> {
        let Limits { kill_after, on_lost, .. } = self.limits;
        // A job that runs on is not bound to its lease; what it leaves behind is, though it gets its grace.
        let runs_on = on_lost == OnLost::Continue;
        self.given_up = self.given_up.or(lost.filter(|_| runs_on && !leader_ended));
        let lost = lost.filter(|_| !runs_on);
        let lease_end = if runs_on { Moment::FAR } else { self.lease_end };
        let (cause, grace) = match (self.cause, lost) {
            // What is stopped because its lease ends will see it end.
            (Some(Cause::Ending | Cause::Lost(_)), _) | (Some(Cause::LeftBehind), Some(LostReason::Expired)) => {
                (self.cause, kill_after)
            }
            (_, Some(reason)) => (Some(Cause::Lost(reason)), kill_after.min(GRACE_AFTER_LOSS)),
            (Some(cause), None) => (Some(cause), kill_after),
            (None, None) if now + kill_after >= self.lease_end && (leader_ended || !runs_on) => {
                (Some(if leader_ended { Cause::LeftBehind } else { Cause::Ending }), kill_after)
            }
            (None, None) if now >= self.run_end => {
                (Some(if leader_ended { Cause::LeftBehind } else { Cause::MaxRuntime }), kill_after)
            }
            (None, None) => (None, kill_after),
        };
        if cause != self.cause {
            self.cause = cause;
            self.kill_at = self.kill_at.min(now + grace);
        }
        if cause.is_none() || self.killed {
            return None;
        }
        self.stopping.get_or_insert(now);
        if now >= self.kill_at.min(lease_end) {
            self.killed = true;
            return Some(Signal::KILL);
        }
        let first = !std::mem::replace(&mut self.warned, true);
        let signal = match (cause, on_lost) {
            (Some(Cause::Ending | Cause::Lost(_)), OnLost::Signal(signal)) => signal,
            _ => Signal::TERM,
        };
        first.then_some(signal)
    }

    /// Whether the job is stopped because of its lease, so that nothing of it may go on.
    pub(super) fn is_losing(&self) -> bool {
        matches!(self.cause, Some(Cause::Ending | Cause::Lost(_)))
    }

    /// What a signal that reached this process means for the group: itself, or KILL where patience was asked for
    /// already. One that `is_at_once` with the one before it, as some supervisors send TERM and INT, asks for nothing more.
    pub(super) fn pass_on(&mut self, now: Moment, signal: Signal, is_at_once: bool) -> Signal {
        if signal != Signal::TERM && signal != Signal::INT {
            return signal;
        }
        let patience = self.limits.kill_after.max(SHORTEST_PATIENCE);
        let within_grace = self.passed_on.is_some_and(|earlier| now.since(earlier) < patience) && !is_at_once;
        if !is_at_once {
            self.passed_on = Some(now);
        }
        if within_grace || self.stopping.is_some() {
            self.killed = true;
            return Signal::KILL;
        }
        self.passed_on.get_or_insert(now);
        signal
    }

    /// From when on the job is without a lease: the end of it, or when the store was heard to say that it is not ours.
    pub(super) fn lease_over(&self) -> Moment {
        match (self.cause, self.stopping) {
            (Some(Cause::Lost(_)), Some(stopping)) => stopping.min(self.lease_end),
            _ => self.lease_end,
        }
    }

    /// When it is worth looking again.
    pub(super) fn next(&self, now: Moment) -> Moment {
        if self.killed {
            Moment::FAR
        } else if self.limits.on_lost == OnLost::Continue {
            if self.cause.is_some() { self.kill_at } else { self.run_end }
        } else if self.cause.is_some() {
            self.kill_at.min(self.lease_end)
        } else {
            self.run_end.min(self.lease_end - self.limits.kill_after)
        }
        .max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Option<LostReason> = None;

    fn at(seconds: f64) -> Moment {
        Moment::from_nanos(0) + Duration::from_secs_f64(seconds + 100.0)
    }

    fn plan(kill_after: f64, max_runtime: Option<f64>) -> Plan {
        let limits = Limits {
            kill_after: Duration::from_secs_f64(kill_after),
            max_runtime: max_runtime.map(Duration::from_secs_f64),
            on_lost: OnLost::Signal(Signal::TERM),
        };
        Plan::new(limits, at(0.0), at(30.0))
    }

    #[test]
    fn term_before_the_end_and_kill_at_it() {
        let mut plan = plan(5.0, None);
        assert_eq!(plan.decide(at(24.9), NONE, false), None);
        assert_eq!(plan.next(at(24.9)), at(25.0));
        assert_eq!(plan.decide(at(25.0), NONE, false), Some(Signal::TERM));
        assert_eq!(plan.decide(at(29.9), NONE, false), None);
        assert_eq!(plan.next(at(29.9)), at(30.0));
        assert_eq!(plan.decide(at(30.0), Some(LostReason::Expired), false), Some(Signal::KILL));
        assert_eq!(plan.decide(at(31.0), Some(LostReason::Expired), false), None);
        assert_eq!(plan.cause, Some(Cause::Ending));
    }

    #[test]
    fn a_renewal_moves_the_end() {
        let mut plan = plan(5.0, None);
        plan.extend(at(60.0));
        assert_eq!(plan.decide(at(30.0), NONE, false), None);
        assert_eq!(plan.next(at(30.0)), at(55.0));
    }

    #[test]
    fn a_renewal_after_term_does_not_prolong_the_grace() {
        let mut plan = plan(5.0, None);
        assert_eq!(plan.decide(at(25.0), NONE, false), Some(Signal::TERM));
        plan.extend(at(60.0));
        assert_eq!(plan.decide(at(29.0), NONE, false), None);
        assert_eq!(plan.decide(at(30.0), NONE, false), Some(Signal::KILL));
    }

    #[test]
    fn not_ours_leaves_the_smallest_grace() {
        for (kill_after, lost_at, kill_at) in [(5.0, 10.0, 11.0), (0.3, 10.0, 10.3), (5.0, 24.5, 25.5)] {
            let mut plan = plan(kill_after, None);
            assert_eq!(plan.lease_over(), at(30.0));
            assert_eq!(plan.decide(at(lost_at), Some(LostReason::NotHeld), false), Some(Signal::TERM));
            assert_eq!(plan.lease_over(), at(lost_at));
            assert_eq!(plan.decide(at(kill_at - 0.01), Some(LostReason::NotHeld), false), None);
            assert_eq!(plan.decide(at(kill_at), Some(LostReason::NotHeld), false), Some(Signal::KILL));
            assert_eq!(plan.cause, Some(Cause::Lost(LostReason::NotHeld)));
        }
        let mut late = plan(0.5, None);
        assert_eq!(late.decide(at(29.6), Some(LostReason::NotHeld), false), Some(Signal::TERM));
        assert_eq!(late.decide(at(30.0), Some(LostReason::NotHeld), false), Some(Signal::KILL));
    }

    #[test]
    fn woken_after_the_end_is_killed_at_once() {
        let mut plan = plan(5.0, None);
        assert_eq!(plan.decide(at(300.0), Some(LostReason::Expired), false), Some(Signal::KILL));
        assert_eq!(plan.cause, Some(Cause::Lost(LostReason::Expired)));
    }

    #[test]
    fn a_job_that_ran_long_enough_is_stopped() {
        let mut plan = plan(5.0, Some(10.0));
        assert_eq!(plan.next(at(0.0)), at(10.0));
        assert_eq!(plan.decide(at(10.0), NONE, false), Some(Signal::TERM));
        assert_eq!(plan.decide(at(12.0), Some(LostReason::NotHeld), false), None);
        assert_eq!(plan.decide(at(13.0), Some(LostReason::NotHeld), false), Some(Signal::KILL));
        assert_eq!(plan.cause, Some(Cause::Lost(LostReason::NotHeld)));
    }

    #[test]
    fn what_is_left_behind_is_stopped_before_the_end_and_is_no_loss() {
        let mut plan = plan(5.0, None);
        assert_eq!(plan.decide(at(20.0), NONE, true), None);
        assert_eq!(plan.decide(at(25.0), NONE, true), Some(Signal::TERM));
        assert_eq!(plan.decide(at(30.0), Some(LostReason::Expired), true), Some(Signal::KILL));
        assert_eq!(plan.cause, Some(Cause::LeftBehind));
    }

    #[test]
    fn another_signal_stands_for_term_when_the_lease_is_lost() {
        let mut plan = plan(5.0, Some(60.0));
        plan.limits.on_lost = OnLost::Signal(Signal::USR1);
        assert_eq!(plan.decide(at(25.0), NONE, false), Some(Signal::USR1));
        assert_eq!(plan.decide(at(30.0), NONE, false), Some(Signal::KILL));
        let mut long = self::plan(5.0, Some(10.0));
        long.limits.on_lost = OnLost::Signal(Signal::USR1);
        assert_eq!(long.decide(at(10.0), NONE, false), Some(Signal::TERM));
    }

    #[test]
    fn a_job_that_runs_on_is_not_bound_to_its_lease() {
        let mut plan = plan(5.0, Some(100.0));
        plan.limits.on_lost = OnLost::Continue;
        assert_eq!(plan.decide(at(29.0), NONE, false), None);
        assert_eq!(plan.decide(at(31.0), Some(LostReason::Expired), false), None);
        assert_eq!((plan.cause, plan.given_up), (None, Some(LostReason::Expired)));
        assert_eq!(plan.next(at(31.0)), at(100.0));
        assert_eq!(plan.decide(at(100.0), Some(LostReason::Expired), false), Some(Signal::TERM));
        assert_eq!(plan.decide(at(104.0), Some(LostReason::Expired), false), None);
        assert_eq!(plan.decide(at(105.0), Some(LostReason::Expired), false), Some(Signal::KILL));
        assert_eq!(plan.cause, Some(Cause::MaxRuntime));
    }

    #[test]
    fn what_a_job_that_ran_on_leaves_behind_gets_its_grace() {
        let mut plan = plan(5.0, None);
        plan.limits.on_lost = OnLost::Continue;
        assert_eq!(plan.decide(at(40.0), Some(LostReason::Expired), false), None);
        assert_eq!(plan.decide(at(41.0), Some(LostReason::Expired), true), Some(Signal::TERM));
        assert_eq!(plan.decide(at(45.9), Some(LostReason::Expired), true), None);
        assert_eq!(plan.decide(at(46.0), Some(LostReason::Expired), true), Some(Signal::KILL));
        assert_eq!(plan.cause, Some(Cause::LeftBehind));
    }

    #[test]
    fn a_second_term_within_the_grace_kills() {
        let mut plan = plan(5.0, None);
        assert_eq!(plan.pass_on(at(1.0), Signal::USR1, false), Signal::USR1);
        assert_eq!(plan.pass_on(at(1.0), Signal::INT, false), Signal::INT);
        assert_eq!(plan.pass_on(at(7.0), Signal::INT, false), Signal::INT);
        assert_eq!(plan.pass_on(at(7.05), Signal::TERM, true), Signal::TERM);
        assert_eq!(plan.pass_on(at(8.0), Signal::USR1, false), Signal::USR1);
        assert_eq!(plan.pass_on(at(9.0), Signal::TERM, false), Signal::KILL);
    }
}
