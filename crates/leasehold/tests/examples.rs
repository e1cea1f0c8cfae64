//! The examples do what they say.

#![allow(clippy::print_stdout, reason = "examples do")]
#![allow(clippy::unwrap_used, reason = "an error fails the test")]

#[cfg(all(feature = "schedule", feature = "sqlite"))]
#[path = "../examples/cron.rs"]
mod cron;
#[path = "../examples/fenced_write.rs"]
mod fenced_write;
#[cfg(feature = "sqlite")]
#[path = "../examples/leader.rs"]
mod leader;

#[test]
#[cfg(all(feature = "schedule", feature = "sqlite"))]
fn cron_on_three_replicas() {
    cron::main().unwrap();
}

#[test]
#[cfg(feature = "sqlite")]
fn a_leadership_is_handed_over_on_shutdown() {
    leader::main().unwrap();
}

#[test]
fn a_late_write_is_refused_by_the_database() {
    fenced_write::main().unwrap();
}
