//! What is the matter with a command line that was not understood.

use std::ffi::OsString;

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::definition;
use crate::output;

/// A complaint of the parser as one line: what is wrong, what was probably meant, and where to look.
pub(super) fn line(error: &Error, arguments: &[OsString]) -> String {
    let rendered = error.to_string();
    let what = match error.kind() {
        ErrorKind::InvalidUtf8 => not_utf8(arguments).map(|name| format!("{name} is not UTF-8: encode it")),
        ErrorKind::UnknownArgument => unknown_argument(error, arguments),
        ErrorKind::InvalidSubcommand => {
            let word = text(error, ContextKind::InvalidSubcommand);
            word.map(|word| format!("unknown subcommand '{word}'{}", meant(error, ContextKind::SuggestedSubcommand)))
        }
        ErrorKind::InvalidValue => {
            let near = meant(error, ContextKind::SuggestedValue);
            Some(format!("{}{near}", without_tips(&rendered)))
        }
        _ => None,
    };
    let what = what.unwrap_or_else(|| without_tips(&rendered));
    // A question has its own mark.
    let end = if what.ends_with('?') { "" } else { ";" };
    format!("{what}{end} {}", look(&rendered, arguments))
}

fn unknown_argument(error: &Error, arguments: &[OsString]) -> Option<String> {
    let word = text(error, ContextKind::InvalidArg)?;
    if !word.starts_with('-') {
        return Some(format!("unexpected argument '{word}'"));
    }
    let near = meant(error, ContextKind::SuggestedArg);
    if !near.is_empty() || error.get(ContextKind::Suggested).is_none() {
        return Some(format!("unknown option '{word}'{near}"));
    }
    // It may have been meant for a key. What follows `--` is the command.
    let is_run = arguments.iter().find(|argument| !argument.as_encoded_bytes().starts_with(b"-"));
    let key = match is_run {
        Some(subcommand) if subcommand == "run" => "a KEY of run cannot begin with '-'".to_owned(),
        _ => format!("a KEY that begins with '-' is written -- {word}"),
    };
    Some(format!("unknown option '{word}'; {key}"))
}

/// `; did you mean 'run'?`, or nothing.
fn meant(error: &Error, kind: ContextKind) -> String {
    let words = match error.get(kind) {
        Some(ContextValue::String(word)) => vec![word.as_str()],
        Some(ContextValue::Strings(words)) => words.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    // The last one is the nearest.
    words.last().map(|word| format!("; did you mean '{word}'?")).unwrap_or_default()
}

fn text(error: &Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(output::clean(text)),
        _ => None,
    }
}

/// The complaint without what the parser proposes, in one line.
fn without_tips(rendered: &str) -> String {
    let end = ["\n\nUsage:", "\n\nFor more information", "\n\n  tip:"];
    let end = end.iter().filter_map(|part| rendered.find(part)).min().unwrap_or(rendered.len());
    let line = rendered[..end].replace("\n\n", "; ").split_whitespace().collect::<Vec<_>>().join(" ");
    line.strip_prefix("error: ").map(str::to_owned).unwrap_or(line)
}

/// Where to look: the usage, or the help that tells more.
fn look(rendered: &str, arguments: &[OsString]) -> String {
    if let Some(usage) = rendered.split("Usage: ").nth(1).and_then(|usage| usage.lines().next()) {
        return format!("usage: {usage}");
    }
    match arguments.iter().find(|argument| definition().find_subcommand(argument).is_some()) {
        Some(subcommand) => format!("see leasehold {} --help", subcommand.to_string_lossy()),
        None => "see leasehold --help".to_owned(),
    }
}

/// What the first argument that is not UTF-8 is called: the option that it belongs to, or its place.
fn not_utf8(arguments: &[OsString]) -> Option<String> {
    let at = arguments.iter().position(|argument| argument.to_str().is_none())?;
    let own = arguments[at].to_string_lossy();
    let before = at.checked_sub(1).and_then(|before| arguments[before].to_str()).unwrap_or_default();
    Some(match own.split_once('=') {
        Some((name, _)) if own.starts_with("--") => format!("the value of {}", output::clean(name)),
        _ if before.starts_with('-') => format!("the value of {}", output::clean(before)),
        _ => format!("argument {}", at + 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(arguments: &[&str]) -> String {
        let error = definition().try_get_matches_from(["leasehold"].iter().chain(arguments)).unwrap_err();
        line(&error, &arguments.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn mistakes_are_one_line() {
        for arguments in [&["run", "k"][..], &["run", "k", "-E", "600", "--", "true"], &["run", "--nope"], &["x\ny"]] {
            let line = told(arguments);
            assert!(!line.contains('\n') && !line.starts_with("error"), "{line}");
        }
    }

    #[test]
    fn what_was_meant_is_asked() {
        for (arguments, start) in [
            (&["runn", "k"][..], "unknown subcommand 'runn'; did you mean 'run'? usage: leasehold "),
            (&["force", "k"], "unknown subcommand 'force'; did you mean 'force-release'? usage: "),
            (&["config", "shw"], "unknown subcommand 'shw'; did you mean 'show'? usage: leasehold config "),
            (&["run", "k", "--tll", "1"], "unknown option '--tll'; did you mean '--ttl'? usage: leasehold run "),
            (
                &["wait", "k", "--for", "fre"],
                "invalid value 'fre' for '--for <WHAT>' [possible values: free, held, change]; did you mean 'free'? see leasehold wait --help",
            ),
            (&["qqq"], "unknown subcommand 'qqq'; usage: "),
            (&["stores", "--qqq"], "unknown option '--qqq'; usage: leasehold stores "),
            (
                &["show", "-x"],
                "unknown option '-x'; a KEY that begins with '-' is written -- -x; usage: leasehold show ",
            ),
            (&["run", "-x", "--", "true"], "unknown option '-x'; a KEY of run cannot begin with '-'; usage: "),
            (&["show", "a", "b"], "unexpected argument 'b'; usage: leasehold show "),
        ] {
            let line = told(arguments);
            assert!(line.starts_with(start), "{line}");
        }
    }
}
