//! What goes wrong with a Redis server, on the way to it, or with its data: real servers, and servers that lie.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

mod addresses;
mod clock;
mod data;
mod fake;
mod garbage;
mod network;
mod refusals;
mod removal;
mod replicas;
mod rights;
mod sentinels;
mod setting;
