//! Whether signals get through to the group: what changed its user is out of the reach of an ordinary user.

use leasehold::clock::{Clock, Moment};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::output;

/// What is known about it, and what people were told already.
#[derive(Debug, Default)]
pub(super) struct Reach {
    /// Whether the latest signal was refused.
    pub(super) refused: bool,
    told_refused: bool,
    told_runs: bool,
}

impl Reach {
    /// Signals the whole group; says at once, and once, if that is refused.
    pub(super) fn signal(&mut self, group: Pid, signal: Signal, lease_over: Moment) {
        match kill_process_group(group, signal) {
            Ok(()) => self.refused = false,
            Err(Errno::PERM) => self.refused = true,
            // It is gone, which says nothing about those before.
            Err(_) => return,
        }
        if !self.refused {
            return;
        }
        if Clock::system().now() >= lease_over {
            self.still_runs(group, lease_over);
        } else if !std::mem::replace(&mut self.told_refused, true) {
            output::tell(&format!(
                "cannot signal group {group} (it runs as another user): stop it by hand; its lease ends at {} unless \
                 renewed",
                output::clock_time(lease_over)
            ));
        }
    }

    /// Says once that the group runs on although its lease is over.
    pub(super) fn still_runs(&mut self, group: Pid, lease_over: Moment) {
        if std::mem::replace(&mut self.told_runs, true) {
            return;
        }
        let why = if self.refused { "cannot signal group" } else { "could not stop group" };
        let user = if self.refused { " (it runs as another user)" } else { "" };
        output::tell(&format!(
            "{why} {group}{user}: it still runs WITHOUT the lease since {}; stop it by hand",
            output::clock_time(lease_over)
        ));
    }
}
