//! Whether anything of a process group still runs.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process, test_kill_process_group};

use super::process::Process;

/// Whether the group has a member that can still do something; the dead that nobody has collected do not count.
pub(super) fn is_alive(group: Pid) -> bool {
    match test_kill_process_group(group) {
        Err(Errno::SRCH) => false,
        _ => !(shows_everybody() && has_only_the_dead(|| members(group))),
    }
}

/// Whether the number of a group whose leader was collected belongs to another process by now. No process is given the
/// number of a group that still has members, so these are gone.
pub(super) fn is_another(group: Pid) -> bool {
    test_kill_process(group) != Err(Errno::SRCH)
}

/// Whether `/proc` shows the processes of other users, which it need not (`hidepid`): process 1 is one of them.
fn shows_everybody() -> bool {
    std::fs::read_to_string("/proc/1/stat").is_ok_and(|stat| !stat.is_empty())
}

/// The members of the group, dead or alive; `None` if some may be hidden.
fn members(group: Pid) -> Option<Vec<Process>> {
    let members = Process::all()?.into_iter().filter(|process| process.group == group.as_raw_nonzero().get());
    Some(members.collect())
}

/// Whether there are members, and all of them are dead. What cannot be seen counts as alive.
///
/// The table is no snapshot: a member may start another behind the reader's back and die before it is read. Whoever lives
/// between two looks is no dead member of the first, so if both show the same dead there is nobody else.
fn has_only_the_dead(mut look: impl FnMut() -> Option<Vec<Process>>) -> bool {
    let mut the_dead = || look().filter(|members| !members.is_empty() && members.iter().all(Process::is_dead));
    let Some(first) = the_dead() else {
        return false;
    };
    the_dead().is_some_and(|second| first.iter().map(Process::identity).eq(second.iter().map(Process::identity)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_group_is_alive() {
        assert!(is_alive(rustix::process::getpgrp()));
        assert!(!is_alive(Pid::from_raw(i32::MAX).unwrap()));
    }

    #[test]
    fn a_group_is_dead_if_two_looks_show_the_same_dead() {
        let process = |id, state, start| {
            Process::parse(&format!("{id} (x) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start}")).unwrap()
        };
        let (dead, other, alive) = (process(7, 'Z', 10), process(8, 'Z', 11), process(9, 'S', 12));
        for (what, looks, expected) in [
            ("the same dead", [Some(vec![dead, other]), Some(vec![dead, other])], true),
            ("one alive", [Some(vec![dead, alive]), Some(vec![dead])], false),
            ("one started meanwhile", [Some(vec![dead]), Some(vec![dead, alive])], false),
            ("one started and died meanwhile", [Some(vec![dead]), Some(vec![dead, other])], false),
            ("a number given anew", [Some(vec![dead]), Some(vec![process(7, 'Z', 20)])], false),
            ("none in sight", [Some(vec![]), Some(vec![])], false),
            ("hidden", [None, Some(vec![dead])], false),
            ("hidden later", [Some(vec![dead]), None], false),
        ] {
            let mut looks = looks.into_iter();
            assert_eq!(has_only_the_dead(|| looks.next().unwrap()), expected, "{what}");
        }
    }
}
