//! Staying with a job until it is over.

use std::future::pending;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use leasehold::store::Tie;
use leasehold::{LockGuard, LostReason};
use rustix::io::Errno;
use rustix::process::{Signal, WaitOptions, kill_current_process_group, kill_process_group, test_kill_process, wait};
use tokio::sync::Notify;

use super::plan::{Cause, Limits, OnLost, Plan};
use super::trampoline::{Answer, Progress, Refusal};
use super::{Job, group};
use crate::exit;
use crate::output;
use crate::signals::Signals;

/// The longest stretch of sleep. Timers stand still while the machine sleeps and leases do not, so the clock that
/// counts suspend is asked at least this often.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// How soon a group is looked at again whose first process has ended; doubled each time, up to the second.
const GROUP_NAPS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// How long after KILL and the lease's end a group may still be seen before it counts as out of reach.
const PATIENCE: Duration = Duration::from_secs(1);

/// The part of the grace in which the store has to take note for whom the lease is from now on.
const TIME_TO_KEEP: u32 = 10;

/// How long a stop waits for the reader of what is said about it.
const STOP_PATIENCE: Duration = Duration::from_millis(100);

/// Whether the command's process has been stopped by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Runs,
    /// It has, by this signal, and nothing has been done about it yet.
    Fresh(Option<Signal>),
    /// It has, and whoever stopped it may continue it.
    Settled,
}

/// Something that is to be told while the job still runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Notice {
    /// It is stopped, for this reason.
    Stopping(Cause),
    /// Its lease is lost, and it runs on because that was asked for.
    GoingOn(LostReason),
}

/// Why a watch ended before the job.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The command was not executed, and nothing is left of its process.
    NotRun(Refusal),
    /// The job cannot be watched.
    Unseen(io::Error),
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
    /// Whether the system refused to signal it.
    pub(crate) refused: bool,
    /// When the last of the group was gone.
    pub(crate) gone: Moment,
    /// Whether members of the group were still there after their KILL and the lease's end.
    pub(crate) out_of_reach: bool,
}

