//! A crontab: as everywhere, with the task's name in front of its command.

use std::fs;
use std::path::Path;

use crate::config;
use crate::exit::{self, Failure};
use crate::output;

/// One task of a crontab.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) number: usize,
    pub(super) expression: String,
    /// As the lines above say it.
    pub(super) zone: Option<String>,
    pub(super) name: String,
    pub(super) command: String,
    /// What the lines above set.
    pub(super) environment: Vec<(String, String)>,
}

/// Reads a crontab.
pub(super) fn read(path: &Path) -> Result<Vec<Line>, Failure> {
    let shown = output::clean(&path.display().to_string());
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::new(exit::CONFIG, format!("cannot read the crontab {shown}: {error}")))?;
    let lines = parse(&text).map_err(|why| Failure::new(exit::CONFIG, format!("crontab {shown}: {why}")))?;
    if lines.is_empty() {
        return Err(Failure::new(exit::CONFIG, format!("crontab {shown}: there is no task in it")));
    }
    Ok(lines)
}

fn parse(text: &str) -> Result<Vec<Line>, String> {
    let (mut lines, mut zone, mut environment) = (Vec::new(), None, Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some((name, value)) = assignment(line) {
            match name {
                "CRON_TZ" => zone = Some(value.to_owned()),
                // Which shell runs a line would depend on who wrote the file.
                "SHELL" => return Err(format!("line {number}: commands run with sh -c: leave out SHELL")),
                // It would change the run, or be overwritten by it.
                _ if name.starts_with("LEASEHOLD_") => {
                    let rather = "set it in the environment of this process, or say it as an option";
                    return Err(format!("line {number}: leave out {name}: {rather}"));
                }
                _ => environment.push((name.to_owned(), value.to_owned())),
            }
            continue;
        }
        // `@daily name command`, or five fields, name and command.
        let fields = if line.starts_with('@') { 1 } else { 5 };
        let mut rest = line;
        let words: Vec<_> = (0..=fields).map(|_| next_word(&mut rest)).collect();
        let (expression, name) = (words[..fields].join(" "), words[fields].to_owned());
        if name.is_empty() || rest.is_empty() {
            let form = "minute hour day month weekday NAME command";
            return Err(format!("line {number}: it is not of the form \"{form}\""));
        }
        config::key_name(name.as_ref()).map_err(|failure| format!("line {number}: {failure}"))?;
        if name.contains(['/', '$', '=', ';', '|', '"', '\'']) {
            let name = output::clean(&name);
            return Err(format!("line {number}: \"{name}\" looks like a command: put the task's name in front of it"));
        }
        let (zone, environment) = (zone.clone(), environment.clone());
        lines.push(Line { number, expression, zone, name, command: rest.to_owned(), environment });
    }
    Ok(lines)
}

fn next_word<'a>(rest: &mut &'a str) -> &'a str {
    let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    *rest = after.trim_start();
    word
}

/// `NAME=value`, where the value may be quoted.
fn assignment(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    let is_name = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let quoted = |quote| value.strip_prefix(quote).and_then(|value| value.strip_suffix(quote));
    is_name.then(|| (name, quoted('"').or_else(|| quoted('\'')).unwrap_or(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_settings_and_comments() {
        let text = "# tasks\nMAILTO=ops@example.com\nCRON_TZ = 'Europe/Berlin'\n\n30 2 * * 1-5  report  ./report.sh --full \
                    # all\n@daily clean rm -rf /var/tmp/x=1\n";
        let lines = parse(text).unwrap();
        let short: Vec<_> =
            lines.iter().map(|line| (line.number, &*line.expression, &*line.name, &*line.command)).collect();
        assert_eq!(
            short,
            [(5, "30 2 * * 1-5", "report", "./report.sh --full # all"), (6, "@daily", "clean", "rm -rf /var/tmp/x=1")]
        );
        assert_eq!(lines[0].zone.as_deref(), Some("Europe/Berlin"));
        assert_eq!(lines[0].environment, [("MAILTO".to_owned(), "ops@example.com".to_owned())]);
    }

    #[test]
    fn what_is_not_understood_is_told_with_its_line() {
        for (text, words) in [
            ("\n* * * * * report", "line 2: it is not of the form"),
            ("* * * * * ./report.sh now", "line 1: \"./report.sh\" looks like a command"),
            ("SHELL=/bin/zsh", "leave out SHELL"),
            ("\nLEASEHOLD_TTL=5s", "line 2: leave out LEASEHOLD_TTL: set it in the environment"),
            ("* * *", "line 1"),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }
}
