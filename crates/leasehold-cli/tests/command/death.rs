//! What becomes of a job whose `run` is killed or stopped, and of what has left the job's group.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::support::{BINARY, Place, is_running, proc_file, wait_until};

/// A ttl that is waited for in tests, renewed so often that a slow machine does not lose it.
const SHORT: [&str; 6] = ["--ttl", "6s", "--renew-every", "500ms", "-k", "500ms"];

/// A job with a child in its group and another one that has left it.
pub(crate) const FAMILY: &str = "sleep 60 & echo $! > grandchild; \
    setsid sh -c 'echo $$ > daemon.new; mv daemon.new daemon; exec sleep 60' & \
    while [ ! -e daemon ]; do sleep 0.02; done; touch up; wait";

pub(crate) fn family(place: &Place) -> [Pid; 3] {
    wait_until("the family is complete", || place.path("up").exists());
    ["pid", "grandchild", "daemon"].map(|name| place.pid(name))
}

/// The guardian of a `run`, once it is at work.
pub(crate) fn guardian(run: Pid) -> Pid {
    let mut found = None;
    wait_until("there is a guardian", || {
        let children = fs::read_to_string(proc_file(run, &format!("task/{}/children", run.as_raw_nonzero()))).unwrap();
        found = children
            .split_ascii_whitespace()
            .filter_map(|id| Pid::from_raw(id.parse().unwrap()))
            .find(|child| fs::read_to_string(proc_file(*child, "comm")).unwrap_or_default() == "leasehold-guard\n");
        found.is_some()
    });
    found.unwrap()
}

/// Whether a process is in a group.
fn is_member(process: Pid, group: Pid) -> bool {
    let stat = fs::read_to_string(proc_file(process, "stat")).unwrap_or_default();
    let number = stat.rsplit_once(") ").and_then(|(_, fields)| fields.split(' ').nth(2));
    number == Some(&group.as_raw_nonzero().to_string())
}

/// What a process has open.
fn open_files(process: Pid) -> Vec<String> {
    fs::read_dir(proc_file(process, "fd"))
        .unwrap()
        .filter_map(|file| Some(fs::read_link(file.ok()?.path()).ok()?.to_string_lossy().into_owned()))
        .collect()
}

#[test]
fn one_that_is_killed_takes_everything_with_it() {
    let place = Place::new();
    let first = place.hold("k", &[], FAMILY);
    let family = family(&place);
    assert!(family.into_iter().all(is_running));
    first.signal(Signal::KILL);
    wait_until("nothing is left", || place.survivors().is_empty());
}

#[test]
fn one_whose_whole_group_is_killed_takes_everything_with_it() {
    let place = Place::new();
    let script = format!("echo $$ > pid; {FAMILY}");
    let first = place.start(place.program(["setsid", BINARY, "run", "k", "--", "sh", "-c", &script]));
    family(&place);
    kill_process_group(first.pid(), Signal::KILL).unwrap();
    wait_until("nothing is left", || place.survivors().is_empty());
}

#[test]
fn one_that_is_killed_at_any_moment_leaves_nothing() {
    for pause in 0..40 {
        let place = Place::new();
        let script = "sleep 60 & sleep 60";
        let first = place.start(place.command(["run", "k", "--", "sh", "-c", script]));
        std::thread::sleep(std::time::Duration::from_millis(pause));
        first.signal(Signal::KILL);
        wait_until("nothing is left", || place.survivors().is_empty());
    }
}

#[test]
fn the_next_one_starts_as_soon_as_everything_is_gone() {
    let place = Place::new();
    let first = place.hold("k", &["--ttl", "10m"], FAMILY);
    family(&place);
    let check = "for name in pid grandchild daemon; do \
        ! grep -q '^State:.[RSDT]' /proc/$(cat $name)/status 2> /dev/null || exit 9; done";
    let second = place.start(place.command(["run", "k", "--", "sh", "-c", check]));
    wait_until("the second waits", || second.stderr().contains("waiting"));
    first.signal(Signal::KILL);
    second.finish().expect(0);
}

#[test]
fn what_has_left_the_group_does_not_outlive_it_when_a_run_is_killed() {
    for _ in 0..10 {
        let place = Place::new();
        let first = place.hold("k", &["--ttl", "10m"], FAMILY);
        let [leader, grandchild, daemon] = family(&place);
        let guardian = guardian(first.pid());
        first.signal(Signal::KILL);
        // The daemon is looked at last: whenever it runs, somebody of the group has to. The guardian joins that before
        // it kills anybody.
        while is_running(leader) || is_running(grandchild) || is_member(guardian, leader) {}
        assert!(!is_running(daemon));
    }
}

