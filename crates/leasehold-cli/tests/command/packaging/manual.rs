//! The pages of the manual.

use std::fs;

use super::{has, path, program, with_programs};
use crate::support::Place;

fn pages(folder: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn pages_are_what_the_binary_writes() {
    let place = Place::new();
    fs::create_dir(place.path("man")).unwrap();
    place.run(["man", "--write", "man"]).expect(0);
    let names = pages(&place.path("man"));
    assert_eq!(names, pages(&path("man")), "pages came or went: run packaging/generate");
    for name in &names {
        let committed = fs::read_to_string(path("man").join(name)).unwrap();
        assert!(place.read(&format!("man/{name}")) == committed, "{name} is old: run packaging/generate");
    }
    assert_eq!(place.run(["man", "config", "show"]).expect(0).stdout, place.read("man/leasehold-config-show.1"));
    assert_eq!(place.run(["man"]).expect(0).stdout, place.read("man/leasehold.1"));
    assert!(place.run(["man", "nosuch"]).expect(64).stderr.contains("no page \"nosuch\""));
    place.run(["man", "--write", "no/such/place"]).expect(73);
}

#[test]
fn every_page_is_sound() {
    if !has("mandoc") {
        return;
    }
    let place = with_programs(&[]);
    for name in pages(&path("man")) {
        let file = path("man").join(&name);
        let file = file.to_str().unwrap();
        let lint = place.start(program(&place, &["mandoc", "-T", "lint", "-W", "error", file])).finish();
        assert_eq!((lint.code(), lint.stdout.as_str()), (0, ""), "{name}");
        let shown = place.start(program(&place, &["mandoc", "-T", "ascii", "-O", "width=78", file])).finish().expect(0);
        // Backspaces make bold.
        let mut text = String::new();
        for c in shown.stdout.chars() {
            if c == '\u{8}' {
                text.pop();
            } else {
                text.push(c);
            }
        }
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "SEE ALSO"] {
            assert!(text.lines().any(|line| line == section), "{name} has no {section}");
        }
        let command = name.trim_end_matches(".1").replacen('-', " ", 1);
        let command = if name == "leasehold-config-show.1" { "leasehold config show" } else { &command };
        assert!(text.contains(&format!("     {command} ")), "{name}: {text}");
    }
}

#[test]
fn the_page_of_run_has_every_exit_code() {
    let page = Place::new().run(["man", "run"]).expect(0).stdout;
    for code in ["CMD\\*(Aqs", "75", "79", "126, 127", "129, 130, 131, 143"] {
        assert!(page.contains(&format!("\\fB{code}\\fR")), "{code}: {page}");
    }
}
