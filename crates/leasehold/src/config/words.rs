//! Values as people write and read them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::SignedDuration;

use super::{invalid, parse_duration};
use crate::error::Result;
use crate::options::Wait;

/// How far a name may be from the one that was meant, in letters.
const NEAR: usize = 2;

pub(super) fn words(length: Duration) -> String {
    SignedDuration::try_from(length).map_or_else(|_| format!("{length:?}"), |length| format!("{length:#}"))
}

pub(super) fn wait_in_words(wait: Wait) -> String {
    match wait {
        Wait::No => "0s".to_owned(),
        Wait::UpTo(wait) => words(wait),
        Wait::Forever => "forever".to_owned(),
    }
}

/// A length of time that is not zero.
pub(super) fn positive(text: &str) -> Result<Duration> {
    match parse_duration(text)? {
        Duration::ZERO => Err(invalid("it must be longer than zero")),
        length => Ok(length),
    }
}

/// The name as it may be repeated in a message: one that looks like none may be a secret at the wrong place.
pub(super) fn named(name: &str, near: Option<&str>) -> String {
    let is_plain = (1..=32).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if is_plain || near.is_some() { format!(" {name:?}") } else { String::new() }
}

pub(super) fn near(name: &str, known: &[&'static str]) -> Option<&'static str> {
    let distances = known.iter().map(|known| (strsim::levenshtein(name, known), *known));
    distances.filter(|(distance, _)| *distance <= NEAR).min().map(|(_, known)| known)
}

/// A length of time, 0 or `off` = none.
pub(super) fn length_or_off(text: &str) -> Result<Duration> {
    if text.trim().eq_ignore_ascii_case("off") { Ok(Duration::ZERO) } else { parse_duration(text) }
}

pub(super) fn words_or_off(length: Duration) -> String {
    if length.is_zero() { "off".to_owned() } else { words(length) }
}

/// Whether something is switched on.
pub(super) fn switch(text: &str) -> Result<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "on" | "true" | "yes" | "1" => Ok(true),
        "off" | "false" | "no" | "0" => Ok(false),
        _ => Err(invalid("neither on nor off")),
    }
}

/// What names a file is not always shown.
pub(super) fn path_in_words(path: PathBuf) -> String {
    if is_surely_a_path(&path) { path.display().to_string() } else { "***".to_owned() }
}

/// Whether this names a file in a folder that there is; else it may be the secret itself, in the place of its file.
pub(super) fn is_surely_a_path(path: &Path) -> bool {
    let folder = path.parent().filter(|folder| folder.is_absolute() && folder.parent().is_some());
    folder.is_some_and(Path::is_dir)
}

pub(super) fn switch_in_words(is_on: bool) -> String {
    if is_on { "on" } else { "off" }.to_owned()
}
