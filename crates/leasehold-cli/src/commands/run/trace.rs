//! The trace that a `run` belongs to, handed on to its command.

use leasehold::observe::otel::{from_environment, into_environment};

use crate::child::Environment;

/// Sets what this process found in its own environment, in the form of the present version; what is malformed there is
/// removed, so that the command begins a trace of its own.
///
/// This program sends no spans, so the command's belong to whatever started the `run`.
pub(super) fn hand_on(environment: &mut Environment) {
    let context = from_environment(|name| std::env::var(name).ok()).unwrap_or_default();
    for (name, value) in into_environment(&context) {
        match value {
            Some(value) => environment.set(name, value),
            None => environment.remove(name),
        }
    }
}
