//! The life of the command's process under a lease: started, passed its signals, stopped in time, seen to be gone.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus};
use std::thread;
use std::time::Duration;

use leasehold::clock::Moment;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process_group, waitpid};

use self::descendants::Descendants;
use self::guardian::Guardian;
use self::mark::Mark;
pub(crate) use self::plan::{Cause, Limits, OnLost};
use self::process::Process;
use self::reach::Reach;
use self::terminal::Terminal;
use self::trampoline::{Answer, Trampoline};
pub(crate) use self::trampoline::{Environment, Refusal};
use self::watch::Stop;
pub(crate) use self::watch::{Broken, Ending, Notice};
use crate::cli::Input;

mod descendants;
mod group;
#[cfg_attr(not(target_os = "linux"), path = "child/unguarded.rs")]
mod guardian;
mod mark;
mod plan;
mod process;
mod reach;
mod terminal;
mod trampoline;
mod watch;

/// The pauses between looks whether a process that was killed is gone, and how many there are: a second.
const FUNERAL: (Duration, u32) = (Duration::from_millis(1), 1000);

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
pub(crate) fn helper(name: &str) -> Command {
    let program = if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() };
    let mut command = Command::new(program.map_or_else(|_| OsString::from("leasehold"), Into::into));
    command.arg0("leasehold").args(loader_arguments()).arg(name);
    command
}

/// What stands before this program's own arguments if a loader was executed to start it, as in `ld.so leasehold run`:
/// that one is `/proc/self/exe` then, and starts it again.
fn loader_arguments() -> Vec<OsString> {
    let line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let mut all: Vec<_> = line.strip_suffix(b"\0").unwrap_or_default().split(|byte| *byte == 0).collect();
    all.truncate(all.len().saturating_sub(std::env::args_os().count()) + 1);
    all.into_iter().skip(1).map(|argument| OsStr::from_bytes(argument).to_owned()).collect()
}

/// A command with its process group, which is killed if this is dropped before the group is gone.
#[derive(Debug)]
pub(crate) struct Job {
    group: Pid,
    /// The command's process as long as it was not told to execute it.
    waiting: Option<Trampoline>,
    /// What is still to be heard from it.
    answer: Option<Answer>,
    guardian: Option<Guardian>,
    terminal: Option<Terminal>,
    descendants: Descendants,
    reach: Reach,
    status: Option<ExitStatus>,
    stop: Stop,
    gone: bool,
    /// Whether the key is free as soon as the group is gone,
    frees_with_group: bool,
    /// unless the lease is for somebody else by now.
    is_kept: bool,
}

impl Job {
    /// Starts the command's process in a group of its own, where it waits to be executed; if this is dropped before, it
    /// goes away.
    ///
    /// To be called on the main thread: on Linux that process dies when the thread that started it does.
    pub(crate) fn prepare(command: &[OsString]) -> io::Result<Self> {
        let before = Process::children().iter().map(Process::identity).collect();
        // What loses its parent becomes a child of this process, so that nothing that the command started gets lost.
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(getpid())).ok();
        let (waiting, group) = Trampoline::start(command)?;
        Ok(Self {
            group,
            waiting: Some(waiting),
            answer: None,
            guardian: None,
            terminal: Terminal::of(group),
            descendants: Descendants::of(getpid(), group, before),
            reach: Reach::default(),
            status: None,
            stop: Stop::Runs,
            gone: false,
            frees_with_group: false,
            is_kept: false,
        })
    }

    /// Notes that the store gives the key to others as soon as the group is gone.
    pub(crate) fn free_with_group(&mut self) {
        self.frees_with_group = true;
    }

    /// The number of the process group.
    pub(crate) fn group(&self) -> u32 {
        self.group.as_raw_nonzero().get().unsigned_abs()
    }

    /// Starts the process that ends the job if this one cannot.
    ///
    /// Outside Linux there is none, as the manual says.
    pub(crate) fn set_guardian(&mut self, environment: &Environment, lease_end: Moment) -> io::Result<()> {
        if !cfg!(target_os = "linux") {
            return Ok(());
        }
        let guardian = Guardian::start(self.group, &self.descendants, environment, lease_end)?;
        self.descendants.leave_out(guardian.id);
        self.guardian = Some(guardian);
        Ok(())
    }

    /// Has the command executed, unless it is `lease_end` by then. What becomes of that is for [`watch`](Self::watch) to
    /// see; an error says that it could not be told.
    pub(crate) fn execute(&mut self, stdin: Input, environment: &Environment, lease_end: Moment) -> io::Result<()> {
        if let Some(terminal) = &mut self.terminal {
            terminal.give();
        }
        if let Some(waiting) = self.waiting.take() {
            self.descendants.set_mark(Mark::of(environment));
            self.answer = Some(waiting.execute(stdin, environment, lease_end).inspect_err(|_| self.bury())?);
        }
        Ok(())
    }

    /// Ends the command's process, which was not executed.
    fn bury(&mut self) {
        self.gone = true;
        if self.status.is_some() {
            // Its number may be another's by now.
            return;
        }
        kill_process_group(self.group, Signal::KILL).ok();
        for _ in 0..FUNERAL.1 {
            if !matches!(waitpid(Some(self.group), WaitOptions::NOHANG), Ok(None) | Err(Errno::INTR)) {
                break;
            }
            thread::sleep(FUNERAL.0);
        }
    }

    /// Whether the group is gone and its number is another process's by now.
    fn is_another(&self) -> bool {
        self.status.is_some() && group::is_another(self.group)
    }

    /// Takes the terminal back and sends the guardian away; to be called when nothing of the job is left.
    pub(crate) fn dismiss(&mut self) {
        if let Some(mut terminal) = self.terminal.take() {
            terminal.take_back();
            if self.status.is_some_and(|status| status.signal().is_some()) {
                terminal.mend();
            }
        }
        if let Some(guardian) = &mut self.guardian {
            guardian.dismiss();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.gone && !self.is_another() {
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

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// For tests with children, one at a time: a watch collects the end of any child of its process.
    pub(super) fn with_children() -> MutexGuard<'static, ()> {
        static ONE: Mutex<()> = Mutex::new(());
        ONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    impl Job {
        /// A job that was started by other means.
        pub(super) fn unwatched(group: Pid) -> Self {
            Self {
                group,
                waiting: None,
                answer: None,
                guardian: None,
                terminal: None,
                descendants: Descendants::of(getpid(), group, Vec::new()),
                reach: Reach::default(),
                status: None,
                stop: Stop::Runs,
                gone: false,
                frees_with_group: false,
                is_kept: false,
            }
        }
    }

    #[test]
    fn whoever_was_given_the_number_of_a_process_that_was_buried_is_spared() {
        let _alone = with_children();
        let mut stranger = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let mut job = Job::unwatched(Pid::from_child(&stranger));
        job.status = Some(ExitStatus::from_raw(0));
        job.bury();
        drop(job);
        assert!(stranger.try_wait().unwrap().is_none());
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }

    #[test]
    fn whoever_was_given_the_number_of_a_group_that_is_gone_is_spared() {
        let _alone = with_children();
        let mut stranger = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let id = Pid::from_child(&stranger);
        let mut job = Job::unwatched(id);
        job.status = Some(ExitStatus::from_raw(0));
        drop(job);
        assert!(stranger.try_wait().unwrap().is_none());
        drop(Job::unwatched(id));
        assert_eq!(stranger.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    }
}