#[test]
fn a_key_that_was_taken_after_the_job_had_ended_is_no_loss() {
    let place = Place::new();
    let first = place.hold("k", &["--ttl", "50s", "--renew-every", "1s"], "exec sleep 60");
    first.signal(Signal::STOP);
    kill_process(place.pid("pid"), Signal::KILL).unwrap();
    let second = place.start(place.command([
        "run",
        "k",
        "--",
        "sh",
        "-c",
        "touch second; while [ ! -e go ]; do sleep 0.02; done",
    ]));
    wait_until("the second runs", || place.path("second").exists());
    first.signal(Signal::CONT);
    let finished = first.finish().expect(137);
    assert_eq!(finished.stderr, "");
    assert!(!place.is_free("k"));
    fs::write(place.path("go"), "").unwrap();
    second.finish().expect(0);
}

#[test]
fn one_that_is_stopped_past_its_lease_is_stood_in_for() {
    let place = Place::new();
    let mut first = place.hold("k", &SHORT, FAMILY);
    let family = family(&place);
    first.signal(Signal::STOP);
    wait_until("everything is dead", || !family.into_iter().any(is_running));
    assert!(!first.has_ended());
    place.run(["run", "k", "-w", "50", "--", "true"]).expect(0);
    first.signal(Signal::CONT);
    let finished = first.finish().expect(79);
    assert!(finished.stderr.contains("lost: the lease on \"k\" ended while nobody could renew it"), "{finished:?}");
    assert_eq!(place.survivors(), []);
}

#[test]
fn a_loss_takes_what_has_left_the_group() {
    let place = Place::new();
    let first = place.hold("k", &["--ttl", "8s", "--no-renew"], FAMILY);
    let family = family(&place);
    first.finish().expect(79);
    assert!(!family.into_iter().any(is_running));
    assert_eq!(place.survivors(), []);
}

#[test]
fn what_has_left_the_group_is_told_when_the_group_is_gone() {
    let place = Place::new();
    let daemon = "trap 'echo TERM > told; exit' TERM; touch up; while :; do sleep 0.02; done";
    let script = format!("setsid sh -c \"{daemon}\" & while [ ! -e up ]; do sleep 0.02; done; exec sleep 60");
    // The grace is long because the store has a tenth of it to keep the key.
    let options = ["--ttl", "20s", "--no-renew", "-k", "14s"];
    place.hold("k", &options, &script).finish().expect(79);
    assert_eq!(place.read("told"), "TERM\n");
    assert_eq!(place.survivors(), []);
}

#[test]
fn what_has_left_the_group_is_gone_before_the_next_one_starts() {
    let place = Place::new();
    let script = "setsid sh -c 'trap \"\" TERM; echo $$ > daemon.new; mv daemon.new daemon; while :; do sleep 0.02; done' & \
        while [ ! -e daemon ]; do sleep 0.02; done; touch up; exec sleep 60";
    let first = place.hold("k", &["--ttl", "10s", "--no-renew", "-k", "4s"], script);
    wait_until("the daemon runs", || place.path("up").exists());
    let check = "! grep -q '^State:.[RSDT]' /proc/$(cat daemon)/status 2> /dev/null";
    place.run(["run", "k", "-w", "50", "--", "sh", "-c", check]).expect(0);
    let finished = first.finish().expect(79);
    assert!(finished.stderr.contains("nobody else could hold the key before"), "{}", finished.stderr);
}

#[test]
fn one_that_is_killed_while_its_job_has_its_grace_keeps_the_key_until_everything_is_gone() {
    let place = Place::new();
    let script = "trap 'touch told' TERM; setsid sh -c 'trap \"\" TERM; echo $$ > daemon.new; mv daemon.new daemon; \
        while :; do sleep 0.02; done' & while :; do sleep 0.02; done";
    let first = place.hold("k", &["--ttl", "20s", "--no-renew", "-k", "14s"], script);
    place.pid("daemon");
    let check = "for name in pid daemon; do \
        ! grep -q '^State:.[RSDT]' /proc/$(cat $name)/status 2> /dev/null || exit 9; done";
    let second = place.start(place.command(["run", "k", "--", "sh", "-c", check]));
    wait_until("the job was told", || place.path("told").exists());
    first.signal(Signal::KILL);
    second.finish().expect(0);
}

