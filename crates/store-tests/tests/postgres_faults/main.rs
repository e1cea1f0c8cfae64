//! What goes wrong with a PostgreSQL server, on the way to it, or with what it lets us do.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

mod clock;
mod conflicts;
mod connecting;
mod encryption;
mod fencing;
mod flush;
mod modes;
mod named;
mod network;
mod paused;
mod pooler;
mod read_only;
mod refusals;
mod rights;
mod runtimes;
mod server;
mod setting;
mod standby;
mod sweeping;
