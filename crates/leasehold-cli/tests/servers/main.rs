//! The command on stores that have a server, and on a file where all are to be alike.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it has to be")]

#[path = "../support/process.rs"]
#[allow(dead_code, reason = "what other tests need")]
mod support;

#[macro_use]
mod site;

mod across;
mod doctor;
mod jobs;
mod keepers;
mod links;
mod replies;
mod secrets;
