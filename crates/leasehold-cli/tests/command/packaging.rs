//! What is under `packaging/`: it is what the binary generates, is understood by those that read it, and does what it
//! says.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{BINARY, Place};

mod completions;
mod containers;
mod jobs;
mod manual;
mod pipelines;
mod static_binary;

/// A file or directory of the packaging.
fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap()
}

/// Whether a program is installed; one that is missing fails in CI, where nothing may be skipped.
fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap().status.success();
    assert!(found || std::env::var_os("CI").is_none(), "{program} is missing; scripts/test installs it");
    if !found {
        eprintln!("{program} is missing, so that what needs it is skipped; scripts/test installs it");
    }
    found
}

/// A place with programs in `bin`, `leasehold` among them; each of the others writes its name to the file `done`.
fn with_programs(names: &[&str]) -> Place {
    let place = Place::new();
    fs::create_dir(place.path("bin")).unwrap();
    symlink(BINARY, place.path("bin/leasehold")).unwrap();
    for name in names {
        place.executable(name, &format!("#!/bin/sh\necho {name} >> done\n"));
    }
    place
}

/// A program with `leasehold` in its path.
fn program(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.program(arguments);
    let path = format!("{}:{}", place.path("bin").display(), std::env::var("PATH").unwrap());
    command.env("PATH", path);
    command
}

#[test]
fn scripts_are_understood() {
    let place = Place::new();
    for script in ["generate", "static"] {
        let script = path(script);
        place.start(program(&place, &["bash", "-n", script.to_str().unwrap()])).finish().expect(0);
    }
}
