//! What stands in front of a store: a breaker, retries; and stores over caches. In paused time.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

#[path = "../support"]
mod support {
    pub(crate) mod bent;
    pub(crate) mod rig;
}

#[allow(dead_code, reason = "its `main` is for those who run it as an example")]
#[path = "../../examples/cache_moka.rs"]
mod cache_moka;
#[allow(dead_code, reason = "its `main` is for those who run it as an example")]
#[path = "../../examples/cache_over_store.rs"]
mod cache_over_store;

mod breaking;
mod caching;
mod capable;
mod retrying;
