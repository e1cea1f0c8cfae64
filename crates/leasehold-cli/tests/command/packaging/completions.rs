//! Completions: as generated, read by each shell, and completing.

use super::{has, path, program, read, with_programs};
use crate::support::Place;

#[test]
fn completions_are_what_the_binary_prints() {
    let place = Place::new();
    for (shell, file) in [("bash", "leasehold.bash"), ("zsh", "_leasehold"), ("fish", "leasehold.fish")] {
        let printed = place.run(["completions", shell]).expect(0).stdout;
        assert!(printed == read(&format!("completions/{file}")), "{file} is old: run packaging/generate");
    }
    assert!(place.run(["completions", "tcsh"]).expect(64).stderr.contains("[possible values: bash, zsh, fish]"));
}

/// What bash proposes for the last of some words.
fn in_bash(place: &Place, words: &[&str]) -> Vec<String> {
    let script = "source \"$1\"; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                  _leasehold leasehold \"${@: -1}\" \"${@: -2:1}\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let file = path("completions/leasehold.bash");
    let all = [&["bash", "--norc", "-c", script, "bash", file.to_str().unwrap()], words].concat();
    let proposed = place.start(program(place, &all)).finish().expect(0).stdout;
    proposed.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes() {
    let place = with_programs(&[]);
    assert_eq!(in_bash(&place, &["leasehold", "ru"]), ["run"]);
    assert_eq!(in_bash(&place, &["leasehold", "re"]), ["release", "resume"]);
    assert_eq!(in_bash(&place, &["leasehold", "run", "k", "--max"]), ["--max-runtime"]);
    assert_eq!(in_bash(&place, &["leasehold", "-s", "redis://h", "run", "--tt"]), ["--ttl"]);
    assert_eq!(in_bash(&place, &["leasehold", "run", "k", "--require-scope", ""]), ["host", "network"]);
    assert_eq!(in_bash(&place, &["leasehold", "config", "sh"]), ["show"]);
    assert!(in_bash(&place, &["leasehold", ""]).contains(&"force-release".to_owned()));
    // The job's name is completed, and its words are not taken for ours.
    assert!(in_bash(&place, &["leasehold", "run", "k", "--", "leaseho"]).contains(&"leasehold".to_owned()));
    assert_eq!(in_bash(&place, &["leasehold", "run", "k", "--", "leasehold", "--tt"]), [""]);
}

#[test]
fn zsh_reads_its_completions() {
    if !has("zsh") {
        return;
    }
    let place = with_programs(&[]);
    let file = path("completions/_leasehold");
    let file = file.to_str().unwrap();
    place.start(program(&place, &["zsh", "-f", "-n", file])).finish().expect(0);
    // Found in fpath, loaded, and run: the action for the first word is the list of subcommands.
    let script = "fpath=(\"$1:h\" $fpath); autoload -Uz compinit; compinit -D -u; print $_comps[leasehold]; \
                  _arguments() { print -l -- $@ }; source \"$1\"; _leasehold; \
                  _describe() { print -l -- ${(P)4} }; _leasehold_commands";
    let loaded = place.start(program(&place, &["zsh", "-f", "-c", script, "zsh", file])).finish().expect(0);
    assert!(loaded.stdout.starts_with("_leasehold\n"), "{loaded:?}");
    for part in ["--namespace=", "run:Hold KEY", "force-release:"] {
        assert!(loaded.stdout.contains(part), "{part}: {loaded:?}");
    }
    assert_eq!(loaded.stderr, "");
}

#[test]
fn fish_completes() {
    if !has("fish") {
        return;
    }
    let place = with_programs(&[]);
    let file = path("completions/leasehold.fish");
    let file = file.to_str().unwrap();
    place.start(program(&place, &["fish", "--no-execute", file])).finish().expect(0);
    for (line, expected) in [
        ("leasehold ru", &["run"][..]),
        ("leasehold acquire k --format ", &["json", "shell", "text"]),
        ("leasehold run k --max", &["--max-runtime"]),
    ] {
        let script = format!("source {file}; complete -C '{line}'");
        let proposed = place.start(program(&place, &["fish", "--no-config", "-c", &script])).finish().expect(0);
        let words: Vec<_> = proposed.stdout.lines().filter_map(|line| line.split('\t').next()).collect();
        assert_eq!(words, expected, "{line}");
    }
}
