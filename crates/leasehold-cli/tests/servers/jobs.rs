//! `run` on stores that have a server: signals, deaths, stops, outages, what comes late.

use std::fs;

use leasehold::testkit::Proxy;
use leasehold::{Close, LockManager};
use rustix::process::Signal;

use crate::site::Site;
use crate::support::{BINARY, is_running, wait_until};

on_servers! {
    signals_end_a_wait_and_a_job
    one_that_is_killed_leaves_nothing_but_its_ttl
    one_that_was_stopped_for_too_long_is_over
    what_comes_late_takes_nothing
    one_that_becomes_a_daemon_does_not_keep_the_key
    a_store_that_is_down_is_not_a_busy_key
    one_inside_of_another_says_so
    the_library_and_the_command_exclude_each_other
}
on_sessions! {
    signals_end_a_wait_and_a_job
    one_that_is_killed_leaves_nothing_but_its_ttl
    a_store_that_is_down_is_not_a_busy_key
    the_library_and_the_command_exclude_each_other
}

const ENDING: [(Signal, i32); 4] = [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131), (Signal::INT, 130)];

fn signals_end_a_wait_and_a_job(site: &Site) {
    for (signal, code) in ENDING {
        let first = site.hold("k", &[], "exec sleep 60");
        let second = site.start(site.command(["run", "k", "--", "touch", "ran"]));
        wait_until("the second waits", || second.stderr().contains("waiting"));
        second.signal(signal);
        let second = second.finish().expect(code);
        assert!(second.stderr.contains("while waiting for \"k\""), "{}", second.stderr);
        assert!(!site.is_free("k"));
        first.signal(signal);
        assert_eq!(first.finish().expect(code).stderr, "");
        assert!(site.is_free("k") && !site.path("ran").exists());
        assert_eq!(site.survivors(), []);
    }
}

fn one_that_is_killed_leaves_nothing_but_its_ttl(site: &Site) {
    let first = site.hold("k", &["--ttl", "9s"], "sleep 60 & wait");
    first.signal(Signal::KILL);
    wait_until("nothing is left", || site.survivors().is_empty());
    site.run(["run", "k", "-w", "60", "--", "true"]).expect(0);
}

fn one_that_was_stopped_for_too_long_is_over(site: &Site) {
    let first = site.hold("k", &["--ttl", "6s"], "trap '' TERM; while :; do sleep 0.02; done");
    first.signal(Signal::STOP);
    site.run(["run", "k", "-w", "60", "--", "true"]).expect(0);
    assert_eq!(site.survivors().iter().filter(|pid| **pid == site.pid("pid")).count(), 0, "the job lives");
    first.signal(Signal::CONT);
    let first = first.finish().expect(79);
    assert!(first.stderr.contains("lost: the lease on \"k\""), "{}", first.stderr);
    assert_eq!(site.survivors(), []);
}

fn what_comes_late_takes_nothing(site: &Site) {
    let first = site.hold("k", &["--ttl", "6s"], "exec sleep 60");
    first.signal(Signal::STOP);
    site.run(["acquire", "k", "-w", "60", "--ttl", "1m", "--owner-file", "own"]).expect(0);
    first.signal(Signal::CONT);
    first.finish().expect(79);
    site.run(["extend", "k", "--owner-file", "own"]).expect(0);
    site.run(["release", "k", "--owner-file", "own"]).expect(0);
    assert!(site.is_free("k"));
}

fn one_that_becomes_a_daemon_does_not_keep_the_key(site: &Site) {
    let job = "setsid sh -c 'echo $$ > daemon.new; mv daemon.new daemon; exec sleep 60' &
               while [ ! -e daemon ]; do sleep 0.02; done";
    site.run(["run", "k", "-c", job]).expect(0);
    assert!(site.is_free("k") && is_running(site.pid("daemon")));
}

fn a_store_that_is_down_is_not_a_busy_key(site: &Site) {
    let proxy = Proxy::start(site.server().address()).unwrap();
    let url = site.url_at(proxy.address());
    let refused = |options: &[&str], words: &str| {
        let arguments = [&["run", "k", "-s", &url, "--ttl", "3s"], options, &["--", "touch", "ran"]].concat();
        let ended = site.run(arguments).expect(69);
        assert!(ended.stderr.contains(words) && ended.stderr.contains("not started"), "{}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    };
    proxy.hold();
    refused(&["-n"], "did not answer");
    proxy.heal();
    proxy.refuse();
    for options in [&["-n"][..], &["-n", "--skip-ok"], &["-w", "200ms", "-E", "3"]] {
        refused(options, "refused");
    }
    assert!(!site.path("ran").exists());
}

fn one_inside_of_another_says_so(site: &Site) {
    let ended = site.run(["run", "k", "-c", &format!("{BINARY} run k -w 60 -- touch ran")]).expect(64);
    assert!(ended.stderr.contains("would wait for its own parent"), "{}", ended.stderr);
    site.run(["run", "k", "-c", &format!("{BINARY} run other -n -- touch ran")]).expect(0);
    assert!(site.path("ran").exists() && site.is_free("k"));
}

fn the_library_and_the_command_exclude_each_other(site: &Site) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = LockManager::connect(&site.store()).await.unwrap();
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        site.run(["run", "k", "-n", "--", "true"]).expect(75);
        guard.release().await.unwrap();
        let job = site.hold("k", &[], "while [ ! -e go ]; do sleep 0.02; done");
        assert!(locks.lock("k").try_acquire().await.unwrap().is_none());
        fs::write(site.path("go"), "").unwrap();
        job.finish().expect(0);
        assert!(locks.lock("k").try_acquire().await.unwrap().is_some());
        locks.close(Close::Release).await.unwrap();
    });
}
