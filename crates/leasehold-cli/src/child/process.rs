//! Processes as `/proc` shows them. Where there is none, or that of another pid namespace, no process can be seen.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// An id and a start: what no other process of this boot has.
pub(super) type Identity = (i32, u64);

/// What a line of `/proc/PID/stat` tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub(super) id: i32,
    state: char,
    pub(super) parent: i32,
    pub(super) group: i32,
    threads: u32,
    /// In ticks since boot.
    pub(super) start: u64,
}

impl Process {
    /// The process with this id, dead or alive.
    pub(super) fn find(id: Pid) -> Option<Self> {
        if is_own_proc() { Self::read(id.as_raw_nonzero().get()).ok()? } else { None }
    }

    /// The children that the main thread has started or adopted, dead or alive.
    pub(super) fn children() -> Vec<Self> {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        match fs::read_to_string(format!("/proc/self/task/{own}/children")) {
            Ok(ids) if is_own_proc() => {
                let read = |id: &str| Self::read(id.parse().ok()?).ok()?;
                ids.split_ascii_whitespace().filter_map(read).collect()
            }
            // Kernels may be built without that file.
            _ => Self::visible().into_iter().filter(|process| process.parent == own).collect(),
        }
    }

    /// Every process that can be seen, dead or alive.
    pub(super) fn visible() -> Vec<Self> {
        Self::read_all().0
    }

    /// Every process, dead or alive; `None` if one of them could not be read.
    pub(super) fn all() -> Option<Vec<Self>> {
        let (all, complete) = Self::read_all();
        complete.then_some(all)
    }

    fn read_all() -> (Vec<Self>, bool) {
        let directory = match fs::read_dir("/proc") {
            Ok(directory) if is_own_proc() => directory,
            _ => return (Vec::new(), false),
        };
        let (mut all, mut complete) = (Vec::new(), true);
        for process in directory.flatten() {
            let Some(id) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            match Self::read(id) {
                Ok(Some(process)) => all.push(process),
                Ok(None) => complete = false,
                // One that is gone by now is none any more.
                Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::SRCH)) => {}
                Err(_) => complete = false,
            }
        }
        (all, complete)
    }

    /// What tells it from every other process.
    pub(super) fn identity(&self) -> Identity {
        (self.id, self.start)
    }

    /// Signals it, but not another one that was given its number since it was seen.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        let now = Self::read(self.id)?;
        match Pid::from_raw(self.id) {
            Some(id) if now.is_some_and(|now| now.identity() == self.identity()) => Ok(kill_process(id, signal)?),
            _ => Err(Errno::SRCH.into()),
        }
    }

    /// Whether it can do nothing any more. A process whose first thread has ended looks dead while other threads go on.
    pub(super) fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X') && self.threads <= 1
    }

    /// `/proc` has to be that of this pid namespace. `None` = malformed.
    fn read(id: i32) -> io::Result<Option<Self>> {
        Ok(Self::parse(&String::from_utf8_lossy(&fs::read(format!("/proc/{id}/stat"))?)))
    }

    /// The program's name in the line may hold anything, also parentheses.
    pub(super) fn parse(stat: &str) -> Option<Self> {
        let (id, _) = stat.split_once(' ')?;
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let field = |index: usize| fields.get(index).copied();
        Some(Self {
            id: id.parse().ok()?,
            state: field(0)?.chars().next()?,
            parent: field(1)?.parse().ok()?,
            group: field(2)?.parse().ok()?,
            threads: field(17)?.parse().ok()?,
            start: field(19)?.parse().ok()?,
        })
    }
}

/// Whether `/proc` tells of this process's own pid namespace.
fn is_own_proc() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| has_only_number(&status, std::process::id()))
}

/// Whether this is the only number of a process, to judge by its `/proc/<pid>/status`: seen from an outer pid namespace
/// it has another one there, and they may happen to be the same.
fn has_only_number(status: &str, id: u32) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    // Kernels without the line are without pid namespaces.
    numbers.is_none_or(|numbers| numbers.split_ascii_whitespace().eq([id.to_string()]))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_line_of_a_process_is_read() {
        let stat = "4121 (a) b (c) Z 1 4120 4120 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 57 0 0";
        let process = Process::parse(stat).unwrap();
        assert_eq!((process.id, process.parent, process.group), (4121, 1, 4120));
        assert_eq!((process.state, process.threads, process.start), ('Z', 1, 57));
        assert!(process.is_dead());
    }

    #[test]
    fn this_process_is_among_all() {
        let own = Process::find(rustix::process::getpid()).unwrap();
        assert!(!own.is_dead());
        assert!(Process::all().unwrap().iter().any(|process| process.id == own.id && process.start == own.start));
    }

    #[test]
    fn a_number_in_another_pid_namespace_is_told() {
        for (status, expected) in [
            ("Name:\tx\nNSpid:\t7\nKthread:\t0\n", true),
            ("NSpid:\t7\t7\n", false),
            ("NSpid:\t9\t7\n", false),
            ("NSpid:\t9\n", false),
            ("Name:\tNSpid:\n", true),
        ] {
            assert_eq!(has_only_number(status, 7), expected, "{status}");
        }
    }

    #[test]
    fn whoever_was_given_the_number_later_is_not_signalled() {
        let _alone = crate::child::tests::with_children();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::find(Pid::from_child(&child)).unwrap();
        let earlier = Process { start: process.start - 1, ..process };
        earlier.signal(Signal::KILL).unwrap_err();
        assert!(child.try_wait().unwrap().is_none());
        process.signal(Signal::KILL).unwrap();
        child.wait().unwrap();
        process.signal(Signal::KILL).unwrap_err();
    }
}
