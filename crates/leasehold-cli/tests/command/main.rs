//! The command as its users meet it: the real binary, real files, real processes, real signals.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test ends where something is not as it has to be, and says what it skips"
)]

mod across;
mod advice;
mod answers;
mod bystanders;
mod codes;
mod configuration;
mod cron;
mod death;
mod defaults;
mod diagnosis;
mod elect;
mod execution;
mod inherited;
mod input;
mod keeper;
mod late;
mod lifetime;
mod namespaces;
mod nested;
mod operator;
mod options;
mod outage;
mod packaging;
mod passing;
mod reading;
mod redis;
mod resume;
mod schemas;
mod screen;
mod secrets;
mod signals;
#[path = "../support/process.rs"]
mod support;
mod telling;
mod terminal;
#[path = "../support/terminal.rs"]
mod terminal_support;
mod transcripts;
mod unread;
mod waiting;
