//! Exit codes.

use std::fs;

use rustix::process::{Resource, Rlimit, Signal, prlimit};

use crate::support::{Place, wait_until};

#[test]
fn the_code_of_the_job_comes_out_unchanged() {
    let place = Place::new();
    for code in [0, 1, 2, 42, 64, 75, 79, 124, 126, 127, 255] {
        let finished = place.run(["run", "k", "--", "sh", "-c", &format!("exit {code}")]).expect(code);
        assert_eq!(finished.stderr, "", "{code}");
    }
    assert!(place.is_free("k"));
}

#[test]
fn a_signal_that_ends_the_job_comes_out_as_128_and_its_number() {
    let place = Place::new();
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("INT", 130), ("HUP", 129), ("PIPE", 141)] {
        place.run(["run", "k", "--", "sh", "-c", &format!("kill -{signal} $$")]).expect(code);
    }
    assert!(place.is_free("k"));
}

#[test]
fn what_cannot_be_run_is_said_and_gives_the_lease_back() {
    let place = Place::new();
    fs::write(place.path("plain"), "#!/bin/sh\nexit 0\n").unwrap();
    place.executable("orphaned", "#!/no/such/interpreter\n");
    for (program, code, hint) in [
        ("no-such-program", 127, "check the name and PATH"),
        ("./no-such-file", 127, "check the path"),
        ("./plain", 126, "make it executable"),
        ("/", 126, "make it executable"),
        ("./orphaned", 127, "interpreter"),
        ("", 127, ""),
    ] {
        let finished = place.run(["run", "k", "--", program]).expect(code);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
        assert!(finished.stderr.starts_with("leasehold: cannot run"), "{}", finished.stderr);
        assert!(finished.stderr.contains(hint), "{}", finished.stderr);
        assert!(place.is_free("k"), "{program}");
    }
}

#[test]
fn what_cannot_be_run_is_said_however_soon_its_process_ends() {
    let place = Place::new();
    for _ in 0..100 {
        place.run(["run", "k", "--", "/"]).expect(126);
    }
}

#[test]
fn a_file_without_a_first_line_that_names_its_interpreter_is_run_by_the_shell() {
    let place = Place::new();
    place.executable("headless", "exit 6\n");
    place.run(["run", "k", "--", "./headless"]).expect(6);
}

#[test]
fn arguments_that_are_too_long_are_said() {
    let place = Place::new();
    let first = place.hold("k", &[], "sleep 60");
    let long = "x".repeat(100_000);
    let second = place.start(place.command(["run", "k", "--", "echo", &long, &long, &long]));
    wait_until("the second waits", || second.stderr().contains("waiting"));
    // A quarter of the stack is for arguments.
    let stack = Some(1 << 20);
    prlimit(Some(second.pid()), Resource::Stack, Rlimit { current: stack, maximum: stack }).unwrap();
    first.signal(Signal::TERM);
    let finished = second.finish().expect(126);
    assert!(finished.stderr.contains("pass fewer arguments"), "{}", finished.stderr);
    first.finish().expect(143);
    assert!(place.is_free("k"));
}

#[test]
fn a_job_that_takes_too_long_is_stopped() {
    let place = Place::new();
    let finished = place.run(["run", "k", "--max-runtime", "300ms", "--", "sleep", "60"]).expect(124);
    assert!(finished.stderr.contains("--max-runtime 300ms reached; TERM sent to group"), "{}", finished.stderr);
    let stubborn = "trap '' TERM; sleep 60 & while :; do wait; done";
    let finished = place.run(["run", "k", "--max-runtime", "3", "-k", "0.3", "--", "sh", "-c", stubborn]).expect(124);
    assert!(finished.stderr.contains("TERM and KILL"), "{}", finished.stderr);
    assert!(place.is_free("k"));
    assert_eq!(place.survivors(), []);
}

#[test]
fn a_job_that_ends_well_after_its_time_has_still_taken_too_long() {
    let place = Place::new();
    let script = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    place.run(["run", "k", "--max-runtime", "200ms", "--", "sh", "-c", script]).expect(124);
}

#[test]
fn help_and_version_are_no_mistakes() {
    let place = Place::new();
    for arguments in
        [&["--help"][..], &["help"], &["help", "run"], &["run", "--help"], &["show", "-h"], &["list", "--help"]]
    {
        let finished = place.run(arguments).expect(0);
        assert!(finished.stdout.contains("Examples:") && finished.stderr.is_empty(), "{finished:?}");
    }
    for arguments in [["--version"], ["version"]] {
        assert_eq!(place.run(arguments).expect(0).stdout, concat!("leasehold ", env!("CARGO_PKG_VERSION"), "\n"));
    }
    assert!(place.run([""; 0]).expect(64).stderr.contains("Usage:"));
}
