//! The table of promises names tests that exist.

#![allow(clippy::expect_used, reason = "an error fails the test, also in its helpers")]

use std::fs;
use std::path::{Path, PathBuf};

const CASES: &str = "../leasehold/src/testkit/conformance/table.rs";

#[test]
fn every_test_that_is_named_exists() {
    let table = fs::read_to_string("../../docs/promises.md").expect("the table is there");
    let files = sources(Path::new(".."));
    let names: Vec<_> = table.split('`').skip(1).step_by(2).filter_map(|name| name.split_once("::")).collect();
    assert!(names.len() > 100, "the table is read");
    let missing: Vec<_> = names.iter().filter(|(place, name)| !exists(&files, place, name)).collect();
    assert!(missing.is_empty(), "no such tests: {missing:?}");
}

fn exists(files: &[PathBuf], place: &str, name: &str) -> bool {
    let contains = |file: &Path, what: &str| fs::read_to_string(file).is_ok_and(|text| text.contains(what));
    if place == "conformance" {
        return contains(Path::new(CASES), &format!(" {name}\n")) || contains(Path::new(CASES), &format!(" {name};\n"));
    }
    let is_there = |file: &&PathBuf| {
        file.with_extension("").components().any(|part| part.as_os_str() == place)
            && contains(file, &format!("fn {name}("))
    };
    files.iter().any(|file| is_there(&file))
}

/// Every Rust file below a directory, but for what was built.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("the directory can be read");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false if path.extension().is_some_and(|extension| extension == "rs") => vec![path],
            false => Vec::new(),
        })
        .collect()
}
