//! Busy keys: not waiting, waiting for a while, waiting for ever.

use std::fs;

use rustix::process::Signal;

use crate::support::{Place, wait_until};

#[test]
fn without_waiting_a_busy_key_is_told_at_once() {
    let place = Place::new();
    let _first = place.hold("import:nightly", &["--reason", "nightly import"], "sleep 60");
    let finished = place.run(["run", "import:nightly", "-n", "--", "touch", "ran"]).expect(75);
    let said = &finished.stderr;
    for part in [
        "leasehold: busy: \"import:nightly\" is held (exit 75)",
        "  holder   ",
        " pid ",
        "  sh  ",
        "reason: nightly import",
        "  since    20",
        "lease ends in ",
        "leases.db",
        "namespace leasehold",
        "leasehold show import:nightly",
        "-w 30s",
    ] {
        assert!(said.contains(part), "{part} is not in\n{said}");
    }
    assert_eq!(finished.stdout, "");
    assert!(!place.path("ran").exists());
}

#[test]
fn a_wait_runs_out() {
    let place = Place::new();
    let first = place.hold("k", &[], "sleep 60");
    for wait in ["0", "0s", "300ms", "0.2"] {
        let finished = place.run(["run", "k", "-w", wait, "--", "touch", "ran"]).expect(75);
        assert!(finished.stderr.contains("(exit 75)"), "{}", finished.stderr);
    }
    let said = place.run(["run", "k", "-w", "300ms", "--", "touch", "ran"]).expect(75).stderr;
    assert!(said.contains("still held after 300ms"), "{said}");
    assert!(!place.path("ran").exists());
    first.signal(Signal::TERM);
    first.finish().expect(143);
    assert!(place.is_free("k"));
}

#[test]
fn the_code_for_busy_can_be_chosen() {
    let place = Place::new();
    let _first = place.hold("k", &[], "sleep 60");
    for (options, code) in [(["-E", "3"].as_slice(), 3), (&["-E", "255"], 255), (&["-E", "0"], 0), (&["--skip-ok"], 0)]
    {
        let mut arguments = vec!["run", "k", "-n"];
        arguments.extend(options);
        arguments.extend(["--", "touch", "ran"]);
        let finished = place.run(arguments).expect(code);
        assert!(finished.stderr.contains(&format!("(exit {code})")), "{}", finished.stderr);
    }
    assert_eq!(place.run(["run", "k", "-n", "-q", "--", "touch", "ran"]).expect(75).stderr, "");
    assert!(!place.path("ran").exists());
    // It is for busy alone.
    place.run(["run", "other", "-n", "-E", "3", "--", "false"]).expect(1);
}

#[test]
fn codes_that_no_process_can_have_are_refused() {
    let place = Place::new();
    for code in ["600", "256", "-1", "abc", "", "1.5"] {
        let finished = place.run(["run", "k", "-E", code, "--", "touch", "ran"]).expect(64);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
        assert!(finished.stderr.contains("--conflict-exit-code"), "{}", finished.stderr);
    }
    assert!(!place.path("ran").exists());
}

#[test]
fn the_second_run_says_for_whom_it_waits_and_starts_when_the_first_ends() {
    let place = Place::new();
    let script = "while [ ! -e go ]; do sleep 0.02; done; echo first >> order";
    let first = place.hold("nightly", &["--reason", "a reason"], script);
    let second = place.start(place.command(["run", "nightly", "--", "sh", "-c", "echo second >> order"]));
    wait_until("the second says for whom it waits", || second.stderr().ends_with('\n'));
    let said = second.stderr();
    assert!(said.starts_with("leasehold: waiting for \"nightly\": held by "), "{said}");
    assert!(said.contains(&format!("pid {}, sh)", first.pid().as_raw_nonzero())), "{said}");
    assert!(said.contains(" for ") && said.contains("lease ends in "), "{said}");
    assert_eq!(place.read("order"), "");
    fs::write(place.path("go"), "").unwrap();
    first.finish().expect(0);
    second.finish().expect(0);
    assert_eq!(place.read("order"), "first\nsecond\n");
}

#[test]
fn many_runs_take_turns() {
    let place = Place::new();
    // Each would see the other's directory if two ran at the same time.
    let script = "mkdir inside && sleep 0.02 && rmdir inside && echo done >> order";
    place.create();
    let running: Vec<_> =
        (0..8).map(|_| place.start(place.command(["run", "k", "-w", "50s", "--", "sh", "-c", script]))).collect();
    for running in running {
        running.finish().expect(0);
    }
    assert_eq!(place.read("order").lines().count(), 8);
}

#[test]
fn the_environment_sets_what_flags_override() {
    let place = Place::new();
    let _first = place.hold("k", &[], "sleep 60");
    let with = |variable: &str, value: &str, arguments: &[&str]| {
        let mut command = place.command(arguments);
        command.env(variable, value);
        place.start(command).finish()
    };
    with("LEASEHOLD_WAIT", "0", &["run", "k", "--", "true"]).expect(75);
    with("LEASEHOLD_WAIT", "1h", &["run", "k", "-n", "--", "true"]).expect(75);
    with("LEASEHOLD_WAIT", "1h", &["run", "k", "-w", "0", "--", "true"]).expect(75);
    with("LEASEHOLD_WAIT", "soon", &["run", "k", "--", "true"]).expect(78);
    with("LEASEHOLD_NAMESPACE", "other", &["run", "k", "-n", "--", "true"]).expect(0);
    with("LEASEHOLD_NAMESPACE", "other", &["run", "k", "-n", "--namespace", "leasehold", "--", "true"]).expect(75);
    with("LEASEHOLD_TTL", "7s", &["run", "other", "--", "sh", "-c", "exit $((LEASEHOLD_TTL_MS / 1000))"]).expect(7);
    with(
        "LEASEHOLD_TTL",
        "7s",
        &["run", "other", "--ttl", "9s", "--", "sh", "-c", "exit $((LEASEHOLD_TTL_MS / 1000))"],
    )
    .expect(9);
    with("LEASEHOLD_TTL", "0", &["run", "other", "--", "true"]).expect(65);
    let elsewhere = format!("sqlite://{}", place.path("elsewhere.db").display());
    with("LEASEHOLD_STORE", &elsewhere, &["run", "k", "-n", "--", "true"]).expect(0);
    with("LEASEHOLD_STORE", &elsewhere, &["run", "k", "-n", "-s", &place.store(), "--", "true"]).expect(75);
}

#[test]
fn options_in_the_url_are_defaults() {
    let place = Place::new();
    let url = format!("{}?ttl=7s&namespace=urls", place.store());
    let script = "echo $LEASEHOLD_TTL_MS $LEASEHOLD_NAMESPACE";
    let stdout = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        command.env("LEASEHOLD_NAMESPACE", "environment").env("LEASEHOLD_TTL", "5s");
        place.start(command).finish().expect(0).stdout
    };
    assert_eq!(stdout(&["run", "k", "-s", &url, "--", "sh", "-c", script]), "7000 urls\n");
    assert_eq!(
        stdout(&["run", "k", "-s", &url, "--ttl", "9s", "--namespace", "flag", "--", "sh", "-c", script]),
        "9000 flag\n"
    );
    assert_eq!(stdout(&["run", "k", "--", "sh", "-c", script]), "5000 environment\n");
}
