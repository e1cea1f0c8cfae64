//! `doctor`: whether the live store does what leases need.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use leasehold::store::{Finding, Level};
use leasehold::{Check, Close, Diagnosis, RoundTrips};
use serde_json::{Value, json};

use crate::cli::{Doctor, Global};
use crate::config::{Said, Settings};
use crate::exit::{self, Failure};
use crate::output::{self, Colour, Stream};

/// Prints what was found; the code is that of the worst.
pub(crate) async fn doctor(global: &Global, arguments: &Doctor) -> Result<u8, Failure> {
    let said = Said::gather(global, leasehold::config::Config::default())?;
    let settings = Settings::new(global, leasehold::config::Config::default())?;
    let mut diagnosis = Diagnosis::default();
    let failure = match examine(&settings).await {
        Ok(found) => {
            diagnosis = found;
            diagnosis.error.as_ref().map(|error| settings.failure(error))
        }
        Err(failure) => {
            diagnosis.add("open", Finding::new(Level::Fail, &*failure.message, "see what the message says"));
            Some(failure)
        }
    };
    if let Some(finding) = password_file(&said) {
        diagnosis.add("password", finding);
    }
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
async fn examine(settings: &Settings) -> Result<Diagnosis, Failure> {
    let manager = settings.open().await?.build().map_err(|error| settings.failure(&error))?;
    let second = settings.open().await?.build().map_err(|error| settings.failure(&error))?;
    // Two stores of one process each have nothing to do with each other.
    let diagnosis = if manager.is_shared() { manager.diagnose_with(&second).await } else { manager.diagnose().await };
    second.close(Close::Release).await.ok();
    manager.close(Close::Release).await.ok();
    Ok(diagnosis)
}

fn password_file(said: &Said) -> Option<Finding> {
    let setting = said.config.describe().into_iter().find(|setting| setting.name == "password_file")?;
    let path = setting.value?;
    let mode = fs::metadata(Path::new(&path)).ok()?.permissions().mode();
    (mode & 0o077 != 0).then(|| {
        let path = output::clean(&path);
        Finding::new(Level::Warn, format!("others can read the password in {path}"), format!("chmod 600 {path}"))
    })
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
