//! What comes late takes nothing from the next holder.

use std::fs;

use rustix::process::{Signal, kill_process};

use crate::support::{Place, wait_until};

const WAIT_FOR_GO: &str = "touch second; while [ ! -e go ]; do sleep 0.02; done; exit 6";

/// The first is stopped until its lease is over and the second has taken the key. Then its job has ended or has not,
/// and it is continued.
fn a_late_release(job_has_ended: bool) {
    let place = Place::new();
    let options = ["--ttl", "6s", "--renew-every", "500ms", "-k", "300ms"];
    let first = place.hold("k", &options, "exec sleep 60");
    first.signal(Signal::STOP);
    if job_has_ended {
        kill_process(place.pid("pid"), Signal::KILL).unwrap();
    }
    let second = place.start(place.command(["run", "k", "-c", WAIT_FOR_GO]));
    wait_until("the second runs", || place.path("second").exists());
    let owner = place.owner("k");
    first.signal(Signal::CONT);
    first.finish();
    assert_eq!(place.owner("k"), owner);
    place.run(["run", "k", "-n", "--", "true"]).expect(75);
    fs::write(place.path("go"), "").unwrap();
    second.finish().expect(6);
    assert!(place.is_free("k"));
}

#[test]
fn a_release_after_a_stop() {
    a_late_release(false);
}

#[test]
fn a_release_of_a_job_that_ended_during_a_stop() {
    a_late_release(true);
}

#[test]
fn a_release_after_running_on_without_a_lease() {
    let place = Place::new();
    let options = ["--ttl", "8s", "--no-renew", "--on-lost", "continue"];
    let first = place.hold("k", &options, "while [ ! -e end ]; do sleep 0.02; done");
    let second = place.start(place.command(["run", "k", "-c", WAIT_FOR_GO]));
    wait_until("the second runs", || place.path("second").exists());
    let owner = place.owner("k");
    fs::write(place.path("end"), "").unwrap();
    first.finish().expect(0);
    assert_eq!(place.owner("k"), owner);
    fs::write(place.path("go"), "").unwrap();
    second.finish().expect(6);
}
