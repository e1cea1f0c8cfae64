//! A lease that a process in the background keeps until a script ends.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::across::{owner_files, script};
use crate::support::{BINARY, Place, full_pipe, handles_term, is_running, proc_file, wait_until};

const TAKE: &str = "out=$(leasehold acquire k --keeper=$$ --ttl 1h --format shell) || exit; eval \"$out\"";

/// The keepers of a place that run.
fn keepers(place: &Place) -> Vec<Pid> {
    let is_keeper = |pid: &Pid| {
        let line = std::fs::read(proc_file(*pid, "cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == b"__keep")
    };
    place.survivors().into_iter().filter(is_keeper).collect()
}

#[test]
fn the_key_is_free_at_once_when_the_script_ends_in_whatever_way() {
    let place = Place::new();
    // The ttl is an hour: it is not what frees the key.
    for (rest, signal) in
        [("exit 7", None), ("exec sleep 60", Some(Signal::KILL)), ("exec sleep 60", Some(Signal::TERM))]
    {
        let mut running = script(&place, &format!("{TAKE}; leasehold show k > held; mv held on; {rest}"));
        wait_until("it holds the key", || place.read("on").contains("is held"));
        std::fs::remove_file(place.path("on")).unwrap();
        if signal.is_some() {
            assert_eq!(owner_files(&place), 1);
        }
        if let Some(signal) = signal {
            assert_eq!(keepers(&place).len(), 1);
            running.signal(signal);
        }
        wait_until("it has ended", || running.has_ended());
        wait_until("the key is free", || place.is_free("k"));
        wait_until("the keeper is gone", || keepers(&place).is_empty());
        wait_until("the owner file is gone", || owner_files(&place) == 0);
    }
}

#[test]
fn a_release_ends_the_keeper() {
    let place = Place::new();
    let running =
        script(&place, &format!("{TAKE}; leasehold extend k && leasehold release k && echo released; exec sleep 60"));
    wait_until("it has released", || running.stdout() == "released\n");
    // By then, and not by the next renewal.
    assert_eq!(keepers(&place), []);
    assert!(place.is_free("k"));
    assert_eq!(owner_files(&place), 0);
}

#[test]
fn a_keeper_renews() {
    let place = Place::new();
    let running = script(
        &place,
        "out=$(leasehold acquire k --keeper=$$ --ttl 15s --format shell) || exit; eval \"$out\"; echo on; exec sleep 60",
    );
    wait_until("it holds the key", || running.stdout() == "on\n");
    let fence = || {
        let json: Value = serde_json::from_str(&place.run(["show", "k", "--json"]).stdout).unwrap();
        json["holders"][0]["fencing"].as_u64()
    };
    let first = fence().unwrap();
    // Longer than the lease stands without renewal.
    place.run(["wait", "k", "--for", "change", "-w", "17s"]).expect(75);
    assert_eq!(fence(), Some(first));
}

#[test]
fn a_keeper_holds_nothing_of_the_script_open() {
    let place = Place::new();
    // Ends although the keeper lives: whoever reads the output does not wait for it.
    let running = script(
        &place,
        "exec 3> three; out=$(leasehold acquire k -v --keeper=$$ 2>&1) || exit; echo \"$out\" | cat; exec sleep 60",
    );
    wait_until("the output has ended", || running.stdout().contains("owner-"));
    let [keeper] = keepers(&place)[..] else { panic!("not one keeper") };
    for number in ["0", "1", "2"] {
        wait_until("it has let go", || {
            std::fs::read_link(proc_file(keeper, "fd").join(number)).unwrap().to_str() == Some("/dev/null")
        });
    }
    for file in std::fs::read_dir(proc_file(keeper, "fd")).unwrap().flatten() {
        assert_ne!(std::fs::read_link(file.path()).unwrap_or_default(), place.path("three"));
    }
    assert!(is_running(keeper));
}

#[test]
fn without_a_number_the_parent_is_watched() {
    let place = Place::new();
    let done =
        script(&place, "leasehold acquire k --keeper --format json && leasehold show k && : ").finish().expect(0);
    let answer: Value = serde_json::from_str(done.stdout.lines().next().unwrap()).unwrap();
    assert_eq!((&answer["schema"], &answer["outcome"]), (&"leasehold.acquire/1".into(), &"acquired".into()));
    assert!(answer["keeper"].is_u64() && done.stdout.contains("\"k\" is held"));
    wait_until("the key is free", || place.is_free("k"));
}

#[test]
fn a_killed_keeper_is_noticed_by_extend() {
    let place = Place::new();
    let running = script(
        &place,
        &format!(
            "{TAKE}; touch on; while [ ! -e go ]; do sleep 0.01; done; leasehold extend k; echo $?; leasehold release k; echo $?"
        ),
    );
    wait_until("it holds the key", || place.path("on").exists());
    kill_process(keepers(&place)[0], Signal::KILL).unwrap();
    // The store can tell that it is dead.
    wait_until("the key is free", || place.is_free("k"));
    std::fs::write(place.path("go"), "").unwrap();
    assert_eq!(running.finish().expect(0).stdout, "79\n79\n");
}

#[test]
fn nobody_is_kept_for_who_does_not_live() {
    let place = Place::new();
    let gone = script(&place, "echo $$").finish().expect(0).stdout;
    let refused = place.run(["acquire", "k", &format!("--keeper={}", gone.trim())]).expect(64);
    assert!(refused.stderr.contains("there is no process"), "{}", refused.stderr);
    assert!(place.is_free("k"));
    place.run(["acquire", "k", "--keeper=0"]).expect(64);
    // Started by hand it has nobody to answer.
    place.start(place.command(["__keep", "1", "acquire", "k", "--keeper=1"])).finish_within(Duration::from_secs(60));
    assert!(place.is_free("k"));
}

#[test]
fn a_killed_acquire_leaves_no_keeper() {
    let place = Place::new();
    place.run(["acquire", "k", "--ttl", "1h", "--owner-file", "own"]).expect(0);
    let mut waiting = place.start(place.command(["acquire", "k", "--keeper=1"]));
    wait_until("it waits", || waiting.stderr().contains("waiting for"));
    waiting.signal(Signal::KILL);
    wait_until("it is dead", || waiting.has_ended());
    wait_until("the keeper is gone", || keepers(&place).is_empty());
    place.run(["release", "k", "--owner-file", "own"]).expect(0);
    assert!(place.is_free("k"));
}

#[test]
fn a_lease_that_is_lost_before_it_is_told_of_is_no_success() {
    let place = Place::new();
    let (reader, writer) = full_pipe();
    let acquire = format!("'{BINARY}' acquire k --keeper=$$ --ttl 9s 1>&0 </dev/null; echo $? > code");
    let mut command = place.program(["sh", "-c", &format!("trap 'echo told > told' TERM; {acquire}")]);
    command.stdin(writer);
    let running = place.start(command);
    wait_until("it holds the key", || !place.is_free("k"));
    place.run(["force-release", "k", "--yes"]).expect(0);
    wait_until("the keeper is gone", || keepers(&place).is_empty());
    std::thread::spawn(move || std::io::copy(&mut { reader }, &mut std::io::sink()));
    let ended = running.finish().expect(0);
    assert_eq!(place.read("code"), "79\n", "{}", ended.stderr);
    assert!(!place.path("told").exists());
    assert_eq!(owner_files(&place), 0);
}

#[test]
fn an_interrupted_resume_does_not_silence_the_keeper() {
    let place = Place::new();
    let running = script(
        &place,
        "out=$(leasehold acquire k --keeper=$$ --ttl 9s --format shell) || exit; eval \"$out\"
         trap 'exit 9' TERM; cp \"$LEASEHOLD_OWNER_FILE\" own; touch on; while :; do sleep 0.02; done",
    );
    wait_until("it holds the key", || place.path("on").exists());
    let occupied = rusqlite::Connection::open(place.path("leases.db")).unwrap();
    occupied.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut resume = place.start(place.command(["resume", "k", "--from", "own", "--", "true"]));
    wait_until("it handles signals", || handles_term(resume.pid()));
    // It is about to ask the store, which does not answer.
    std::thread::sleep(Duration::from_millis(300));
    resume.signal(Signal::TERM);
    wait_until("it is interrupted", || resume.has_ended());
    occupied.execute_batch("ROLLBACK").unwrap();
    // Unless the lease has ended meanwhile, of which the script is told as well.
    place.run(["force-release", "k", "--yes"]);
    running.finish().expect(9);
}

#[test]
fn a_stopped_keeper_is_ended_by_a_release() {
    let place = Place::new();
    let running = script(&place, &format!("{TAKE}; cp \"$LEASEHOLD_OWNER_FILE\" own; touch on; exec sleep 60"));
    wait_until("it holds the key", || place.path("on").exists());
    kill_process(keepers(&place)[0], Signal::STOP).unwrap();
    place.run(["release", "k", "--owner-file", "own"]).expect(0);
    assert_eq!(keepers(&place), []);
    assert!(place.is_free("k"));
    drop(running);
}

#[test]
fn the_owner_token_of_a_script_shows_nowhere() {
    let place = Place::new();
    let running = script(&place, &format!("{TAKE}; env > environment; leasehold extend k -v; touch on; exec sleep 60"));
    wait_until("it holds the key", || place.path("on").exists());
    let token = place.owner("k");
    let mut shown = place.read("environment").into_bytes();
    assert!(!shown.is_empty());
    for process in place.survivors() {
        for file in ["cmdline", "environ", "comm", "status"] {
            shown.extend(std::fs::read(proc_file(process, file)).unwrap_or_default());
        }
        for file in std::fs::read_dir(proc_file(process, "fd")).into_iter().flatten().flatten() {
            let opened = std::fs::read_link(file.path()).unwrap_or_default();
            assert!(!opened.to_string_lossy().contains("owner"), "{opened:?} is open");
        }
    }
    for arguments in [
        &["acquire", "k", "-n", "-v", "--ttl", "1m", "--format", "json"][..],
        &["acquire", "k", "-n", "-v", "--keeper=1", "--log-format", "json", "--format", "json"],
        &["acquire", "free", "-v", "--ttl", "1m", "--format", "json"],
        &["show", "k", "--json", "-v"],
        &["wait", "k", "-w", "0", "-v"],
        &["force-release", "k", "-v"],
        &["force-release", "k", "--yes", "--json", "-v"],
        &["doctor", "--json", "-v"],
    ] {
        let ended = place.run(arguments);
        shown.extend((ended.stdout + &ended.stderr).into_bytes());
    }
    let ps = place.start(place.program(["ps", "axeww"])).finish().expect(0);
    shown.extend((ps.stdout + &running.stdout() + &running.stderr()).into_bytes());
    let text = String::from_utf8_lossy(&shown);
    assert!(text.contains("LEASEHOLD_OWNER_FILE=") && text.contains("leasehold.acquire/1") && text.contains("__keep"));
    for secret in [token, place.owner("free")] {
        assert_eq!(secret.len(), 32);
        assert!(!text.contains(&secret[..16]) && !text.contains(&secret[16..]), "the owner token is shown");
    }
}
