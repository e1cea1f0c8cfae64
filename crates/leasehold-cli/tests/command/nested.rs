//! A `run` inside of another.

use crate::support::{BINARY, Place};

#[test]
fn one_on_the_same_key_says_that_it_would_wait_for_its_own_parent() {
    let place = Place::new();
    let path = place.path("leases.db").display().to_string();
    for options in ["", "-n", "-w 60", "--namespace leasehold", &format!("-s sqlite:{path}?ttl=5s")] {
        let inner = format!("{BINARY} run k {options} -- touch ran");
        let finished = place.run(["run", "k", "-c", &inner]).expect(64);
        assert!(finished.stderr.contains("would wait for its own parent"), "{}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    }
    assert!(!place.path("ran").exists());
}

#[test]
fn one_on_anything_else_runs() {
    let place = Place::new();
    let elsewhere = format!("sqlite://{}", place.path("elsewhere.db").display());
    for options in ["other", "k --namespace other", &format!("k -s {elsewhere}")] {
        place.run(["run", "k", "-c", &format!("{BINARY} run {options} -n -- true")]).expect(0);
    }
}

#[test]
fn one_whose_parent_lost_the_key_waits_for_the_new_holder() {
    let place = Place::new();
    // The environment tells of a lease that is over.
    let first = place.run(["run", "k", "-c", "env"]).expect(0);
    let holder = place.hold("k", &[], "sleep 60");
    let mut command = place.command(["run", "k", "-n", "--", "true"]);
    for line in first.stdout.lines().filter(|line| line.starts_with("LEASEHOLD_")) {
        let (name, value) = line.split_once('=').unwrap();
        command.env(name, value);
    }
    place.start(command).finish().expect(75);
    drop(holder);
}
