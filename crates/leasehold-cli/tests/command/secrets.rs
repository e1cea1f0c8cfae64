//! The owner token never shows: whoever has it can end the lease.

use std::fs;

use rustix::process::Signal;

use crate::support::{Place, proc_file, wait_until};

/// Every run of 32 lower-case hexadecimal digits that is no longer than that.
fn tokens(bytes: &[u8]) -> Vec<String> {
    let hex = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    bytes
        .split(|byte| !hex(byte))
        .filter(|run| run.len() == 32)
        .map(|run| String::from_utf8_lossy(run).into_owned())
        .collect()
}

#[test]
fn the_owner_token_shows_nowhere() {
    let place = Place::new();
    let first = place.hold("k", &["-v", "--reason", "why"], "env; sleep 60");
    let mut kept = Vec::new();
    for file in ["leases.db", "leases.db-wal"] {
        kept.extend(fs::read(place.path(file)).unwrap_or_default());
    }
    // The store keeps it as text beside other columns, so it need not stand alone.
    let job = place.pid("pid");
    let second = place.start(place.command(["run", "k", "-v", "-w", "3", "--", "true"]));
    wait_until("the second waits", || second.stderr().contains("waiting"));
    let mut shown = Vec::new();
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
    for arguments in [&["show", "k"][..], &["show", "k", "--json"], &["list", "-v"], &["list", "--json"]] {
        let finished = place.run(arguments).expect(0);
        shown.extend((finished.stdout + &finished.stderr).into_bytes());
    }
    let ps = place.start(place.program(["ps", "axeww"])).finish().expect(0);
    shown.extend(ps.stdout.lines().filter(|line| line.contains("LEASEHOLD_TEST_MARK")).flat_map(str::bytes));
    first.signal(Signal::TERM);
    let first = first.finish().expect(143);
    shown.extend((first.stdout + &first.stderr).into_bytes());
    assert_eq!(tokens(&shown), Vec::<String>::new());
    let windows: Vec<_> = kept
        .windows(32)
        .filter(|window| window.iter().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte)))
        .collect();
    assert!(!windows.is_empty(), "the store was not read where it keeps the token");
    for window in windows {
        assert!(!shown.windows(32).any(|part| part == window), "{}", String::from_utf8_lossy(window));
    }
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
