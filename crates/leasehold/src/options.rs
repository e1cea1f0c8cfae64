//! How to wait, how to renew, how to back off; and the numbers that hold unless something else is asked for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// How long a lease stands without renewal: 30 s.
///
/// Long enough to ride out a store's restart, short enough to wait for after a crash.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// The longest ttl: 24 h. A lease that outlives its holder must end by itself.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The shortest ttl: 10 ms. Below it the margin and a timer's granularity leave nothing to hold.
pub const MIN_TTL: Duration = Duration::from_millis(10);

/// How many waiters may stand in line for one key in one manager: 10,000.
pub const DEFAULT_MAX_WAITERS: usize = 10_000;

/// The longest time that a single store operation may take: 5 s, or a sixth of the ttl if that is less, so that two
/// attempts fit between a renewal and the deadline.
pub const MAX_OPERATION_LIMIT: Duration = Duration::from_secs(5);

/// How long to wait for a lease that somebody else holds.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// Ask once.
    No,
    /// Wait at most this long; zero is [`Wait::No`]. The last attempt is made at the deadline.
    UpTo(Duration),
    /// Until it is granted, a fatal error, or cancellation.
    Forever,
}

/// When a held lease is renewed. A renewal that failed is tried again after an eighth of the time that is left, or after
/// the interval if that is shorter.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Renew {
    /// Every third of the ttl.
    Automatic,
    /// At this interval, which must leave room for a retry: at most half of the ttl.
    Every(Duration),
    /// Never: the lease ends after its ttl unless extended by hand.
    Off,
}

impl Renew {
    /// The interval for leases of `ttl`; `None` = never.
    pub(crate) fn interval(self, ttl: Duration) -> Option<Duration> {
        match self {
            Self::Automatic => Some(ttl / 3),
            Self::Every(interval) => Some(interval.min(ttl / 2)),
            Self::Off => None,
        }
    }

    pub(crate) fn check(self, ttl: Duration) -> Result<()> {
        match self {
            Self::Every(interval) if interval.is_zero() || interval > ttl / 2 => Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "invalid renewal interval {interval:?}: it must be positive and at most half of the ttl {ttl:?}"
                ),
            )),
            _ => Ok(()),
        }
    }
}

/// What is taken off a lease's local deadline: a share of the ttl for clocks that run at different rates, plus a
/// constant for the granularity of timers.
///
/// 1 % + 2 ms unless set; real oscillators stay well below 0.1 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Margin {
    share: f64,
    constant: Duration,
}

impl Margin {
    /// A margin of `share` (0.0 to 0.5) of the ttl plus `constant`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the share is out of range.
    pub fn new(share: f64, constant: Duration) -> Result<Self> {
        if !(0.0..=0.5).contains(&share) {
            return Err(Error::new(ErrorKind::InvalidConfig, "invalid margin: the share must lie within 0.0 and 0.5"));
        }
        Ok(Self { share, constant })
    }

    /// The margin for a lease of `ttl`.
    pub fn of(self, ttl: Duration) -> Duration {
        ttl.mul_f64(self.share).saturating_add(self.constant)
    }
}

impl Default for Margin {
    fn default() -> Self {
        Self { share: 0.01, constant: Duration::from_millis(2) }
    }
}

impl Wait {
    /// For spans: infinite if there is no deadline.
    pub(crate) fn seconds(self) -> f64 {
        match self {
            Self::No => 0.0,
            Self::UpTo(wait) => wait.as_secs_f64(),
            Self::Forever => f64::INFINITY,
        }
    }
}

/// How polling slows down: the interval grows by a factor up to a maximum, and each pause is half of it plus a random
/// half.
///
/// 100 ms, doubled, up to 1 s unless set.
#[derive(Clone, Debug)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    factor: f64,
    jitter: Jitter,
}

