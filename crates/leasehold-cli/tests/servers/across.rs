//! A lease that a script holds across its commands, on each store.

use std::io::Write;

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::keepers::{KEEP, keepers, owner_files};
use crate::site::Site;
use crate::support::wait_until;

on_stores! {
    a_script_holds_a_key
    a_script_that_is_killed_leaves_the_key_to_its_ttl
    a_script_has_its_key_kept
    a_script_that_is_killed_loses_its_kept_key_at_once
    a_busy_acquire_stops_a_script
    a_killed_keeper_is_noticed
    a_release_of_what_is_gone_touches_nobody_else
    a_job_takes_on_what_a_script_took
    a_forced_release_removes_who_was_shown
    a_forced_release_removes_nobody_else
}
on_sessions! {
    without_a_keeper_a_session_is_refused
    a_script_has_its_key_kept
    a_script_that_is_killed_loses_its_kept_key_at_once
    a_busy_acquire_stops_a_script
    a_killed_keeper_is_noticed
    what_sessions_cannot_do_is_refused
}

fn a_script_holds_a_key(site: &Site) {
    let done = site
        .finished(
            "out=$(leasehold acquire k --ttl 10m --reason why --format shell) || exit; eval \"$out\"
             trap 'leasehold release k; echo released: $?' EXIT
             leasehold show k --json > held
             leasehold run k -n -q -- touch ran; echo run: $?
             leasehold extend k --ttl 20m; echo extend: $?
             leasehold show k --json > extended",
        )
        .expect(0);
    assert_eq!((&*done.stdout, &*done.stderr), ("run: 75\nextend: 0\nreleased: 0\n", ""));
    assert!(!site.path("ran").exists());
    let holder = |file: &str| serde_json::from_str::<Value>(&site.read(file)).unwrap()["holders"][0].clone();
    let (held, extended) = (holder("held"), holder("extended"));
    assert_eq!((&held["reason"], &held["command"]), (&"why".into(), &"sh".into()));
    assert_eq!((&held["fencing"], &held["owner_fingerprint"]), (&extended["fencing"], &extended["owner_fingerprint"]));
    assert!((540_000..=600_000).contains(&held["remaining_ms"].as_u64().unwrap()), "{held}");
    assert!((1_140_000..=1_200_000).contains(&extended["remaining_ms"].as_u64().unwrap()), "{extended}");
    assert!(site.is_free("k"));
    assert_eq!(owner_files(site), 0);
}

fn a_script_that_is_killed_leaves_the_key_to_its_ttl(site: &Site) {
    let mut running = site.script(
        "out=$(leasehold acquire k --ttl 15s --format shell) || exit; eval \"$out\"; echo on > on; exec sleep 60",
    );
    wait_until("it holds the key", || !site.read("on").is_empty());
    running.signal(Signal::KILL);
    wait_until("it is dead", || running.has_ended());
    let waited = site.run(["acquire", "k", "-w", "60", "--ttl", "1m", "--format", "json"]).expect(0);
    let waited: Value = serde_json::from_str(&waited.stdout).unwrap();
    assert!(waited["waited_ms"].as_u64().unwrap() > 0, "{waited}");
}

fn a_script_has_its_key_kept(site: &Site) {
    let done = site
        .finished(&format!(
            "{KEEP}; trap 'leasehold release k; echo released: $?' EXIT
             leasehold show k > held; leasehold run k -n -q -- touch ran; echo run: $?
             leasehold extend k; echo extend: $?"
        ))
        .expect(0);
    assert_eq!((&*done.stdout, &*done.stderr), ("run: 75\nextend: 0\nreleased: 0\n", ""));
    assert!(!site.path("ran").exists() && site.read("held").contains("\"k\" is held"));
    // By then, and not by the next renewal.
    assert_eq!(keepers(site), []);
    assert!(site.is_free("k"));
    assert_eq!(owner_files(site), 0);
}

fn a_script_that_is_killed_loses_its_kept_key_at_once(site: &Site) {
    let mut running = site.script(&format!("{KEEP}; touch on; exec sleep 60"));
    wait_until("it holds the key", || site.path("on").exists());
    assert_eq!((keepers(site).len(), owner_files(site)), (1, 1));
    running.signal(Signal::KILL);
    wait_until("it is dead", || running.has_ended());
    wait_until("the key is free", || site.is_free("k"));
    wait_until("the keeper is gone", || keepers(site).is_empty());
    wait_until("the owner file is gone", || owner_files(site) == 0);
}

fn a_busy_acquire_stops_a_script(site: &Site) {
    let mut holder = site.script(&format!("{KEEP}; touch on; exec sleep 60"));
    wait_until("it holds the key", || site.path("on").exists() || holder.has_ended());
    for options in ["-n --keeper=$$", "-w 50ms --keeper=$$", "-n --ttl 1m"] {
        // What a session refuses without a keeper is refused before anybody is asked.
        let code = if site.is_session() && !options.contains("keeper") { 78 } else { 75 };
        let ended = site.finished(&format!("eval \"$(leasehold acquire k {options} --format shell)\"; touch went.on"));
        assert_eq!((ended.code(), site.path("went.on").exists()), (code, false), "{options}: {}", ended.stderr);
        assert!(code == 78 || ended.stderr.contains("busy: \"k\" is "), "{}", ended.stderr);
    }
    assert_eq!(keepers(site).len(), 1);
    holder.signal(Signal::TERM);
    wait_until("it has ended", || holder.has_ended());
}

