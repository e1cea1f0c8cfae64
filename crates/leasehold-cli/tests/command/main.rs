//! The command as its users meet it: the real binary, real files, real processes, real signals.

mod answers;
mod codes;
mod input;
mod lifetime;
mod passing;
mod secrets;
mod signals;
#[path = "../support/process.rs"]
mod support;
mod waiting;
