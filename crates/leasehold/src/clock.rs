//! Time that counts suspend, and that tests can set.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A point in the time of one [`Clock`]: nanoseconds since that clock's origin.
///
/// Unlike [`std::time::Instant`] it goes on while the machine is suspended. Arithmetic saturates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Later than every moment a clock will show (584 years after its origin).
    pub const FAR: Self = Self(u64::MAX);

    /// The moment this many nanoseconds after the clock's origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long from `earlier` to here; zero if `earlier` is in fact later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Where a [`Clock`] gets its time from. Implement it to drive deadlines in tests.
pub trait TimeSource: fmt::Debug + Send + Sync + 'static {
    /// The present moment. Never goes backwards.
    fn now(&self) -> Moment;
}

/// The clock by which leases are judged.
///
/// [`Clock::system`] counts time that the machine spends suspended (`CLOCK_BOOTTIME` on Linux), so that a laptop
/// that slept for an hour does not believe in its old leases. Cloning is cheap.
#[derive(Clone)]
pub struct Clock(Option<Arc<dyn TimeSource>>);

impl Clock {
    /// The machine's own clock; the default everywhere.
    ///
    /// On Linux `CLOCK_BOOTTIME`. Elsewhere the operating system's monotonic clock, which on some systems stands
    /// still during suspend: there only a fencing token protects against a machine that slept.
    pub const fn system() -> Self {
        Self(None)
    }

    /// Tokio's clock, which tests can pause and advance. Does not count suspend.
    pub fn tokio() -> Self {
        Self::from_source(TokioTime::start())
    }

    /// A clock that asks `source`.
    pub fn from_source(source: impl TimeSource) -> Self {
        Self(Some(Arc::new(source)))
    }

    /// The present moment.
    pub fn now(&self) -> Moment {
        match &self.0 {
            None => system_now(),
            Some(source) => source.now(),
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("Clock(system)"),
            Some(source) => write!(f, "Clock({source:?})"),
        }
    }
}

/// Starts a day after its origin, so that tests can look back.
#[derive(Debug)]
pub(crate) struct TokioTime(tokio::time::Instant);

impl TokioTime {
    #[expect(clippy::disallowed_methods, reason = "this is the clock for paused time")]
    pub(crate) fn start() -> Self {
        Self(tokio::time::Instant::now())
    }
}

impl TimeSource for TokioTime {
    fn now(&self) -> Moment {
        Moment::from_nanos(nanos(Duration::from_secs(86_400) + self.0.elapsed()))
    }
}

#[cfg(target_os = "linux")]
fn system_now() -> Moment {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Moment(time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
}

#[cfg(not(target_os = "linux"))]
fn system_now() -> Moment {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Moment(time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
}

/// The wall clock, which may step: for display, and for what has to be understood after a reboot.
#[expect(clippy::disallowed_methods, reason = "the only reader of the wall clock")]
pub(crate) fn wall_now() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_saturate() {
        let moment = Moment::from_nanos(5);
        assert_eq!(moment - Duration::from_secs(1), Moment::from_nanos(0));
        assert_eq!(moment + Duration::MAX, Moment::FAR);
        assert_eq!(moment.since(Moment::FAR), Duration::ZERO);
    }

    #[test]
    fn the_system_clock_advances() {
        let clock = Clock::system();
        let first = clock.now();
        assert!(clock.now() >= first);
    }

    #[tokio::test(start_paused = true)]
    async fn the_tokio_clock_can_be_advanced() {
        let clock = Clock::tokio();
        let first = clock.now();
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(clock.now().since(first), Duration::from_secs(7));
    }
}
