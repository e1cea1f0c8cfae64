//! What programs are told: the report, the status lines, messages as JSON.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{BINARY, Place, full_pipe, wait_until};

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"))).collect()
}

/// The report, which appears whole or not at all.
fn report(place: &Place) -> Value {
    serde_json::from_str(&place.read("report")).unwrap()
}

/// Takes out a number that differs each time.
fn number(object: &mut Value, name: &str) -> u64 {
    object[name].take().as_u64().unwrap_or_else(|| panic!("{name} is no number"))
}

#[test]
fn the_report_has_this_form() {
    let place = Place::new();
    place.run(["run", "a key", "--namespace", "n", "--report", "report", "-c", "exit 75"]).expect(75);
    let mut object = report(&place);
    assert!(number(&mut object, "fencing") > 0);
    assert!(number(&mut object, "waited_ms") < 60_000 && number(&mut object, "held_ms") < 60_000);
    assert_eq!(
        object,
        json!({
            "schema": "leasehold.run/1",
            "key": "a key",
            "namespace": "n",
            "outcome": "ran",
            "exit": {"source": "child", "code": 75},
            "error": null,
            "waited_ms": null,
            "held_ms": null,
            "renewals": 0,
            "fencing": null,
        })
    );
    let mode = fs::metadata(place.path("report")).unwrap().permissions().mode();
    assert_eq!(mode & 0o600, 0o600);
    let left: Vec<_> = fs::read_dir(place.path("")).unwrap().flatten().map(|file| file.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(".report")), "{left:?}");
}

#[test]
fn the_report_tells_whose_code_it_is() {
    let place = Place::new();
    let told = |arguments: &[&str], code: i32| {
        let all = [&["run", "k", "--report", "report"], arguments].concat();
        place.run(all).expect(code);
        let object = report(&place);
        assert_eq!(object["exit"]["code"], code);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&object["outcome"]), text(&object["exit"]["source"]), object)
    };
    let is = |told: &(String, String, Value), outcome: &str, source: &str| {
        assert_eq!((told.0.as_str(), told.1.as_str()), (outcome, source), "{}", told.2);
    };
    is(&told(&["--", "true"], 0), "ran", "child");
    is(&told(&["-c", "kill -9 $$"], 137), "ran", "child");
    is(&told(&["--max-runtime", "100ms", "--", "sleep", "60"], 124), "timeout", "lock");
    let lost = told(&["--ttl", "8s", "--no-renew", "--", "sleep", "60"], 79);
    is(&lost, "lost", "lock");
    assert!(lost.2["held_ms"].as_u64().unwrap() > 0);
    let missing = told(&["--", "no-such-program"], 127);
    is(&missing, "error", "lock");
    assert!(missing.2["error"].as_str().unwrap().contains("no-such-program"));
    is(&told(&["-s", "nosuch:", "--", "true"], 78), "error", "lock");
    is(&told(&["--ttl", "0", "--", "true"], 65), "error", "lock");
    // It ends when it was renewed.
    let job =
        "run k --report report --status-fd 3 --renew-every 50ms -c 'until grep -q renewed status; do sleep 0.02; done'";
    place.start(place.program(["sh", "-c", &format!("{BINARY} {job} 3>status")])).finish().expect(0);
    assert!(report(&place)["renewals"].as_u64().unwrap() > 0);
    let first = place.hold("k", &[], "sleep 60");
    let busy = told(&["-n", "--", "true"], 75);
    is(&busy, "busy", "lock");
    assert!(busy.2["fencing"].is_null() && busy.2["held_ms"].is_null() && busy.2["waited_ms"].is_u64());
    is(&told(&["-n", "--skip-ok", "--", "true"], 0), "busy", "lock");
    fs::remove_file(place.path("report")).unwrap();
    let second = place.start(place.command(["run", "k", "--report", "report", "--", "true"]));
    wait_until("the second waits", || second.stderr().contains("waiting"));
    assert!(!place.path("report").exists());
    second.signal(Signal::TERM);
    second.finish().expect(143);
    assert_eq!(report(&place)["outcome"], "error");
    drop(first);
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_anything_runs() {
    let place = Place::new();
    for path in ["no-such-directory/report", ".", "/"] {
        for option in ["--report", "--owner-file"] {
            let finished = place.run(["run", "k", option, path, "--", "touch", "ran"]).expect(73);
            assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
        }
    }
    // What is no file is written to and not replaced.
    let finished = place.run(["run", "k", "-q", "--report", "/dev/stdout", "--", "true"]).expect(0);
    assert_eq!(objects(&finished.stdout)[0]["outcome"], "ran");
    assert!(!place.path("ran").exists());
}

