//! The examples in the help are there, are understood, and fit a terminal.

use clap::Command;

use super::definition;

/// The commands of the tree with the words that lead to them and their examples.
fn commands() -> Vec<(String, String)> {
    fn walk(command: &Command, path: &str, found: &mut Vec<(String, String)>) {
        found.push((path.to_owned(), command.get_after_help().map(ToString::to_string).unwrap_or_default()));
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            walk(below, &format!("{path} {}", below.get_name()), found);
        }
    }
    let mut found = Vec::new();
    walk(&definition(), "leasehold", &mut found);
    found
}

/// The words of the first `leasehold` in a line of shell, up to what ends a command or begins a comment.
fn words(line: &str) -> Option<Vec<String>> {
    let at = line.find("leasehold ")?;
    let (before, after) = line.split_at(at);
    let is_command = before.trim().is_empty() || before.ends_with(['(', '\'', '|']) || before.ends_with("| ");
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    // In a quoted command its end is the quote.
    let end = if before.ends_with('\'') { "'" } else { ")|;&>" };
    let mut rest = after.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            _ if quote == Some(c) => quote = None,
            _ if quote.is_some() => word.push(c),
            _ if end.contains(c) => break,
            '\'' | '"' => quote = Some(c),
            ' ' if rest.peek() == Some(&' ') => break,
            ' ' => words.push(std::mem::take(&mut word)),
            _ => word.push(c),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    is_command.then_some(words)
}

#[test]
fn every_subcommand_has_an_example() {
    for (path, help) in commands() {
        let own = |line: &str| words(line).is_some_and(|words| words.join(" ").starts_with(&path));
        assert!(help.lines().any(own), "{path}: {help}");
    }
}

#[test]
fn every_example_is_understood() {
    let mut count = 0;
    for (path, help) in commands() {
        for words in help.replace("$$", "1").lines().filter_map(words) {
            let understood = definition().try_get_matches_from(&words);
            assert!(understood.is_ok(), "{path}: {words:?}: {}", understood.unwrap_err());
            count += 1;
        }
    }
    assert!(count > 40, "{count}");
}

#[test]
fn examples_fit_80_columns() {
    for (path, help) in commands() {
        // Text is wrapped, which would break a command.
        for line in help.lines().filter(|line| line.starts_with("  ")) {
            assert!(line.chars().count() <= 80, "{path}: {line}");
        }
    }
}
