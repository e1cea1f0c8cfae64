//! What doctor finds on live servers, and what it advises.

mod encryption;
mod postgres;
mod redis;

use serde_json::Value;

use crate::support::Place;

/// What was found about a store.
struct Report {
    text: String,
    object: Value,
}

/// Asks about a store, for people and for programs; both end with this code.
fn examine(url: &str, options: &[&str], code: i32) -> Report {
    let place = Place::on(url.to_owned());
    let text = place.run([&["doctor"], options].concat()).expect(code).stdout;
    let object = place.run([&["doctor", "--json"], options].concat()).expect(code).stdout;
    let object: Value = serde_json::from_str(&object).unwrap();
    assert_eq!(object["exit"], code);
    Report { text, object }
}

impl Report {
    /// Whether there is a finding of this level with these words, and an advice with those; for people and for programs.
    fn finds(&self, level: &str, what: &str, fix: &str) -> &Self {
        let is_it = |check: &&Value| {
            let says = |field: &str, words: &str| check[field].as_str().unwrap().contains(words);
            says("level", level) && says("what", what) && says("fix", fix)
        };
        let found = self.object["checks"].as_array().unwrap().iter().find(is_it);
        assert!(found.is_some(), "no {level} finding says {what:?} and advises {fix:?}:\n{}", self.text);
        let lines: Vec<_> = self.text.lines().collect();
        let at = lines.iter().position(|line| line.starts_with(&format!("  {level}")) && line.contains(what));
        assert!(at.is_some_and(|at| lines[at].contains(fix) || lines[at + 1].contains(fix)), "{}", self.text);
        self
    }

    /// Whether nothing is said about this.
    fn says_nothing_of(&self, words: &str) -> &Self {
        assert!(!self.text.contains(words), "{}", self.text);
        self
    }
}
