//! `show` and `list`, for people and for programs.

use std::process::Stdio;

use serde_json::Value;

use crate::support::{BINARY, Place, wait_until};

#[test]
fn a_held_key_is_shown() {
    let place = Place::new();
    let first = place.hold("deploy", &["--reason", "freeze", "--label", "team=web"], "sleep 60");
    let text = place.run(["show", "deploy"]).expect(0).stdout;
    let pid = first.pid().as_raw_nonzero().get();
    for part in [
        "\"deploy\" is held\n  holder   ",
        &format!(" pid {pid}  sh"),
        "label: team=web",
        "reason: freeze",
        "  since    20",
        "lease ends in ",
        "  fencing  ",
        "owner fingerprint ",
        "leases.db  namespace leasehold",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let json: Value = serde_json::from_str(&place.run(["show", "deploy", "--json"]).expect(0).stdout).unwrap();
    assert_eq!(json["schema"], "leasehold.show/1");
    assert_eq!(json["key"], "deploy");
    assert_eq!(json["namespace"], "leasehold");
    assert_eq!(json["held"], true);
    let holder = &json["holders"][0];
    assert_eq!(holder["pid"], pid);
    assert_eq!(holder["command"], "sh");
    assert_eq!(holder["reason"], "freeze");
    assert_eq!(holder["label"], "team=web");
    assert_eq!(holder["owner_fingerprint"].as_str().unwrap().len(), 8);
    assert!(holder["fencing"].as_u64().unwrap() > 0);
    assert!((1..=30_000).contains(&holder["remaining_ms"].as_u64().unwrap()));
    assert!(holder["held_ms"].is_u64());
    assert!(holder["since"].as_str().unwrap().ends_with('Z'));
    assert!(!holder["host"].as_str().unwrap().is_empty());
}

#[test]
fn a_free_key_is_a_no() {
    let place = Place::new();
    let finished = place.run(["show", "k"]).expect(1);
    assert!(finished.stdout.starts_with("\"k\" is free\n"), "{}", finished.stdout);
    let json: Value = serde_json::from_str(&place.run(["show", "k", "--json"]).expect(1).stdout).unwrap();
    assert_eq!((&json["held"], &json["holders"]), (&Value::Bool(false), &Value::Array(Vec::new())));
}

#[test]
fn nothing_is_told_about_a_holder_that_wants_it_so() {
    let place = Place::new();
    let first = place.hold("k", &["--no-holder-info"], "sleep 60");
    let json: Value = serde_json::from_str(&place.run(["show", "k", "--json"]).expect(0).stdout).unwrap();
    for field in ["host", "pid", "command", "label", "reason"] {
        assert_eq!(json["holders"][0][field], Value::Null, "{field}");
    }
    assert!(place.run(["show", "k"]).expect(0).stdout.contains("  holder   owner "));
    drop(first);
}

#[test]
fn a_reason_forges_nothing() {
    let place = Place::new();
    let _first = place.hold("k", &["--reason", "a \u{1b}[31mred\nline"], "sleep 60");
    for arguments in [&["show", "k"][..], &["list"], &["show", "k", "--json"], &["list", "--json"]] {
        let stdout = place.run(arguments).expect(0).stdout;
        assert!(!stdout.contains('\u{1b}') && !stdout.lines().any(|line| line.starts_with("line")), "{stdout}");
    }
}

#[test]
fn held_keys_are_listed() {
    let place = Place::new();
    assert_eq!(place.run(["list"]).expect(0).stdout, "");
    place.run(["list", "--exit-code"]).expect(1);
    let holders: Vec<_> = ["import:a", "import:b", "other"]
        .map(|key| place.hold(key, &["--reason", &format!("why {key}")], "sleep 60"))
        .into();
    let text = place.run(["list", "--exit-code"]).expect(0).stdout;
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    for (column, title) in ["KEY", "HOLDER", "PID", "HELD", "LEASE", "FENCE", "REASON"].into_iter().enumerate() {
        assert_eq!(lines[0].split_whitespace().nth(column), Some(title), "{text}");
    }
    // Columns are aligned: the reason starts where its title does.
    let reason = lines[0].find("REASON").unwrap();
    for (line, key) in lines[1..].iter().zip(["import:a", "import:b", "other"]) {
        assert!(line.starts_with(key), "{text}");
        assert_eq!(&line[reason..], format!("why {key}"), "{text}");
    }
    assert_eq!(place.run(["list", "import:"]).expect(0).stdout.lines().count(), 3);
    let json = place.run(["list", "import:", "--json"]).expect(0).stdout;
    let objects: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.len(), 2);
    assert!(objects.iter().all(|object| object["schema"] == "leasehold.list/1"));
    assert_eq!((&objects[0]["key"], &objects[1]["key"]), (&"import:a".into(), &"import:b".into()));
    assert_eq!(objects[0]["holders"][0]["reason"], "why import:a");
    assert_eq!(place.run(["list", "nothing", "--json"]).expect(0).stdout, "");
    drop(holders);
}

#[test]
fn namespaces_do_not_see_each_other() {
    let place = Place::new();
    let _first = place.hold("k", &["--namespace", "one"], "sleep 60");
    place.run(["show", "k", "--namespace", "one"]).expect(0);
    place.run(["show", "k", "--namespace", "two"]).expect(1);
    place.run(["list", "--namespace", "two", "--exit-code"]).expect(1);
    // The empty namespace has the exact keys.
    let text = place.run(["list", "--namespace", ""]).expect(0).stdout;
    assert!(text.contains("one:k"), "{text}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let place = Place::new();
    let _first = place.hold("k", &[], "sleep 60");
    let outcome = |script: &str, stdin: Stdio| {
        let mut command = place.program(["sh", "-c", &format!("{BINARY} {script}; echo $?")]);
        command.stdin(stdin);
        let finished = place.start(command).finish();
        (finished.stdout, finished.stderr.lines().count())
    };
    for arguments in ["list", "list --json", "show k", "show k --json", "--help", "version"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(outcome(&format!("{arguments} >&0"), writer.into()), ("0\n".to_owned(), 0), "{arguments}");
        // A full disk is one.
        assert_eq!(outcome(&format!("{arguments} > /dev/full"), Stdio::null()), ("74\n".to_owned(), 1), "{arguments}");
    }
}

#[test]
fn asking_does_not_take_the_key() {
    let place = Place::new();
    place.run(["show", "k"]).expect(1);
    place.run(["list"]).expect(0);
    place.run(["run", "k", "-n", "--", "true"]).expect(0);
    wait_until("it is free again", || place.is_free("k"));
}
