//! Processes that a job has started and that left its group.

use std::collections::HashMap;

use rustix::process::{Pid, Signal, kill_process};

use super::process::Process;

/// The processes below one process, without some of its children and what is below them.
#[derive(Debug)]
pub(super) struct Descendants {
    root: i32,
    except: Vec<i32>,
}

impl Descendants {
    /// Those of this process, without the children that it has by now.
    ///
    /// A shell that becomes this program (`exec leasehold run`) leaves it the children that it had before; they are no
    /// part of the job.
    pub(super) fn from_now_on() -> Self {
        let root = rustix::process::getpid().as_raw_nonzero().get();
        let children = std::fs::read_to_string(format!("/proc/self/task/{root}/children")).unwrap_or_default();
        Self { root, except: children.split_ascii_whitespace().filter_map(|id| id.parse().ok()).collect() }
    }

    /// Those of another process, without this one.
    #[cfg(target_os = "linux")]
    pub(super) fn of(root: Pid) -> Self {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        Self { root: root.as_raw_nonzero().get(), except: vec![own] }
    }

    /// One more child that does not count.
    pub(super) fn leave_out(&mut self, child: Pid) {
        self.except.push(child.as_raw_nonzero().get());
    }

    /// Those that live now.
    pub(super) fn alive(&self) -> Vec<Pid> {
        self.among(&Process::visible())
    }

    /// Signals every one that lives now; which of them may not be signalled shows when their end is awaited.
    pub(super) fn signal(&self, signal: Signal) {
        for process in self.alive() {
            kill_process(process, signal).ok();
        }
    }

    fn among(&self, processes: &[Process]) -> Vec<Pid> {
        let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
        for process in processes {
            children.entry(process.parent).or_default().push(process);
        }
        let mut alive = Vec::new();
        let mut parents = vec![self.root];
        while let Some(parent) = parents.pop() {
            // Taken out: what was read one after the other may seem to go in circles.
            for child in children.remove(&parent).unwrap_or_default() {
                if self.except.contains(&child.id) {
                    continue;
                }
                parents.push(child.id);
                if !child.is_dead() {
                    alive.extend(Pid::from_raw(child.id));
                }
            }
        }
        alive
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_child_counts_unless_it_was_there_before() {
        let mut command = Command::new("sleep");
        command.arg("60");
        let mut child = command.spawn().unwrap();
        let id = Pid::from_child(&child);
        let own = rustix::process::getpid();
        let mut descendants = Descendants { root: own.as_raw_nonzero().get(), except: Vec::new() };
        assert!(descendants.alive().contains(&id));
        descendants.leave_out(id);
        assert!(!descendants.alive().contains(&id));
        child.kill().unwrap();
        child.wait().ok();
    }
}
