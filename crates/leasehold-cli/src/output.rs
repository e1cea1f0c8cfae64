//! What people and programs read: messages on stderr, answers on stdout, lengths and times in words.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use jiff::{SignedDuration, Timestamp};
use leasehold::clock::{Clock, Moment};
use leasehold::store::Holder;
use serde_json::json;

use self::aside::Aside;
pub(crate) use self::colour::{Colour, Stream, paint};
pub(crate) use self::table::{hanging, lines};
use crate::exit::{self, Failure};

mod aside;
mod colour;
mod table;

/// Prints an answer to stdout. A reader that has gone away (`leasehold list | head`) is no failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    match write(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(unwritten(&error)),
        _ => Ok(()),
    }
}

/// Prints an answer to stdout that somebody has to get.
pub(crate) fn deliver(text: &str) -> Result<(), Failure> {
    write(text).map_err(|error| unwritten(&error))
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
}

fn unwritten(error: &io::Error) -> Failure {
    Failure::new(exit::IO, format!("cannot write to stdout: {error}"))
}

/// Whether messages are objects for programs.
static AS_JSON: AtomicBool = AtomicBool::new(false);

/// From now on messages are one JSON object per line.
pub(crate) fn tell_as_json() {
    AS_JSON.store(true, Ordering::Relaxed);
}

/// What is told while a lease is held.
static ASIDE: Aside = Aside::new();

/// From now on messages are written aside: nothing waits for their reader.
pub(crate) fn tell_aside() {
    ASIDE.turn_on();
}

/// Waits for the reader of what was told aside, at most this long.
pub(crate) fn finish(patience: Duration) {
    ASIDE.finish(patience);
}

/// Says something on stderr, after the program's name.
pub(crate) fn tell(message: &str) {
    tell_block(&format!("{message}\n"));
}

/// Says why this ends; the code is part of it.
pub(crate) fn tell_failure(failure: &Failure) {
    if AS_JSON.load(Ordering::Relaxed) {
        tell_raw(&as_json("error", &failure.message, Some(failure.code)));
    } else {
        let advice = failure.advice.iter().map(|advice| format!("; {advice}")).collect::<String>();
        tell_raw(&named(Colour::Red, &format!("{failure}{advice} (exit {})\n", failure.code)));
    }
}

/// Says something on stderr that may have several lines, after the program's name.
pub(crate) fn tell_block(text: &str) {
    if !AS_JSON.load(Ordering::Relaxed) {
        return tell_raw(&named(colour::of_message(text), text));
    }
    let (level, message) = match text.split_once(": ") {
        Some((word, message)) if word.eq_ignore_ascii_case("warning") => ("warning", message),
        Some(("lost", _)) => ("error", text),
        _ => ("info", text),
    };
    tell_raw(&as_json(level, message, None));
}

/// A message after the program's name, which has a colour on a terminal.
fn named(colour: Colour, text: &str) -> String {
    format!("{} {text}", paint(Stream::Stderr, colour, "leasehold:"))
}

/// Writes to stderr at once, so that lines of several processes do not mix.
pub(crate) fn tell_raw(text: &str) {
    if !ASIDE.take(text) {
        // There is nowhere left to complain.
        io::stderr().write_all(text.as_bytes()).ok();
    }
}

fn as_json(level: &str, message: &str, exit: Option<u8>) -> String {
    let mut object = json!({
        "schema": "leasehold.log/1",
        "time": rfc3339_now(),
        "level": level,
        "message": message.trim_end(),
    });
    if let Some(code) = exit {
        object["exit"] = code.into();
    }
    format!("{object}\n")
}

/// Text from the store or the command line as it can be shown: a control character could forge lines or colours, and
/// one that turns the direction of writing the order of words.
pub(crate) fn clean(text: &str) -> String {
    let forges = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if forges(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// A word as a shell takes it back.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '/' | '@' | '+' | ',' | '=');
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", clean(word).replace('\'', r"'\''"))
    }
}

/// A length of time in two units: `12m34s`, `2h10m`, `3d4h`; below a second in milliseconds.
pub(crate) fn words(length: Duration) -> String {
    let seconds = length.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |large: u64, unit: char, small: u64, below: char| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit}{small:02}{below}"),
    };
    match () {
        () if days > 0 => two(days, 'd', hours % 24, 'h'),
        () if hours > 0 => two(hours, 'h', minutes % 60, 'm'),
        () if minutes > 0 => two(minutes, 'm', seconds % 60, 's'),
        () if seconds > 0 || length.is_zero() => format!("{seconds}s"),
        () => format!("{}ms", length.as_millis().max(1)),
    }
}

/// A length that was chosen or measured, to the tenth of a second where that says something: `1.2s`.
pub(crate) fn precise(length: Duration) -> String {
    if length < Duration::from_secs(1) || length >= Duration::from_secs(60) || length.subsec_millis() < 50 {
        words(length)
    } else {
        format!("{:.1}s", length.as_secs_f64())
    }
}

