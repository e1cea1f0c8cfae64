//! Locks of a session: real servers, real ends of sessions.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

mod endings;
mod exclusion;
mod many;
mod network;
mod pooler;
mod refusals;
mod setting;
mod silence;
