//! Settings: flags over environment over files over defaults, and `config show`.

use std::fs;

use serde_json::{Value, json};

use crate::support::{BINARY, Place, wait_until};

const USER_FILE: &str = ".config/leasehold/config.toml";

fn write(place: &Place, name: &str, content: &str) {
    let path = place.path(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// The settings as `name=value source`, but for those that are not set.
fn shown(place: &Place, arguments: &[&str], environment: &[(&str, &str)]) -> Vec<String> {
    let mut command = place.command([&["config", "show", "--json"], arguments].concat());
    command.env_remove("LEASEHOLD_STORE").envs(environment.iter().copied());
    let finished = place.start(command).finish().expect(0);
    let object: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(object["schema"], "leasehold.config/1");
    let settings = object["settings"].as_array().unwrap();
    settings
        .iter()
        .filter(|setting| !setting["value"].is_null())
        .map(|setting| {
            let text = |name: &str| setting[name].as_str().unwrap_or_default();
            let from = text("from").strip_prefix(place.path("").to_str().unwrap()).unwrap_or(text("from")).to_owned();
            format!("{}={} {} {from}", text("name"), text("value"), text("source")).trim_end().to_owned()
        })
        .collect()
}

#[test]
fn every_default_is_shown() {
    let place = Place::new();
    let mut command = place.command(["config", "show"]);
    command.env("XDG_STATE_HOME", place.path("state")).env_remove("LEASEHOLD_STORE");
    let text = place.start(command).finish().expect(0).stdout;
    let store = format!("sqlite://{}", place.path("state/leasehold/leases.db").display());
    let lines: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let user_file = format!("{}:", place.path(USER_FILE).display());
    assert_eq!(
        lines,
        [
            vec!["NAME", "VALUE", "SOURCE"],
            vec!["store", &store, "default"],
            vec!["namespace", "leasehold", "default"],
            vec!["ttl", "30s", "default"],
            vec!["wait", "forever", "default"],
            vec!["op_timeout", "5s", "default"],
            vec!["connect_timeout", "-", "default"],
            vec!["retry", "off", "default"],
            vec!["breaker", "off", "default"],
            vec!["own_runtime", "off", "default"],
            vec!["password", "-", "default"],
            vec!["password_file", "-", "default"],
            vec![&user_file, "not", "there"],
            vec!["/etc/leasehold/config.toml:", "not", "there"],
        ]
    );
    assert!(!place.path("state").exists(), "asking created the store");
}

#[test]
fn each_place_stands_above_the_next() {
    let place = Place::new();
    write(
        &place,
        USER_FILE,
        "store = 'sqlite:///user.db?op_timeout=1s'\nnamespace = 'user'\nttl = '1m'\nwait = 5\nconnect_timeout = '2s'",
    );
    write(&place, "named.toml", "store = 'sqlite:///named.db?connect_timeout=3s'\nnamespace = 'named'\nttl = 40.5");
    let named = place.path("named.toml").display().to_string();
    let environment = [("LEASEHOLD_CONFIG", named.as_str()), ("LEASEHOLD_NAMESPACE", ""), ("LEASEHOLD_WAIT", "")];
    let expected = [
        "store=sqlite:///named.db?connect_timeout=3s file named.toml",
        "namespace= environment LEASEHOLD_NAMESPACE",
        "ttl=40s 500ms file named.toml",
        &format!("wait=5s file {USER_FILE}"),
        "op_timeout=5s default",
        "connect_timeout=3s url",
        "retry=off default",
        "breaker=off default",
        "own_runtime=off default",
    ];
    assert_eq!(shown(&place, &[], &environment), expected);
    let flags = ["--store", "sqlite:///flag.db?ttl=7s", "--namespace", "flag", "--config", &named];
    assert_eq!(
        shown(&place, &flags, &[("LEASEHOLD_TTL", "9s"), ("LEASEHOLD_CONFIG", "/no/such/file")]),
        [
            "store=sqlite:///flag.db?ttl=7s flag",
            "namespace=flag flag",
            "ttl=7s url",
            &format!("wait=5s file {USER_FILE}"),
            "op_timeout=5s default",
            &format!("connect_timeout=2s file {USER_FILE}"),
            "retry=off default",
            "breaker=off default",
            "own_runtime=off default",
        ]
    );
    let elsewhere = place.path("xdg").display().to_string();
    write(&place, "xdg/leasehold/config.toml", "ttl = '11s'");
    assert!(
        shown(&place, &[], &[("XDG_CONFIG_HOME", &elsewhere)])
            .contains(&"ttl=11s file xdg/leasehold/config.toml".to_owned())
    );
}

#[test]
fn the_file_of_the_system_stands_lowest() {
    let place = Place::new();
    // In a world of its own, where /etc is empty.
    let world = "mount -t tmpfs none /etc && mkdir /etc/leasehold && cp system.toml /etc/leasehold/config.toml";
    let isolated = |script: &str| place.start(place.program(["unshare", "-m", "sh", "-c", script])).finish();
    write(&place, "system.toml", "ttl = '3m'\nwait = '4m'");
    write(&place, USER_FILE, "wait = '5m'");
    if isolated(world).code() != 0 {
        eprintln!("skipped: only root can replace /etc");
        return;
    }
    let script = format!("{world} && {BINARY} config show --json && {BINARY} run k -c 'echo $LEASEHOLD_TTL_MS'");
    let stdout = isolated(&script).expect(0).stdout;
    let (object, ttl) = stdout.split_once('\n').unwrap();
    assert_eq!(ttl, "180000\n");
    let object: Value = serde_json::from_str(object).unwrap();
    let from = |at: usize| object["settings"][at]["from"].as_str().unwrap();
    assert_eq!(from(2), "/etc/leasehold/config.toml");
    assert!(from(3).ends_with(USER_FILE));
    assert_eq!(object["files"][1]["found"], true);
}

#[test]
fn files_hold_for_what_is_run() {
    let place = Place::new();
    write(&place, USER_FILE, &format!("store = '{}'\nnamespace = 'filed'\nttl = '27s'\nwait = 0", place.store()));
    let script = "echo $LEASEHOLD_TTL_MS $LEASEHOLD_NAMESPACE; touch up; while [ ! -e go ]; do sleep 0.02; done";
    let start = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        command.env_remove("LEASEHOLD_STORE");
        place.start(command)
    };
    let first = start(&["run", "k", "-c", script]);
    wait_until("the first runs", || place.path("up").exists());
    start(&["run", "k", "-c", script]).finish().expect(75);
    // A flag may say that the wait has no end after all.
    let patient = start(&["run", "k", "-w", "forever", "--", "true"]);
    wait_until("it waits", || patient.stderr().contains("waiting"));
    fs::write(place.path("go"), "").unwrap();
    assert_eq!(first.finish().expect(0).stdout, "27000 filed\n");
    patient.finish().expect(0);
}

#[test]
fn the_current_directory_is_never_read() {
    let place = Place::new();
    for name in ["config.toml", "leasehold.toml", ".leasehold.toml", "leasehold/config.toml", ".leasehold/config.toml"]
    {
        write(&place, name, "namespace = 'planted'");
    }
    assert!(
        shown(&place, &[], &[("HOME", "."), ("LEASEHOLD_STORE", "sqlite:///x")])
            .contains(&"namespace=leasehold default".to_owned())
    );
    assert!(shown(&place, &[], &[]).contains(&"namespace=leasehold default".to_owned()));
}

#[test]
fn what_is_wrong_with_a_file_is_one_line() {
    let place = Place::new();
    let path = place.path("c.toml").display().to_string();
    for (content, part) in [
        ("tll = '5s'", "line 1: unknown key \"tll\"; did you mean \"ttl\"? there are breaker, connect_timeout, "),
        ("ttl = '5s'\n[redis]\nhost = 'x'", "line 2: unknown key \"redis\": there are"),
        ("ttl = ", "line 1: "),
        ("password = 'hunter2", "line 1: "),
        ("store = 'nosuch://u:hunter2@h'", "unknown store \"nosuch\": choose one of memory: noop: sqlite:"),
        ("store = 'sqlite:///x?tttl=4s'", "unknown option \"tttl\"; did you mean \"ttl\"?"),
        ("store = ''", "no store is named: choose one of"),
        ("wait = 'soon'", &format!("invalid wait in {path}: invalid duration")),
        ("namespace = 'a b'", "invalid namespace"),
    ] {
        fs::write(place.path("c.toml"), content).unwrap();
        for arguments in [&["run", "k", "--config", &path, "--", "touch", "ran"][..], &["list", "--config", &path]] {
            let mut command = place.command(arguments);
            command.env_remove("LEASEHOLD_STORE").env("XDG_STATE_HOME", place.path("state"));
            let finished = place.start(command).finish().expect(78);
            assert!(finished.stderr.contains(part), "{content}: {}", finished.stderr);
            assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
            assert!(!finished.stderr.contains("hunter2"), "{}", finished.stderr);
        }
    }
    // Whoever looks for the mistake sees the settings first.
    fs::write(place.path("c.toml"), "wait = 'soon'").unwrap();
    let finished = place.run(["config", "show", "--config", &path]).expect(78);
    assert!(finished.stdout.contains("invalid") && finished.stderr.contains("invalid wait"), "{finished:?}");
    assert!(!place.path("ran").exists() && !place.path("state").exists());
}

#[test]
fn a_file_that_was_named_has_to_be_there() {
    let place = Place::new();
    for name in ["no-such-file", ""] {
        let path = place.path(name).display().to_string();
        let finished = place.run(["run", "k", "--config", &path, "--", "true"]).expect(78);
        assert!(finished.stderr.contains(&path) && finished.stderr.lines().count() == 1, "{}", finished.stderr);
    }
    let mut command = place.command(["list"]);
    command.env("LEASEHOLD_CONFIG", "nowhere.toml");
    assert!(place.start(command).finish().expect(78).stderr.contains("nowhere.toml: check LEASEHOLD_CONFIG"));
    // A malformed value that is overridden harms nobody.
    write(&place, USER_FILE, "ttl = 'soon'");
    place.run(["run", "k", "--", "true"]).expect(65);
    place.run(["run", "k", "--ttl", "5s", "--", "true"]).expect(0);
}

#[test]
fn secrets_are_not_shown_and_may_come_from_files() {
    let place = Place::new();
    let url = format!("{}?namespace=secret", place.store());
    write(&place, "url", &format!("{url}\n"));
    let file = place.path("url").display().to_string();
    let mut command = place.command(["run", "k", "-c", "echo $LEASEHOLD_NAMESPACE"]);
    command.env_remove("LEASEHOLD_STORE").env("LEASEHOLD_STORE_FILE", &file);
    assert_eq!(place.start(command).finish().expect(0).stdout, "secret\n");
    write(&place, USER_FILE, "password = 'hunter2'");
    for (variable, value) in [
        ("LEASEHOLD_STORE", "redis://u:hunter2@h:1/0?sslpassword=hunter2"),
        ("LEASEHOLD_PASSWORD", "hunter2"),
        ("LEASEHOLD_PASSWORD_FILE", "/run/secrets/store"),
    ] {
        for format in [&["config", "show"][..], &["config", "show", "--json"]] {
            let mut command = place.command(format);
            command.env(variable, value);
            let finished = place.start(command).finish();
            let text = finished.stdout + &finished.stderr;
            assert!(!text.contains("hunter2") && text.contains("***"), "{text}");
        }
    }
}

#[test]
fn the_json_of_config_show_has_this_form() {
    let place = Place::new();
    let finished = place.run(["config", "show", "--json", "--namespace", "n"]).expect(0);
    let setting = |name: &str, value: Value, source: &str, from: Value| json!({"name": name, "value": value, "source": source, "from": from});
    let object: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(
        object,
        json!({
            "schema": "leasehold.config/1",
            "settings": [
                setting("store", place.store().into(), "environment", "LEASEHOLD_STORE".into()),
                setting("namespace", "n".into(), "flag", Value::Null),
                setting("ttl", "30s".into(), "default", Value::Null),
                setting("wait", "forever".into(), "default", Value::Null),
                setting("op_timeout", "5s".into(), "default", Value::Null),
                setting("connect_timeout", Value::Null, "default", Value::Null),
                setting("retry", "off".into(), "default", Value::Null),
                setting("breaker", "off".into(), "default", Value::Null),
                setting("own_runtime", "off".into(), "default", Value::Null),
                setting("password", Value::Null, "default", Value::Null),
                setting("password_file", Value::Null, "default", Value::Null),
            ],
            "files": [
                {"path": place.path(USER_FILE).to_str().unwrap(), "found": false},
                {"path": "/etc/leasehold/config.toml", "found": false},
            ],
        })
    );
}