impl Job {
    /// Stays with the job, from when it was told to execute the command, until its whole group is gone, and after a
    /// loss everything else that descends from it. `renewed` tells of each renewal of the lease.
    ///
    /// Signals are passed on to the group; a second TERM or INT within the grace is a KILL. The job gets TERM
    /// `kill_after` before the lease's local end and KILL at that end, and both sooner if the store says that the
    /// lease is not ours. A group that outlives the process it was started with keeps the lease as it is, without
    /// renewal, for as long as that allows.
    pub(crate) async fn watch(
        &mut self,
        guard: &LockGuard,
        renewed: &Notify,
        signals: &mut Signals,
        limits: Limits,
        mut notice: impl FnMut(Notice),
    ) -> Result<Ending, Broken> {
        let runs_on = limits.on_lost == OnLost::Continue;
        let clock = Clock::system();
        let started = clock.now();
        let mut plan = Plan::new(limits, started, started + guard.remaining());
        let mut group_nap = GROUP_NAPS.0;
        let mut told = false;
        let (status, out_of_reach) = loop {
            self.collect().map_err(Broken::Unseen)?;
            // After that: what a process has answered is there when it has ended.
            match self.answer.as_ref().map_or(Progress::Underway, Answer::read) {
                Progress::Underway => {}
                Progress::Over => self.answer = None,
                Progress::Refused(refusal) => {
                    self.bury();
                    return Err(Broken::NotRun(refusal));
                }
            }
            let now = clock.now();
            let remaining = guard.remaining();
            if !remaining.is_zero() {
                plan.extend(now + remaining);
            }
            if let Some(guardian) = &mut self.guardian {
                let lease_end = if runs_on { Moment::FAR } else { plan.lease_end };
                let only_group = self.status.is_some() && !plan.is_losing();
                guardian.tell(lease_end, only_group, self.is_kept, !self.frees_with_group);
            }
            if let Some(status) = self.status {
                self.gone = self.gone || self.is_another() || !group::is_alive(self.group);
                // Whoever took the key meanwhile was free to: the lease is tied to the group. Of a job that ended while
                // nobody looked and the lease ran out it cannot be said that it ended in time.
                if self.gone && plan.cause.is_none() && now < plan.lease_end {
                    break (status, false);
                }
            }
            let lost = guard.check().err().map(|error| error.lost_reason().unwrap_or(LostReason::NotHeld));
            let before = (plan.cause, plan.given_up);
            // A job that ran on without a lease leaves nothing behind if its group is gone.
            let due = plan.decide(now, lost, self.status.is_some() && !(runs_on && self.gone));
            for told in [
                plan.cause.filter(|_| plan.cause != before.0).map(Notice::Stopping),
                plan.given_up.filter(|_| plan.given_up != before.1).map(Notice::GoingOn),
            ] {
                told.into_iter().for_each(&mut notice);
            }
            match due {
                Some(Signal::KILL) => self.kill(&plan),
                Some(signal) => {
                    if plan.cause == Some(Cause::Ending) {
                        self.keep_key(guard, limits.kill_after / TIME_TO_KEEP).await;
                    }
                    self.signal(signal, plan.lease_over());
                }
                None => {}
            }
            let mut nap = plan.next(now).since(now).min(LONGEST_NAP);
            if let Some(status) = self.status {
                let left = !self.gone || (plan.is_losing() && !self.descendants.alive().is_empty());
                if !left || (plan.killed && now >= plan.lease_end + PATIENCE) {
                    self.gone = true;
                    break (status, left);
                }
                guard.stop_renewal();
                if plan.killed {
                    self.kill(&plan);
                } else if self.gone && self.frees_with_group && !self.is_kept && plan.cause == Some(Cause::Ending) {
                    // Others may hold the key by now.
                    self.descendants.signal(Signal::KILL);
                } else if self.gone && !std::mem::replace(&mut told, true) {
                    // The group's own members may have seen to them; a second TERM means haste to some.
                    self.descendants.signal(Signal::TERM);
                    self.descendants.signal(Signal::CONT);
                }
                nap = nap.min(group_nap);
                group_nap = (group_nap * 2).min(GROUP_NAPS.1);
            } else if plan.killed {
                self.kill(&plan);
                if now >= plan.lease_end + PATIENCE {
                    self.reach.still_runs(self.group, plan.lease_over());
                }
            } else if let Stop::Fresh(signal) = self.stop {
                self.stop_with_it(guard, runs_on, signal);
                continue;
            }
            let answered = async {
                match &self.answer {
                    Some(answer) => answer.arrives().await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                signal = signals.next() => match signal {
                    Signal::CHILD => {}
                    Signal::CONT if runs_on || guard.check().is_ok() => self.resume(),
                    Signal::CONT => {}
                    signal => {
                        let signal = plan.pass_on(clock.now(), signal, signals.is_at_once());
                        self.signal(signal, plan.lease_over());
                    }
                },
                () = answered => {}
                () = renewed.notified() => {}
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

    /// Notes what became of the children of this process.
    fn collect(&mut self) -> io::Result<()> {
        loop {
            let (id, status) = match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED) {
                Ok(Some(child)) => child,
                Err(Errno::INTR) => continue,
                // One that nobody has collected can be signalled, dead or alive.
                _ if self.status.is_none() && test_kill_process(self.group) == Err(Errno::SRCH) => {
                    return Err(Errno::CHILD.into());
                }
                Ok(None) | Err(_) => return Ok(()),
            };
            if id == self.group {
                let signal = status.stopping_signal().and_then(Signal::from_named_raw);
                self.stop = if status.stopped() { Stop::Fresh(signal) } else { Stop::Runs };
                if !status.stopped() && !status.continued() {
                    self.status = Some(ExitStatus::from_raw(status.as_raw()));
                }
            } else if self.guardian.as_ref().is_some_and(|guardian| guardian.id == id)
                && (status.exited() || status.signaled())
            {
                self.guardian = None;
                // It has ended the job, or it was to go.
                if !self.gone && status.exit_status() != Some(i32::from(exit::LOST)) {
                    output::tell("warning: the process that would end the job if this one were killed is gone");
                }
            }
        }
    }

    /// The job was stopped. At a terminal this stops with it, and goes on with it.
    fn stop_with_it(&mut self, guard: &LockGuard, runs_on: bool, signal: Option<Signal>) {
        self.stop = Stop::Settled;
        let Some(terminal) = &mut self.terminal else {
            if let Some(Signal::TTIN | Signal::TTOU) = signal {
                output::tell(
                    "stopped: the command wants the terminal, which is not its standard input and output; \
                     the lease is kept",
                );
            }
            return;
        };
        if !terminal.is_own() {
            terminal.take_back();
            let remaining = output::precise(guard.remaining());
            let then = if runs_on { "the lease is lost" } else { "the job is killed" };
            output::tell(&format!("stopped: if this lasts for longer than {remaining}, {then}"));
            // Whoever writes it is stopped as well.
            output::finish(STOP_PATIENCE);
            // The whole group, as the terminal would have done: the shell that waits for this may be a member. Without
            // a shell that could continue it the system ignores this.
            kill_current_process_group(Signal::TSTP).ok();
        }
        if terminal.is_own() && (runs_on || guard.check().is_ok()) {
            self.resume();
        }
    }

    /// Sees to it that the key is not free when the group is gone, if something runs that has left it.
    async fn keep_key(&mut self, guard: &LockGuard, patience: Duration) {
        let group = self.group.as_raw_nonzero().get();
        if self.frees_with_group && self.descendants.alive().iter().any(|process| process.group != group) {
            // The guardian lives until everything is gone, also if this process is killed.
            let keeper = self.guardian.as_ref().map_or(Tie::Process, |guardian| Tie::Group(guardian.group()));
            let tied = tokio::time::timeout(patience, guard.tie_to(keeper)).await;
            self.is_kept = matches!(tied, Ok(Ok(())));
            if let Some(guardian) = self.guardian.as_mut().filter(|_| self.is_kept) {
                guardian.tell(Clock::system().now() + guard.remaining(), false, true, false);
            }
        }
    }

    /// Continues the job, in the foreground if this process is there.
    fn resume(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.give();
            if self.stop != Stop::Runs {
                kill_process_group(self.group, Signal::CONT).ok();
            }
        }
    }

    /// Signals the whole group. A group that is gone is noticed where its end is awaited.
    fn signal(&mut self, signal: Signal, lease_over: Moment) {
        if self.gone || self.is_another() {
            return;
        }
        self.reach.signal(self.group, signal, lease_over);
        if [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].contains(&signal) {
            // A stopped process would not see the signal before its KILL.
            kill_process_group(self.group, Signal::CONT).ok();
        }
    }

    /// Kills the whole group, and what has left it if nothing may go on: before it where the key is free when the group is
    /// gone, else after it, because looking for others takes time that there may not be. To be repeated: one that was about
    /// to start another when it got its KILL may have done so.
    fn kill(&mut self, plan: &Plan) {
        if !self.frees_with_group {
            self.signal(Signal::KILL, plan.lease_over());
        }
        if plan.is_losing() {
            self.descendants.signal(Signal::KILL);
        }
        if self.frees_with_group {
            self.signal(Signal::KILL, plan.lease_over());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use leasehold::LockManager;
    use leasehold::store::memory::MemoryStore;
    use rustix::process::{Pid, kill_process, waitpid};

    use super::*;

    /// A job whose status somebody else has collected, so that its watch fails.
    #[test]
    fn a_job_that_cannot_be_watched_is_killed_before_the_key_is_free() {
        let _alone = crate::child::tests::with_children();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let manager = LockManager::new(MemoryStore::new());
            let guard = manager.lock("k").acquire().await.unwrap();
            let mut signals = Signals::install().unwrap();
            let mut command = Command::new("sh");
            command.args(["-c", "sleep 60 & while :; do wait; done"]).process_group(0);
            let group = Pid::from_child(&command.spawn().unwrap());
            let mut job = Job::unwatched(group);
            kill_process(group, Signal::KILL).unwrap();
            waitpid(Some(group), WaitOptions::empty()).unwrap();
            let limits =
                Limits { kill_after: Duration::from_secs(5), max_runtime: None, on_lost: OnLost::Signal(Signal::TERM) };
            job.watch(&guard, &Notify::new(), &mut signals, limits, |_| {}).await.unwrap_err();
            job.abandon(&guard).await;
            assert!(!group::is_alive(group));
            guard.release().await.unwrap();
        });
    }
}
