//! The environment marks the job's processes: each inherits it, unless it is changed on the way.

use std::fs;

use super::process::Process;
use super::trampoline::Environment;

/// The variables that together name one acquisition.
const NAMES: [&str; 4] = ["LEASEHOLD_KEY", "LEASEHOLD_LEASE_STORE", "LEASEHOLD_FENCING_TOKEN", "LEASEHOLD_ACQUIRED_AT"];

/// What stands in the environment of one job and of no other.
#[derive(Debug, Default)]
pub(super) struct Mark(Vec<Vec<u8>>);

impl Mark {
    /// That of the job which gets this environment.
    pub(super) fn of(environment: &Environment) -> Self {
        let is_one = |change: &&[u8]| {
            let sets = |name: &&str| change.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="));
            NAMES.iter().any(sets)
        };
        Self(environment.changes().filter(is_one).map(<[u8]>::to_vec).collect())
    }

    /// That of the job which this process belongs to.
    #[cfg(target_os = "linux")]
    pub(super) fn inherited() -> Self {
        let variable = |name: &&str| Some([name.as_bytes(), b"=", std::env::var_os(name)?.as_encoded_bytes()].concat());
        Self(NAMES.iter().filter_map(variable).collect())
    }

    /// Whether a process carries it. Without a fencing token no acquisition can be told from another.
    pub(super) fn is_on(&self, process: &Process) -> bool {
        if self.0.len() < NAMES.len() {
            return false;
        }
        let environment = fs::read(format!("/proc/{}/environ", process.id)).unwrap_or_default();
        self.0.iter().all(|mark| environment.split(|byte| *byte == 0).any(|variable| variable == mark))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use rustix::process::Pid;

    use super::*;

    #[test]
    fn it_is_on_a_process_with_all_variables() {
        let mut environment = Environment::default();
        for name in NAMES {
            environment.set(name, "x = y");
        }
        environment.set("LEASEHOLD_KEY_2", "z");
        let mut other = environment.clone();
        other.set("LEASEHOLD_FENCING_TOKEN", "2");
        let mut incomplete = Environment::default();
        incomplete.set("LEASEHOLD_KEY", "x = y");
        let _alone = crate::child::tests::with_children();
        let mut command = Command::new("sleep");
        environment.apply(command.arg("60"));
        let mut child = command.spawn().unwrap();
        let process = Process::find(Pid::from_child(&child)).unwrap();
        // A program is executed before its environment can be read.
        let mark = Mark::of(&environment);
        let mut looks = std::iter::repeat_with(|| std::thread::sleep(Duration::from_millis(5))).take(10_000);
        assert!(looks.any(|()| mark.is_on(&process)));
        assert!(!Mark::of(&other).is_on(&process));
        assert!(!Mark::of(&incomplete).is_on(&process));
        assert!(!Mark::default().is_on(&process));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
