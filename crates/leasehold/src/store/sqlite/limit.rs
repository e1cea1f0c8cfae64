//! How long the present job may wait for the file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::clock::{Clock, Moment};

/// The end of the present job's patience; shared by the store's thread and the busy handler that runs on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Limit(Arc<AtomicU64>);

impl Limit {
    pub(super) fn set(&self, until: Moment) {
        self.0.store(until.as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        Clock::system().now().as_nanos() >= self.0.load(Ordering::Relaxed)
    }

    /// Sleeps 100 us at first and 1 ms at most: much shorter than SQLite's own pauses, because transactions are short.
    pub(super) fn busy_handler(&self) -> impl FnMut(i32) -> bool + Send + 'static {
        let limit = self.clone();
        move |attempts| {
            if limit.is_over() {
                return false;
            }
            thread::sleep(Duration::from_micros((100 << attempts.clamp(0, 4)).min(1000)));
            true
        }
    }
}
