//! What the caller may have left behind: signals ignored or blocked, limits of the process.

use rustix::process::{Resource, Rlimit, Signal, prlimit};

use crate::support::{BINARY, Place};

/// Writes the job's pid, when it runs.
const UP: &str = "echo $$ > pid.new; mv pid.new pid";

#[test]
fn an_ignored_end_of_children_does_not_matter() {
    let place = Place::new();
    let script = "grep '^SigIgn' /proc/self/status; exit 5";
    let run = ["env", "--ignore-signal=CHLD", BINARY, "run", "k", "--", "sh", "-c", script];
    let finished = place.start(place.program(run)).finish().expect(5);
    let mask = u64::from_str_radix(finished.stdout.trim().trim_start_matches("SigIgn:").trim(), 16).unwrap();
    assert_eq!(mask & (1 << 16), 0);
    assert_eq!(finished.stderr, "");
    assert!(place.is_free("k"));
}

#[test]
fn signals_that_are_ignored_are_not_ignored_by_the_job() {
    let place = Place::new();
    let run = ["env", "--ignore-signal", BINARY, "run", "k", "--", "grep", "^SigIgn", "/proc/self/status"];
    let finished = place.start(place.program(run)).finish().expect(0);
    let mask = u64::from_str_radix(finished.stdout.trim().trim_start_matches("SigIgn:").trim(), 16).unwrap();
    // HUP stays; ILL, BUS, FPE and SEGV are faults, which end whoever ignores them. The C library has those above 31.
    assert_eq!(mask & 0x7fff_ffff & !(1 << 3 | 1 << 6 | 1 << 7 | 1 << 10), 1);
}

#[test]
fn signals_that_are_blocked_are_not_blocked_in_the_job() {
    let place = Place::new();
    // Without a shell, which may clear the mask itself.
    let run = ["env", "--block-signal", BINARY, "run", "k", "--", "grep", "^SigBlk", "/proc/self/status"];
    let finished = place.start(place.program(run)).finish().expect(0);
    assert_eq!(finished.stdout, "SigBlk:\t0000000000000000\n");
}

#[test]
fn blocked_signals_are_heard() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        let place = Place::new();
        let script = format!("{UP}; exec sleep 60");
        let run = ["env", "--block-signal", BINARY, "run", "k", "--", "sh", "-c", &script];
        let first = place.start(place.program(run));
        place.pid("pid");
        first.signal(signal);
        first.finish().expect(code);
        assert!(place.is_free("k"));
    }
}

#[test]
fn a_limit_of_file_sizes_does_not_leave_the_job_alone() {
    let place = Place::new();
    let first = place.hold("k", &["--ttl", "6s"], "exec sleep 60");
    prlimit(Some(first.pid()), Resource::Fsize, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
    // Its messages cannot be written either.
    first.finish().expect(79);
    assert_eq!(place.survivors(), []);
    place.run(["run", "k", "-w", "50", "--", "true"]).expect(0);
}

#[test]
fn too_few_files_are_said_in_one_line() {
    let place = Place::new();
    place.run(["run", "k", "--", "true"]).expect(0);
    for files in 5..20 {
        let limit = format!("--nofile={files}");
        let run = ["prlimit", &limit, BINARY, "run", "k", "-n", "--", "true"];
        let finished = place.start(place.program(run)).finish();
        if finished.code() == 0 && files > 9 {
            continue;
        }
        let finished = finished.expect(71);
        assert_eq!(finished.stderr.lines().count(), 1, "{files}: {}", finished.stderr);
        assert!(finished.stderr.contains("raise ulimit -n"), "{files}: {}", finished.stderr);
        assert!(place.is_free("k"));
    }
}