/// A moment for people: `2026-11-29 02:00:01Z`.
pub(crate) fn moment(time: SystemTime) -> String {
    Timestamp::try_from(time)
        .map_or_else(|_| "unknown".to_owned(), |time| time.strftime("%Y-%m-%d %H:%M:%SZ").to_string())
}

/// A moment of this process by the wall clock, for people: `02:12:03.4Z`.
pub(crate) fn clock_time(moment: Moment) -> String {
    let now = Clock::system().now();
    let signed = |length: Duration| SignedDuration::try_from(length).unwrap_or(SignedDuration::MAX);
    let time = Timestamp::now()
        .checked_add(signed(moment.since(now)))
        .and_then(|time| time.checked_sub(signed(now.since(moment))))
        .unwrap_or(Timestamp::MAX);
    time.strftime("%H:%M:%S%.1fZ").to_string()
}

/// A moment for programs: RFC 3339, in UTC, to the millisecond.
pub(crate) fn rfc3339(time: SystemTime) -> Option<String> {
    Timestamp::try_from(time).ok().map(|time| format!("{time:.3}"))
}

/// The present moment for programs.
pub(crate) fn rfc3339_now() -> String {
    format!("{:.3}", Timestamp::now())
}

/// A length of time for programs, in whole milliseconds.
pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// How long ago by the wall clock; zero if that lies ahead.
pub(crate) fn ago(time: SystemTime) -> Duration {
    let then = Timestamp::try_from(time).unwrap_or(Timestamp::MAX);
    Timestamp::now().duration_since(then).try_into().unwrap_or_default()
}

/// `web-3 (pid 4121, import.sh) for 12m04s, lease ends in 21s`.
pub(crate) fn holder_in_a_line(holder: &Holder) -> String {
    let info = &holder.info;
    let details: Vec<_> =
        info.pid.map(|pid| format!("pid {pid}")).into_iter().chain(info.command.as_deref().map(clean)).collect();
    let mut line = name(holder);
    if !details.is_empty() {
        line.push_str(&format!(" ({})", details.join(", ")));
    }
    if let Some(since) = holder.since {
        line.push_str(&format!(" for {}", words(ago(since))));
    }
    if let Some(remaining) = holder.remaining {
        line.push_str(&format!(", lease ends in {}", words(remaining)));
    }
    line
}

/// The lines `holder` and `since` of the blocks that describe a held key.
pub(crate) fn holder_block(holder: &Holder) -> String {
    let info = &holder.info;
    let mut first = name(holder);
    if let Some(pid) = info.pid {
        first.push_str(&format!(" pid {pid}"));
    }
    for (before, text) in [("", &info.command), ("label: ", &info.label), ("reason: ", &info.reason)] {
        if let Some(text) = text {
            first.push_str(&format!("  {before}{}", clean(text)));
        }
    }
    let since =
        holder.since.map_or_else(|| "unknown".to_owned(), |since| format!("{} ({})", moment(since), words(ago(since))));
    let lease = match (holder.remaining, holder.renewed) {
        (None, _) => "no ttl".to_owned(),
        (Some(left), None) => format!("lease ends in {} unless renewed", words(left)),
        (Some(left), Some(renewed)) => {
            format!("lease ends in {} unless renewed (last renewed {} ago)", words(left), words(ago(renewed)))
        }
    };
    format!("  holder   {first}\n  since    {since}   {lease}\n")
}

/// What a holder is called: its host, or the fingerprint of its owner token if it tells nothing about itself.
pub(crate) fn name(holder: &Holder) -> String {
    match &holder.info.host {
        Some(host) => clean(host),
        None => format!("owner {}", holder.owner.fingerprint()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_read_as_people_say_them() {
        for (ms, text) in [
            (0, "0s"),
            (350, "350ms"),
            (28_000, "28s"),
            (754_000, "12m34s"),
            (724_000, "12m04s"),
            (120_000, "2m"),
            (7_800_000, "2h10m"),
            (273_600_000, "3d04h"),
        ] {
            assert_eq!(words(Duration::from_millis(ms)), text);
        }
        assert_eq!(precise(Duration::from_millis(1_210)), "1.2s");
        assert_eq!(precise(Duration::from_secs(30)), "30s");
    }

    #[test]
    fn moments_are_utc() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_796_000_000_250);
        assert_eq!(moment(time), "2026-11-30 00:53:20Z");
        assert_eq!(rfc3339(time).unwrap(), "2026-11-30T00:53:20.250Z");
    }

    #[test]
    fn what_is_shown_forges_nothing() {
        assert_eq!(clean("a\u{1b}[31m\nb"), "a\u{fffd}[31m\u{fffd}b");
        assert_eq!(clean("a\u{202e}b\u{2066}c"), "a\u{fffd}b\u{fffd}c");
        assert_eq!(quoted("import:nightly"), "import:nightly");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
