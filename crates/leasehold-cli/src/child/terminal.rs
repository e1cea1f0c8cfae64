//! The terminal, when a command is run from one: its foreground group is the command's while that runs.

use rustix::process::Pid;
use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use super::group;

/// The terminal of a job; taken back when dropped.
#[derive(Debug)]
pub(super) struct Terminal {
    own: Pid,
    job: Pid,
    /// Whether the job was put in the foreground since this process's group was there.
    is_given: bool,
    /// How it was set when the job got it first.
    modes: Option<Termios>,
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
        Some(Self { own: rustix::process::getpgrp(), job, is_given: false, modes: None })
    }

    /// Whether this process's group is in the foreground.
    pub(super) fn is_own(&self) -> bool {
        tcgetpgrp(stdin()) == Ok(self.own)
    }

    /// Puts the job in the foreground, if this process's group is there.
    pub(super) fn give(&mut self) {
        if self.is_own() {
            self.modes = self.modes.take().or_else(|| tcgetattr(stdin()).ok());
            // A job that is gone already needs none.
            self.is_given = tcsetpgrp(stdin(), self.job).is_ok();
        }
    }

    /// Puts this process's group in the foreground, if the job is there, or what the job has put there and is dead.
    pub(super) fn take_back(&mut self) {
        let is_left = match tcgetpgrp(stdin()) {
            Ok(foreground) if foreground == self.job => true,
            Ok(foreground) => self.is_given && !group::is_alive(foreground),
            Err(_) => self.is_given,
        };
        if is_left {
            // The signal that would stop a process in the background is blocked.
            tcsetpgrp(stdin(), self.own).ok();
        }
        self.is_given = false;
    }

    /// Sets it as it was: a job that was killed could not. Does nothing if somebody else has it.
    pub(super) fn mend(&self) {
        if let Some(modes) = self.modes.as_ref().filter(|_| self.is_own()) {
            tcsetattr(stdin(), OptionalActions::Now, modes).ok();
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}
