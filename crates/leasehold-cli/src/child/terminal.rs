//! The terminal, when a command is run from one: its foreground group is the command's while that runs.

use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::process::Pid;
use rustix::stdio::{stdin, stdout};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};

/// The terminal of a job; taken back when dropped.
#[derive(Debug)]
pub(super) struct Terminal {
    own: Pid,
    job: Pid,
}

impl Terminal {
    /// The terminal that controls this process, if standard input and output are that one.
    pub(super) fn of(job: Pid) -> Option<Self> {
        if !isatty(stdin()) || !isatty(stdout()) {
            return None;
        }
        let device = |file| rustix::fs::fstat(file).map(|stat| stat.st_rdev).ok();
        if device(stdin()) != device(stdout()) || tcgetpgrp(stdin()).is_err() {
            return None;
        }
        Some(Self { own: rustix::process::getpgrp(), job })
    }

    /// Whether this process's group is in the foreground.
    pub(super) fn is_own(&self) -> bool {
        tcgetpgrp(stdin()) == Ok(self.own)
    }

    /// Puts the job in the foreground, if this process's group is there.
    pub(super) fn give(&self) {
        if self.is_own() {
            // A job that is gone already needs none.
            tcsetpgrp(stdin(), self.job).ok();
        }
    }

    /// Puts this process's group in the foreground, if the job is there.
    pub(super) fn take_back(&self) {
        if tcgetpgrp(stdin()) == Ok(self.job) {
            while_in_background(|| tcsetpgrp(stdin(), self.own).map_err(io::Error::from)).ok();
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// Whoever changes the terminal from the background is stopped, unless the signal that would do it is blocked.
fn while_in_background(change: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let mut blocked = SigSet::empty();
    blocked.add(Signal::SIGTTOU);
    let before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let outcome = change();
    before.thread_set_mask()?;
    outcome
}
