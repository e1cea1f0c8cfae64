//! The life of the command's process under a lease: started, passed its signals, stopped in time, seen to be gone.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use leasehold::{LockGuard, LostReason};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_current_process_group, kill_process_group, wait, waitpid};

use self::descendants::Descendants;
use self::guardian::Guardian;
use self::plan::Plan;
pub(crate) use self::plan::{Cause, Limits, OnLost};
use self::process::Process;
use self::terminal::Terminal;
pub(crate) use self::trampoline::Environment;
use self::trampoline::Trampoline;
use crate::cli::Input;
use crate::exit;
use crate::output;
use crate::signals::Signals;

mod descendants;
mod group;
#[cfg_attr(not(target_os = "linux"), path = "child/unguarded.rs")]
mod guardian;
mod plan;
mod process;
mod terminal;
mod trampoline;

/// The longest stretch of sleep. Timers stand still while the machine sleeps and leases do not, so the clock that
/// counts suspend is asked at least this often.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// How soon a group is looked at again whose first process has ended; doubled each time, up to the second.
const GROUP_NAPS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// How long after KILL and the lease's end a group may still be seen before it counts as out of reach.
const PATIENCE: Duration = Duration::from_secs(1);

/// What this process is if it was started as a helper of a `run`: done before anything else, since a command waits for
/// it to start.
pub(crate) fn help() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next()?.to_str()? {
        trampoline::NAME => Some(trampoline::run(arguments)),
        guardian::NAME => Some(guardian::run(arguments)),
        _ => None,
    }
}

/// This program again, as a helper: the very same file, even if another one has taken its place meanwhile.
fn helper(name: &str) -> Command {
    let program = if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() };
    let mut command = Command::new(program.map_or_else(|_| OsString::from("leasehold"), Into::into));
    command.arg0("leasehold").arg(name);
    command
}

/// A command with its process group, which is killed if this is dropped before the group is gone.
#[derive(Debug)]
pub(crate) struct Job {
    group: Pid,
    /// The command's process as long as it is not executed.
    waiting: Option<Trampoline>,
    guardian: Option<Guardian>,
    terminal: Option<Terminal>,
    descendants: Descendants,
    status: Option<ExitStatus>,
    stop: Stop,
    gone: bool,
}

