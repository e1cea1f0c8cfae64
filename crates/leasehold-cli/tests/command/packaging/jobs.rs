//! The unit, the timer and the line of cron.

use std::fs;

use super::{has, program, read, with_programs};
use crate::support::Place;

/// The values of a key in the files of units, in order.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

#[test]
fn systemd_takes_the_unit_and_the_timer() {
    if !has("systemd-analyze") {
        return;
    }
    let place = with_programs(&["import"]);
    let here = |name: &str| place.path(name).display().to_string();
    // What it names has to be there.
    let service = read("systemd/nightly.service")
        .replace("/usr/bin/leasehold", &here("bin/leasehold"))
        .replace("/usr/local/bin/import", &here("import"));
    fs::create_dir(place.path("units")).unwrap();
    fs::write(place.path("units/nightly.service"), service).unwrap();
    fs::write(place.path("units/nightly.timer"), read("systemd/nightly.timer")).unwrap();
    for unit in ["units/nightly.service", "units/nightly.timer"] {
        let verified = place.start(program(&place, &["systemd-analyze", "verify", "--man=no", unit])).finish();
        let complaints: Vec<_> = verified.stderr.lines().filter(|line| line.contains("nightly")).collect();
        assert_eq!(complaints, [""; 0], "{unit}");
        assert_eq!(verified.code(), 0, "{unit}: {verified:?}");
    }
    let calendar = read("systemd/nightly.timer");
    let calendar = values(&calendar, "OnCalendar")[0].to_owned();
    place.start(program(&place, &["systemd-analyze", "calendar", &calendar])).finish().expect(0);
}

#[test]
fn the_unit_leaves_the_stopping_to_leasehold() {
    let unit = read("systemd/nightly.service");
    assert_eq!(values(&unit, "SuccessExitStatus"), ["75"]);
    assert_eq!(values(&unit, "KillMode"), ["mixed"]);
    assert!(values(&unit, "TimeoutStopSec")[0].parse::<u32>().unwrap() >= 15);
    let place = with_programs(&["import"]);
    let line = values(&unit, "ExecStart")[0]
        .replace("/usr/bin/leasehold", "leasehold")
        .replace("%H", "a-host")
        .replace("/usr/local/bin/import", "./import");
    assert_runs_or_is_busy(&place, &line, "import\n", 75);
    // The names in Environment are those of settings.
    for setting in values(&unit, "Environment") {
        assert!(
            setting.starts_with("LEASEHOLD_STORE=") || setting.starts_with("LEASEHOLD_PASSWORD_FILE="),
            "{setting}"
        );
    }
}

#[test]
fn the_line_of_cron_runs() {
    let table = read("cron/nightly");
    let line = table.lines().rfind(|line| !line.starts_with('#')).unwrap();
    assert!(!line.contains('%'), "cron ends a line there");
    let fields: Vec<_> = line.splitn(7, ' ').collect();
    assert_eq!(fields[..6], ["0", "2", "*", "*", "*", "app"]);
    let place = with_programs(&["import"]);
    let line = fields[6].replace("/usr/local/bin/import", "./import");
    let told = assert_runs_or_is_busy(&place, &line, "import\n", 0);
    assert_eq!(told, "", "cron would send it by mail");
}

/// A line of shell does its work, and ends with the code when somebody else has the key; what it said then.
fn assert_runs_or_is_busy(place: &Place, line: &str, done: &str, busy: i32) -> String {
    place.start(program(place, &["sh", "-c", line])).finish().expect(0);
    assert_eq!(place.read("done"), done, "{line}");
    place.run(["acquire", "nightly", "--ttl", "1m"]).expect(0);
    let refused = place.start(program(place, &["sh", "-c", line])).finish().expect(busy);
    assert_eq!(place.read("done"), done, "{line}");
    refused.stdout + &refused.stderr
}
