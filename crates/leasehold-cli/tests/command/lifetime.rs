//! The job's life under its lease: stopped in time, seen to be gone, nothing left behind.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rusqlite::Connection;
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::process::{Signal, kill_process};

use crate::input::{NOBODY, as_nobody};
use crate::support::{Place, is_running, proc_file, wait_until};

/// A ttl that is waited for in tests, renewed so often that a slow machine does not lose it.
const SHORT: [&str; 6] = ["--ttl", "6s", "--renew-every", "500ms", "-k", "500ms"];

#[test]
fn a_lease_is_renewed_for_as_long_as_the_job_runs() {
    let place = Place::new();
    let first = place.hold("k", &SHORT, "while [ ! -e go ]; do sleep 0.02; done");
    place.run(["run", "k", "-w", "7", "--", "true"]).expect(75);
    fs::write(place.path("go"), "").unwrap();
    first.finish().expect(0);
}

#[test]
fn a_lease_that_is_not_renewed_ends_the_job_before_it_ends() {
    let place = Place::new();
    let finished = place.run(["run", "k", "--ttl", "12s", "--no-renew", "-k", "6s", "--", "sleep", "60"]).expect(79);
    for part in [
        "lost: the lease on \"k\" ends and is not renewed",
        "TERM sent to group",
        "  why ",
        "  effect ",
        "(exit 79)",
        "  store    sqlite://",
        "  look     leasehold show k",
        "a longer --ttl",
    ] {
        assert!(finished.stderr.contains(part), "{part} is not in\n{}", finished.stderr);
    }
    assert!(finished.stderr.contains("nobody else could hold the key before"), "{}", finished.stderr);
    let stubborn = "trap '' TERM; sleep 60 & while :; do wait; done";
    let finished = place
        .run(["run", "k", "-w", "30", "--ttl", "8s", "--no-renew", "-k", "4s", "--", "sh", "-c", stubborn])
        .expect(79);
    assert!(finished.stderr.contains("TERM and KILL sent to group"), "{}", finished.stderr);
    assert_eq!(place.survivors(), []);
}

#[test]
fn a_store_that_is_gone_stops_the_job() {
    let place = Place::new();
    let first = place.hold("k", &SHORT, "sleep 60 & echo $! > grandchild; wait");
    let grandchild = place.pid("grandchild");
    for file in ["leases.db", "leases.db-wal", "leases.db-shm"] {
        fs::remove_file(place.path(file)).ok();
    }
    let finished = first.finish().expect(79);
    assert!(finished.stderr.contains("lost: the lease on \"k\""), "{}", finished.stderr);
    assert!(!is_running(grandchild));
    assert_eq!(place.survivors(), []);
}

#[test]
fn one_that_was_stopped_past_its_lease_kills_the_job_at_once() {
    let place = Place::new();
    let first = place.hold("k", &SHORT, "trap '' TERM; sleep 60 & echo $! > grandchild; while :; do wait; done");
    let (job, grandchild) = (place.pid("pid"), place.pid("grandchild"));
    first.signal(Signal::STOP);
    // The next holder is the proof that the lease is over.
    let script = "while [ ! -e go ]; do sleep 0.02; done; exit 6";
    let second = place.start(place.command(["run", "k", "--", "sh", "-c", &format!("touch second; {script}")]));
    wait_until("the second runs", || place.path("second").exists());
    first.signal(Signal::CONT);
    let finished = first.finish().expect(79);
    assert!(finished.stderr.contains(" KILL sent to group"), "{}", finished.stderr);
    assert!(!finished.stderr.contains("TERM"), "{}", finished.stderr);
    assert!(!is_running(job) && !is_running(grandchild));
    assert!(!place.is_free("k"));
    fs::write(place.path("go"), "").unwrap();
    second.finish().expect(6);
}

#[test]
fn a_store_that_says_not_yours_leaves_little_time() {
    let place = Place::new();
    // The lease's end and the grace are far beyond what this test waits for.
    let options = ["--ttl", "1h", "--renew-every", "500ms", "-k", "20m"];
    let first = place.hold("k", &options, "trap '' TERM; touch up; sleep 60 & while :; do wait; done");
    wait_until("it ignores TERM", || place.path("up").exists());
    let db = Connection::open(place.path("leases.db")).unwrap();
    db.pragma_update(None, "busy_timeout", 50_000).unwrap();
    assert_eq!(db.execute("DELETE FROM leases", []).unwrap(), 1);
    let finished = first.finish_within(Duration::from_secs(10)).expect(79);
    for part in ["is not held any more; TERM and KILL sent to group", "somebody else may have held the key"] {
        assert!(finished.stderr.contains(part), "{part} is not in\n{}", finished.stderr);
    }
    assert_eq!(place.survivors(), []);
}

