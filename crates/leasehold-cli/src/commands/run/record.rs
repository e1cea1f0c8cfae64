//! How a `run` ended, for programs: whose exit code it is, and what happened to the lease.

use std::path::Path;
use std::time::Duration;

use leasehold::FencingToken;
use serde_json::{Value, json};

use super::report::Renewals;
use super::status::Status;
use crate::cli::Run;
use crate::exit::Failure;
use crate::file::{self, Mode};
use crate::output;

/// The longest message that is told; a line has to fit into a pipe at once.
const LONGEST_MESSAGE: usize = 1000;

/// What a `run` came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commands) enum Outcome {
    /// The command ran and ended, by itself or by a signal that was passed on.
    Ran,
    /// Somebody else held the key.
    Busy,
    /// The lease was lost while the command ran.
    Lost,
    /// Something went wrong before the command ran, or it could not be run.
    Error,
    /// The command took longer than it may.
    Timeout,
}

/// The end of a `run`.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct End {
    pub(in crate::commands) outcome: Outcome,
    pub(in crate::commands) code: u8,
    /// Whether the code is the command's own.
    pub(in crate::commands) by_child: bool,
}

impl End {
    /// An end whose code is that of the command.
    pub(in crate::commands) fn by_child(outcome: Outcome, code: u8) -> Self {
        Self { outcome, code, by_child: true }
    }

    /// An end whose code is ours.
    pub(in crate::commands) fn by_lock(outcome: Outcome, code: u8) -> Self {
        Self { outcome, code, by_child: false }
    }
}

/// What is known so far.
#[derive(Debug)]
pub(in crate::commands) struct Record<'a> {
    target: Option<&'a Path>,
    key: String,
    pub(in crate::commands) namespace: Option<String>,
    pub(in crate::commands) waited: Option<Duration>,
    pub(in crate::commands) held: Option<Duration>,
    pub(in crate::commands) fencing: Option<FencingToken>,
}

impl<'a> Record<'a> {
    /// A record of nothing yet. That files can be written is checked now, and not after a night's work.
    pub(in crate::commands) fn new(arguments: &'a Run) -> Result<Self, Failure> {
        let target = arguments.report.as_deref();
        if let Some(path) = target {
            file::check(path, Mode::Plain)?;
        }
        if let Some(path) = &arguments.owner_file {
            file::check(path, Mode::Secret)?;
        }
        let key = arguments.key.to_string_lossy().into_owned();
        Ok(Self { target, key, namespace: None, waited: None, held: None, fencing: None })
    }

    /// Tells and writes down the end, and answers with the exit code.
    pub(in crate::commands) fn conclude(
        &self,
        result: Result<End, Failure>,
        renewals: &Renewals,
        status: &Status,
    ) -> Result<u8, Failure> {
        let (end, message) = match &result {
            Ok(end) => (*end, None),
            Err(failure) => (End::by_lock(Outcome::Error, failure.code), Some(failure.message.as_str())),
        };
        let object = self.as_json(end, message, renewals.count());
        if let Some(path) = self.target {
            let mut line = json!({"schema": "leasehold.run/1"});
            if let (Some(line), Some(fields)) = (line.as_object_mut(), object.as_object()) {
                line.extend(fields.clone());
            }
            if let Err(failure) = file::write(path, format!("{line}\n").as_bytes(), Mode::Plain) {
                output::tell(&format!("warning: the report is not written: {failure}"));
            }
        }
        status.tell_last("ended", object);
        result.map(|end| end.code)
    }

    fn as_json(&self, end: End, message: Option<&str>, renewals: u64) -> Value {
        let outcome = match end.outcome {
            Outcome::Ran => "ran",
            Outcome::Busy => "busy",
            Outcome::Lost => "lost",
            Outcome::Error => "error",
            Outcome::Timeout => "timeout",
        };
        json!({
            "key": self.key,
            "namespace": self.namespace,
            "outcome": outcome,
            "exit": {"source": if end.by_child { "child" } else { "lock" }, "code": end.code},
            "error": message.map(|message| message.chars().take(LONGEST_MESSAGE).collect::<String>()),
            "waited_ms": self.waited.map(output::millis),
            "held_ms": self.held.map(output::millis),
            "renewals": renewals,
            "fencing": self.fencing.map(FencingToken::get),
        })
    }
}
