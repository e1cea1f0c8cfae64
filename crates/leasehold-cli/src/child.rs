//! The life of the command's process under a lease: started, passed its signals, stopped in time, seen to be gone.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use leasehold::{LockGuard, LostReason};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

use self::plan::Plan;
pub(crate) use self::plan::{Cause, Limits, OnLost};
use crate::signals::Signals;

mod group;
mod plan;

/// The longest stretch of sleep. Timers stand still while the machine sleeps and leases do not, so the clock that
/// counts suspend is asked at least this often.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// How soon a group is looked at again whose first process has ended; doubled each time, up to the second.
const GROUP_NAPS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// How long after KILL and the lease's end a group may still be seen before it counts as out of reach.
const PATIENCE: Duration = Duration::from_secs(1);

/// A running command with its process group, which is killed if this is dropped before the group is gone.
#[derive(Debug)]
pub(crate) struct Job {
    child: Child,
    group: Pid,
    status: Option<ExitStatus>,
    gone: bool,
}

/// Something that is to be told while the job still runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Notice {
    /// It is stopped, for this reason.
    Stopping(Cause),
    /// Its lease is lost, and it runs on because that was asked for.
    GoingOn(LostReason),
}

/// How a job ended.
#[derive(Debug)]
pub(crate) struct Ending {
    /// The status of the process that was started.
    pub(crate) status: ExitStatus,
    /// Why it was stopped; `None` = it ended by itself, or by a signal that was passed on.
    pub(crate) cause: Option<Cause>,
    /// Why the lease was lost under a command that ran on, because that was asked for.
    pub(crate) given_up: Option<LostReason>,
    /// The process group.
    pub(crate) group: i32,
    /// Until when the lease could be assumed.
    pub(crate) lease_end: Moment,
    /// When it was first told to stop.
    pub(crate) stopping: Option<Moment>,
    /// Whether it was told by a TERM.
    pub(crate) warned: bool,
    /// Whether it took a KILL.
    pub(crate) killed: bool,
    /// When the last of the group was gone.
    pub(crate) gone: Moment,
    /// Whether members of the group were still there after their KILL and the lease's end.
    pub(crate) out_of_reach: bool,
}

impl Job {
    /// Starts the command in a process group of its own.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        let child = command.process_group(0).spawn()?;
        let group = child
            .id()
            .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?))
            .ok_or_else(|| io::Error::other("the process has no id"))?;
        Ok(Self { child, group, status: None, gone: false })
    }

    /// Stays with the job until its whole group is gone.
    ///
    /// Signals are passed on to the group; a second TERM or INT within the grace is a KILL. The job gets TERM
    /// `kill_after` before the lease's local end and KILL at that end, and both sooner if the store says that the
    /// lease is not ours. A group that outlives the process it was started with keeps the lease as it is, without
    /// renewal, for as long as that allows.
    pub(crate) async fn watch(
        &mut self,
        guard: &LockGuard,
        signals: &mut Signals,
        limits: Limits,
        mut notice: impl FnMut(Notice),
    ) -> io::Result<Ending> {
        let clock = Clock::system();
        let started = clock.now();
        let mut plan = Plan::new(limits, started, started + guard.remaining());
        let mut group_nap = GROUP_NAPS.0;
        let (status, out_of_reach) = loop {
            let now = clock.now();
            let remaining = guard.remaining();
            if !remaining.is_zero() {
                plan.extend(now + remaining);
            }
            let lost = guard.check().err().map(|error| error.lost_reason().unwrap_or(LostReason::NotHeld));
            // The loss is looked at before the end of the job: of a job that ended while nobody looked it cannot be
            // said that it ended in time.
            let before = (plan.cause, plan.given_up);
            // A job that ran on without a lease has nothing left of it to wait in.
            let left_behind =
                self.status.is_some() && (limits.on_lost != OnLost::Continue || group::is_alive(self.group));
            let due = plan.decide(now, lost, left_behind);
            for told in [
                plan.cause.filter(|_| plan.cause != before.0).map(Notice::Stopping),
                plan.given_up.filter(|_| plan.given_up != before.1).map(Notice::GoingOn),
            ] {
                told.into_iter().for_each(&mut notice);
            }
            if let Some(signal) = due {
                self.signal(signal);
            }
            let mut nap = plan.next(now).since(now).min(LONGEST_NAP);
            if let Some(status) = self.status {
                let alive = group::is_alive(self.group);
                if !alive || (plan.killed && now >= plan.lease_end + PATIENCE) {
                    self.gone = true;
                    break (status, alive);
                }
                nap = nap.min(group_nap);
                group_nap = (group_nap * 2).min(GROUP_NAPS.1);
            }
            tokio::select! {
                biased;
                signal = signals.next() => {
                    let signal = plan.pass_on(clock.now(), signal);
                    self.signal(signal);
                }
                status = self.child.wait(), if self.status.is_none() => {
                    self.status = Some(status?);
                    if group::is_alive(self.group) {
                        guard.stop_renewal();
                    }
                }
                _ = guard.lost(), if lost.is_none() => {}
                () = tokio::time::sleep(nap) => {}
            }
        };
        Ok(Ending {
            status,
            cause: plan.cause,
            given_up: plan.given_up,
            group: self.group.as_raw_nonzero().get(),
            lease_end: plan.lease_end,
            stopping: plan.stopping,
            warned: plan.warned,
            killed: plan.killed,
            gone: clock.now(),
            out_of_reach,
        })
    }

    /// Signals the whole group. A group that is gone, or that changed its user, is noticed where its end is awaited.
    fn signal(&self, signal: Signal) {
        kill_process_group(self.group, signal).ok();
        if signal == Signal::TERM {
            // A stopped process would not see the TERM before its KILL.
            kill_process_group(self.group, Signal::CONT).ok();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.gone {
            kill_process_group(self.group, Signal::KILL).ok();
        }
    }
}
