//! Bad input: one clear line that says what to do, the documented code, no panic.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::support::{BINARY, Place};

/// `nobody`, everywhere.
pub(crate) const NOBODY: u32 = 65_534;

#[test]
fn bad_arguments_are_one_line_and_the_documented_code() {
    let place = Place::new();
    let long = "k".repeat(513);
    let longest = "k".repeat(512);
    for (arguments, code, part) in [
        (&["run", "", "--", "true"][..], 65, "empty"),
        (&["run", &long, "--", "true"], 65, "513 bytes"),
        (&["run", &longest, "--", "true"], 0, ""),
        (&["run", "a\nb", "--", "true"], 65, "control character"),
        (&["run", "a\u{1b}[31m", "--", "true"], 65, "control character"),
        (&["show", ""], 65, "empty"),
        (&["run", "k", "--ttl", "0", "--", "true"], 65, "--ttl"),
        (&["run", "k", "--ttl", "-1", "--", "true"], 65, "invalid duration"),
        (&["run", "k", "--ttl", "", "--", "true"], 65, "invalid duration"),
        (&["run", "k", "--ttl", "1ms", "--", "true"], 65, "between"),
        (&["run", "k", "--ttl", "25h", "--", "true"], 65, "between"),
        (&["run", "k", "--ttl", "99999999999999h", "--", "true"], 65, "--ttl"),
        (&["run", "k", "--ttl", "ten", "--", "true"], 65, "invalid duration"),
        (&["run", "k", "-w", "-1", "--", "true"], 64, "invalid duration"),
        (&["run", "k", "-w", "soon", "--", "true"], 64, "--wait"),
        (&["run", "k", "-n", "-w", "1", "--", "true"], 64, "cannot be used with"),
        (&["run", "k", "-k", "x", "--", "true"], 64, "--kill-after"),
        (&["run", "k", "--max-runtime", "0", "--", "true"], 64, "--max-runtime"),
        (&["run", "k", "--renew-every", "0", "--", "true"], 64, "--no-renew"),
        (&["run", "k", "--renew-every", "20s", "--", "true"], 65, "half of the ttl"),
        (&["run", "k", "--label", "plain", "--", "true"], 64, "name=value"),
        (&["run", "k", "--no-such", "--", "true"], 64, "--no-such"),
        (&["run", "k"], 64, "<CMD>"),
        (&["run", "k", "true"], 64, "true"),
        (&["run", "k", "--"], 64, "<CMD>"),
        (&["run"], 64, "<KEY>"),
        (&["no-such"], 64, "no-such"),
        (&["show"], 64, "<KEY>"),
        (&["run", "k", "-s", "nosuch://x", "--", "true"], 78, "nosuch"),
        (&["run", "k", "-s", "no url", "--", "true"], 78, ""),
        (&["run", "k", "-s", "", "--", "true"], 78, ""),
        (&["run", "k", "-s", "memory:", "--", "true"], 78, "one process"),
        (&["list", "-s", "memory:"], 78, "one process"),
        (&["run", "k", "--namespace", "a b", "--", "true"], 78, "namespace"),
        (&["run", "k", "--require-scope", "network", "--", "true"], 78, "--store"),
        (&["run", "k", "--require-scope", "host", "--require-fencing", "--", "true"], 0, ""),
        (&["run", "k", "--require-scope", "galaxy", "--", "true"], 64, "see leasehold run --help"),
        (&["run", "k", "-E", "abc", "--", "true"], 64, "it is not a number from 0 to 255"),
        (&["run", "-x", "--", "true"], 64, "a KEY of run cannot begin with '-'"),
        (&["show", "-x"], 64, "-- -x"),
        (&["help", "no-such"], 64, "no-such"),
    ] {
        let finished = place.run(arguments).expect(code);
        assert!(finished.stderr.contains(part), "{arguments:?}: {}", finished.stderr);
        let lines = usize::from(code != 0);
        assert_eq!(finished.stderr.lines().count(), lines, "{arguments:?}: {}", finished.stderr);
        assert!(!finished.stderr.contains('\u{1b}'), "{arguments:?}");
        assert_eq!(finished.stdout, "");
    }
}

#[test]
fn an_unknown_option_in_the_url_is_refused() {
    let place = Place::new();
    let url = format!("{}?tttl=3s", place.store());
    let finished = place.run(["run", "k", "-s", &url, "--", "true"]).expect(78);
    assert!(finished.stderr.contains("tttl"), "{}", finished.stderr);
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
}

#[test]
fn a_store_without_exclusion_has_to_be_named_and_is_announced() {
    let place = Place::new();
    let finished = place.run(["run", "k", "-s", "noop:", "--", "true"]).expect(0);
    assert!(finished.stderr.contains("WARNING") && finished.stderr.contains("excludes nobody"), "{}", finished.stderr);
    place.run(["run", "k", "-s", "noop:", "--require-scope", "host", "--", "true"]).expect(78);
}