#[test]
fn a_job_that_became_another_user_is_not_said_to_be_stopped() {
    let place = Place::new();
    let Some(binary) = as_nobody(&place) else {
        return;
    };
    if statvfs(place.path("")).unwrap().f_flag.contains(StatVfsMountFlags::NOSUID) {
        eprintln!("skipped: nothing becomes another user in a temporary directory that is mounted nosuid");
        return;
    }
    let copied = Command::new("sh")
        .args([
            "-c",
            "cp \"$(command -v setpriv)\" become && chmod 4755 become && \
        mkdir home && chown nobody home",
        ])
        .current_dir(place.path(""))
        .status()
        .unwrap();
    assert!(copied.success());
    let url = format!("sqlite://{}", place.path("home/leases.db").display());
    let script = "while [ ! -e go ]; do sleep 0.02; done";
    let run = [&binary, "run", "k", "-s", &url, "--ttl", "8s", "--no-renew", "--"];
    let job = ["./become", "--reuid", "0", "--regid", "0", "--clear-groups", "sh", "-c", script];
    let mut command = place.program(run.iter().chain(&job));
    command.uid(NOBODY).gid(NOBODY);
    let mut first = place.start(command);
    wait_until("the job is out of reach", || {
        assert!(!first.has_ended(), "{}", first.stderr());
        first.stderr().contains("WITHOUT the lease since")
    });
    wait_until("the key is free", || place.run(["show", "k", "-s", &url]).code() == 1);
    fs::write(place.path("go"), "").unwrap();
    let finished = first.finish().expect(79);
    for part in ["cannot signal group", "(it runs as another user)", "stop it by hand", "could not be signalled"] {
        assert!(finished.stderr.contains(part), "{part} is not in\n{}", finished.stderr);
    }
    assert!(!finished.stderr.contains(" sent to group"), "{}", finished.stderr);
}

#[test]
fn a_group_that_outlives_its_first_process_keeps_the_lease_until_it_is_stopped() {
    let place = Place::new();
    let script = "sleep 60 & echo $! > grandchild; exit 4";
    let first = place.start(place.command(["run", "k", "--ttl", "15s", "--", "sh", "-c", script]));
    let grandchild = place.pid("grandchild");
    let check = "! grep -q '^State:.[RSDT]' /proc/$(cat grandchild)/status 2> /dev/null";
    let second = place.start(place.command(["run", "k", "--", "sh", "-c", check]));
    let finished = first.finish().expect(4);
    assert!(finished.stderr.contains("warning: \"sh\" ended and left processes in its group"), "{}", finished.stderr);
    assert!(!is_running(grandchild));
    // The second found nothing of the first.
    second.finish().expect(0);
}

#[test]
fn a_group_that_ends_soon_after_its_first_process_is_waited_for() {
    let place = Place::new();
    let script = "(while [ ! -e go ]; do sleep 0.02; done; echo end > end) & exit 4";
    let mut first = place.start(place.command(["run", "k", "--", "sh", "-c", script]));
    wait_until("the key is held", || !place.is_free("k"));
    assert!(!first.has_ended());
    fs::write(place.path("go"), "").unwrap();
    let finished = first.finish().expect(4);
    assert_eq!(finished.stderr, "");
    assert_eq!(place.read("end"), "end\n");
    assert!(place.is_free("k"));
}

#[test]
fn a_shell_that_is_killed_does_not_free_what_it_started() {
    let place = Place::new();
    let first = place.hold("k", &SHORT, "trap '' TERM; sleep 60 & echo $! > grandchild; while :; do wait; done");
    let grandchild = place.pid("grandchild");
    kill_process(place.pid("pid"), Signal::KILL).unwrap();
    let finished = first.finish().expect(137);
    assert!(finished.stderr.contains("TERM and KILL sent to group"), "{}", finished.stderr);
    assert!(!is_running(grandchild));
    assert!(place.is_free("k"));
}

#[test]
fn a_daemon_that_leaves_the_group_does_not_keep_the_key() {
    let place = Place::new();
    let script = "setsid sh -c 'echo $$ > daemon; exec sleep 60' & \
        while [ ! -s daemon ]; do sleep 0.02; done";
    place.run(["run", "k", "--", "sh", "-c", script]).expect(0);
    assert!(place.is_free("k"));
    let daemon = place.pid("daemon");
    assert!(is_running(daemon));
    let inherited = fs::read_dir(proc_file(daemon, "fd"))
        .unwrap()
        .filter_map(|file| fs::read_link(file.unwrap().path()).ok())
        .any(|file| file.to_string_lossy().contains("leases.db"));
    assert!(!inherited);
}

#[test]
fn one_that_is_killed_frees_the_key_long_before_its_ttl() {
    let place = Place::new();
    let first = place.hold("k", &["--ttl", "1h"], "sleep 60");
    assert!(!place.is_free("k"));
    first.signal(Signal::KILL);
    place.run(["run", "k", "-w", "50", "--", "true"]).expect(0);
}

#[test]
fn a_grace_that_leaves_no_time_is_refused() {
    let place = Place::new();
    for (ttl, kill_after, code) in [("30s", "30s", 78), ("30s", "20s", 78), ("30s", "19s", 0), ("12s", "0", 0)] {
        place.run(["run", "k", "--ttl", ttl, "-k", kill_after, "--", "true"]).expect(code);
    }
    place.run(["run", "k", "--ttl", "30s", "--no-renew", "-k", "29s", "--", "true"]).expect(0);
    place.run(["run", "k", "--ttl", "30s", "--renew-every", "15s", "-k", "15s", "--", "true"]).expect(78);
}
