//! A small process that ends a job whose `run` cannot: because it was killed, or stopped past the lease.
//!
//! It reads moments from a pipe: until then the lease may be assumed. It kills the job at the latest of them, and at once
//! when the pipe ends. It stands in a group of its own and heeds no signal; `run` kills it when the job is over.

use std::ffi::OsString;
use std::io::{self, PipeWriter, Write};
use std::os::unix::process::CommandExt;
use std::process::{ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::descendants::Descendants;
use super::process::Process;
use super::trampoline::Environment;
use super::{group, helper};
use crate::exit;

/// The hidden subcommand.
pub(super) const NAME: &str = "__guard";

/// What is computed from a moment and a length moves a little each time; a renewal moves it further than this.
const WORTH_TELLING: Duration = Duration::from_millis(1);

/// The pauses between looks whether everything that was killed is gone, and how many there are.
const LOOKS: (Duration, u32) = (Duration::from_millis(10), 100);

/// The guardian of one job, as `run` sees it. If this is dropped before it is dismissed, the job is killed.
#[derive(Debug)]
pub(super) struct Guardian {
    pub(super) id: Pid,
    pipe: PipeWriter,
    told: Moment,
}

impl Guardian {
    /// Starts the guardian of the group that `leader` leads. The environment marks the job's processes.
    pub(super) fn start(leader: &Process, environment: &Environment, lease_end: Moment) -> io::Result<Self> {
        let (reader, pipe) = io::pipe()?;
        // A guardian that was stopped must not stop its job.
        rustix::io::ioctl_fionbio(&pipe, true)?;
        let mut start = helper(NAME);
        start.args([leader.id.to_string(), leader.start.to_string(), std::process::id().to_string()]);
        environment.apply(&mut start);
        start.process_group(0).current_dir("/").stdin(reader).stdout(Stdio::null()).stderr(Stdio::null());
        let mut guardian = Self { id: Pid::from_child(&start.spawn()?), pipe, told: Moment::from_nanos(0) };
        guardian.extend(lease_end);
        Ok(guardian)
    }

    /// Tells until when the lease may be assumed.
    pub(super) fn extend(&mut self, lease_end: Moment) {
        if lease_end > self.told + WORTH_TELLING {
            // A guardian that does not listen is told again; that it is gone is noticed where its end is.
            if self.pipe.write_all(&lease_end.as_nanos().to_ne_bytes()).is_ok() {
                self.told = lease_end;
            }
        }
    }

    /// Ends it: the job is over. It is a child that nobody has waited for, so the number is still its own.
    pub(super) fn dismiss(&mut self) {
        kill_process(self.id, Signal::KILL).ok();
    }
}

/// The guardian itself.
pub(super) fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let mut number = || arguments.next().and_then(|text| text.to_str()?.parse::<u64>().ok());
    let (leader, start, parent) = (number(), number(), number());
    let id = |number: Option<u64>| number.and_then(|number| Pid::from_raw(i32::try_from(number).ok()?));
    let (Some(leader), Some(start), Some(parent)) = (id(leader), start, id(parent)) else {
        return ExitCode::from(exit::USAGE);
    };
    SigSet::all().thread_block().ok();
    rustix::thread::set_name(c"leasehold-guard").ok();
    // Without a timer there is nothing to wait with; a pipe that cannot be read has no end that could be seen.
    if watch().is_err() {
        return ExitCode::from(exit::OS);
    }
    Charge { leader, start, parent, descendants: Descendants::of(parent) }.kill();
    ExitCode::from(exit::LOST)
}

/// Waits for the end of the pipe, or for the latest moment that was told.
fn watch() -> io::Result<()> {
    let clock = Clock::system();
    let pipe = rustix::stdio::stdin();
    let timer = rustix::time::timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
    let mut lease_end = Moment::FAR;
    loop {
        let mut files = [PollFd::new(&pipe, PollFlags::IN), PollFd::new(&timer, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut files, None))?;
        // A later moment that was told in time counts, however late it is read.
        if !files[0].revents().is_empty() {
            let mut moment = [0; 8];
            // What is as short as this is written and read as a whole.
            if rustix::io::retry_on_intr(|| rustix::io::read(pipe, &mut moment))? < moment.len() {
                return Ok(());
            }
            lease_end = Moment::from_nanos(u64::from_ne_bytes(moment));
            set(&timer, lease_end)?;
        } else if clock.now() >= lease_end {
            return Ok(());
        }
    }
}

/// The timer goes off at once if the moment is past, and right after a suspend that lasted beyond it.
fn set(timer: &impl std::os::fd::AsFd, moment: Moment) -> io::Result<()> {
    let nanos = moment.as_nanos().clamp(1, i64::MAX.cast_unsigned()).cast_signed();
    let at = Timespec { tv_sec: nanos / 1_000_000_000, tv_nsec: nanos % 1_000_000_000 };
    let never_again = Timespec { tv_sec: 0, tv_nsec: 0 };
    let time = Itimerspec { it_interval: never_again, it_value: at };
    rustix::time::timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &time)?;
    Ok(())
}

/// What is to be killed.
#[derive(Debug)]
struct Charge {
    leader: Pid,
    start: u64,
    parent: Pid,
    descendants: Descendants,
}

impl Charge {
    /// Kills the group and every descendant that can be found, until nothing is left of them.
    fn kill(&self) {
        for _ in 0..LOOKS.1 {
            let group = self.group_alive();
            if group {
                kill_process_group(self.leader, Signal::KILL).ok();
            }
            let others = self.others();
            for process in &others {
                kill_process(*process, Signal::KILL).ok();
            }
            if !group && others.is_empty() {
                return;
            }
            thread::sleep(LOOKS.0);
        }
    }

    /// Whether the group still runs, and is not another one that was given the same number.
    fn group_alive(&self) -> bool {
        let another = Process::find(self.leader).is_some_and(|process| process.start != self.start);
        !another && group::is_alive(self.leader)
    }

    /// The job's processes outside of its group: those below `run`, or those that carry the job's environment when `run`
    /// is dead and they are nobody's.
    fn others(&self) -> Vec<Pid> {
        if rustix::process::getppid() == Some(self.parent) { self.descendants.alive() } else { marked() }
    }
}

/// The variables that together name one acquisition.
const MARKS: [&str; 4] = ["LEASEHOLD_KEY", "LEASEHOLD_LEASE_STORE", "LEASEHOLD_FENCING_TOKEN", "LEASEHOLD_ACQUIRED_AT"];

/// Every living process but this one in whose environment the marks are as in this one's.
fn marked() -> Vec<Pid> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let marks: Vec<Vec<u8>> = MARKS
        .iter()
        .filter_map(|name| Some([name.as_bytes(), b"=", std::env::var_os(name)?.as_encoded_bytes()].concat()))
        .collect();
    if marks.len() < MARKS.len() {
        return Vec::new();
    }
    Process::all()
        .unwrap_or_default()
        .iter()
        .filter(|process| process.id != own && !process.is_dead())
        .filter(|process| {
            let environment = std::fs::read(format!("/proc/{}/environ", process.id)).unwrap_or_default();
            marks.iter().all(|mark| environment.split(|byte| *byte == 0).any(|variable| variable == mark))
        })
        .filter_map(|process| Pid::from_raw(process.id))
        .collect()
}
