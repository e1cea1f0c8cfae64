//! What `/proc` and the signal 0 tell of processes.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process, test_kill_process_group};

use super::liveness::Sight;

/// A process, as it was for an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) id: u32,
    pub(super) group: u32,
    pub(super) state: char,
    pub(super) threads: i64,
    /// In clock ticks since the boot of the machine; may be one too low in a time namespace.
    pub(super) start: i64,
}

impl Seen {
    /// Whether nothing of it runs any more, and only its parent has not asked for its end yet.
    ///
    /// The state is that of the main thread; others may run on without it.
    pub(super) fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x') && self.threads <= 1
    }

    /// What no other process of this boot has.
    pub(super) fn identity(&self) -> (u32, i64) {
        (self.id, self.start)
    }
}

/// The processes of this pid namespace. `/proc` must be that of the same namespace ([`is_own_proc`]).
#[derive(Clone, Copy, Debug)]
pub(super) struct Processes {
    offset: i64,
}

impl Processes {
    /// `offset` is what this process sees of the boot-time clock minus what the machine sees, in nanoseconds.
    pub(super) fn since_boot(offset: i64) -> Self {
        Self { offset }
    }

    fn read(self, id: u32) -> io::Result<Option<Seen>> {
        // A program may give itself any name, also one that is no text.
        let seen = parse(&String::from_utf8_lossy(&fs::read(format!("/proc/{id}/stat"))?));
        Ok(seen.map(|seen| Seen { start: machine_ticks(seen.start, self.offset), ..seen }))
    }
}

impl Sight for Processes {
    fn may_have_process(&self, id: u32) -> bool {
        Some(id).and_then(positive).is_none_or(|id| test_kill_process(id) != Err(Errno::SRCH))
    }

    fn may_have_group(&self, id: u32) -> bool {
        // To the kernel, "minus one" is not a group but everybody.
        let id = Some(id).filter(|&id| id > 1).and_then(positive);
        id.is_none_or(|id| test_kill_process_group(id) != Err(Errno::SRCH))
    }

    fn process(&self, id: u32) -> Option<Seen> {
        self.read(id).ok().flatten()
    }

    fn members(&self, group: u32) -> Option<Vec<Seen>> {
        if may_hide_processes(&fs::read_to_string("/proc/self/mountinfo").ok()?) {
            return None;
        }
        let mut ids = Vec::new();
        for entry in fs::read_dir("/proc").ok()? {
            ids.extend(entry.ok()?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
        }
        let mut members = Vec::new();
        // The latest first: they are the ones that end before they are read.
        for id in ids.into_iter().rev() {
            let seen = self.read(id).ok()??;
            if seen.group == group {
                members.push(seen);
                if !seen.is_dead() {
                    break;
                }
            }
        }
        Some(members)
    }
}

/// Whether `/proc` tells of this process's own pid namespace.
pub(super) fn is_own_proc() -> bool {
    fs::read_link("/proc/self").is_ok_and(|name| name.to_str() == Some(&std::process::id().to_string()))
        && fs::read_to_string("/proc/self/status").is_ok_and(|status| has_one_number(&status))
}

/// Whether a process is seen from its own pid namespace, to judge by its `/proc/<pid>/status`: seen from an outer one
/// it has a number in each, and they may happen to be the same.
fn has_one_number(status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    // Kernels without the line are without pid namespaces.
    numbers.is_none_or(|numbers| numbers.split_ascii_whitespace().count() == 1)
}

fn positive(id: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(id).ok()?)
}

/// The fields of `/proc/<pid>/stat` that matter here, by their numbers in proc(5).
fn parse(stat: &str) -> Option<Seen> {
    // The second field is the program's name in parentheses and may itself hold spaces and parentheses.
    let (start, after_name) = stat.rsplit_once(')')?;
    let fields: Vec<_> = after_name.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Seen {
        id: start.split_once(' ')?.0.parse().ok()?,
        state: field(3)?.chars().next()?,
        group: field(5)?.parse().ok()?,
        threads: field(20)?.parse().ok()?,
        start: field(22)?.parse().ok()?,
    })
}

