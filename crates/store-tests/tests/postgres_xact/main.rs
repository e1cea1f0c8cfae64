//! Locks of transactions: in the server's line, in faults, behind a pooler, and in the caller's own transaction.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

mod elsewhere;
mod faults;
mod index;
mod limits;
mod line;
mod losses;
mod many;
mod own;
mod own_losses;
mod paused;
mod pooler;
mod server;
mod setting;