#[test]
fn the_status_lines_have_this_form() {
    let place = Place::new();
    let script = format!("{BINARY} run k --namespace n --ttl 1m --status-fd 7 -c 'env | grep STATUS_FD' 7> status");
    let finished = place.start(place.program(["sh", "-c", &script])).finish().expect(0);
    assert_eq!(finished.stdout, "LEASEHOLD_STATUS_FD=7\n");
    let mut told = objects(&place.read("status"));
    assert_eq!(told.len(), 2);
    for object in &mut told {
        let time = object["time"].take();
        assert!(time.as_str().unwrap().ends_with('Z'), "{time}");
        number(object, "fencing");
        number(object, "waited_ms");
    }
    number(&mut told[1], "held_ms");
    assert_eq!(
        told,
        [
            json!({
                "schema": "leasehold.status/1", "event": "acquired", "time": null, "key": "k", "namespace": "n",
                "fencing": null, "waited_ms": null, "ttl_ms": 60000,
            }),
            json!({
                "schema": "leasehold.status/1", "event": "ended", "time": null, "key": "k", "namespace": "n",
                "outcome": "ran", "exit": {"source": "child", "code": 0}, "error": null, "renewals": 0,
                "fencing": null, "waited_ms": null, "held_ms": null,
            }),
        ]
    );
}

#[test]
fn the_status_is_told_as_it_happens() {
    let place = Place::new();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut command = place.command(["run", "k", "--ttl", "6s", "--renew-every", "100ms", "--status-fd", "0"]);
    command.args(["--", "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; exec sleep 60"]);
    command.stdin(Stdio::from(writer));
    let running = place.start(command);
    let mut lines = BufReader::new(reader).lines().map(|line| objects(&line.unwrap()).remove(0));
    assert_eq!(lines.next().unwrap()["event"], "acquired");
    let renewed = lines.next().unwrap();
    assert_eq!(renewed["event"], "renewed");
    assert!(renewed["slack_ms"].is_u64());
    for file in ["leases.db", "leases.db-wal", "leases.db-shm"] {
        fs::remove_file(place.path(file)).ok();
    }
    fs::write(place.path("go"), "").unwrap();
    let lost = lines.find(|object| object["event"] != "renewed").unwrap();
    assert_eq!(lost["event"], "lost");
    assert!(lost["reason"].is_string());
    let ended = lines.find(|object| object["event"] != "renewed").unwrap();
    assert_eq!(
        (&ended["event"], &ended["outcome"], &ended["exit"]["code"]),
        (&"ended".into(), &"lost".into(), &79.into())
    );
    running.finish().expect(79);
}

#[test]
fn a_reader_of_the_status_that_does_not_read_costs_nothing() {
    let place = Place::new();
    let (reader, writer) = full_pipe();
    let arguments =
        ["run", "k", "--ttl", "8s", "-k", "200ms", "--renew-every", "100ms", "--status-fd", "0", "--", "sleep", "9"];
    let mut command = place.command(arguments);
    command.stdin(Stdio::from(writer));
    place.start(command).finish().expect(0);
    drop(reader);
    // Nor does one that has gone away.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = place.command(["run", "k", "--status-fd", "0", "-c", "exit 5"]);
    command.stdin(Stdio::from(writer));
    place.start(command).finish().expect(5);
}

#[test]
fn a_status_descriptor_has_to_be_open_for_writing() {
    let place = Place::new();
    // What this process was itself started with would be inherited.
    let close: String = (3..10).map(|number| format!(" {number}>&-")).collect();
    for number in ["0", "3", "4", "5", "9", "99", "2147483647", "-1", "x", "2147483648"] {
        let script = format!("exec {BINARY} run k --status-fd {number} -- touch ran{close}");
        let finished = place.start(place.program(["sh", "-c", &script])).finish().expect(64);
        assert!(finished.stderr.contains("--status-fd"), "{}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    }
    assert!(!place.path("ran").exists());
}

#[test]
fn messages_may_be_objects() {
    let place = Place::new();
    let first = place.hold("k", &[], "sleep 60");
    for (arguments, code, level, part) in [
        (&["run", "k", "-n", "--", "true"][..], 75, "info", "busy: \"k\" is held"),
        (&["run", "k2", "--", "no-such-program"], 127, "error", "cannot run \"no-such-program\""),
        (&["run", "k2", "-v", "--", "true"], 0, "info", "acquired \"k2\""),
        (&["run", "k2", "-s", "noop:", "--", "true"], 0, "warning", "excludes nobody"),
        (&["run", "k2", "--ttl", "8s", "--no-renew", "--", "sleep", "60"], 79, "error", "lost: the lease on"),
        (&["list", "-s", "nosuch:"], 78, "error", "unknown store"),
    ] {
        let finished = place.run([arguments[0], "--log-format", "json"].iter().chain(&arguments[1..])).expect(code);
        let told = objects(&finished.stderr);
        assert_eq!(told[0]["schema"], "leasehold.log/1");
        assert!(told[0]["time"].as_str().unwrap().ends_with('Z'));
        assert_eq!(told[0]["level"], level, "{}", finished.stderr);
        assert!(told[0]["message"].as_str().unwrap().contains(part), "{}", finished.stderr);
        if level == "error" && code != 79 {
            assert_eq!(told[0]["exit"], code);
        }
    }
    drop(first);
}
