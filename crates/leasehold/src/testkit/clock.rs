//! A clock for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{Clock, Moment, TimeSource, TokioTime};

/// A clock that follows tokio's, which a test can pause and advance, and that can be suspended besides.
///
/// Clones are the same clock. It starts where its clones are made, a day after its origin.
#[derive(Clone, Debug)]
pub struct TestClock(Arc<State>);

#[derive(Debug)]
struct State {
    tokio: TokioTime,
    origin: Moment,
    rate: f64,
    suspended: AtomicU64,
}

impl TestClock {
    /// A clock at the rate of tokio's.
    pub fn start() -> Self {
        Self::with_rate(1.0)
    }

    /// A clock that shows `rate` seconds for each of tokio's, to stand for an oscillator that is off.
    pub fn with_rate(rate: f64) -> Self {
        let tokio = TokioTime::start();
        let origin = tokio.now();
        Self(Arc::new(State { tokio, origin, rate, suspended: AtomicU64::new(0) }))
    }

    /// Lets the machine sleep: this clock jumps ahead, while timers do not notice that any time has passed.
    pub fn suspend(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.0.suspended.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl TimeSource for TestClock {
    fn now(&self) -> Moment {
        let State { tokio, origin, rate, suspended } = &*self.0;
        let running = tokio.now().since(*origin);
        // Not through floats at the usual rate, where they would cost nanoseconds of accuracy.
        let shown = if (*rate - 1.0).abs() < f64::EPSILON { running } else { running.mul_f64(*rate) };
        *origin + shown + Duration::from_nanos(suspended.load(Ordering::Relaxed))
    }
}

impl From<TestClock> for Clock {
    fn from(clock: TestClock) -> Self {
        Self::from_source(clock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_follows_tokio_and_jumps_when_suspended() {
        let clock = TestClock::start();
        let begin = clock.now();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(clock.now().since(begin), Duration::from_secs(3));
        clock.suspend(Duration::from_secs(60));
        assert_eq!(clock.clone().now().since(begin), Duration::from_secs(63));
    }

    #[tokio::test(start_paused = true)]
    async fn it_can_run_fast_and_slow() {
        let (fast, slow) = (TestClock::with_rate(1.5), TestClock::with_rate(0.5));
        let (from_fast, from_slow) = (fast.now(), slow.now());
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(fast.now().since(from_fast), Duration::from_secs(15));
        assert_eq!(slow.now().since(from_slow), Duration::from_secs(5));
    }
}
