//! `doctor`: whether the live store does what leases need.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use leasehold::store::{Finding, Level};
use leasehold::{Check, Close, Diagnosis, Renew, RoundTrips};
use serde_json::{Value, json};

use super::grace::Room;
use crate::cli::{Doctor, Global};
use crate::config::{self, Said, Settings};
use crate::exit::{self, Failure};
use crate::output::{self, Colour, Stream};

/// So many renewals should fit into the time before a command is told to stop.
const RENEWALS: u32 = 4;

/// Few programs end in order within less.
const SHORT_GRACE: Duration = Duration::from_millis(100);

/// Prints what was found; the code is that of the worst.
pub(crate) async fn doctor(global: &Global, arguments: &Doctor) -> Result<u8, Failure> {
    let flags = || config::flags(false, None, arguments.ttl.as_deref());
    let said = Said::gather(global, flags()?)?;
    let settings = Settings::new(global, flags()?)?;
    let renew = match config::length("--renew-every", arguments.renew_every.as_deref())? {
        Some(interval) => Renew::Every(interval),
        None => Renew::Automatic,
    };
    let kill_after = config::length("--kill-after", arguments.kill_after.as_deref())?;
    let mut diagnosis = Diagnosis::default();
    let failure = match examine(&settings, renew).await {
        Ok(found) => {
            diagnosis = found;
            diagnosis.error.as_ref().map(|error| settings.failure(error))
        }
        Err(failure) => {
            diagnosis.add("open", Finding::new(Level::Fail, &*failure.message, remedy(&settings, failure.code)));
            Some(failure)
        }
    };
    if let Some(finding) = password_file(&said) {
        diagnosis.add("password", finding);
    }
    let room = Room::new(settings.ttl(), renew);
    diagnosis.add("grace", arithmetic(room, kill_after, diagnosis.round_trips));
    let code = match (diagnosis.worst(), failure) {
        (_, Some(failure)) => failure.code,
        (Level::Ok, None) => exit::DONE,
        (Level::Warn, None) => exit::NO,
        // It answers, and is not fit.
        _ => exit::CONFIG,
    };
    output::print(&if arguments.json {
        format!("{}\n", as_json(&settings, &diagnosis, code))
    } else {
        text(&settings, &diagnosis)
    })?;
    Ok(code)
}

/// The store is opened twice, so that the two parties have no connection in common.
async fn examine(settings: &Settings, renew: Renew) -> Result<Diagnosis, Failure> {
    let manager = settings.open().await?.renew(renew).build().map_err(|error| settings.failure(&error))?;
    let second = settings.open().await?.build().map_err(|error| settings.failure(&error))?;
    // Two stores of one process each have nothing to do with each other.
    let diagnosis = if manager.is_shared() { manager.diagnose_with(&second).await } else { manager.diagnose().await };
    second.close(Close::Release).await.ok();
    manager.close(Close::Release).await.ok();
    Ok(diagnosis)
}

/// What to do about a store that cannot be opened; the message names the particulars.
fn remedy(settings: &Settings, code: u8) -> &'static str {
    match code {
        // A server that expects none waits for the end of what it does not understand.
        exit::UNAVAILABLE if settings.place().starts_with("rediss") => {
            "see that the store runs and can be reached from here, and that it offers encryption: else write redis:"
        }
        exit::UNAVAILABLE => "see that the store runs and can be reached from here, and that the URL names it",
        exit::REFUSED => "give this user the password, the rights or the server that the message names",
        exit::CANT_CREATE => "name a file that this user can write, on a local file system, for leases alone",
        exit::CONFIG => "correct the URL or the setting that the message names",
        _ => "see what the message says",
    }
}

/// Whether a command that is told to stop has the time to: counted from the first renewal that can fail.
fn arithmetic(room: Room, kill_after: Option<Duration>, round_trips: Option<RoundTrips>) -> Finding {
    let (ttl, interval) = (output::precise(room.ttl), output::precise(room.interval));
    let kill_after = match room.grace(kill_after) {
        Ok(kill_after) => kill_after,
        Err(failure) => {
            let longest = output::precise(room.length);
            return Finding::new(Level::Fail, failure.message, format!("-k below {longest}, or a longer ttl"));
        }
    };
    let spare = room.length - kill_after;
    let what = format!(
        "with a ttl of {ttl}, renewed every {interval}, a command gets TERM {} after the first renewal without an answer, \
         and has {} to end before its KILL",
        output::precise(spare),
        output::precise(kill_after)
    );
    match round_trips {
        Some(trips) if trips.p99 * RENEWALS >= spare => {
            let p99 = output::precise(trips.p99);
            let what = format!("{what}; a round trip takes up to {p99}, so that few renewals can be tried again");
            Finding::new(Level::Warn, what, "a longer ttl, a shorter -k, or a store that is nearer")
        }
        _ if kill_after < SHORT_GRACE => Finding::new(Level::Warn, what, "a longer ttl, so that it can end in order"),
        _ => Finding::new(Level::Ok, what, ""),
    }
}

