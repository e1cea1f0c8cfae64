//! What the manual shows of a session is what happens: its commands are run, and what is stable in the output compared.

use std::fs;
use std::os::unix::fs::symlink;

use crate::support::{BINARY, Place};

const MANUAL: &str = include_str!("../../../../docs/cli.md");

/// Comes between the outputs of two commands.
const MARK: &str = "==next==";

/// The sessions of the manual: commands, each with what it prints.
fn sessions() -> Vec<Vec<(String, String)>> {
    let blocks = MANUAL.split("```console\n").skip(1).map(|block| block.split("```").next().unwrap());
    let session = |block: &str| {
        let mut commands: Vec<(String, String)> = Vec::new();
        for line in block.lines() {
            match line.strip_prefix("$ ") {
                Some(command) => commands.push((command.to_owned(), String::new())),
                None => commands.last_mut().unwrap().1.push_str(&format!("{line}\n")),
            }
        }
        commands
    };
    blocks.map(session).collect()
}

/// A line without what is another each time: numbers of processes, moments, lengths, hosts, files and secrets.
fn stable(line: &str) -> String {
    let mut before = "";
    let mut words = Vec::new();
    for word in line.split(' ') {
        let bare = word.trim_matches(|c: char| "(),".contains(c));
        let is_length = bare.starts_with(|c: char| c.is_ascii_digit())
            && bare.ends_with(['s', 'm', 'h'])
            && bare.chars().all(|c| c.is_ascii_digit() || "msh".contains(c));
        let stands_for = match () {
            () if word.is_empty() => word,
            () if before == "by" || before == "holder" && line.trim_start().starts_with(before) => "HOST",
            () if ["pid", "fencing", "fingerprint", "since"].contains(&before) => "ONE",
            () if is_length => "LENGTH",
            () if bare.starts_with("sqlite:///") => "STORE",
            () if bare.contains("/owner-") && bare.starts_with('/') => "OWNER-FILE",
            () if bare.ends_with('Z') && bare.contains(':') => "MOMENT",
            () if bare.len() > 6 && bare.chars().all(|c| c.is_ascii_digit()) => "NUMBER",
            () => word,
        };
        words.push(stands_for);
        if !word.is_empty() {
            before = word;
        }
    }
    words.join(" ")
}

#[test]
fn sessions_go_as_they_are_shown() {
    let sessions = sessions();
    assert!(sessions.len() >= 2, "{sessions:?}");
    for session in sessions {
        let place = Place::new();
        fs::create_dir(place.path("bin")).unwrap();
        symlink(BINARY, place.path("bin/leasehold")).unwrap();
        let mut script = String::new();
        for (command, output) in &session {
            // A file that is shown was written before.
            if let Some(name) = command.strip_prefix("cat ") {
                place.executable(name, output);
            }
            script.push_str(&format!("{command}\n"));
            if command.ends_with('&') {
                // People take a moment for the next command.
                script.push_str("until leasehold list --exit-code -q >/dev/null; do sleep 0.05; done\n");
            }
            script.push_str(&format!("echo; echo {MARK}\n"));
        }
        fs::write(place.path("session"), script).unwrap();
        let mut shell = place.program(["sh", "-c", "exec bash session 2>&1"]);
        let path = format!("{}:{}", place.path("bin").display(), std::env::var("PATH").unwrap());
        shell.env("PATH", path).env("XDG_STATE_HOME", place.path(".local/state")).env_remove("LEASEHOLD_STORE");
        let shown = place.start(shell).finish().expect(0).stdout;
        let end = format!("\n{MARK}\n");
        let mut outputs = shown.split(&end);
        for (command, expected) in &session {
            let output = outputs.next().unwrap();
            let lines = |text: &str| text.lines().map(stable).collect::<Vec<_>>();
            assert_eq!(lines(output), lines(expected), "$ {command}\n{output}");
        }
    }
}
