//! Whether anything of a process group still runs.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};

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
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return false;
    };
    let mut dead = 0;
    for process in processes.flatten() {
        if !process.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        let stat = match std::fs::read_to_string(process.path().join("stat")) {
            Ok(stat) => stat,
            // One that is gone by now is no member any more.
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::SRCH)) => {
                continue;
            }
            Err(_) => return false,
        };
        match Member::parse(&stat) {
            Some(member) if member.group != group.as_raw_nonzero().get() => {}
            Some(member) if member.is_dead() => dead += 1,
            _ => return false,
        }
    }
    dead > 0
}

struct Member {
    state: char,
    group: i32,
    threads: u32,
}

impl Member {
    /// From a line of `/proc/PID/stat`; the program's name in it may hold anything, also parentheses.
    fn parse(stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let group = fields.nth(1)?.parse().ok()?;
        let threads = fields.nth(14)?.parse().ok()?;
        Some(Self { state, group, threads })
    }

    /// A process whose first thread has ended looks dead while other threads go on.
    fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X') && self.threads <= 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_process_is_read() {
        let stat = "4121 (a) b (c) Z 1 4120 4120 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 57 0 0";
        let member = Member::parse(stat).unwrap();
        assert_eq!((member.state, member.group, member.threads), ('Z', 4120, 1));
        assert!(member.is_dead());
    }

    #[test]
    fn this_group_is_alive() {
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        let group = Member::parse(&own).unwrap().group;
        assert!(is_alive(Pid::from_raw(group).unwrap()));
        assert!(!is_alive(Pid::from_raw(i32::MAX).unwrap()));
    }
}
