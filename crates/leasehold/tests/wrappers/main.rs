//! What stands in front of a store: a breaker, retries; and stores over caches. In paused time.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

#[path = "../support"]
mod support {
    pub(crate) mod bent;
    pub(crate) mod rig;
}

mod breaking;
mod capable;
mod retrying;
