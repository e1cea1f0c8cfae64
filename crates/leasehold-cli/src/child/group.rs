//! Whether anything of a process group still runs.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};

use super::process::Process;

/// Whether the group has a member that can still do something; the dead that nobody has collected do not count.
pub(super) fn is_alive(group: Pid) -> bool {
    match test_kill_process_group(group) {
        Err(Errno::SRCH) => false,
        // A process that starts another and ends can slip through one look at the table, hardly through two.
        _ => !(shows_everybody() && only_dead_members(group) && only_dead_members(group)),
    }
}

/// Whether `/proc` shows the processes of other users, which it need not (`hidepid`): process 1 is one of them.
fn shows_everybody() -> bool {
    std::fs::read_to_string("/proc/1/stat").is_ok_and(|stat| !stat.is_empty())
}

/// Whether `/proc` shows members of the group, and all of them are dead. What it does not show counts as alive.
fn only_dead_members(group: Pid) -> bool {
    let Some(processes) = Process::all() else {
        return false;
    };
    let mut members = processes.iter().filter(|process| process.group == group.as_raw_nonzero().get()).peekable();
    members.peek().is_some() && members.all(Process::is_dead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_group_is_alive() {
        assert!(is_alive(rustix::process::getpgrp()));
        assert!(!is_alive(Pid::from_raw(i32::MAX).unwrap()));
    }
}
