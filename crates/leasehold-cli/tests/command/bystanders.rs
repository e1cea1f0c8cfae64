//! What is no part of a job stays out of its end.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use crate::death::{FAMILY, family, guardian};
use crate::support::{BINARY, Place, Running, is_running, proc_file, wait_until};

/// A ttl that is waited for in tests, renewed so often that a slow machine does not lose it.
const SHORT: &str = "--ttl 6s --renew-every 500ms -k 500ms";

/// Whether the first thread of a process waits for something.
fn is_asleep(process: Pid) -> bool {
    let stat = fs::read_to_string(proc_file(process, "stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.starts_with('S')
}

/// Becomes a `run` whose job is the family. It had a child before, which starts another one when the job runs and leaves
/// it to the `run`.
fn after_others(place: &Place, options: &str) -> Running {
    fs::write(place.path("job"), format!("echo $$ > pid; {FAMILY}")).unwrap();
    let other = "echo $$ > other; while [ ! -e up ]; do sleep 0.02; done; (sleep 60 & echo $! > orphan); exec sleep 60";
    let script = format!("sh -c '{other}' & exec {BINARY} run k {options} -- sh job");
    let run = place.start(place.program(["sh", "-c", &script]));
    place.pid("orphan");
    run
}

#[test]
fn a_loss_spares_what_was_there_before() {
    let place = Place::new();
    let run = after_others(&place, "--ttl 8s --no-renew -k 500ms");
    let family = family(&place);
    run.finish().expect(79);
    assert!(!family.into_iter().any(is_running));
    assert!(["other", "orphan"].into_iter().all(|name| is_running(place.pid(name))));
}

#[test]
fn the_guardian_spares_what_was_there_before() {
    for signal in [Signal::STOP, Signal::KILL] {
        let place = Place::new();
        let run = after_others(&place, SHORT);
        let family = family(&place);
        let guardian = guardian(run.pid());
        run.signal(signal);
        wait_until("the guardian has done its work", || !is_running(guardian));
        assert!(!family.into_iter().any(is_running));
        assert!(["other", "orphan"].into_iter().all(|name| is_running(place.pid(name))));
        if signal == Signal::STOP {
            run.signal(Signal::CONT);
            run.finish().expect(79);
            assert!(["other", "orphan"].into_iter().all(|name| is_running(place.pid(name))));
        }
    }
}

#[test]
fn a_group_that_has_to_be_killed_does_not_take_a_daemon_with_it() {
    let place = Place::new();
    let script = "setsid sh -c 'echo $$ > daemon.new; mv daemon.new daemon; exec sleep 60' & \
        while [ ! -e daemon ]; do sleep 0.02; done; \
        (trap '' TERM; echo up > up; while :; do sleep 0.02; done) & while [ ! -e up ]; do sleep 0.02; done; exit 4";
    let finished = place.run(["run", "k", "--ttl", "12s", "-k", "5s", "--", "sh", "-c", script]).expect(4);
    assert!(finished.stderr.contains("TERM and KILL sent to group"), "{}", finished.stderr);
    assert!(is_running(place.pid("daemon")));
}

#[test]
fn a_daemon_of_a_job_that_has_ended_survives_its_run() {
    for signal in [Signal::STOP, Signal::KILL] {
        let place = Place::new();
        let script = "setsid sh -c 'echo $$ > daemon.new; mv daemon.new daemon; exec sleep 60' & \
            while [ ! -e daemon ]; do sleep 0.02; done; sleep 60 & echo $! > member; while [ ! -e go ]; do sleep 0.02; done";
        let run = place.hold("k", &["--ttl", "6s", "-k", "500ms"], script);
        let (member, guardian) = (place.pid("member"), guardian(run.pid()));
        fs::write(place.path("go"), "").unwrap();
        let leader = place.pid("pid");
        wait_until("the run has collected the leader", || kill_process(leader, Signal::CONT).is_err());
        // It tells the guardian before it sleeps again.
        wait_until("the guardian was told", || is_asleep(run.pid()));
        run.signal(signal);
        wait_until("the guardian has done its work", || !is_running(guardian));
        assert!(!is_running(member));
        assert!(is_running(place.pid("daemon")));
    }
}
