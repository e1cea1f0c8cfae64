//! Signals to `run`, while it waits and while it holds.

use std::fs;

use rustix::process::{Signal, kill_process};

use crate::support::{BINARY, Place, is_running, proc_file, wait_until};

const ENDING: [(Signal, i32); 4] = [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131), (Signal::INT, 130)];

#[test]
fn one_that_waits_ends_and_leaves_nothing() {
    for (signal, code) in ENDING {
        let place = Place::new();
        let first = place.hold("k", &[], "sleep 60");
        let second = place.start(place.command(["run", "k", "--", "touch", "ran"]));
        wait_until("the second waits", || second.stderr().contains("waiting"));
        second.signal(signal);
        let finished = second.finish().expect(code);
        assert!(finished.stderr.contains("while waiting for \"k\""), "{}", finished.stderr);
        assert!(!place.is_free("k"));
        first.signal(Signal::TERM);
        first.finish().expect(143);
        assert!(place.is_free("k") && !place.path("ran").exists());
        assert_eq!(place.survivors(), []);
    }
}

#[test]
fn others_do_not_end_one_that_waits() {
    let place = Place::new();
    let first = place.hold("k", &[], "sleep 60");
    let second = place.start(place.command(["run", "k", "--", "true"]));
    wait_until("the second waits", || second.stderr().contains("waiting"));
    for signal in [Signal::USR1, Signal::USR2, Signal::WINCH] {
        second.signal(signal);
    }
    first.signal(Signal::TERM);
    first.finish().expect(143);
    second.finish().expect(0);
}

#[test]
fn one_that_holds_passes_them_on_and_gives_the_lease_back() {
    for (signal, code) in ENDING {
        let place = Place::new();
        // The shell in the background ignores INT and QUIT, as shells have it; so the group gets a plain process.
        let first = place.hold("k", &[], "exec sleep 60");
        first.signal(signal);
        let finished = first.finish().expect(code);
        assert_eq!(finished.stderr, "");
        assert_eq!(place.survivors(), []);
        assert!(place.is_free("k"));
    }
}

#[test]
fn the_whole_group_gets_them() {
    let place = Place::new();
    let first = place.hold("k", &[], "sleep 60 & echo $! > grandchild; wait");
    let grandchild = place.pid("grandchild");
    assert!(is_running(grandchild));
    first.signal(Signal::TERM);
    first.finish().expect(143);
    assert!(!is_running(grandchild) && place.is_free("k"));
}

#[test]
fn a_job_that_ends_in_its_own_way_keeps_its_code() {
    let place = Place::new();
    let traps = "trap 'echo USR1 >> got' USR1; trap 'echo WINCH >> got' WINCH; trap 'exit 5' TERM; echo up > got";
    let first = place.hold("k", &[], &format!("{traps}; while :; do sleep 0.02; done"));
    wait_until("the traps are set", || place.read("got") == "up\n");
    first.signal(Signal::USR1);
    wait_until("USR1 arrived", || place.read("got") == "up\nUSR1\n");
    first.signal(Signal::WINCH);
    wait_until("WINCH arrived", || place.read("got") == "up\nUSR1\nWINCH\n");
    first.signal(Signal::TERM);
    first.finish().expect(5);
    assert!(place.is_free("k"));
}

#[test]
fn a_second_term_or_int_kills() {
    for second in [Signal::TERM, Signal::INT] {
        let place = Place::new();
        let mut first = place.hold(
            "k",
            &[],
            "trap 'echo TERM >> got' TERM; trap '' INT; echo up > got; while :; do sleep 0.02; done",
        );
        wait_until("the trap is set", || place.read("got") == "up\n");
        first.signal(Signal::TERM);
        wait_until("TERM arrived", || place.read("got") == "up\nTERM\n");
        // One that comes at once is taken for the first one's echo.
        wait_until("the second one is heard", || {
            first.signal(second);
            first.has_ended()
        });
        first.finish().expect(137);
        assert_eq!(place.survivors(), []);
        assert!(place.is_free("k"));
    }
}

#[test]
fn one_request_that_comes_twice_does_not_kill() {
    let place = Place::new();
    // `timeout` passes a TERM on to its child, and then to its whole group.
    let script = "trap 'sleep 0.5; exit 5' TERM; echo $$ > pid.new; mv pid.new pid; while :; do sleep 0.02; done";
    let first = place.start(place.program(["timeout", "300", BINARY, "run", "k", "--", "sh", "-c", script]));
    place.pid("pid");
    first.signal(Signal::TERM);
    let finished = first.finish().expect(5);
    assert!(!finished.stderr.contains("leasehold:"), "{}", finished.stderr);
    assert!(place.is_free("k"));
}

#[test]
fn a_stopped_job_hears_them() {
    for (signal, code) in ENDING {
        let place = Place::new();
        let first = place.hold("k", &[], "exec sleep 60");
        let job = place.pid("pid");
        kill_process(job, Signal::STOP).unwrap();
        wait_until("the job stands still", || fs::read_to_string(proc_file(job, "stat")).unwrap().contains(") T "));
        first.signal(signal);
        first.finish().expect(code);
        assert!(place.is_free("k"));
    }
}

#[test]
fn a_hangup_that_was_ignored_stays_ignored() {
    let place = Place::new();
    let script = "echo $$ > pid.new; mv pid.new pid; while [ ! -e go ]; do sleep 0.02; done; exit 7";
    let mut running = place.start(place.program(["nohup", BINARY, "run", "k", "--", "sh", "-c", script]));
    let job = place.pid("pid");
    running.signal(Signal::HUP);
    kill_process(job, Signal::HUP).unwrap();
    for process in [running.pid(), job] {
        let status = fs::read_to_string(proc_file(process, "status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        assert_eq!(u64::from_str_radix(mask.trim(), 16).unwrap() & 1, 1);
    }
    assert!(!running.has_ended() && is_running(job));
    fs::write(place.path("go"), "").unwrap();
    running.finish().expect(7);
}

#[test]
fn the_job_starts_with_default_dispositions() {
    let place = Place::new();
    let script = "grep -h '^Sig[IB]' /proc/self/status";
    let ignored = |text: &str| {
        assert!(text.contains("SigBlk:\t0000000000000000"), "{text}");
        let mask = text.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
        // The C library uses the first two above 31 for itself.
        u64::from_str_radix(mask, 16).unwrap() & 0x7fff_ffff
    };
    // What this process was itself started with beyond the signals that are passed on is not ours to change.
    let plain = ["env", "--default-signal=INT,QUIT", "sh", "-c", script];
    let before = ignored(&place.start(place.program(plain)).finish().stdout);
    // A shell in the background would ignore INT and QUIT.
    let within = format!("trap '' INT QUIT TERM USR1; {BINARY} run k -- sh -c \"{script}\"");
    let after = ignored(&place.start(place.program(["sh", "-c", &within])).finish().stdout);
    assert_eq!(format!("{after:x}"), format!("{before:x}"));
}
