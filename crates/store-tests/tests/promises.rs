//! The table of promises is whole, and names tests that exist.

#![allow(clippy::expect_used, reason = "an error fails the test, also in its helpers")]

use std::fs;
use std::path::{Path, PathBuf};

const TABLE: &str = "../../docs/promises.md";

const CASES: &str = "../leasehold/src/testkit/conformance/table.rs";

/// Our macros that make tests of the functions which they list.
const MAKERS: [&str; 8] = [
    "against_each!",
    "in_a_table!",
    "in_every_mode!",
    "on_every_server!",
    "on_servers!",
    "on_servers_that_push!",
    "on_sessions!",
    "on_stores!",
];

#[test]
fn every_promise_stands_there_once_and_in_order() {
    let table = fs::read_to_string(TABLE).expect("the table is there");
    let numbers = table.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(". ")?.0.parse::<u32>().ok());
    assert!(numbers.eq(1..=44));
}

#[test]
fn every_promise_names_a_test() {
    let table = fs::read_to_string(TABLE).expect("the table is there");
    let rows = table.lines().filter(|line| line.starts_with("| ")).skip(1);
    let bare: Vec<_> =
        rows.filter(|row| row.rsplit_once(" | ").is_none_or(|(_, tests)| !tests.contains("::"))).collect();
    assert!(bare.is_empty(), "no test is named for these: {bare:?}");
}

#[test]
fn every_test_that_is_named_exists() {
    let table = fs::read_to_string(TABLE).expect("the table is there");
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
            && fs::read_to_string(file).is_ok_and(|text| has_test(&text, name))
    };
    files.iter().any(|file| is_there(&file))
}

/// Whether there is such a function, and it is run as a test.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let function = format!("fn {name}(");
    lines.iter().enumerate().any(|(number, line)| {
        let is_it = line.strip_prefix("async ").unwrap_or(line).starts_with(&function);
        let mut above = lines[..number].iter().rev().take_while(|line| !line.is_empty() && **line != "}");
        is_it
            && (above.any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
                || is_listed(text, name))
    })
}

fn is_listed(text: &str, name: &str) -> bool {
    let lists = MAKERS.iter().flat_map(|maker| text.split(&format!("\n{maker} {{")).skip(1).collect::<Vec<_>>());
    let mut names = lists.flat_map(|list| list.split('}').next().unwrap_or_default().split_whitespace());
    names.any(|listed| listed == name)
}

#[test]
fn what_is_no_test_is_not_taken_for_one() {
    let text = "#[test]\nfn one() {}\n\nfn helper() {}\n\non_stores! {\n    listed\n}\n\nasync fn listed() {}\nfn unlisted() {}\n";
    assert!(has_test(text, "one") && has_test(text, "listed"));
    assert!(!has_test(text, "helper") && !has_test(text, "unlisted") && !has_test(text, "none"));
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
