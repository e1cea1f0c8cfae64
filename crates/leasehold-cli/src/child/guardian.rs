//! A small process that ends a job whose `run` cannot: because it was killed, or stopped past the lease.
//!
//! It is told through a pipe until when the lease may be assumed. It kills the job at the latest of these moments, and at
//! once when the pipe ends. It stands in a group of its own and heeds no signal; `run` kills it when the job is over.

use std::ffi::OsString;
use std::io::{self, PipeWriter, Write};
use std::os::unix::process::CommandExt;
use std::process::{ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, getpid, getppid, kill_process, kill_process_group, setpgid};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::descendants::Descendants;
use super::mark::Mark;
use super::process::{Identity, Process};
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
    told: Orders,
}

impl Guardian {
    /// Starts the guardian of the group that `leader` leads. The environment marks the job's processes.
    pub(super) fn start(
        leader: Pid,
        descendants: &Descendants,
        environment: &Environment,
        lease_end: Moment,
    ) -> io::Result<Self> {
        let (reader, pipe) = io::pipe()?;
        // A guardian that was stopped must not stop its job.
        rustix::io::ioctl_fionbio(&pipe, true)?;
        let mut start = helper(NAME);
        start.arg(std::process::id().to_string());
        // One that cannot be seen is known by its number alone.
        let leader = Process::find(leader).map_or((leader.as_raw_nonzero().get(), 0), |process| process.identity());
        for (id, since) in [leader].iter().chain(descendants.before()) {
            start.args([id.to_string(), since.to_string()]);
        }
        environment.apply(&mut start);
        start.process_group(0).stdin(reader).stdout(Stdio::null()).stderr(Stdio::null());
        let told = Orders { lease_end: Moment::from_nanos(0), only_group: false, keeps_key: false, group_first: false };
        let mut guardian = Self { id: Pid::from_child(&start.spawn()?), pipe, told };
        guardian.tell(lease_end, false, false, false);
        Ok(guardian)
    }

    /// Its own group, which nobody else is in.
    pub(super) fn group(&self) -> u32 {
        self.id.as_raw_nonzero().get().unsigned_abs()
    }

    /// Tells until when the lease may be assumed, whether what has left the group may go on beyond that, whether the
    /// lease is for the guardian's own group, and whether it outlives the job's.
    pub(super) fn tell(&mut self, lease_end: Moment, only_group: bool, keeps_key: bool, group_first: bool) {
        let orders = Orders { lease_end, only_group, keeps_key, group_first };
        if lease_end > self.told.lease_end + WORTH_TELLING || orders.flags() != self.told.flags() {
            // A guardian that does not listen is told again; that it is gone is noticed where its end is.
            if self.pipe.write_all(&orders.to_bytes()).is_ok() {
                self.told = orders;
            }
        }
    }

    /// Ends it: the job is over. It is a child that nobody has waited for, so the number is still its own.
    pub(super) fn dismiss(&mut self) {
        kill_process(self.id, Signal::KILL).ok();
    }
}

/// What the guardian is told, in a message so short that it is written and read as a whole.
#[derive(Clone, Copy, Debug)]
struct Orders {
    lease_end: Moment,
    only_group: bool,
    keeps_key: bool,
    group_first: bool,
}

impl Orders {
    const LENGTH: usize = 9;

    fn to_bytes(self) -> [u8; Self::LENGTH] {
        let [a, b, c, d, e, f, g, h] = self.lease_end.as_nanos().to_ne_bytes();
        [a, b, c, d, e, f, g, h, self.flags()]
    }

    fn flags(self) -> u8 {
        u8::from(self.only_group) | u8::from(self.keeps_key) << 1 | u8::from(self.group_first) << 2
    }

    fn from_bytes([moment @ .., flags]: [u8; Self::LENGTH]) -> Self {
        let lease_end = Moment::from_nanos(u64::from_ne_bytes(moment));
        let [only_group, keeps_key, group_first] = [1, 2, 4].map(|flag| flags & flag != 0);
        Self { lease_end, only_group, keeps_key, group_first }
    }
}

/// The guardian itself.
pub(super) fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(charge) = Charge::new(arguments) else {
        return ExitCode::from(exit::USAGE);
    };
    SigSet::all().thread_block().ok();
    rustix::thread::set_name(c"leasehold-guard").ok();
    rustix::process::chdir("/").ok();
    // Without a timer there is nothing to wait with; a pipe that cannot be read has no end that could be seen.
    let Ok((orders, run_ended)) = watch() else {
        return ExitCode::from(exit::OS);
    };
    if !orders.only_group && !orders.keeps_key && !orders.group_first && run_ended {
        charge.kill_others(orders.lease_end);
    }
    charge.kill(orders);
    ExitCode::from(exit::LOST)
}

