//! Leases in a file whose holders are killed, hidden, renumbered, or elsewhere: real processes, on Linux.

#![cfg(all(feature = "sqlite", target_os = "linux"))]
#![allow(
    clippy::exit,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a scene that cannot be set fails its test"
)]

mod actor;
mod groups;
mod holders;
mod namespaces;
