//! Options of `run` that change how the job starts, and what happens to it when the lease is lost.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use rustix::process::Signal;

use crate::support::{Place, wait_until};

/// Told when there was ample time to trap the signal.
const UNRENEWED: [&str; 5] = ["--ttl", "8s", "--no-renew", "-k", "4s"];

#[test]
fn a_script_is_run_by_a_shell() {
    let place = Place::new();
    assert_eq!(place.run(["run", "k", "-c", "echo a  'b  c' | cat; exit 6"]).expect(6).stdout, "a b  c\n");
    for arguments in [&["run", "k", "-c", "true", "--", "true"][..], &["run", "k"], &["run", "k", "-c"]] {
        assert_eq!(place.run(arguments).expect(64).stderr.lines().count(), 1);
    }
}

#[test]
fn input_may_be_nothing() {
    let place = Place::new();
    for (from, expected) in [("null", ""), ("inherit", "input")] {
        fs::write(place.path("input"), "input").unwrap();
        let mut command = place.command(["run", "k", "--stdin", from, "--", "cat"]);
        command.stdin(Stdio::from(fs::File::open(place.path("input")).unwrap()));
        assert_eq!(place.start(command).finish().expect(0).stdout, expected);
    }
    place.run(["run", "k", "--stdin", "tape", "--", "true"]).expect(64);
}

#[test]
fn another_signal_may_tell_that_the_lease_is_lost() {
    let place = Place::new();
    let script = "trap 'echo USR1 >> got; exit 3' USR1; while :; do sleep 0.02; done";
    // KILL at the lease's end holds all the same.
    let stubborn = "trap '' USR1; while :; do sleep 0.02; done";
    place.create();
    let started = [("USR1", script), ("sigusr1", script), ("USR1", stubborn)].map(|(name, script)| {
        let key = format!("{name} {script}");
        let on_lost = format!("signal:{name}");
        place.start(place.command([&["run", &key, "--on-lost", &on_lost], &UNRENEWED[..], &["-c", script]].concat()))
    });
    let [one, other, stubborn] = started.map(|run| run.finish().expect(79).stderr);
    for told in [one, other] {
        assert!(told.contains("USR1 sent to group"), "{told}");
    }
    assert_eq!(place.read("got"), "USR1\nUSR1\n");
    assert!(stubborn.contains("USR1 and KILL sent to group"), "{stubborn}");
    for wrong in ["", "signal", "signal:", "signal:NOPE", "kill", "signal:9"] {
        let finished = place.run(["run", "k", "--on-lost", wrong, "--", "true"]).expect(64);
        assert!(finished.stderr.contains("signal:NAME"), "{}", finished.stderr);
    }
}

#[test]
fn a_job_may_run_on_without_its_lease_if_that_is_asked_for() {
    let place = Place::new();
    let script = "while [ ! -e go ]; do sleep 0.02; done; exit 5";
    let options = ["--on-lost", "continue", "--report", "report", "--ttl", "8s", "--no-renew"];
    let first = place.hold("k", &options, script);
    // Somebody else gets the key meanwhile.
    let second =
        place.start(place.command(["run", "k", "-c", "touch second; while [ ! -e go2 ]; do sleep 0.02; done"]));
    wait_until("the second runs", || place.path("second").exists());
    wait_until("it is said", || first.stderr().contains("exclusion is given up"));
    fs::write(place.path("go"), "").unwrap();
    let finished = first.finish().expect(5);
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    let report: serde_json::Value = serde_json::from_str(&place.read("report")).unwrap();
    assert_eq!((&report["outcome"], &report["exit"]["source"]), (&"lost".into(), &"child".into()));
    // What came late did not take the key from the second.
    assert!(!place.is_free("k"));
    fs::write(place.path("go2"), "").unwrap();
    second.finish().expect(0);
}

#[test]
fn the_owner_token_is_in_a_file_while_the_job_runs() {
    let place = Place::new();
    fs::write(place.path("owner"), "left over").unwrap();
    let first = place.hold("k", &["--owner-file", "owner"], "env > environment; touch up; sleep 60");
    wait_until("the environment is written", || place.path("up").exists());
    let token = place.owner("k");
    assert_eq!(place.read("owner"), format!("{token}\n"));
    assert_eq!(fs::metadata(place.path("owner")).unwrap().permissions().mode() & 0o777, 0o600);
    let environment = place.read("environment");
    assert!(
        environment.contains(&format!("LEASEHOLD_OWNER_FILE={}\n", place.path("owner").display())),
        "{environment}"
    );
    assert!(!environment.contains(&token));
    first.signal(Signal::TERM);
    first.finish().expect(143);
    assert!(!place.path("owner").exists());
    // One of another run stays.
    let options = ["--owner-file", "owner"];
    let second = place.hold("k", &options, "while [ ! -e go ]; do sleep 0.02; done");
    fs::write(place.path("owner"), "another").unwrap();
    fs::write(place.path("go"), "").unwrap();
    second.finish().expect(0);
    assert_eq!(place.read("owner"), "another");
    place.run(["run", "k", "--owner-file", "owner", "--", "no-such-program"]).expect(127);
    assert!(!place.path("owner").exists());
}

#[test]
fn the_owner_token_is_exported_only_if_that_is_asked_for() {
    let place = Place::new();
    let script = "echo \"$LEASEHOLD_OWNER\" > token.new; mv token.new token; sleep 60";
    let first = place.hold("k", &["--export-owner"], script);
    wait_until("the token is written", || place.path("token").exists());
    assert_eq!(place.read("token"), format!("{}\n", place.owner("k")));
    drop(first);
    let finished = place.run(["run", "other", "-c", "echo \"<$LEASEHOLD_OWNER$LEASEHOLD_OWNER_FILE>\""]).expect(0);
    assert_eq!(finished.stdout, "<>\n");
}
