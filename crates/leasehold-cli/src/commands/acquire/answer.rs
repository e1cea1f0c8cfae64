//! The answer of `acquire`: for people, for a shell, for programs.

use std::io::IsTerminal;

use leasehold::{FencingToken, LockManager};
use serde_json::{Value, json};

use super::Taken;
use crate::cli::{Acquire, Format};
use crate::config::Settings;
use crate::exit::{self, Failure};
use crate::output;

/// One JSON object, whatever it is printed as.
#[derive(Debug)]
pub(super) struct Answer(pub(super) Value);

impl Answer {
    pub(super) fn acquired(manager: &LockManager, taken: &Taken, keeper: Option<u32>) -> Self {
        let guard = &taken.guard;
        let mut answer = Self::new("acquired", guard.key().name(), exit::DONE);
        answer.0["namespace"] = manager.namespace().into();
        answer.0["waited_ms"] = output::millis(taken.waited).into();
        answer.0["ttl_ms"] = output::millis(guard.ttl()).into();
        answer.0["fencing"] = guard.fencing_token().map(FencingToken::get).into();
        answer.0["owner_file"] = taken.secret.path.to_string_lossy().into();
        answer.0["owner_fingerprint"] = guard.owner_token().fingerprint().into();
        answer.0["keeper"] = keeper.into();
        answer
    }

    pub(super) fn busy(manager: &LockManager, name: &str, code: u8) -> Self {
        let mut answer = Self::new("busy", name, code);
        answer.0["namespace"] = manager.namespace().into();
        answer
    }

    pub(super) fn failed(arguments: &Acquire, failure: &Failure) -> Self {
        let mut answer = Self::new("error", &arguments.key.to_string_lossy(), failure.code);
        answer.0["error"] = failure.message.as_str().into();
        answer
    }

    fn new(outcome: &str, name: &str, code: u8) -> Self {
        Self(json!({
            "schema": "leasehold.acquire/1",
            "key": name,
            "namespace": null,
            "outcome": outcome,
            "exit": code,
            "error": null,
            "waited_ms": null,
            "ttl_ms": null,
            "fencing": null,
            "owner_file": null,
            "owner_fingerprint": null,
            "keeper": null,
        }))
    }

    pub(super) fn is_acquired(&self) -> bool {
        self.0["outcome"] == "acquired"
    }

    pub(super) fn code(&self) -> u8 {
        self.0["exit"].as_u64().and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::BUG)
    }

    /// Prints it to stdout. A shell that evaluates what it was not told to check ends with the same code.
    pub(super) fn print(&self, format: Format) -> Result<(), Failure> {
        let file = self.0["owner_file"].as_str().filter(|_| self.is_acquired());
        // Who is not told of a lease leaves it to its ttl.
        let print = if self.is_acquired() { output::deliver } else { output::print };
        match (format, file) {
            (Format::Json, _) => print(&format!("{}\n", self.0)),
            (Format::Text, Some(file)) => print(&format!("{file}\n")),
            (Format::Shell, Some(file)) => print(&format!("export LEASEHOLD_OWNER_FILE={}\n", word(file))),
            (Format::Shell, None) => print(&format!("exit {}\n", self.code())),
            (Format::Text, None) => Ok(()),
        }
    }

    /// Tells people on a terminal what they have, and how to end it.
    pub(super) fn explain(&self, settings: &Settings, format: Format) {
        if settings.quiet || format != Format::Text || !std::io::stdout().is_terminal() {
            return;
        }
        let number = |name: &str| self.0[name].as_u64();
        let (name, file) = (self.0["key"].as_str().unwrap_or_default(), self.0["owner_file"].as_str());
        let ttl = std::time::Duration::from_millis(number("ttl_ms").unwrap_or_default());
        let length = match number("keeper") {
            Some(keeper) => format!("and kept by process {keeper}"),
            None => format!("for {}", output::words(ttl)),
        };
        let fencing = number("fencing").map_or_else(String::new, |token| format!(", fencing token {token}"));
        output::tell_block(&format!(
            "\"{}\" is held {length}{fencing}\n  end it   leasehold{} release {} --owner-file {}\n",
            output::clean(name),
            settings.options_again(),
            output::quoted(name),
            output::quoted(file.unwrap_or_default())
        ));
    }
}

/// A word as a shell takes it back, byte by byte.
fn word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