/// A file with a password that others can read, named by the setting or in the store's URL.
fn password_file(said: &Said) -> Option<Finding> {
    let settings = said.config.describe();
    let value = |name| settings.iter().find(|setting| setting.name == name)?.value.clone();
    let in_url = value("store").map(|url| files_in(&url)).unwrap_or_default();
    let is_open =
        |path: &String| fs::metadata(Path::new(path)).is_ok_and(|found| found.permissions().mode() & 0o077 != 0);
    let path = output::clean(&value("password_file").into_iter().chain(in_url).find(is_open)?);
    Some(Finding::new(Level::Warn, format!("others can read the password in {path}"), format!("chmod 600 {path}")))
}

/// The files with passwords that a URL names.
fn files_in(url: &str) -> Vec<String> {
    let options = url.split_once('?').map_or("", |(_, options)| options).split('&');
    let file = |option: &str| {
        let (name, value) = option.split_once('=')?;
        ["password_file", "sentinel_password_file"].contains(&name).then(|| decoded(value))
    };
    options.filter_map(file).collect()
}

/// What stands in a URL with `%` and two digits in place of some bytes.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend(&part.as_bytes()[2..]);
            }
            None => bytes.extend([b"%", part.as_bytes()].concat()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn text(settings: &Settings, diagnosis: &Diagnosis) -> String {
    let mut text = format!("store {}  namespace {}\n", settings.place(), settings.namespace());
    for Check { name, finding, .. } in &diagnosis.checks {
        let level = output::paint(Stream::Stdout, colour(finding.level), &format!("{:<5}", word(finding.level)));
        let what = output::hanging(COLUMN, &output::clean(&finding.what));
        text.push_str(&format!("  {level} {name:<11} {what}\n"));
        if !finding.fix.is_empty() {
            let label = if finding.level == Level::Ok { "note" } else { "fix" };
            let fix = output::hanging(COLUMN, &format!("{label}: {}", output::clean(&finding.fix)));
            text.push_str(&format!("{:COLUMN$}{fix}\n", ""));
        }
    }
    text
}

/// Where what was found is written.
const COLUMN: usize = 20;

fn as_json(settings: &Settings, diagnosis: &Diagnosis, code: u8) -> Value {
    let micros = |trips: &RoundTrips| {
        json!({
            "count": trips.count,
            "p50_us": u64::try_from(trips.p50.as_micros()).unwrap_or(u64::MAX),
            "p99_us": u64::try_from(trips.p99.as_micros()).unwrap_or(u64::MAX),
        })
    };
    let checks: Vec<_> = diagnosis
        .checks
        .iter()
        .map(|Check { name, finding, .. }| {
            json!({"check": name, "level": word(finding.level), "what": finding.what, "fix": finding.fix})
        })
        .collect();
    json!({
        "schema": "leasehold.doctor/1",
        "store": settings.place(),
        "namespace": settings.namespace(),
        "worst": word(diagnosis.worst()),
        "exit": code,
        "round_trips": diagnosis.round_trips.as_ref().map(micros),
        "checks": checks,
    })
}

fn word(level: Level) -> &'static str {
    match level {
        Level::Ok => "ok",
        Level::Warn => "warn",
        _ => "fail",
    }
}

fn colour(level: Level) -> Colour {
    match level {
        Level::Ok => Colour::Green,
        Level::Warn => Colour::Yellow,
        _ => Colour::Red,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_with_passwords_of_a_url_are_found() {
        let url = "redis+sentinel://h,h/name/0?ttl=5s&password_file=/run/a%20b&sentinel_password_file=%2frun%2Fc%é&x";
        assert_eq!(files_in(url), ["/run/a b", "/run/c%é"]);
        assert!(files_in("redis://h?password=x").is_empty() && files_in("memory:").is_empty());
    }
}