/// Takes the shift of a time namespace out of a start time, which the kernel counts in nanoseconds, modulo 2^64, and
/// shows in ticks, rounded down.
fn machine_ticks(ticks: i64, offset: i64) -> i64 {
    if offset == 0 {
        return ticks;
    }
    let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second().clamp(1, 1_000_000_000);
    let nanos = ticks.cast_unsigned().wrapping_mul(tick).wrapping_sub(offset.cast_unsigned());
    nanos.cast_signed().div_euclid(tick.cast_signed())
}

/// Whether a `/proc` may leave out other users' processes, to judge by `/proc/self/mountinfo`.
fn may_hide_processes(mounts: &str) -> bool {
    let mut options = mounts.lines().filter_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut file_system = file_system.split(' ');
        let is_proc = mount.split(' ').nth(4) == Some("/proc") && file_system.next() == Some("proc");
        if is_proc { file_system.nth(1) } else { None }
    });
    let hides = |options: &str| options.split(',').any(|option| option.starts_with("hidepid="));
    // Where it cannot be found nothing is known of it; where several are stacked, the topmost is one of them.
    options.next().is_none_or(|first| hides(first) || options.any(hides))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_found_whatever_the_name() {
        let tail = (4..=30).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        let expected = Seen { id: 17, group: 5, state: 'S', threads: 20, start: 22 };
        assert_eq!(parse(&format!("17 (a) b) (c) S {tail}\n")), Some(expected));
        for malformed in ["", "17", "17 (a", "17 (a)", "17 (a) S 4 5 6", "x (a) S 4 5"] {
            assert_eq!(parse(malformed), None, "{malformed}");
        }
    }

    #[test]
    fn a_number_for_each_pid_namespace_is_told_from_one() {
        for (status, expected) in
            [("Name:\tx\nNSpid:\t7\nKthread:\t0\n", true), ("NSpid:\t7\t7\n", false), ("Name:\tNSpid:\n", true)]
        {
            assert_eq!(has_one_number(status), expected, "{status}");
        }
    }

    #[test]
    fn this_process_is_seen() {
        let (id, processes) = (std::process::id(), Processes::since_boot(0));
        let seen = processes.process(id).unwrap();
        assert!(is_own_proc() && !seen.is_dead() && seen.threads >= 2, "{seen:?}");
        assert!(processes.may_have_process(id) && processes.may_have_group(seen.group));
        // While others end, a reading may be of no use.
        let members = std::iter::repeat_with(|| processes.members(seen.group)).find_map(|members| members).unwrap();
        assert!(members.iter().any(|member| !member.is_dead()));
        assert_eq!(processes.process(1 << 23), None);
        assert!(!processes.may_have_process(1 << 23) && !processes.may_have_group(1 << 23));
        for odd in [0, 1, u32::MAX] {
            assert!(processes.may_have_group(odd), "{odd}");
        }
        assert!(processes.may_have_process(0) && processes.may_have_process(u32::MAX));
    }

    #[test]
    fn start_times_are_those_of_the_machine_in_every_time_namespace() {
        const TICK: i64 = 10_000_000;
        if rustix::param::clock_ticks_per_second() != 100 {
            return;
        }
        for start in [TICK, 3 * TICK + 1, 86_400_000_000_000 - 1] {
            for offset in [0, 1, TICK, 86_400_000_000_500, -TICK - 1, -86_400_000_000_500] {
                let shown = (start + offset).cast_unsigned() / TICK.cast_unsigned();
                let off = start / TICK - machine_ticks(shown.cast_signed(), offset);
                assert!(matches!(off, 0 | 1), "{start} {offset}: {off}");
            }
        }
    }

    #[test]
    fn a_proc_that_hides_processes_is_told_by_its_options() {
        let plain = "22 27 0:21 / /proc rw,relatime - proc proc rw\n";
        let hiding = "63 45 0:39 / /proc rw,relatime shared:1 - proc proc rw,hidepid=invisible,gid=4\n";
        let elsewhere = "63 45 0:39 / /other/proc rw,relatime - proc proc rw,hidepid=2\n";
        let other = "22 27 0:21 / / rw - ext4 /dev/vda rw\n23 27 0:22 / /proc rw - tmpfs none rw\n";
        for (mounts, expected) in [
            (plain.to_owned(), false),
            (format!("{other}{plain}{elsewhere}"), false),
            (hiding.to_owned(), true),
            (format!("{plain}{hiding}"), true),
            (other.to_owned(), true),
            (String::new(), true),
        ] {
            assert_eq!(may_hide_processes(&mounts), expected, "{mounts}");
        }
    }
}