/// Whether the command's process has been stopped by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Runs,
    /// It has, and nothing has been done about it yet.
    Fresh,
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
    /// Starts the command's process in a group of its own, where it waits to be executed; if this is dropped before, it
    /// goes away.
    ///
    /// To be called on the main thread: on Linux that process dies when the thread that started it does.
    pub(crate) fn prepare(command: &[OsString]) -> io::Result<Self> {
        let descendants = Descendants::from_now_on();
        // What loses its parent becomes a child of this process, so that nothing that the command started gets lost.
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).ok();
        let (waiting, group) = Trampoline::start(command)?;
        Ok(Self {
            group,
            waiting: Some(waiting),
            guardian: None,
            terminal: Terminal::of(group),
            descendants,
            status: None,
            stop: Stop::Runs,
            gone: false,
        })
    }

    /// The number of the process group.
    pub(crate) fn group(&self) -> u32 {
        self.group.as_raw_nonzero().get().unsigned_abs()
    }

    /// Starts the process that ends the job if this one cannot.
    pub(crate) fn set_guardian(&mut self, environment: &Environment, lease_end: Moment) -> io::Result<()> {
        let leader = Process::find(self.group).ok_or(io::ErrorKind::NotFound)?;
        let guardian = Guardian::start(&leader, environment, lease_end)?;
        self.descendants.leave_out(guardian.id);
        self.guardian = Some(guardian);
        Ok(())
    }

    /// Has the command executed; an error says why it cannot be.
    pub(crate) async fn execute(&mut self, stdin: Input, environment: &Environment) -> io::Result<()> {
        if let Some(terminal) = &self.terminal {
            terminal.give();
        }
        let Some(waiting) = self.waiting.take() else {
            return Ok(());
        };
        waiting.execute(stdin, environment).await.inspect_err(|_| self.bury())
    }

    /// Waits for the command's process, which is on its way out with nothing left to do.
    fn bury(&mut self) {
        rustix::io::retry_on_intr(|| waitpid(Some(self.group), WaitOptions::empty())).ok();
        self.gone = true;
    }

    /// Stays with the job until its whole group is gone, and after a loss everything else that descends from it.
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
    ) -> Ending {
        let runs_on = limits.on_lost == OnLost::Continue;
        let clock = Clock::system();
        let started = clock.now();
        let mut plan = Plan::new(limits, started, started + guard.remaining());
        let mut group_nap = GROUP_NAPS.0;
        let (status, out_of_reach) = loop {
            self.collect();
            let now = clock.now();
            let remaining = guard.remaining();
            if !remaining.is_zero() {
                plan.extend(now + remaining);
            }
            if let Some(guardian) = &mut self.guardian {
                guardian.extend(if runs_on { Moment::FAR } else { plan.lease_end });
            }
            if let Some(status) = self.status {
                self.gone = self.gone || !group::is_alive(self.group);
                // Whoever took the key meanwhile was free to: the lease is tied to the group. Of a job that ended while
                // nobody looked and the lease ran out it cannot be said that it ended in time.
                if self.gone && plan.cause.is_none() && now < plan.lease_end {
                    break (status, false);
                }
            }
            let lost = guard.check().err().map(|error| error.lost_reason().unwrap_or(LostReason::NotHeld));
            let before = (plan.cause, plan.given_up);
            // A job that ran on without a lease has nothing left of it to wait in.
            let due = plan.decide(now, lost, self.status.is_some() && !(runs_on && self.gone));
            for told in [
                plan.cause.filter(|_| plan.cause != before.0).map(Notice::Stopping),
                plan.given_up.filter(|_| plan.given_up != before.1).map(Notice::GoingOn),
            ] {
                told.into_iter().for_each(&mut notice);
            }
            if let Some(signal) = due {
                self.signal(signal, plan.is_losing());
            }
            let mut nap = plan.next(now).since(now).min(LONGEST_NAP);
            if let Some(status) = self.status {
                let left = !self.gone || (plan.is_losing() && !self.descendants.alive().is_empty());
                if !left || (plan.killed && now >= plan.lease_end + PATIENCE) {
                    self.gone = true;
                    break (status, left);
                }
                if plan.killed {
                    self.signal(Signal::KILL, plan.is_losing());
                } else {
                    guard.stop_renewal();
                }
                nap = nap.min(group_nap);
                group_nap = (group_nap * 2).min(GROUP_NAPS.1);
            } else if self.stop == Stop::Fresh && !plan.killed {
                self.stop_with_it(guard, runs_on);
                continue;
            }
            tokio::select! {
                biased;
                signal = signals.next() => match signal {
                    Signal::CHILD => {}
                    Signal::CONT if runs_on || guard.check().is_ok() => self.resume(),
                    Signal::CONT => {}
                    signal => {
                        let signal = plan.pass_on(clock.now(), signal);
                        self.signal(signal, false);
                    }
                },
                _ = guard.lost(), if lost.is_none() => {}
                () = tokio::time::sleep(nap) => {}
            }
        };
        Ending {
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
        }
    }

    /// Takes the terminal back and sends the guardian away; to be called when nothing of the job is left.
    pub(crate) fn dismiss(&mut self) {
        self.terminal = None;
        if let Some(guardian) = &mut self.guardian {
            guardian.dismiss();
        }
    }

    /// Notes what became of the children of this process.
    fn collect(&mut self) {
        loop {
            let (id, status) = match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED) {
                Ok(Some(child)) => child,
                Err(Errno::INTR) => continue,
                Ok(None) | Err(_) => return,
            };
            if id == self.group {
                self.stop = if status.stopped() { Stop::Fresh } else { Stop::Runs };
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
    fn stop_with_it(&mut self, guard: &LockGuard, runs_on: bool) {
        self.stop = Stop::Settled;
        let Some(terminal) = &self.terminal else {
            return;
        };
        if !terminal.is_own() {
            terminal.take_back();
            let remaining = output::precise(guard.remaining());
            let then = if runs_on { "the lease is lost" } else { "the job is killed" };
            output::tell(&format!("stopped: if this lasts for longer than {remaining}, {then}"));
            // The whole group, as the terminal would have done: the shell that waits for this may be a member. Without
            // a shell that could continue it the system ignores this.
            kill_current_process_group(Signal::TSTP).ok();
        }
        if terminal.is_own() && (runs_on || guard.check().is_ok()) {
            self.resume();
        }
    }

    /// Continues the job, in the foreground if this process is there.
    fn resume(&mut self) {
        if let Some(terminal) = &self.terminal {
            terminal.give();
            if self.stop != Stop::Runs {
                kill_process_group(self.group, Signal::CONT).ok();
            }
        }
    }

    /// Signals the whole group, and what has left it if `everything` is to go. A group that is gone, or that changed its
    /// user, is noticed where its end is awaited.
    fn signal(&self, signal: Signal, everything: bool) {
        let signals: &[Signal] = match signal {
            // A stopped process would not see the TERM before its KILL.
            Signal::TERM => &[signal, Signal::CONT],
            _ => &[signal],
        };
        for signal in signals {
            if !self.gone {
                kill_process_group(self.group, *signal).ok();
            }
            if everything {
                self.descendants.signal(*signal);
            }
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.gone {
            kill_process_group(self.group, Signal::KILL).ok();
        }
        if self.waiting.is_some() {
            self.bury();
        }
        if self.gone {
            self.dismiss();
            // So that nobody else finds it dead.
            if let Some(guardian) = &self.guardian {
                rustix::io::retry_on_intr(|| waitpid(Some(guardian.id), WaitOptions::empty())).ok();
            }
        }
        // Otherwise the guardian sees to the rest.
    }
}
