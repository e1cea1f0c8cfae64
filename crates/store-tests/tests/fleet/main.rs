//! Several processes with one timetable, and several that campaign for one leadership, while some are killed, stopped or
//! cut off.
//!
//! `LEASEHOLD_TEST_SECONDS` is how long each election is watched.

#![allow(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a child of the test speaks to it, and each says what it saw"
)]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

mod crew;
mod election;
mod schedule;
