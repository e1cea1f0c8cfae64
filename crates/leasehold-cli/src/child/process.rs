//! Processes as `/proc` shows them. Where there is no `/proc` there are none.

use rustix::io::Errno;
use rustix::process::Pid;

/// What a line of `/proc/PID/stat` tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub(super) id: i32,
    state: char,
    pub(super) parent: i32,
    pub(super) group: i32,
    threads: u32,
    /// When it started, in ticks since boot: with the id it names one process for good.
    pub(super) start: u64,
}

impl Process {
    /// The process with this id, dead or alive.
    pub(super) fn find(id: Pid) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", id.as_raw_nonzero())).ok()?;
        Self::parse(&stat)
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
        let Ok(directory) = std::fs::read_dir("/proc") else {
            return (Vec::new(), false);
        };
        let (mut all, mut complete) = (Vec::new(), true);
        for process in directory.flatten() {
            if !process.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
                continue;
            }
            match std::fs::read_to_string(process.path().join("stat")) {
                Ok(stat) => match Self::parse(&stat) {
                    Some(process) => all.push(process),
                    None => complete = false,
                },
                // One that is gone by now is none any more.
                Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::SRCH)) => {}
                Err(_) => complete = false,
            }
        }
        (all, complete)
    }

    /// Whether it can do nothing any more. A process whose first thread has ended looks dead while other threads go on.
    pub(super) fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X') && self.threads <= 1
    }

    /// The program's name in the line may hold anything, also parentheses.
    fn parse(stat: &str) -> Option<Self> {
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

#[cfg(test)]
mod tests {
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
}
