//! A lease that is held across the commands of a script: acquire, extend, release, without a keeper.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{BINARY, Finished, Place, Running, wait_until};

/// A shell script that finds the binary as `leasehold`.
pub(crate) fn script(place: &Place, text: &str) -> Running {
    let shell = format!("leasehold() {{ '{BINARY}' \"$@\"; }}\n{text}");
    place.start(place.program(["sh", "-c", &shell]))
}

fn finished(place: &Place, text: &str) -> Finished {
    script(place, text).finish()
}

/// The owner files that are left in the directory of the place's user.
pub(crate) fn owner_files(place: &Place) -> usize {
    fs::read_dir(place.path("state/leasehold/owners")).map_or(0, Iterator::count)
}

#[test]
fn a_script_holds_a_key_across_its_commands() {
    let place = Place::new();
    let done = finished(
        &place,
        "out=$(leasehold acquire deploy --ttl 10m --reason why --format shell) || exit
         eval \"$out\"
         trap 'leasehold release deploy' EXIT
         leasehold show deploy --json > held.json; ls state/leasehold/owners > owners
         leasehold run deploy -n -- touch ran; echo run: $?
         leasehold extend deploy --ttl 20m; echo extend: $?
         leasehold show deploy --json > extended.json",
    )
    .expect(0);
    assert!(place.read("owners").starts_with("owner-"));
    assert_eq!(done.stdout, "run: 75\nextend: 0\n");
    assert!(!place.path("ran").exists());
    let holder = |file: &str| serde_json::from_str::<Value>(&place.read(file)).unwrap()["holders"][0].clone();
    let (held, extended) = (holder("held.json"), holder("extended.json"));
    assert_eq!((&held["reason"], &held["command"]), (&"why".into(), &"sh".into()));
    let remaining = |holder: &Value| holder["remaining_ms"].as_u64().unwrap();
    assert!((540_000..=600_000).contains(&remaining(&held)), "{held}");
    assert!((1_140_000..=1_200_000).contains(&remaining(&extended)), "{extended}");
    assert_eq!(held["fencing"], extended["fencing"]);
    assert!(place.is_free("deploy"));
    assert_eq!(owner_files(&place), 0);
}

