//! How long before the end of a lease whoever works under it is told to stop.

use std::time::Duration;

use leasehold::{Margin, Renew};

use crate::exit::{self, Failure};
use crate::output;

/// The longest grace that is chosen where none was asked for.
const LONGEST: Duration = Duration::from_secs(10);

/// How long a KILL may take to be sent and to end a job on a busy machine: a share of the ttl, and at most.
const TIME_TO_KILL: (u32, Duration) = (8, Duration::from_millis(500));

/// What is taken off the end of a lease under which a command runs: beside what the library takes off, the time to end it.
pub(super) fn margin(ttl: Duration) -> Margin {
    let (part, most) = TIME_TO_KILL;
    let constant = Margin::default().of(Duration::ZERO) + (ttl / part).min(most);
    Margin::new(0.01, constant).unwrap_or_default()
}

/// The time between the first renewal that can fail and the end of the lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) ttl: Duration,
    /// From the sending of one renewal to that of the next; zero without any.
    pub(super) interval: Duration,
    pub(super) length: Duration,
}

impl Room {
    pub(super) fn new(ttl: Duration, renew: Renew) -> Self {
        let interval = match renew {
            Renew::Every(interval) => interval,
            Renew::Off => Duration::ZERO,
            _ => ttl / 3,
        };
        let length = ttl.saturating_sub(interval).saturating_sub(margin(ttl).of(ttl));
        Self { ttl, interval, length }
    }

    /// The grace that was asked for, or one that fits.
    pub(super) fn grace(self, asked: Option<Duration>) -> Result<Duration, Failure> {
        match asked {
            Some(asked) if asked >= self.length => Err(Failure::new(
                exit::CONFIG,
                format!(
                    "--kill-after {} leaves no time to run: with a ttl of {} it must be below {}: \
                     shorten it, or raise --ttl",
                    output::precise(asked),
                    output::precise(self.ttl),
                    output::precise(self.length)
                ),
            )),
            Some(asked) => Ok(asked),
            None => Ok(LONGEST.min(self.length / 2)),
        }
    }
}
