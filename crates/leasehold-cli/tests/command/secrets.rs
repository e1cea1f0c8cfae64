//! The owner token never shows: whoever has it can end the lease.

use std::fs;

use rustix::process::Signal;

use crate::support::{Place, proc_file, wait_until};

#[test]
fn the_owner_token_shows_nowhere() {
    let place = Place::new();
    let first = place.hold(
        "k",
        &["-v", "--reason", "why", "--report", "report", "--owner-file", "owner", "--status-fd", "2"],
        "env > environment; sleep 60",
    );
    let job = place.pid("pid");
    let token = place.owner("k");
    assert_eq!(token.len(), 32);
    let second = place.start(place.command(["run", "k", "-v", "-w", "10", "--log-format", "json", "--", "true"]));
    wait_until("the second waits", || second.stderr().contains("waiting"));
    let mut shown = place.read("environment").into_bytes();
    assert!(!shown.is_empty());
    for process in [first.pid(), job, second.pid()] {
        for file in ["cmdline", "environ", "comm", "status"] {
            shown.extend(fs::read(proc_file(process, file)).unwrap());
            shown.push(b'\n');
        }
        for file in fs::read_dir(proc_file(process, "fd")).unwrap() {
            let Ok(opened) = fs::read_link(file.unwrap().path()) else { continue };
            assert!(process != job || !opened.to_string_lossy().contains("leases.db"), "the job has {opened:?}");
            shown.extend(opened.as_os_str().as_encoded_bytes());
            shown.push(b'\n');
        }
    }
    let second = second.finish().expect(75);
    shown.extend((second.stdout + &second.stderr).into_bytes());
    for (arguments, code) in [
        (&["show", "k"][..], 0),
        (&["show", "k", "--json"], 0),
        (&["list", "-v"], 0),
        (&["list", "--json"], 0),
        (&["config", "show", "--json"], 0),
        (&["run", "k", "-n", "-v", "--", "true"], 75),
    ] {
        let finished = place.run(arguments).expect(code);
        shown.extend((finished.stdout + &finished.stderr).into_bytes());
    }
    let ps = place.start(place.program(["ps", "axeww"])).finish().expect(0);
    shown.extend(ps.stdout.into_bytes());
    first.signal(Signal::TERM);
    let first = first.finish().expect(143);
    shown.extend((first.stdout + &first.stderr).into_bytes());
    shown.extend(place.read("report").into_bytes());
    let text = String::from_utf8_lossy(&shown);
    assert!(text.contains("acquired") && text.contains("leasehold.run/1") && text.contains("leasehold.status/1"));
    assert!(!text.contains(&token), "the owner token is shown");
    // Nor half of it.
    assert!(!text.contains(&token[..16]) && !text.contains(&token[16..]));
}

#[test]
fn passwords_in_urls_do_not_show() {
    let place = Place::new();
    for url in ["redis://user:hunter2@localhost:1/0", "nosuch://user:hunter2@h/x", "sqlite://user:hunter2@h/x"] {
        for arguments in [&["run", "k", "-n", "-v", "-s", url, "--", "true"][..], &["show", "k", "-s", url]] {
            let finished = place.run(arguments);
            assert_ne!(finished.code(), 0);
            assert!(!(finished.stdout + &finished.stderr).contains("hunter2"), "{url}");
        }
    }
}

/// A usual slip: the secret itself where the file that holds it is to be named.
#[test]
fn a_secret_in_the_place_of_its_file_does_not_show() {
    let place = Place::new();
    let url = "redis://localhost:1/0?password_file=hunter2";
    for (variables, arguments) in [
        (&[("LEASEHOLD_STORE_FILE", "redis://u:hunter2@h")][..], &["show", "k"][..]),
        (&[("LEASEHOLD_STORE", "redis://localhost:1/0"), ("LEASEHOLD_PASSWORD_FILE", "hunter2")], &["show", "k"]),
        (&[("LEASEHOLD_STORE", "redis://localhost:1/0"), ("LEASEHOLD_PASSWORD_FILE", "hunter2")], &["config", "show"]),
        (&[("LEASEHOLD_STORE", url)], &["show", "k"]),
        (&[("LEASEHOLD_STORE", url)], &["config", "show"]),
    ] {
        let mut command = place.command(arguments.iter().copied());
        command.env_remove("LEASEHOLD_STORE").envs(variables.iter().copied());
        let finished = place.start(command).finish();
        let shown = finished.stdout.clone() + &finished.stderr;
        assert!(!shown.is_empty() && !shown.contains("hunter2"), "{variables:?} {arguments:?}: {shown}");
    }
}