#[test]
fn the_owner_file_is_its_users_alone_and_prints_only_its_name() {
    let place = Place::new();
    let path = place.run(["acquire", "k", "--ttl", "1m"]).expect(0).stdout;
    let path = path.strip_suffix('\n').unwrap();
    let token = place.owner("k");
    assert_eq!(fs::read_to_string(path).unwrap().trim_end(), token);
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(Path::new(path).parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    place.run(["release", "k", "--owner-file", path]).expect(0);
    assert!(!Path::new(path).exists() && place.is_free("k"));

    let runtime = place.path("runtime");
    fs::create_dir(&runtime).unwrap();
    let mut command = place.command(["acquire", "k", "--ttl", "1m", "--format", "shell"]);
    command.env("XDG_RUNTIME_DIR", &runtime);
    let shell = place.start(command).finish().expect(0).stdout;
    let path = shell.strip_prefix("export LEASEHOLD_OWNER_FILE='").unwrap().strip_suffix("'\n").unwrap();
    assert!(path.starts_with(runtime.to_str().unwrap()), "{path}");
}

#[test]
fn a_busy_acquire_stops_a_script_that_evaluates_its_output() {
    let place = Place::new();
    place.run(["acquire", "k", "--ttl", "1m", "--owner-file", "own"]).expect(0);
    for (arguments, code) in [
        ("k -n --ttl 1m --format shell", 75),
        ("k -w 50ms --ttl 1m --format=shell", 75),
        ("k -n -E 3 --ttl 1m --format shell", 3),
        ("k -n --skip-ok --ttl 1m --format shell", 0),
        ("k -n --keeper=$$ --format shell", 75),
        // What is wrong otherwise stops it as well.
        ("k --format shell", 64),
        ("k --nonsense --format shell", 64),
        ("k --ttl nonsense --format shell", 65),
        ("'' --keeper=$$ --format shell", 65),
        ("k -n --ttl 1m --format shell -s nosuch://x", 78),
        ("k -n --keeper=$$ --format shell -s nosuch://x", 78),
        ("k -n --ttl 1m --format shell --owner-file /no/such/directory/x", 73),
    ] {
        let ended = finished(&place, &format!("eval \"$(leasehold acquire {arguments})\"; touch on"));
        assert_eq!((ended.code(), place.path("on").exists()), (code, false), "{arguments}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{arguments}");
    }
    let acquire = "ulimit -n 6; leasehold acquire k -n --ttl 1m --format shell";
    let ended = finished(&place, &format!("eval \"$({acquire})\"; touch on"));
    assert_eq!((ended.code(), place.path("on").exists()), (71, false), "{}", ended.stderr);
    let busy: Value =
        serde_json::from_str(&place.run(["acquire", "k", "-n", "--ttl", "1m", "--format", "json"]).expect(75).stdout)
            .unwrap();
    assert_eq!((&busy["outcome"], &busy["exit"], &busy["owner_file"]), (&"busy".into(), &75.into(), &Value::Null));
}

#[test]
fn a_script_killed_in_the_middle_leaves_the_key_to_its_ttl() {
    let place = Place::new();
    let mut running = script(
        &place,
        "out=$(leasehold acquire k --ttl 15s --format shell) || exit; eval \"$out\"; echo on > on; exec sleep 60",
    );
    wait_until("it holds the key", || !place.read("on").is_empty());
    running.signal(Signal::KILL);
    wait_until("it is dead", || running.has_ended());
    // The lease stands although the script is dead, and then ends by itself.
    let waited = place.run(["acquire", "k", "-w", "60", "--ttl", "1m", "--format", "json"]).expect(0);
    let waited: Value = serde_json::from_str(&waited.stdout).unwrap();
    assert!(waited["waited_ms"].as_u64().unwrap() > 0, "{waited}");
}

#[test]
fn an_interrupted_acquire_holds_nothing() {
    let place = Place::new();
    place.run(["acquire", "k", "--ttl", "1m", "--owner-file", "own"]).expect(0);
    for options in [&["--ttl", "1m"][..], &["--keeper"]] {
        let all = [&["acquire", "k", "--format", "shell"], options].concat();
        let waiting = place.start(place.command(all));
        wait_until("it waits", || waiting.stderr().contains("waiting for \"k\": held by"));
        waiting.signal(Signal::TERM);
        let ended = waiting.finish().expect(143);
        assert_eq!(ended.stdout, "exit 143\n");
        assert!(ended.stderr.contains("stopped by TERM while waiting"), "{}", ended.stderr);
    }
    place.run(["release", "k", "--owner-file", "own"]).expect(0);
    assert!(place.is_free("k"));
    wait_until("no keeper is left", || place.survivors().is_empty());
    assert_eq!(owner_files(&place), 0);
}

#[test]
fn a_lease_that_nobody_could_be_told_of_is_given_back() {
    let place = Place::new();
    for options in ["--ttl 1h", "--keeper=$$ --ttl 1h"] {
        let told = finished(&place, &format!("leasehold acquire k {options} > /dev/full; echo $?")).expect(0);
        assert_eq!(told.stdout, "74\n", "{}", told.stderr);
        assert!(place.is_free("k"), "{options}");
        // The reader is gone before there is anything to read.
        let acquire = format!("until [ -e gone ]; do sleep 0.02; done; leasehold acquire k {options}");
        let told = finished(
            &place,
            &format!("rm -f gone code; {{ {acquire}; echo $? > code; }} | {{ exec <&-; touch gone; }}"),
        )
        .expect(0);
        assert_eq!(place.read("code"), "74\n", "{}", told.stderr);
        assert!(place.is_free("k"), "{options}");
    }
    assert_eq!(owner_files(&place), 0);
}

#[test]
fn a_store_that_does_not_answer_is_not_taken_for_a_busy_key() {
    let place = Place::new();
    place.run(["acquire", "k", "--ttl", "1h", "--owner-file", "own"]).expect(0);
    let occupied = rusqlite::Connection::open(place.path("leases.db")).unwrap();
    occupied.execute_batch("BEGIN IMMEDIATE").unwrap();
    for options in ["-n --ttl 2s", "-n --ttl 2s --keeper=$$"] {
        let ended =
            finished(&place, &format!("eval \"$(leasehold acquire other {options} --format shell)\"; touch on"));
        assert_eq!((ended.code(), place.path("on").exists()), (69, false), "{options}: {}", ended.stderr);
    }
    // The secret is still needed then.
    place.run(["release", "k", "--owner-file", "own"]).expect(69);
    occupied.execute_batch("ROLLBACK").unwrap();
    place.run(["release", "k", "--owner-file", "own"]).expect(0);
    assert!(place.is_free("k") && place.is_free("other"));
}

#[test]
fn a_late_release_does_not_touch_the_next_holder() {
    let place = Place::new();
    place.run(["acquire", "k", "--ttl", "15s", "--owner-file", "first"]).expect(0);
    place.run(["acquire", "k", "--ttl", "1m", "--owner-file", "second"]).expect(0);
    for command in ["release", "extend"] {
        let refused = place.run([command, "k", "--owner-file", "first"]).expect(79);
        assert!(refused.stderr.contains("not held by this owner token, now by "), "{}", refused.stderr);
    }
    assert!(!place.is_free("k"));
    place.run(["release", "k", "--owner-file", "second"]).expect(0);
    let refused = place.run(["release", "k", "--owner-file", "second"]).expect(79);
    assert!(refused.stderr.contains("there is no owner file"), "{}", refused.stderr);
    let refused = place.run(["release", "k", "--owner-file", "first"]).expect(79);
    assert!(refused.stderr.contains("nor by anybody else"), "{}", refused.stderr);
}

#[test]
fn the_secret_comes_by_file_variable_or_input() {
    let place = Place::new();
    let take = || {
        place.run(["acquire", "k", "--ttl", "1m", "--owner-file", "own"]).expect(0);
        place.read("own").trim_end().to_owned()
    };
    take();
    finished(&place, "export LEASEHOLD_OWNER_FILE=own; leasehold release k").expect(0);
    let token = take();
    finished(&place, &format!("export LEASEHOLD_OWNER={token}; leasehold release k")).expect(0);
    take();
    finished(&place, "leasehold release k --owner-file - < own").expect(0);
    assert!(place.is_free("k"));
    let nobody = place.run(["release", "k"]).expect(64);
    assert!(nobody.stderr.contains("--owner-file"), "{}", nobody.stderr);
    fs::write(place.path("empty"), "").unwrap();
    place.run(["release", "k", "--owner-file", "empty"]).expect(65);
}

#[test]
fn a_freeze_by_hand_says_why() {
    let place = Place::new();
    place.run(["hold", "deploy", "--for", "4h"]).expect(64);
    place.run(["hold", "deploy", "--for", "25h", "--reason", "r"]).expect(65);
    place.run(["hold", "deploy", "--for", "4h", "--reason", "freeze", "--owner-file", "own"]).expect(0);
    let busy = place.run(["run", "deploy", "-n", "--", "true"]).expect(75);
    assert!(busy.stderr.contains("reason: freeze") && busy.stderr.contains("lease ends in 3h59m"), "{}", busy.stderr);
    place.run(["release", "deploy", "--owner-file", "own"]).expect(0);
    assert!(place.is_free("deploy"));
}

#[test]
fn waiting_takes_nothing() {
    let place = Place::new();
    place.run(["wait", "k"]).expect(0);
    place.run(["wait", "k", "--for", "held", "-w", "50ms"]).expect(75);
    place.run(["acquire", "k", "--ttl", "1m", "--owner-file", "own"]).expect(0);
    place.run(["wait", "k", "--for", "held"]).expect(0);
    let late = place.run(["wait", "k", "-w", "0"]).expect(75);
    assert!(late.stderr.contains("busy: \"k\" is held (exit 75)"), "{}", late.stderr);
    let quiet = place.run(["wait", "k", "-w", "10ms", "-q"]).expect(75);
    assert_eq!(quiet.stdout + &quiet.stderr, "");
    let change = place.start(place.command(["wait", "k", "--for", "change"]));
    wait_until("it waits", || change.stderr().contains("waiting for \"k\" to change hands"));
    place.run(["release", "k", "--owner-file", "own"]).expect(0);
    change.finish_within(Duration::from_secs(60)).expect(0);
    assert!(place.is_free("k"));
}

#[test]
fn scripts_that_share_an_owner_file_take_turns() {
    let place = Place::new();
    let turns = "for turn in 1 2 3 4; do
                     leasehold acquire k --ttl 1m --owner-file own > name || exit 1
                     leasehold release k --owner-file own || exit 2
                 done";
    place.create();
    let scripts: Vec<_> = (0..3).map(|_| script(&place, turns)).collect();
    for ended in scripts {
        ended.finish().expect(0);
    }
    assert!(place.is_free("k") && !place.path("own").exists());
}

#[test]
fn an_owner_file_in_a_directory_of_somebody_else_is_put_elsewhere() {
    let place = Place::new();
    let runtime = place.path("runtime");
    let taken = |mode: u32| {
        fs::create_dir_all(runtime.join("leasehold/owners")).unwrap();
        fs::set_permissions(runtime.join("leasehold/owners"), fs::Permissions::from_mode(mode)).unwrap();
        let mut command = place.command(["acquire", "k", "--ttl", "1m"]);
        command.env("XDG_RUNTIME_DIR", &runtime);
        let path = place.start(command).finish().expect(0).stdout;
        place.run(["release", "k", "--owner-file", path.trim_end()]).expect(0);
        path
    };
    assert!(taken(0o700).starts_with(runtime.to_str().unwrap()));
    assert!(taken(0o777).starts_with(place.path("state").to_str().unwrap()));
}

#[test]
fn a_keeper_s_number_that_was_given_anew_is_not_ended() {
    let place = Place::new();
    place.run(["acquire", "k", "--ttl", "1m", "--owner-file", "own"]).expect(0);
    let other = place.start(place.program(["sleep", "60"]));
    let secret = place.read("own");
    // It was started at another moment.
    fs::write(place.path("own"), format!("{secret}keeper {} 1 leasehold:k\n", other.pid().as_raw_nonzero())).unwrap();
    place.run(["extend", "k", "--owner-file", "own"]).expect(0);
    place.run(["release", "k", "--owner-file", "own"]).expect(0);
    assert!(place.is_free("k") && crate::support::is_running(other.pid()));
}
