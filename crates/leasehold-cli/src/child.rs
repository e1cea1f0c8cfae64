//! The life of the command's process under a lease: started, passed its signals, stopped in time, seen to be gone.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use leasehold::{LockGuard, LostReason};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

use self::plan::Plan;
pub(crate) use self::plan::{Cause, Limits};
use self::reach::Reach;
use crate::signals::Signals;

mod group;
mod plan;
mod reach;

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
    reach: Reach,
    status: Option<ExitStatus>,
    gone: bool,
}

/// How a job ended.
#[derive(Debug)]
pub(crate) struct Ending {
    /// The status of the process that was started.
    pub(crate) status: ExitStatus,
    /// Why it was stopped; `None` = it ended by itself, or by a signal that was passed on.
    pub(crate) cause: Option<Cause>,
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
    /// Whether the system refused to signal it.
    pub(crate) refused: bool,
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
        Ok(Self { child, group, reach: Reach::default(), status: None, gone: false })
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
            if let Some(signal) = plan.decide(now, lost, self.status.is_some()) {
                self.signal(signal, plan.lease_over());
            }
            let mut nap = plan.next(now).since(now).min(LONGEST_NAP);
            if let Some(status) = self.status {
                let alive = group::is_alive(self.group);
                if !alive || (plan.killed && now >= plan.lease_end + PATIENCE) {
                    self.gone = true;
                    break (status, alive);
                }
                if plan.killed {
                    // One that was about to start another when it got its KILL may have done so.
                    self.signal(Signal::KILL, plan.lease_over());
                }
                nap = nap.min(group_nap);
                group_nap = (group_nap * 2).min(GROUP_NAPS.1);
            } else if plan.killed {
                self.signal(Signal::KILL, plan.lease_over());
                if now >= plan.lease_end + PATIENCE {
                    self.reach.still_runs(self.group, plan.lease_over());
                }
            }
            tokio::select! {
                biased;
                signal = signals.next() => {
                    let signal = plan.pass_on(clock.now(), signal);
                    self.signal(signal, plan.lease_over());
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
            group: self.group.as_raw_nonzero().get(),
            lease_end: plan.lease_end,
            stopping: plan.stopping,
            warned: plan.warned,
            killed: plan.killed,
            refused: self.reach.refused,
            gone: clock.now(),
            out_of_reach,
        })
    }

    /// Kills the job whose watch failed, and stays until its group is gone or the lease has ended.
    pub(crate) async fn abandon(&mut self, guard: &LockGuard) {
        let clock = Clock::system();
        let lease_end = clock.now() + guard.remaining();
        guard.stop_renewal();
        let mut nap = GROUP_NAPS.0;
        while group::is_alive(self.group) && clock.now() < lease_end + PATIENCE {
            self.signal(Signal::KILL, lease_end);
            tokio::time::sleep(nap).await;
            nap = (nap * 2).min(GROUP_NAPS.1);
        }
        self.gone = true;
    }

    /// Signals the whole group. A group that is gone is noticed where its end is awaited.
    fn signal(&mut self, signal: Signal, lease_over: Moment) {
        self.reach.signal(self.group, signal, lease_over);
        if [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].contains(&signal) {
            // A stopped process would not see the signal before its KILL.
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

#[cfg(test)]
mod tests {
    use leasehold::LockManager;
    use leasehold::store::memory::MemoryStore;
    use rustix::process::{WaitOptions, kill_process, waitpid};

    use super::*;

    /// A job whose status somebody else has collected, so that its watch fails.
    #[test]
    fn a_job_that_cannot_be_watched_is_killed_before_the_key_is_free() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let manager = LockManager::new(MemoryStore::new());
            let guard = manager.lock("k").acquire().await.unwrap();
            let mut signals = Signals::install().unwrap();
            let mut command = Command::new("sh");
            let mut job = Job::start(command.args(["-c", "sleep 60 & while :; do wait; done"])).unwrap();
            kill_process(job.group, Signal::KILL).unwrap();
            waitpid(Some(job.group), WaitOptions::empty()).unwrap();
            let limits = Limits { kill_after: Duration::from_secs(5), max_runtime: None };
            job.watch(&guard, &mut signals, limits).await.unwrap_err();
            job.abandon(&guard).await;
            assert!(!group::is_alive(job.group));
            guard.release().await.unwrap();
        });
    }
}
