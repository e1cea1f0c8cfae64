//! What a script learns from its keeper, on each store.

use leasehold::testkit::Proxy;
use rustix::process::Pid;

use crate::site::Site;
use crate::support::{proc_file, wait_until};

on_stores! {
    a_script_is_told_of_a_loss
    a_script_may_be_told_otherwise
    a_resume_is_no_loss
    one_key_s_secret_is_not_another_s
    ; a_script_is_told_before_its_lease_ends
    a_script_is_told_again_after_a_recovery
}
on_sessions! {
    one_key_s_secret_is_not_another_s
}

/// The ttl is an hour, where there is one: it is not what frees the key.
pub(crate) const KEEP: &str = "out=$(leasehold acquire k --keeper=$$ --ttl 1h --format shell) || exit; eval \"$out\"";

/// So that what is told by no server is found out soon.
const KEEP_BRIEFLY: &str = "out=$(leasehold acquire k --keeper=$$ --ttl 12s --format shell) || exit; eval \"$out\"";

/// The keepers of a site that run.
pub(crate) fn keepers(site: &Site) -> Vec<Pid> {
    let is_keeper = |pid: &Pid| {
        let line = std::fs::read(proc_file(*pid, "cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == b"__keep")
    };
    site.survivors().into_iter().filter(is_keeper).collect()
}

pub(crate) fn owner_files(site: &Site) -> usize {
    std::fs::read_dir(site.path("state/leasehold/owners")).map_or(0, Iterator::count)
}

/// Notes the moment at which it is told, and goes on.
const TRAPPED: &str = "trap 'date +%s.%N > told; exit 9' TERM; touch on; while :; do sleep 0.02; done";

fn a_script_is_told_of_a_loss(site: &Site) {
    let running = site.script(&format!("{KEEP_BRIEFLY}; {TRAPPED}"));
    wait_until("it holds the key", || site.path("on").exists());
    site.run(["force-release", "k", "--yes"]).expect(0);
    let ended = running.finish().expect(9);
    assert!(ended.stderr.contains("lost: the lease on \"k\" is lost (not held"), "{}", ended.stderr);
    assert!(ended.stderr.contains("TERM sent to process "), "{}", ended.stderr);
    wait_until("the keeper is gone", || keepers(site).is_empty());
    assert_eq!(owner_files(site), 0);
}

fn a_script_is_told_before_its_lease_ends(site: &Site) {
    let proxy = Proxy::start(site.server().address()).unwrap();
    let cut = site.url_at(proxy.address());
    let running = site.script(&format!(
        "out=$(leasehold acquire k -s '{cut}' --keeper=$$ --ttl 6s --format shell) || exit; eval \"$out\"; {TRAPPED}"
    ));
    wait_until("it holds the key", || site.path("on").exists());
    proxy.hold();
    // It may be granted the key when the lease has ended, and not before.
    let next = site.start(site.command(["run", "k", "-w", "60", "-c", "date +%s.%N > next"]));
    let ended = running.finish().expect(9);
    assert!(
        ended.stderr.contains("the lease on \"k\" could not be renewed; TERM sent to process "),
        "{}",
        ended.stderr
    );
    next.finish().expect(0);
    let at = |file: &str| site.read(file).trim().parse::<f64>().unwrap();
    assert!(at("told") < at("next"));
}

fn a_script_is_told_again_after_a_recovery(site: &Site) {
    let proxy = Proxy::start(site.server().address()).unwrap();
    let cut = site.url_at(proxy.address());
    // Told at half of the time between the first failure and the end, so that there is time to recover in.
    let running = site.script(&format!(
        "out=$(leasehold acquire k -s '{cut}' --keeper=$$ --ttl 20s --format shell) || exit; eval \"$out\"
         trap 'echo >> told' TERM; touch on; while [ ! -e go ]; do sleep 0.02; done"
    ));
    wait_until("it holds the key", || site.path("on").exists());
    proxy.hold();
    wait_until("it is told that the lease ends", || site.read("told").lines().count() == 1);
    proxy.heal();
    wait_until("the lease is renewed", || {
        // Nothing is shown if a busy server does not answer in time.
        let shown: serde_json::Value =
            serde_json::from_str(&site.run(["show", "k", "--json"]).stdout).unwrap_or_default();
        shown["holders"][0]["remaining_ms"].as_u64().is_some_and(|remaining| remaining > 15_000)
    });
    site.run(["force-release", "k", "--yes"]).expect(0);
    wait_until("it is told of the loss", || site.read("told").lines().count() == 2);
    std::fs::write(site.path("go"), "").unwrap();
    running.finish().expect(0);
}

fn a_script_may_be_told_otherwise(site: &Site) {
    for (option, code) in [("signal:USR1", 8), ("continue", 7)] {
        let running = site.script(&format!(
            "trap 'exit 8' USR1; out=$(leasehold acquire k --keeper=$$ --ttl 12s --on-lost {option}) || exit; touch on
             for _ in $(seq 1000); do [ ! -e go ] || exit 7; sleep 0.02; done"
        ));
        wait_until("it holds the key", || site.path("on").exists());
        site.run(["force-release", "k", "--yes"]).expect(0);
        if code == 7 {
            wait_until("it is told", || running.stderr().contains("is lost"));
            std::fs::write(site.path("go"), "").unwrap();
        }
        let ended = running.finish().expect(code);
        assert!(ended.stderr.contains("lost: the lease on \"k\""), "{}", ended.stderr);
        std::fs::remove_file(site.path("on")).unwrap();
    }
    site.run(["acquire", "k", "--ttl", "1m", "--on-lost", "continue"]).expect(64);
    site.run(["acquire", "k", "--keeper=1", "--on-lost", "signal:NONE"]).expect(64);
}

fn a_resume_is_no_loss(site: &Site) {
    let ended =
        site.finished(&format!("{KEEP_BRIEFLY}; trap 'echo told' TERM; leasehold resume k -- sleep 6; echo $?"));
    assert_eq!((&*ended.stdout, &*ended.stderr), ("0\n", ""));
    assert!(site.is_free("k"));
    // One that comes to nothing changes nothing.
    let running =
        site.script(&format!("{KEEP_BRIEFLY}; leasehold resume k --namespace other -- true; echo $?; {TRAPPED}"));
    wait_until("it holds the key", || site.path("on").exists());
    assert!(running.stdout().contains("79"), "{}", running.stdout());
    site.run(["force-release", "k", "--yes"]).expect(0);
    running.finish().expect(9);
}

fn one_key_s_secret_is_not_another_s(site: &Site) {
    let running = site.script(&format!("{KEEP}; touch on; exec sleep 60"));
    wait_until("it holds the key", || site.path("on").exists());
    let file = std::fs::read_dir(site.path("state/leasehold/owners")).unwrap().next().unwrap().unwrap().path();
    let file = file.to_str().unwrap();
    for arguments in [["release", "other"], ["extend", "other"]] {
        let refused = site.run([&arguments[..], &["--owner-file", file]].concat()).expect(79);
        assert!(refused.stderr.contains("which is that of \"leasehold:k\""), "{}", refused.stderr);
    }
    assert!(!site.is_free("k"));
    assert_eq!(keepers(site).len(), 1);
    drop(running);
}
