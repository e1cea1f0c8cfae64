//! How long the present job may wait for the file.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{Clock, Moment};

/// The end of the present job's patience; shared by the store's thread and the busy handler that runs on it.
#[derive(Clone, Debug)]
pub(super) struct Limit(Arc<Mutex<Patience>>);

/// How long a job may wait for other processes: until then, and only while somebody wants its answer.
#[derive(Clone, Debug)]
pub(super) struct Patience {
    pub(super) until: Moment,
    /// Dangling once nobody wants it; `None` = it is wanted in any case.
    pub(super) wanted: Option<Weak<()>>,
}

impl Limit {
    pub(super) fn new(patience: Patience) -> Self {
        Self(Arc::new(Mutex::new(patience)))
    }

    pub(super) fn set(&self, patience: Patience) {
        *self.0.lock() = patience;
    }

    /// Does `work` without waiting for other processes.
    pub(super) fn at_once<T>(&self, work: impl FnOnce() -> T) -> T {
        let none = Patience { until: Clock::system().now(), wanted: None };
        let patience = std::mem::replace(&mut *self.0.lock(), none);
        let done = work();
        self.set(patience);
        done
    }

    pub(super) fn is_over(&self) -> bool {
        let patience = self.0.lock();
        let is_unwanted = patience.wanted.as_ref().is_some_and(|wanted| wanted.strong_count() == 0);
        is_unwanted || Clock::system().now() >= patience.until
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_with_its_time_or_when_nobody_wants_the_answer() {
        let now = Clock::system().now();
        let (past, later) = (now, now + Duration::from_secs(3600));
        let asking = Arc::new(());
        let limit = Limit::new(Patience { until: past, wanted: None });
        assert!(limit.is_over() && !limit.busy_handler()(0));
        limit.set(Patience { until: later, wanted: None });
        assert!(!limit.is_over() && limit.busy_handler()(0));
        limit.set(Patience { until: later, wanted: Some(Arc::downgrade(&asking)) });
        assert!(!limit.is_over());
        drop(asking);
        assert!(limit.is_over() && !limit.busy_handler()(0));
    }
}
