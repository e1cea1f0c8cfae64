//! The objects that programs read have the fields that the manual shows, and no others.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::{Place, wait_until};

const MANUAL: &str = include_str!("../../../../docs/cli.md");

/// Every field of an object and of those in it, without the values; an empty list shows nothing.
fn fields(value: &Value, place: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let place = format!("{place}.{name}");
                found.push(place.clone());
                fields(value, &place, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| fields(value, &format!("{place}[]"), found)),
        _ => {}
    }
}

fn shape(value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    fields(value, "", &mut found);
    found.sort();
    found.dedup();
    found
}

/// The objects that the manual shows, by schema.
fn shown() -> BTreeMap<String, Vec<String>> {
    MANUAL
        .split("```json\n")
        .skip(1)
        .map(|block| serde_json::from_str::<Value>(block.split("```").next().unwrap()).unwrap())
        .map(|value| (value["schema"].as_str().unwrap().to_owned(), shape(&value)))
        .collect()
}

#[test]
fn what_programs_read_is_what_the_manual_shows() {
    let place = Place::new();
    let manual = shown();
    let check = |text: &str, extra: &[&str]| {
        let value: Value = serde_json::from_str(text).unwrap();
        let schema = value["schema"].as_str().unwrap().to_owned();
        let mut expected = manual.get(&schema).unwrap_or_else(|| panic!("the manual does not show {schema}")).clone();
        expected.extend(extra.iter().map(|&field| field.to_owned()));
        expected.sort();
        expected.dedup();
        assert_eq!(shape(&value), expected, "{schema}");
        schema
    };
    let mut seen = Vec::new();
    let held = place.run(["acquire", "k", "--ttl", "1h", "--format", "json"]).expect(0).stdout;
    seen.push(check(&held, &[]));
    check(&place.run(["acquire", "k", "-n", "--ttl", "1h", "--format", "json"]).expect(75).stdout, &[]);
    check(&place.run(["acquire", "k", "--ttl", "9d", "--format", "json"]).expect(65).stdout, &[]);
    seen.push(check(&place.run(["show", "k", "--json"]).expect(0).stdout, &[]));
    // What is shown once is not repeated.
    let holders: Vec<_> = manual["leasehold.show/1"].iter().filter(|field| field.starts_with(".holders[].")).collect();
    let holder: Vec<_> = holders.iter().map(|field| field.replace(".holders[]", ".holder")).collect();
    let holders: Vec<_> = holders.iter().map(|field| field.as_str()).collect();
    let holder: Vec<_> = holder.iter().map(String::as_str).collect();
    seen.push(check(&place.run(["list", "--json"]).expect(0).stdout, &holders));
    seen.push(check(&place.run(["force-release", "k", "--yes", "--json"]).expect(0).stdout, &holder));
    seen.push(check(&place.run(["doctor", "--json"]).expect(0).stdout, &[]));
    seen.push(check(&place.run(["bench", "--count", "2", "--json"]).expect(0).stdout, &[]));
    seen.push(check(&place.run(["stores", "--json"]).expect(0).stdout, &[]));
    seen.push(check(&place.run(["version", "--json"]).expect(0).stdout, &[]));
    place.run(["run", "k", "--report", "report", "--", "true"]).expect(0);
    wait_until("the report is there", || !place.read("report").is_empty());
    seen.push(check(&place.read("report"), &[]));
    seen.sort();
    assert_eq!(seen, manual.keys().cloned().collect::<Vec<_>>());
}
