//! The objects that programs read have the fields that the manual shows, and no others.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::operator::healthy;
use crate::support::{BINARY, Place};

const MANUAL: &str = include_str!("../../../../docs/cli.md");

/// The fields of an object and of those in it, each with the kind of its value; null is of any kind.
type Shape = BTreeMap<String, &'static str>;

fn fields(value: &Value, place: &str, found: &mut Shape) {
    let kind = match value {
        Value::Null => "any",
        Value::Bool(_) => "truth",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(values) => {
            values.iter().for_each(|value| fields(value, &format!("{place}[]"), found));
            "list"
        }
        Value::Object(object) => {
            object.iter().for_each(|(name, value)| fields(value, &format!("{place}.{name}"), found));
            "object"
        }
    };
    // Of several in a list one may know what others do not.
    let known = found.entry(place.to_owned()).or_insert(kind);
    if *known == "any" {
        *known = kind;
    }
}

fn shape(value: &Value) -> Shape {
    let mut found = Shape::new();
    fields(value, "", &mut found);
    found
}

/// The schema, and the event where there are several.
fn name(value: &Value) -> String {
    let event = value["event"].as_str().map(|event| format!(" {event}"));
    format!("{}{}", value["schema"].as_str().unwrap(), event.unwrap_or_default())
}

/// The objects that the manual shows, by name.
fn shown() -> BTreeMap<String, Shape> {
    let mut shown = BTreeMap::new();
    for block in MANUAL.split("```json\n").skip(1) {
        let value: Value = serde_json::from_str(block.split("```").next().unwrap()).unwrap();
        assert!(shown.insert(name(&value), shape(&value)).is_none(), "{} is shown twice", name(&value));
    }
    shown
}

/// What is compared with the manual.
struct Manual {
    shown: BTreeMap<String, Shape>,
    seen: BTreeSet<String>,
}

impl Manual {
    /// An object has the fields that are shown, and no others; `extra` are those that the manual does not repeat.
    fn check(&mut self, text: &str, extra: &Shape) {
        let value: Value = serde_json::from_str(text).unwrap();
        let name = name(&value);
        let mut expected = self.shown.get(&name).unwrap_or_else(|| panic!("the manual does not show {name}")).clone();
        expected.extend(extra.iter().map(|(place, kind)| (place.clone(), *kind)));
        let found = shape(&value);
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{name}: {text}");
        for (place, kind) in &found {
            let shown = expected[place];
            assert!(
                *kind == shown || [*kind, shown].contains(&"any"),
                "{name}{place} is {kind}, shown is {shown}: {text}"
            );
        }
        self.seen.insert(name);
    }

    fn is(&mut self, text: &str) {
        self.check(text, &Shape::new());
    }
}

#[test]
fn what_programs_read_is_what_the_manual_shows() {
    let place = Place::new();
    let mut manual = Manual { shown: shown(), seen: BTreeSet::new() };
    manual.is(&place
        .run(["acquire", "k", "--ttl", "1h", "--reason", "r", "--label", "a=b", "--format", "json"])
        .expect(0)
        .stdout);
    manual.is(&place.run(["acquire", "k", "-n", "--ttl", "1h", "--format", "json"]).expect(75).stdout);
    manual.is(&place.run(["acquire", "k", "--ttl", "9d", "--format", "json"]).expect(65).stdout);
    manual.is(&place.run(["show", "k", "--json"]).expect(0).stdout);
    // What is shown once is not repeated.
    let under = |place: &str| -> Shape {
        let holders = manual.shown["leasehold.show/1"].iter().filter(|(field, _)| field.starts_with(".holders[]."));
        holders.map(|(field, kind)| (field.replace(".holders[]", place), *kind)).collect()
    };
    let (holders, holder) = (under(".holders[]"), under(".holder"));
    manual.check(&place.run(["list", "--json"]).expect(0).stdout, &holders);
    manual.check(&place.run(["force-release", "k", "--yes", "--reason", "r", "--json"]).expect(0).stdout, &holder);
    manual.is(&healthy(&place, &["--json"]).stdout);
    manual.is(&place.run(["bench", "--count", "2", "--json"]).expect(0).stdout);
    manual.is(&place.run(["stores", "--json"]).expect(0).stdout);
    manual.is(&place.run(["version", "--json"]).expect(0).stdout);
    manual.is(&place.run(["config", "show", "--json"]).expect(0).stdout);
    manual.is(&place.run(["run", "k", "--log-format", "json", "--", "no-such-program"]).expect(127).stderr);
    assert_eq!(manual.seen.len() + 5, manual.shown.len(), "what follows is the rest");
}

#[test]
fn what_run_reports_is_what_the_manual_shows() {
    let place = Place::new();
    let mut manual = Manual { shown: shown(), seen: BTreeSet::new() };
    let job = "run k --renew-every 100ms --report report --status-fd 3";
    // It ends when it was renewed.
    let script = format!("{BINARY} {job} -- sh -c 'until grep -q renewed status; do sleep 0.02; done' 3>status");
    place.start(place.program(["sh", "-c", &script])).finish().expect(0);
    let lines = place.read("status");
    lines.lines().for_each(|line| manual.is(line));
    manual.is(&place.read("report"));
    let lost = format!("{BINARY} run k --ttl 8s --no-renew --status-fd 3 -- sleep 60 3>status");
    place.start(place.program(["sh", "-c", &lost])).finish().expect(79);
    let lines = place.read("status");
    lines.lines().for_each(|line| manual.is(line));
    assert!(lines.contains("\"event\":\"lost\""), "{lines}");
    assert_eq!(manual.seen.len(), 5);
}