#[test]
fn the_database_of_another_program_is_refused_and_untouched() {
    let place = Place::new();
    let foreign = place.path("leases.db");
    for content in [b"hello, this is no database at all, but some text".as_slice(), &[0xff; 8192]] {
        fs::write(&foreign, content).unwrap();
        let finished = place.run(["run", "k", "--", "touch", "ran"]).expect(73);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
        assert_eq!(fs::read(&foreign).unwrap(), content);
    }
    assert!(!place.path("ran").exists());
}

#[test]
fn a_place_where_no_file_can_be_is_said() {
    let place = Place::new();
    fs::write(place.path("file"), "").unwrap();
    for path in [place.path("file/leases.db"), place.path("")] {
        let url = format!("sqlite://{}", path.display());
        let finished = place.run(["run", "k", "-s", &url, "--", "touch", "ran"]).expect(73);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    }
    assert!(!place.path("ran").exists());
}

/// The binary and the directory as anybody can reach them; `None` with a reason if this test may not change its user.
pub(crate) fn as_nobody(place: &Place) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: another user can only be tried by root");
        return None;
    }
    let binary = place.path("leasehold");
    // By another process: a file that this one has open for writing may be inherited by what another test starts, and
    // could not be executed meanwhile.
    let copied = Command::new("cp").arg(BINARY).arg(&binary).status().unwrap();
    assert!(copied.success());
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    Some(binary.to_str().unwrap().to_owned())
}

#[test]
fn a_file_that_may_only_be_read_is_refused() {
    let place = Place::new();
    let Some(binary) = as_nobody(&place) else {
        return;
    };
    place.run(["run", "k", "--", "true"]).expect(0);
    let files = || -> Vec<_> {
        let mut names: Vec<_> = fs::read_dir(place.path("")).unwrap().flatten().map(|file| file.file_name()).collect();
        names.retain(|name| name.to_string_lossy().starts_with("leases.db"));
        names
    };
    for file in files() {
        fs::set_permissions(place.path(file.to_str().unwrap()), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let mut command = place.program([binary.as_str(), "run", "k", "--", "true"]);
    command.uid(NOBODY).gid(NOBODY);
    let finished = place.start(command).finish().expect(73);
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    assert!(finished.stderr.contains("leases.db"), "{}", finished.stderr);
    place.run(["run", "k", "--", "true"]).expect(0);
}

#[test]
fn without_a_home_there_is_no_default_store() {
    let place = Place::new();
    let Some(binary) = as_nobody(&place) else {
        return;
    };
    for arguments in [&["run", "k", "--", "true"][..], &["list"]] {
        let mut command = place.program([&[binary.as_str()], arguments].concat());
        command.uid(NOBODY).gid(NOBODY).env_remove("HOME").env_remove("XDG_STATE_HOME").env_remove("LEASEHOLD_STORE");
        let finished = place.start(command).finish().expect(78);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
        assert!(finished.stderr.contains("--store"), "{}", finished.stderr);
    }
}

#[test]
fn too_many_processes_are_no_fault_of_the_store() {
    let place = Place::new();
    let Some(binary) = as_nobody(&place) else {
        return;
    };
    let mut command = place.program(["prlimit", "--nproc=1", &binary, "run", "k", "--", "true"]);
    command.uid(NOBODY).gid(NOBODY);
    let finished = place.start(command).finish().expect(71);
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    assert!(finished.stderr.contains("raise ulimit -u"), "{}", finished.stderr);
}

#[test]
fn what_is_not_utf8_is_named() {
    let place = Place::new();
    let (bad, joined) = (OsStr::from_bytes(b"\xff"), OsStr::from_bytes(b"--reason=\xff"));
    for (arguments, part) in [
        (vec![OsStr::new("--reason"), bad], "the value of --reason is not UTF-8"),
        (vec![joined], "the value of --reason is not UTF-8"),
        (vec![OsStr::new("-w"), bad], "the value of -w is not UTF-8"),
    ] {
        let mut all = vec![OsStr::new("run"), OsStr::new("k")];
        all.extend(arguments);
        all.extend([OsStr::new("--"), OsStr::new("true")]);
        let finished = place.run(all).expect(64);
        assert!(finished.stderr.contains(part), "{}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    }
}

#[test]
fn a_user_has_a_default_store_of_their_own() {
    let place = Place::new();
    let Some(binary) = as_nobody(&place) else {
        return;
    };
    fs::create_dir(place.path("home")).unwrap();
    std::os::unix::fs::chown(place.path("home"), Some(NOBODY), Some(NOBODY)).unwrap();
    let mut command = place.program([binary.as_str(), "run", "k", "-v", "--", "true"]);
    command.uid(NOBODY).gid(NOBODY).env("HOME", place.path("home"));
    command.env_remove("XDG_STATE_HOME").env_remove("LEASEHOLD_STORE");
    let finished = place.start(command).finish().expect(0);
    let file = place.path("home/.local/state/leasehold/leases.db");
    assert!(file.exists() && finished.stderr.contains(file.to_str().unwrap()), "{}", finished.stderr);
}