fn a_killed_keeper_is_noticed(site: &Site) {
    let running = site.script(
        "out=$(leasehold acquire k --keeper=$$ --ttl 9s --format shell) || exit; eval \"$out\"; touch on
         while [ ! -e go ]; do sleep 0.01; done; leasehold extend k; echo $?; leasehold release k; echo $?",
    );
    wait_until("it holds the key", || site.path("on").exists());
    kill_process(keepers(site)[0], Signal::KILL).unwrap();
    if site.frees_the_dead() {
        let patience = std::time::Duration::from_secs(60);
        site.start(site.command(["wait", "k"])).finish_within(patience).expect(0);
    } else {
        wait_until("the key is free", || site.is_free("k"));
    }
    std::fs::write(site.path("go"), "").unwrap();
    let ended = running.finish().expect(0);
    assert_eq!(ended.stdout, "79\n79\n", "{}", ended.stderr);
}

fn a_release_of_what_is_gone_touches_nobody_else(site: &Site) {
    site.run(["acquire", "k", "--ttl", "15s", "--owner-file", "first"]).expect(0);
    site.run(["acquire", "k", "--ttl", "1m", "--owner-file", "second"]).expect(0);
    for command in ["release", "extend"] {
        let refused = site.run([command, "k", "--owner-file", "first"]).expect(79);
        assert!(refused.stderr.contains("not held by this owner token, now by "), "{}", refused.stderr);
    }
    site.run(["resume", "k", "--from", "first", "--", "true"]).expect(79);
    site.run(["extend", "k", "--owner-file", "second"]).expect(0);
    site.run(["release", "k", "--owner-file", "second"]).expect(0);
    assert!(site.is_free("k"));
}

fn a_job_takes_on_what_a_script_took(site: &Site) {
    let taken = site.run(["acquire", "k", "--ttl", "1h", "--owner-file", "own", "--format", "json"]).expect(0);
    let taken: Value = serde_json::from_str(&taken.stdout).unwrap();
    std::fs::copy(site.path("own"), site.path("copy")).unwrap();
    let job = "echo $LEASEHOLD_FENCING_TOKEN; exit 7";
    let resumed = site.run(["resume", "k", "--from", "own", "-c", job]).expect(7);
    assert!(resumed.stdout.trim().parse::<u64>().unwrap() > taken["fencing"].as_u64().unwrap());
    assert!(!site.path("own").exists() && site.is_free("k"));
    site.run(["resume", "k", "--from", "copy", "--", "touch", "second"]).expect(79);
    assert!(!site.path("second").exists());
}

fn a_forced_release_removes_who_was_shown(site: &Site) {
    site.run(["hold", "k", "--for", "1h", "--reason", "freeze", "--owner-file", "own"]).expect(0);
    let refused = site.run(["force-release", "k"]).expect(77);
    assert!(refused.stderr.contains("reason: freeze") && refused.stderr.contains("nothing was removed"));
    let removed = site.run(["force-release", "k", "--yes", "--json", "--reason", "over"]).expect(0);
    let removed: Value = serde_json::from_str(&removed.stdout).unwrap();
    assert_eq!((&removed["reason"], &removed["holder"]["reason"]), (&"over".into(), &"freeze".into()));
    assert!(removed["fence_floor"].as_u64() >= removed["holder"]["fencing"].as_u64(), "{removed}");
    let next = site.run(["acquire", "k", "-n", "--ttl", "1m", "--format", "json"]).expect(0);
    let next: Value = serde_json::from_str(&next.stdout).unwrap();
    assert!(next["fencing"].as_u64() > removed["fence_floor"].as_u64(), "{next} {removed}");
    site.run(["extend", "k", "--owner-file", "own"]).expect(79);
}

fn a_forced_release_removes_nobody_else(site: &Site) {
    site.run(["acquire", "k", "--ttl", "1h", "--owner-file", "first"]).expect(0);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut command = site.command(["force-release", "k"]);
    command.stdin(reader);
    let asking = site.start(command);
    wait_until("it asks", || asking.stderr().contains("Type the key"));
    site.run(["release", "k", "--owner-file", "first"]).expect(0);
    site.run(["acquire", "k", "--ttl", "1h", "--owner-file", "second"]).expect(0);
    writer.write_all(b"k\n").unwrap();
    let refused = asking.finish().expect(77);
    assert!(refused.stderr.contains("not held any more by the holder that was shown"), "{}", refused.stderr);
    site.run(["extend", "k", "--owner-file", "second"]).expect(0);
}

fn without_a_keeper_a_session_is_refused(site: &Site) {
    for (arguments, words) in [
        (&["acquire", "k", "--ttl", "1m"][..], "say --keeper"),
        (&["hold", "k", "--for", "1m", "--reason", "why"], "leasehold run k -- sleep"),
    ] {
        let refused = site.run(arguments).expect(78);
        assert!(refused.stderr.contains("ends with its connection"), "{}", refused.stderr);
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
    }
    assert!(site.is_free("k"));
    assert_eq!(owner_files(site), 0);
}

fn what_sessions_cannot_do_is_refused(site: &Site) {
    let _holder = site.hold("k", &[], "sleep 60");
    assert!(site.run(["show", "k"]).expect(0).stdout.contains("backend "));
    let refused = site.run(["force-release", "k", "--yes"]).expect(78);
    assert!(refused.stderr.contains("pg_terminate_backend("), "{}", refused.stderr);
    let refused = site.run(["list"]).expect(78);
    assert!(refused.stderr.contains("not their names"), "{}", refused.stderr);
    std::fs::write(site.path("own"), "0123456789abcdef0123456789abcdef\n").unwrap();
    site.run(["resume", "k", "--from", "own", "--", "true"]).expect(78);
    // The secret of a process that is no keeper tells nothing here.
    for command in ["release", "extend"] {
        site.run([command, "k", "--owner-file", "own"]).expect(79);
    }
    assert!(!site.is_free("k"));
}