/// Waits for the latest moment that was told, or for the end of the pipe (true).
fn watch() -> io::Result<(Orders, bool)> {
    let clock = Clock::system();
    let pipe = rustix::stdio::stdin();
    let timer = rustix::time::timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
    let mut orders = Orders { lease_end: Moment::FAR, only_group: false, keeps_key: false, group_first: false };
    loop {
        let mut files = [PollFd::new(&pipe, PollFlags::IN), PollFd::new(&timer, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut files, None))?;
        // A later moment that was told in time counts, however late it is read.
        if !files[0].revents().is_empty() {
            let mut message = [0; Orders::LENGTH];
            if rustix::io::retry_on_intr(|| rustix::io::read(pipe, &mut message))? < message.len() {
                return Ok((orders, true));
            }
            orders = Orders::from_bytes(message);
            set(&timer, orders.lease_end)?;
        } else if clock.now() >= orders.lease_end {
            return Ok((orders, false));
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
    run: Pid,
    group: Pid,
    leader: Identity,
    descendants: Descendants,
}

impl Charge {
    /// From the arguments: the number of `run`, and the identities of the leader and of the children that were there before.
    fn new(arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let numbers = arguments.map(|number| number.to_str()?.parse().ok()).collect::<Option<Vec<u64>>>()?;
        let (run, identities) = numbers.split_first()?;
        let mut identities = identities.chunks_exact(2).map(|pair| Some((i32::try_from(pair[0]).ok()?, pair[1])));
        let leader = identities.next()??;
        let run = Pid::from_raw(i32::try_from(*run).ok()?)?;
        let group = Pid::from_raw(leader.0)?;
        let mut descendants = Descendants::of(run, group, identities.collect::<Option<_>>()?);
        descendants.leave_out(getpid());
        descendants.set_mark(Mark::inherited());
        Some(Self { run, group, leader, descendants })
    }

    /// Kills what can be found, also what has left the group, until the lease ends. That of a `run` that is dead stands
    /// until nobody of the group lives, so this process is one of them meanwhile.
    fn kill_others(&self, lease_end: Moment) {
        if self.is_another() {
            return;
        }
        setpgid(None, Some(self.group)).ok();
        until_nothing_is_left(lease_end, || {
            // What may not be signalled is not waited for.
            self.others().into_iter().filter(|process| process.signal(Signal::KILL).is_ok()).count() == 0
        });
        setpgid(None, None).ok();
    }

    /// Kills the group, and every descendant that can be found unless they may go on.
    fn kill(&self, Orders { only_group, group_first, .. }: Orders) {
        if group_first && !self.is_another() {
            // Looking for others takes time that there may not be.
            kill_process_group(self.group, Signal::KILL).ok();
        }
        until_nothing_is_left(Moment::FAR, || {
            // Before the group: the key may be free when that is gone.
            let others = if only_group { Vec::new() } else { self.others() };
            for process in &others {
                process.signal(Signal::KILL).ok();
            }
            let group = !self.is_another() && group::is_alive(self.group);
            if group {
                kill_process_group(self.group, Signal::KILL).ok();
            }
            !group && others.is_empty()
        });
    }

    /// Whether the group is gone and its number is another process's by now.
    fn is_another(&self) -> bool {
        self.leader.1 != 0 && Process::find(self.group).is_some_and(|process| process.identity() != self.leader)
    }

    /// The job's processes, also those in its group: below `run`, or those with its mark when `run` is dead.
    fn others(&self) -> Vec<Process> {
        if getppid() == Some(self.run) { self.descendants.alive() } else { self.descendants.marked() }
    }
}

/// Looks and kills until two looks have found nothing: the mark of a process that is about to execute a program cannot be
/// seen at that moment. Ends before the end, too.
fn until_nothing_is_left(end: Moment, mut look: impl FnMut() -> bool) {
    let clock = Clock::system();
    let mut nothing_before = false;
    for _ in 0..LOOKS.1 {
        let nothing = look();
        // Another look, which may take a few pauses, has to end in time.
        if nothing && nothing_before || clock.now() + LOOKS.0 * 3 >= end {
            return;
        }
        nothing_before = nothing;
        thread::sleep(LOOKS.0);
    }
}
