//! What passes through to the job: arguments, input, output, environment.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::process::Stdio;

use crate::support::Place;

#[test]
fn arguments_arrive_unchanged() {
    let place = Place::new();
    let arguments = ["a b", "it's \"so\"", "line\nbreak", "-v", "--ttl", "--", "", "*", "$HOME", "ä\u{1b}"];
    let mut all = vec!["run", "k", "-w", "5", "--", "printf", "<%s>"];
    all.extend(arguments);
    let expected: String = arguments.iter().map(|argument| format!("<{argument}>")).collect();
    let finished = place.run(all).expect(0);
    assert_eq!(finished.stdout, expected);
    assert_eq!(finished.stderr, "");
}

#[test]
fn input_reaches_the_job_and_output_is_its_own() {
    let place = Place::new();
    let mut command = place.command(["run", "k", "--", "sh", "-c", "cat; echo aside >&2"]);
    let (reader, mut writer) = std::io::pipe().unwrap();
    command.stdin(Stdio::from(reader));
    let running = place.start(command);
    writer.write_all(b"through\0the pipe").unwrap();
    drop(writer);
    let finished = running.finish().expect(0);
    assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("through\0the pipe", "aside\n"));
}

#[test]
fn input_from_a_file_reaches_the_job() {
    let place = Place::new();
    std::fs::write(place.path("input"), "from a file").unwrap();
    let mut command = place.command(["run", "k", "--", "cat"]);
    command.stdin(File::open(place.path("input")).unwrap());
    assert_eq!(place.start(command).finish().expect(0).stdout, "from a file");
}

#[test]
fn the_job_finds_its_lease_in_the_environment() {
    let place = Place::new();
    let mut command = place.command(["run", "a key", "--namespace", "prod", "--ttl", "20s", "--", "env", "-0"]);
    command
        .env("LEASEHOLD_FENCING_TOKEN", "stale")
        .env("LEASEHOLD_ACQUIRED_AT", "stale")
        .env("LEASEHOLD_OWNER", "stale")
        .env("OTHER", "kept");
    let finished = place.start(command).finish().expect(0);
    let environment: BTreeMap<_, _> =
        finished.stdout.split_terminator('\0').filter_map(|variable| variable.split_once('=')).collect();
    assert_eq!(environment["LEASEHOLD_KEY"], "a key");
    assert_eq!(environment["LEASEHOLD_NAMESPACE"], "prod");
    assert_eq!(environment["LEASEHOLD_LEASE_STORE"], place.store());
    assert_eq!(environment["LEASEHOLD_STORE"], place.store());
    assert_eq!(environment["LEASEHOLD_TTL_MS"], "20000");
    assert_eq!(environment["OTHER"], "kept");
    assert!(environment["LEASEHOLD_FENCING_TOKEN"].parse::<u64>().unwrap() > 0);
    assert!(environment["LEASEHOLD_WAITED_MS"].parse::<u64>().unwrap() < 60_000);
    let acquired_at = environment["LEASEHOLD_ACQUIRED_AT"];
    assert!(acquired_at.starts_with("20") && acquired_at.ends_with('Z'), "{acquired_at}");
    assert!(!environment.contains_key("LEASEHOLD_OWNER"));
}

#[test]
#[cfg(feature = "otel")]
fn the_job_belongs_to_the_trace_that_run_was_started_in() {
    let place = Place::new();
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let script = "echo ${TRACEPARENT-none} ${TRACESTATE-none}";
    for (given, state, found) in [
        (parent, "a=1", format!("{parent} a=1")),
        // A later version: what goes on is what is known of it.
        ("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", "", format!("{parent} none")),
        ("malformed", "a=1", "none none".to_owned()),
    ] {
        let mut command = place.command(["run", "k", "--", "sh", "-c", script]);
        command.env("TRACEPARENT", given).env("TRACESTATE", state);
        assert_eq!(place.start(command).finish().expect(0).stdout.trim(), found);
    }
    let mut command = place.command(["run", "k", "--", "sh", "-c", script]);
    command.env_remove("TRACEPARENT").env_remove("TRACESTATE");
    assert_eq!(place.start(command).finish().expect(0).stdout.trim(), "none none");
}

#[test]
fn each_run_has_a_higher_fencing_token() {
    let place = Place::new();
    let script = "echo $LEASEHOLD_FENCING_TOKEN";
    let tokens: Vec<u64> = (0..5)
        .map(|_| place.run(["run", "k", "--", "sh", "-c", script]).expect(0).stdout.trim().parse().unwrap())
        .collect();
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}

#[test]
fn the_job_has_a_process_group_of_its_own() {
    let place = Place::new();
    let script = "read pid comm state parent group rest < /proc/$$/stat; echo $pid $group";
    let stdout = place.run(["run", "k", "--", "sh", "-c", script]).expect(0).stdout;
    let (pid, group) = stdout.trim().split_once(' ').unwrap();
    assert_eq!(pid, group);
}
