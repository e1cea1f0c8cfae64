//! force-release, doctor, watch, stores, version.

use std::fs::File;
use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use crate::support::{Finished, Place, wait_until};

fn typed(place: &Place, input: &str, arguments: &[&str]) -> Finished {
    std::fs::write(place.path("input"), input).unwrap();
    let mut command = place.command([&["force-release"], arguments].concat());
    command.stdin(File::open(place.path("input")).unwrap());
    place.start(command).finish()
}

#[test]
fn a_forced_release_shows_asks_and_tells_the_fence() {
    let place = Place::new();
    place.run(["hold", "k", "--for", "1h", "--reason", "freeze", "--owner-file", "own"]).expect(0);
    for input in ["", "\n", "x\n", "kk\n", "K\n"] {
        let refused = typed(&place, input, &["k"]).expect(77);
        assert!(
            refused.stderr.contains("reason: freeze") && refused.stderr.contains("  you      this is you: process ")
        );
        assert!(refused.stderr.contains("nothing was removed"), "{}", refused.stderr);
    }
    assert!(!place.is_free("k"));
    let removed = typed(&place, "k\n", &["k", "--reason", "done early"]).expect(0);
    assert!(removed.stdout.contains("let the resource refuse fencing tokens up to "), "{}", removed.stdout);
    assert!(removed.stderr.contains("force-released \"k\"") && removed.stderr.contains("reason: done early"));
    assert!(place.is_free("k"));
    let nothing = place.run(["force-release", "k", "--yes"]).expect(1);
    assert!(nothing.stderr.contains("there is nothing to remove"), "{}", nothing.stderr);
}

#[test]
fn a_forced_release_stops_the_job_and_later_grants_have_higher_tokens() {
    let place = Place::new();
    let job = place.hold("k", &["--ttl", "12s", "--renew-every", "500ms"], "sleep 60");
    let removed = place.run(["force-release", "k", "--yes", "--json", "--reason", "why"]).expect(0);
    let removed: Value = serde_json::from_str(&removed.stdout).unwrap();
    assert_eq!((&removed["schema"], &removed["key"]), (&"leasehold.force-release/1".into(), &"k".into()));
    assert_eq!((&removed["reason"], &removed["holder"]["command"]), (&"why".into(), &"sh".into()));
    assert!(removed["fence_floor"].as_u64() >= removed["holder"]["fencing"].as_u64());
    let next = place.run(["acquire", "k", "-n", "--ttl", "1m", "--format", "json"]).expect(0);
    let next: Value = serde_json::from_str(&next.stdout).unwrap();
    assert!(next["fencing"].as_u64() > removed["fence_floor"].as_u64());
    job.finish().expect(79);
}

#[test]
fn only_the_holder_that_was_shown_is_removed() {
    let place = Place::new();
    place.run(["acquire", "k", "--ttl", "1h", "--owner-file", "first"]).expect(0);
    let mut command = place.command(["force-release", "k"]);
    let (reader, mut writer) = std::io::pipe().unwrap();
    command.stdin(Stdio::from(reader));
    let asking = place.start(command);
    wait_until("it asks", || asking.stderr().contains("Type the key"));
    place.run(["release", "k", "--owner-file", "first"]).expect(0);
    place.run(["acquire", "k", "--ttl", "1h", "--owner-file", "second"]).expect(0);
    writer.write_all(b"k\n").unwrap();
    let refused = asking.finish().expect(77);
    assert!(refused.stderr.contains("not held any more by the holder that was shown"), "{}", refused.stderr);
    place.run(["extend", "k", "--owner-file", "second"]).expect(0);
}

#[test]
fn old_leases_are_removed_by_prefix() {
    let place = Place::new();
    for key in ["import:a", "import:b", "other"] {
        place.run(["acquire", key, "--ttl", "1h"]).expect(0);
    }
    place.run(["force-release", "--all", "import:", "--yes"]).expect(64);
    place.run(["force-release", "import:a", "--all", "import:", "--older-than", "0"]).expect(64);
    let young = place.run(["force-release", "--all", "import:", "--older-than", "1h", "--yes"]).expect(1);
    assert!(young.stderr.contains("nothing to remove"), "{}", young.stderr);
    let refused = typed(&place, "import\n", &["--all", "import:", "--older-than", "0"]).expect(77);
    assert!(refused.stderr.contains("import:a") && !refused.stderr.contains("other"), "{}", refused.stderr);
    typed(&place, "import:\n", &["--all", "import:", "--older-than", "0"]).expect(0);
    let left = place.run(["list"]).expect(0).stdout;
    assert!(left.contains("other") && !left.contains("import"), "{left}");
}

/// What doctor says of a store in which nothing is wrong.
pub(crate) fn healthy(place: &Place, options: &[&str]) -> Finished {
    let doctor = || place.run([&["doctor"], options].concat());
    for _ in 0..2 {
        let finished = doctor();
        // A machine that stands still for half a second is found to be slow.
        if finished.code() != 1 {
            return finished.expect(0);
        }
    }
    doctor().expect(0)
}

