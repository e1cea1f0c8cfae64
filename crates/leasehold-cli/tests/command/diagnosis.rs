//! What doctor finds about a file, and about the time that a command has to end.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rusqlite::Connection;
use serde_json::Value;

use crate::operator::healthy;
use crate::support::{BINARY, Place};

#[test]
fn another_program_s_file_is_left_alone() {
    let place = Place::new();
    let path = place.path("foreign.db");
    Connection::open(&path)
        .unwrap()
        .execute_batch("CREATE TABLE leases (name); INSERT INTO leases VALUES (1)")
        .unwrap();
    let before = fs::read(&path).unwrap();
    let url = format!("sqlite://{}", path.display());
    let report = place.run(["doctor", "-s", &url]).expect(73).stdout;
    assert!(report.contains("fail  open") && report.contains("foreign.db"), "{report}");
    assert!(report.contains("fix: name a file that this user can write"), "{report}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_read_only_file_system_is_found() {
    let place = Place::new();
    let mount = |options: &str| {
        let script = format!(
            "mkdir -p disk && mount -t tmpfs none disk && '{BINARY}' -q doctor > before; \
             mount -o remount,ro disk && {options} '{BINARY}' doctor -s sqlite://$PWD/disk/leases.db"
        );
        place.start(place.program(["unshare", "--mount", "sh", "-c", &script])).finish()
    };
    if place.start(place.program(["unshare", "--mount", "true"])).finish().code() != 0 {
        eprintln!("skipped: this user may not have a mount namespace");
        return;
    }
    // Where there is no file yet, and where there is one.
    for options in ["", "mount -o remount,rw disk && touch disk/leases.db && mount -o remount,ro disk &&"] {
        let ended = mount(options);
        assert_eq!(ended.code(), 73, "{ended:?}");
        assert!(ended.stdout.contains("fail  open") && ended.stdout.contains("leases.db"), "{ended:?}");
        assert!(ended.stdout.contains("on a local file system, for leases alone"), "{ended:?}");
    }
}

#[test]
fn a_file_that_may_not_be_written_is_found() {
    let place = Place::new();
    place.run(["run", "k", "--", "true"]).expect(0);
    fs::set_permissions(place.path("leases.db"), fs::Permissions::from_mode(0o400)).unwrap();
    if rustix::process::geteuid().is_root() {
        // Whom no mode keeps from writing.
        return;
    }
    let report = place.run(["doctor"]).expect(73).stdout;
    assert!(report.contains("fail  open"), "{report}");
}

#[test]
fn the_time_to_end_is_worked_out() {
    let place = Place::new();
    let grace = |options: &[&str], code: i32| {
        let options = [&["--json"], options].concat();
        let report = match code {
            0 => healthy(&place, &options),
            code => place.run([&["doctor"], &options[..]].concat()).expect(code),
        };
        let report = report.stdout;
        let report: Value = serde_json::from_str(&report).unwrap();
        let checks = report["checks"].as_array().unwrap();
        checks.iter().find(|check| check["check"] == "grace").unwrap().clone()
    };
    let usual = grace(&[], 0);
    assert_eq!(usual["level"], "ok");
    for part in ["a ttl of 30s, renewed every 10s", "TERM 9.6s after", "has 9.6s to end"] {
        assert!(usual["what"].as_str().unwrap().contains(part), "{usual}");
    }
    let chosen = grace(&["--ttl", "1m", "--renew-every", "5s", "-k", "20s"], 0);
    assert!(
        chosen["what"].as_str().unwrap().contains("TERM 33.9s after the first renewal without an answer, and has 20s"),
        "{chosen}"
    );
    // As run itself would say.
    let long = grace(&["-k", "20s"], 78);
    assert_eq!(long["level"], "fail");
    assert!(long["what"].as_str().unwrap().contains("leaves no time to run"), "{long}");
    assert!(long["fix"].as_str().unwrap().contains("-k below 19.2s"), "{long}");
    place.run(["run", "k", "-k", "20s", "--", "true"]).expect(78);
    place.run(["run", "k", "-k", "19s", "--", "true"]).expect(0);
    assert_eq!(grace(&["-k", "50ms"], 1)["level"], "warn");
    place.run(["doctor", "--renew-every", "20s"]).expect(65);
    place.run(["doctor", "--ttl", "nonsense"]).expect(65);
    place.run(["doctor", "-k", "nonsense"]).expect(64);
}
