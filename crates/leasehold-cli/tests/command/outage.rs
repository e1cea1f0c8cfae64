//! A store that does not answer: never taken for a busy key, and never outlived by a job.

use rusqlite::Connection;

use crate::support::Place;

/// Keeps the store's file to itself until dropped.
fn occupy(place: &Place) -> Connection {
    let connection = Connection::open(place.path("leases.db")).unwrap();
    connection.pragma_update(None, "busy_timeout", 50_000).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    connection
}

#[test]
fn a_store_that_does_not_answer_is_not_a_busy_key() {
    let place = Place::new();
    place.run(["run", "k", "--", "true"]).expect(0);
    let _occupied = occupy(&place);
    for options in [&["-n"][..], &["-w", "10"], &["-n", "--skip-ok"], &["-n", "-E", "3"]] {
        let arguments = [&["run", "k", "--ttl", "3s"], options, &["--", "touch", "ran"]].concat();
        let finished = place.run(arguments).expect(69);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
        assert!(finished.stderr.contains("not started"), "{}", finished.stderr);
        let reasons = ["leases.db", "no answer within "];
        assert!(reasons.iter().any(|reason| finished.stderr.contains(reason)), "{}", finished.stderr);
    }
    assert!(!place.path("ran").exists());
}

#[test]
fn a_lease_that_cannot_be_renewed_stops_the_job_before_it_ends() {
    let place = Place::new();
    let first = place.hold("k", &["--ttl", "15s", "-k", "6s"], "exec sleep 60");
    let occupied = occupy(&place);
    let finished = first.finish().expect(79);
    for part in [
        "lost: the lease on \"k\" could not be renewed; TERM sent to group ",
        " failed since ",
        "nobody else could hold the key before ",
    ] {
        assert!(finished.stderr.contains(part), "{part} is not in\n{}", finished.stderr);
    }
    // Whichever gives up first.
    let reasons = ["leases.db is busy", "no answer within "];
    assert!(reasons.iter().any(|reason| finished.stderr.contains(reason)), "{}", finished.stderr);
    assert_eq!(place.survivors(), []);
    drop(occupied);
    place.run(["run", "k", "-w", "50", "--", "true"]).expect(0);
}

#[test]
fn an_outage_that_ends_in_time_costs_nothing() {
    let place = Place::new();
    let first =
        place.hold("k", &["--ttl", "20s", "--renew-every", "500ms"], "while [ ! -e go ]; do sleep 0.02; done; exit 5");
    let occupied = occupy(&place);
    // Several renewals come due meanwhile; the lease stands.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    drop(occupied);
    std::fs::write(place.path("go"), "").unwrap();
    let finished = first.finish().expect(5);
    assert_eq!(finished.stderr, "");
    assert!(place.is_free("k"));
}

#[test]
fn a_release_that_fails_keeps_the_code_of_the_job() {
    let place = Place::new();
    let script = "while [ ! -e go ]; do sleep 0.02; done; exit 5";
    let first = place.hold("k", &["--ttl", "6s"], script);
    let _occupied = occupy(&place);
    std::fs::write(place.path("go"), "").unwrap();
    let finished = first.finish().expect(5);
    assert!(finished.stderr.contains("leasehold: warning: failed to release"), "{}", finished.stderr);
    assert!(finished.stderr.contains("ends by itself after its ttl"), "{}", finished.stderr);
}
