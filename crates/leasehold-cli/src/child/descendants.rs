//! Processes that a job has started and that may have left its group.

use std::collections::HashMap;

use rustix::process::{Pid, Signal};

use super::mark::Mark;
use super::process::{Identity, Process};

/// The job's processes, as far as they can be found: below a `run`, which adopts those that lose their parents.
///
/// A shell that becomes this program (`exec leasehold run`) leaves it the children that it had before. They and what is
/// below them are no part of the job; of what is adopted, what they have started is told from the job by its mark.
#[derive(Debug)]
pub(super) struct Descendants {
    root: i32,
    group: i32,
    before: Vec<Identity>,
    guardian: Option<Identity>,
    mark: Mark,
}

impl Descendants {
    /// Those below `root`, which has started the group and had some children before.
    pub(super) fn of(root: Pid, group: Pid, before: Vec<Identity>) -> Self {
        let [root, group] = [root, group].map(|id| id.as_raw_nonzero().get());
        Self { root, group, before, guardian: None, mark: Mark::default() }
    }

    /// The children that were there before.
    #[cfg(target_os = "linux")]
    pub(super) fn before(&self) -> &[Identity] {
        &self.before
    }

    /// The guardian is none of them.
    pub(super) fn leave_out(&mut self, guardian: Pid) {
        self.guardian = Process::find(guardian).map(|process| process.identity());
    }

    /// What is in the environment of the job alone.
    pub(super) fn set_mark(&mut self, mark: Mark) {
        self.mark = mark;
    }

    /// Those that live now.
    pub(super) fn alive(&self) -> Vec<Process> {
        self.among(&Process::visible())
    }

    /// Those that can be found when `root` is dead, and they are nobody's.
    #[cfg(target_os = "linux")]
    pub(super) fn marked(&self) -> Vec<Process> {
        let is_ours = |process: &Process| {
            !process.is_dead() && self.guardian != Some(process.identity()) && self.mark.is_on(process)
        };
        Process::visible().into_iter().filter(is_ours).collect()
    }

    /// Signals every one that lives now; which of them may not be signalled shows when their end is awaited.
    pub(super) fn signal(&self, signal: Signal) {
        for process in self.alive() {
            process.signal(signal).ok();
        }
    }

    fn among(&self, processes: &[Process]) -> Vec<Process> {
        let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
        for process in processes {
            children.entry(process.parent).or_default().push(process);
        }
        let mut alive = Vec::new();
        let mut parents = vec![self.root];
        while let Some(parent) = parents.pop() {
            // Taken out: what was read one after the other may seem to go in circles.
            for child in children.remove(&parent).unwrap_or_default() {
                if parent == self.root && !self.is_of_job(child) {
                    continue;
                }
                parents.push(child.id);
                if !child.is_dead() {
                    alive.push(*child);
                }
            }
        }
        alive
    }

    /// Whether a child of `root` is the job's.
    fn is_of_job(&self, child: &Process) -> bool {
        let known = child.identity();
        self.guardian != Some(known)
            && !self.before.contains(&known)
            && (self.before.is_empty() || child.group == self.group || self.mark.is_on(child))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_child_counts_unless_it_was_there_before() {
        let _alone = crate::child::tests::with_children();
        let mut command = Command::new("sleep");
        command.arg("60");
        let mut child = command.spawn().unwrap();
        let id = Pid::from_child(&child);
        let own = rustix::process::getpid();
        let known = Process::find(id).unwrap().identity();
        let has = |descendants: &Descendants| descendants.alive().iter().any(|process| process.identity() == known);
        let of = |group, before| Descendants::of(own, group, before);
        assert!(has(&of(id, Vec::new())));
        assert!(!has(&of(id, vec![known])));
        // Somebody else with the same number was there.
        assert!(has(&of(rustix::process::getpgrp(), vec![(known.0, known.1 - 1)])));
        // Adopted beside others that were there.
        assert!(!has(&of(id, vec![(1, 0)])));
        let mut guarded = of(id, Vec::new());
        guarded.leave_out(id);
        assert!(!has(&guarded));
        child.kill().unwrap();
        child.wait().ok();
    }
}