impl Backoff {
    /// Pauses from `initial` to `max`, growing by `factor`; a factor of 1 keeps the interval.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] unless `0 < initial <= max` and `factor >= 1`.
    pub fn new(initial: Duration, max: Duration, factor: f64) -> Result<Self> {
        if initial.is_zero() || initial > max || !factor.is_finite() || factor < 1.0 {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "invalid backoff: the interval must be positive and at most the maximum, the factor at least 1",
            ));
        }
        Ok(Self { initial, max, factor, jitter: Jitter::random() })
    }

    /// Sets where the random half comes from.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// The same pauses, from `initial` to `max`.
    pub(crate) const fn between(mut self, initial: Duration, max: Duration) -> Self {
        self.initial = initial;
        self.max = max;
        self
    }

    /// The pauses of one waiter, from the first.
    pub(crate) fn pauses(&self) -> Pauses {
        Pauses { backoff: self.clone(), interval: self.initial }
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Duration::from_millis(100), max: Duration::from_secs(1), factor: 2.0, jitter: Jitter::random() }
    }
}

/// Where the random share of a pause comes from.
#[derive(Clone)]
pub struct Jitter(Option<Arc<dyn Fn() -> f64 + Send + Sync>>);

impl Jitter {
    /// A random share, new each time.
    pub const fn random() -> Self {
        Self(None)
    }

    /// Shares (0.0 to 1.0) from a function, for tests.
    pub fn from_fn(share: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(share)))
    }

    fn share(&self) -> f64 {
        self.0.as_ref().map_or_else(fastrand::f64, |share| {
            let share = share();
            if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) }
        })
    }
}

impl fmt::Debug for Jitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_none() { "Jitter(random)" } else { "Jitter(function)" })
    }
}

/// The pauses of one waiter.
#[derive(Debug)]
pub(crate) struct Pauses {
    backoff: Backoff,
    interval: Duration,
}

impl Pauses {
    pub(crate) fn next(&mut self) -> Duration {
        let Backoff { max, factor, jitter, .. } = &self.backoff;
        let half = self.interval / 2;
        let pause = half + half.mul_f64(jitter.share());
        // In floats, because a large factor may leave the range of `Duration`.
        let grown = Duration::try_from_secs_f64(self.interval.as_secs_f64() * factor);
        self.interval = grown.map_or(*max, |grown| grown.min(*max));
        pause
    }

    pub(crate) fn restart(&mut self) {
        self.interval = self.backoff.initial;
    }
}

/// What becomes of held leases when a manager is closed.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Close {
    /// They are given back.
    Release,
    /// They stand until their ttl, or until the store sees that this process is gone.
    LeaveToTtl,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_maximum() {
        let mut pauses = Backoff::default().jitter(Jitter::from_fn(|| 1.0)).pauses();
        let ms: Vec<_> = (0..6).map(|_| pauses.next().as_millis()).collect();
        assert_eq!(ms, [100, 200, 400, 800, 1000, 1000]);
        pauses.restart();
        assert_eq!(pauses.next(), Duration::from_millis(100));
    }

    #[test]
    fn a_pause_is_at_least_half_of_the_interval() {
        let mut pauses = Backoff::default().jitter(Jitter::from_fn(|| 0.0)).pauses();
        assert_eq!(pauses.next(), Duration::from_millis(50));
    }

    #[test]
    fn bad_backoffs_and_intervals_are_refused() {
        let second = Duration::from_secs(1);
        for (initial, max, factor) in [
            (Duration::ZERO, second, 2.0),
            (second * 2, second, 2.0),
            (second, second, 0.9),
            (second, second, f64::NAN),
        ] {
            assert_eq!(Backoff::new(initial, max, factor).unwrap_err().kind(), ErrorKind::InvalidConfig);
        }
        assert!(Backoff::new(second, second, 1.0).is_ok());
        assert!(Renew::Every(second * 10).check(second * 5).is_err());
        assert!(Renew::Every(second * 5).check(second * 5).is_err());
        assert!(Margin::new(0.6, Duration::ZERO).is_err());
    }
}
