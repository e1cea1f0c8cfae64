//! The moment for which a task is due, and the wall clock that says so.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;

use crate::clock::wall_now;
use crate::error::{Error, ErrorKind, Result};

/// The moment for which a task is due: a date and time in UTC, the same on every server.
///
/// It is what the timetable says and not when somebody comes to it: every server has to name the same tick by the same
/// moment. `Display` and [`FromStr`] write it as in `2026-11-30T02:00:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub(super) Timestamp);

impl Tick {
    /// The tick at this moment.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if its year is beyond 9999.
    pub fn at(moment: SystemTime) -> Result<Self> {
        let invalid = |error| Error::new(ErrorKind::InvalidInput, "invalid tick: out of range").with_source(error);
        Timestamp::try_from(moment).map(Self).map_err(invalid)
    }

    /// The moment.
    pub fn time(self) -> SystemTime {
        // Every moment of it is one of the system's on 64 bits.
        SystemTime::try_from(self.0).unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// How long ago it was at `now`; zero if it is still to come.
    pub(super) fn age(self, now: SystemTime) -> Duration {
        now.duration_since(self.time()).unwrap_or_default()
    }
}

impl fmt::Display for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Tick {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = |error| {
            let message = "invalid tick: write it as a date and time with its offset: 2026-11-30T02:00:00Z";
            Error::new(ErrorKind::InvalidInput, message).with_source(error)
        };
        text.parse().map(Self).map_err(invalid)
    }
}

/// The clock by which ticks are due. Unlike the [`Clock`](crate::Clock) of leases it may step, and nobody's lease is
/// judged by it.
#[derive(Clone, Default)]
pub struct WallClock(Option<Arc<dyn Fn() -> SystemTime + Send + Sync>>);

impl WallClock {
    /// The machine's.
    pub const fn system() -> Self {
        Self(None)
    }

    /// One that asks a function, for tests.
    pub fn from_fn(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(now)))
    }

    /// The present moment.
    pub fn now(&self) -> SystemTime {
        self.0.as_ref().map_or_else(wall_now, |now| now())
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_none() { "WallClock(system)" } else { "WallClock(function)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_reads_and_writes_utc_whatever_the_offset() {
        let tick: Tick = "2026-03-29T03:30:00+02:00".parse().unwrap();
        assert_eq!(tick.to_string(), "2026-03-29T01:30:00Z");
        assert_eq!(Tick::at(tick.time()).unwrap(), tick);
        assert_eq!("2026-11-30T02:00:00.2Z".parse::<Tick>().unwrap().to_string(), "2026-11-30T02:00:00.2Z");
        for text in ["", "02:00", "2026-11-30T02:00:00", "2026-02-30T02:00:00Z"] {
            assert_eq!(text.parse::<Tick>().unwrap_err().kind(), ErrorKind::InvalidInput, "{text}");
        }
    }
}