#[test]
fn a_run_within_a_run_is_told_once() {
    let place = Place::new();
    let script = "trap 'echo TERM >> told' TERM; echo $$ > inner; while :; do sleep 0.02; done";
    let within = [BINARY, "run", "inner", "--", "sh", "-c", script];
    let outer = ["run", "outer", "--ttl", "12s", "--no-renew", "-k", "6s", "--"];
    let finished = place.run(outer.into_iter().chain(within)).expect(79);
    assert!(finished.stderr.contains("TERM and KILL sent to group"), "{}", finished.stderr);
    assert_eq!(place.read("told"), "TERM\n");
    wait_until("nothing is left", || place.survivors().is_empty());
}

#[test]
fn the_guardian_goes_when_the_job_ends() {
    let place = Place::new();
    for (script, code) in [("true", 0), ("exit 3", 3), ("kill -9 $$", 137)] {
        place.run(["run", "k", "--", "sh", "-c", script]).expect(code);
        assert_eq!(place.survivors(), []);
    }
    place.run(["run", "k", "--", "no-such-program"]).expect(127);
    assert_eq!(place.survivors(), []);
}

#[test]
fn a_guardian_that_is_killed_is_missed() {
    let place = Place::new();
    let first = place.hold("k", &SHORT, "while [ ! -e go ]; do sleep 0.02; done; exit 5");
    kill_process(guardian(first.pid()), Signal::KILL).unwrap();
    wait_until("it is missed", || first.stderr().contains("warning: "));
    fs::write(place.path("go"), "").unwrap();
    first.finish().expect(5);
}

#[test]
fn the_guardian_heeds_no_signal_and_holds_nothing_open() {
    let place = Place::new();
    let first = place.hold("k", &[], "while [ ! -e go ]; do sleep 0.02; done; exit 5");
    let guardian = guardian(first.pid());
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::TSTP, Signal::USR1] {
        kill_process(guardian, signal).unwrap();
    }
    let file = |number| fs::read_link(proc_file(guardian, &format!("fd/{number}"))).unwrap();
    assert!(file(0).to_string_lossy().starts_with("pipe:"));
    assert!([1, 2].map(file).iter().all(|file| file == Path::new("/dev/null")));
    assert!(!open_files(guardian).iter().any(|file| file.contains("leases.db")));
    fs::write(place.path("go"), "").unwrap();
    let finished = first.finish().expect(5);
    assert_eq!(finished.stderr, "");
    assert!(!is_running(guardian));
}

#[test]
fn the_job_inherits_its_standard_files_only() {
    let place = Place::new();
    // What this process was itself started with is passed on, as by every program.
    let script = "echo /proc/$$/fd/*";
    let names = |shown: String| -> Vec<String> {
        shown.split_whitespace().filter_map(|path| Some(path.rsplit_once('/')?.1.to_owned())).collect()
    };
    let before = names(place.start(place.program(["sh", "-c", script])).finish().stdout);
    let within = names(place.run(["run", "k", "--", "sh", "-c", script]).expect(0).stdout);
    assert_eq!(within, before);
}

#[test]
fn a_job_that_was_stopped_keeps_its_lease_where_there_is_no_terminal() {
    let place = Place::new();
    let first = place.hold("k", &SHORT, "while [ ! -e go ]; do sleep 0.02; done; exit 5");
    let job = place.pid("pid");
    kill_process(job, Signal::STOP).unwrap();
    place.run(["run", "k", "-w", "9", "--", "true"]).expect(75);
    kill_process(job, Signal::CONT).unwrap();
    fs::write(place.path("go"), "").unwrap();
    first.finish().expect(5);
}

#[test]
fn orphans_of_the_job_are_collected() {
    let place = Place::new();
    let script = "for i in 1 2 3 4 5; do (true & echo $! > orphan); done; \
        while [ -e /proc/$(cat orphan) ]; do sleep 0.02; done; exit 6";
    place.run(["run", "k", "--", "sh", "-c", script]).expect(6);
}

#[test]
fn the_helpers_do_nothing_for_strangers() {
    let place = Place::new();
    for arguments in [
        &["__exec"][..],
        &["__exec", "1", "touch", "ran"],
        &["__exec", "x", "touch", "ran"],
        &["__guard"],
        &["__guard", "x", "1", "1"],
    ] {
        place.run(arguments).expect(64);
    }
    assert!(!place.path("ran").exists());
    assert!(!place.run(["--help"]).expect(0).stdout.contains("__"));
}
