//! A lease that another command has taken, taken on by a job.

use serde_json::Value;

use crate::across::script;
use crate::support::{Place, wait_until};

#[test]
fn a_job_takes_on_what_acquire_took() {
    let place = Place::new();
    let taken = place.run(["acquire", "k", "--ttl", "1h", "--owner-file", "own", "--format", "json"]).expect(0);
    let taken: Value = serde_json::from_str(&taken.stdout).unwrap();
    let secret = place.read("own");
    let job = "echo $LEASEHOLD_FENCING_TOKEN; cp own.new kept; exit 7";
    let resumed =
        place.run(["resume", "k", "--from", "own", "--owner-file", "own.new", "--", "sh", "-c", job]).expect(7);
    // The lease is another grant, with another secret, and is given back as by `run`.
    assert!(resumed.stdout.trim().parse::<u64>().unwrap() > taken["fencing"].as_u64().unwrap());
    assert!(place.read("kept") != secret && place.read("kept").len() == secret.len());
    assert!(!place.path("own").exists() && !place.path("own.new").exists());
    assert!(place.is_free("k"));
}

#[test]
fn only_one_takes_a_lease_on() {
    let place = Place::new();
    place.run(["acquire", "k", "--ttl", "1h", "--owner-file", "own"]).expect(0);
    std::fs::copy(place.path("own"), place.path("copy")).unwrap();
    let mut first = place.start(place.command(["resume", "k", "--from", "own", "-c", "touch on; exec sleep 60"]));
    wait_until("it runs", || place.path("on").exists() || first.has_ended());
    let late = place.run(["resume", "k", "--from", "copy", "--", "touch", "second"]).expect(79);
    assert!(late.stderr.contains("the command was not started"), "{}", late.stderr);
    place.run(["release", "k", "--owner-file", "copy"]).expect(79);
    assert!(!place.is_free("k") && !place.path("second").exists());
    first.signal(rustix::process::Signal::TERM);
    first.finish().expect(143);
    assert!(place.is_free("k"));
}

#[test]
fn a_job_takes_a_lease_on_from_its_keeper() {
    let place = Place::new();
    let running = script(
        &place,
        "out=$(leasehold acquire k --keeper=$$ --ttl 12s --format shell) || exit; eval \"$out\"
         leasehold resume k -- sleep 6; echo $?",
    );
    assert_eq!(running.finish().expect(0).stdout, "0\n");
    assert!(place.is_free("k"));
    wait_until("no keeper is left", || place.survivors().is_empty());
}

#[test]
fn what_says_nothing_to_a_resume_is_refused() {
    let place = Place::new();
    for option in [&["-n"][..], &["-w", "1"], &["-E", "1"], &["--skip-ok"]] {
        let refused = place.run([&["resume", "k"], option, &["--", "true"]].concat()).expect(64);
        assert!(refused.stderr.contains("does not wait"), "{}", refused.stderr);
    }
    let help = place.run(["resume", "--help"]).expect(0).stdout;
    assert!(help.contains("leasehold resume deploy") && !help.contains("--skip-ok"), "{help}");
    place.run(["resume", "k", "--", "true"]).expect(64);
}