#[test]
fn a_healthy_store_has_nothing_to_complain_of() {
    let place = Place::new();
    let told = healthy(&place, &[]).stdout;
    assert!(told.contains("ok    exclude") && !told.contains("fail"), "{told}");
    let json: Value = serde_json::from_str(&healthy(&place, &["--json"]).stdout).unwrap();
    assert_eq!(
        (&json["schema"], &json["worst"], &json["exit"]),
        (&"leasehold.doctor/1".into(), &"ok".into(), &0.into())
    );
    assert!(json["round_trips"]["count"].as_u64().unwrap() > 0);
    for check in ["reach", "clock", "round trip", "acquire", "exclude", "extend", "release", "hand-over"] {
        assert!(json["checks"].as_array().unwrap().iter().any(|it| it["check"] == check), "{check}: {json}");
    }
    // Nothing of it is left.
    place.run(["list", "--exit-code"]).expect(1);
}

#[test]
fn what_is_wrong_is_found_with_the_fix() {
    let place = Place::new();
    let noop = place.run(["doctor", "-s", "noop:"]).expect(78).stdout;
    assert!(noop.contains("fail  exclude") && noop.contains("fix: do not use it for locks"), "{noop}");
    place.run(["doctor", "-s", "memory:"]).expect(1);
    std::fs::write(place.path("foreign"), "not a database, but long enough to be taken for one").unwrap();
    let url = format!("sqlite://{}", place.path("foreign").display());
    let foreign = place.run(["doctor", "-s", &url, "--json"]).expect(73);
    let json: Value = serde_json::from_str(&foreign.stdout).unwrap();
    assert_eq!((&json["worst"], &json["exit"]), (&"fail".into(), &73.into()));
    place.run(["doctor", "-s", "sqlite:///no/such/place/x"]).expect(73);
    place.run(["doctor", "-s", "nosuch://x"]).expect(78);
    healthy(&place, &[]);
    let open: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::write(place.path("password"), "hunter2\n").unwrap();
    std::fs::set_permissions(place.path("password"), open.clone()).unwrap();
    let mut command = place.command(["doctor"]);
    command.env("LEASEHOLD_PASSWORD_FILE", place.path("password"));
    let read = place.start(command).finish().expect(1).stdout;
    assert!(read.contains("warn  password") && read.contains("fix: chmod 600"), "{read}");
    assert!(!read.contains("hunter2"));
    std::fs::set_permissions(place.path("leases.db"), open).unwrap();
    let shared = place.run(["doctor"]).expect(1).stdout;
    assert!(shared.contains("warn  store") && shared.contains("fix: chmod"), "{shared}");
}

#[test]
fn a_bench_is_bounded_and_leaves_nothing() {
    let place = Place::new();
    let few: Value = serde_json::from_str(&place.run(["bench", "--count", "20"]).expect(0).stdout).unwrap();
    assert_eq!((&few["acquire"]["count"], &few["hand_over"]["count"]), (&20.into(), &2.into()));
    // One request takes, another one gives back.
    assert_eq!(few["requests_per_cycle"], 2.0);
    let brief = place.run(["bench", "--count", "1000000", "--for", "200ms"]).expect(0);
    let brief: Value = serde_json::from_str(&brief.stdout).unwrap();
    assert!((1..1_000_000).contains(&brief["acquire"]["count"].as_u64().unwrap()), "{brief}");
    place.run(["list", "--exit-code"]).expect(1);
    place.run(["bench", "--count", "0"]).expect(64);
    place.run(["bench", "-s", "sqlite:///no/such/place/x"]).expect(73);
}

#[test]
fn a_watch_goes_on_until_its_reader_goes() {
    let place = Place::new();
    place.run(["acquire", "k", "--ttl", "1h", "--owner-file", "own"]).expect(0);
    for arguments in [&["show", "k", "--watch=100ms", "--json"][..], &["list", "--watch=100ms", "--json"]] {
        let watch = place.start(place.command(arguments));
        wait_until("it has looked twice", || watch.stdout().lines().count() >= 2);
    }
    // A reader that has seen enough ends it, also if there is nothing more to show.
    place.run(["release", "k", "--owner-file", "own"]).expect(0);
    for arguments in ["show k --watch=100ms", "list --watch=100ms --json"] {
        let script = format!("'{}' {arguments} | head -c 0", crate::support::BINARY);
        place.start(place.program(["sh", "-c", &script])).finish().expect(0);
    }
    place.run(["list", "--watch=1ms"]).expect(64);
    place.run(["show", "k", "--watch", "-s", "nosuch://x"]).expect(78);
}

#[test]
fn what_is_there_is_told() {
    let place = Place::new();
    let stores = place.run(["stores"]).expect(0).stdout;
    assert!(stores.starts_with("SCHEME") && stores.contains("sqlite:///path"), "{stores}");
    let json: Value = serde_json::from_str(&place.run(["stores", "--json"]).expect(0).stdout).unwrap();
    assert_eq!(json["schema"], "leasehold.stores/1");
    let json: Value = serde_json::from_str(&place.run(["version", "--json"]).expect(0).stdout).unwrap();
    assert_eq!((&json["schema"], &json["version"]), (&"leasehold.version/1".into(), &env!("CARGO_PKG_VERSION").into()));
    assert!(place.run(["version"]).expect(0).stdout.starts_with("leasehold "));
}

#[test]
fn near_words_are_proposed() {
    let place = Place::new();
    for (arguments, meant) in [
        (&["aquire", "k"][..], "'acquire'"),
        (&["relase", "k"], "'release'"),
        (&["acquire", "k", "--tll", "1s"], "'--ttl'"),
        (&["acquire", "k", "--ttl", "1s", "--format", "jsno"], "'json'"),
    ] {
        let refused = place.run(arguments).expect(64);
        assert!(refused.stderr.contains(meant), "{arguments:?}: {}", refused.stderr);
    }
}
