//! Waiting for the next tick, by a clock that may step and a machine that may sleep.

use std::time::Duration;

use super::tick::{Tick, WallClock};
use super::timetable::Timetable;

/// How often the wall clock is looked at: it may step, and timers stand still while the machine sleeps.
const LOOK: Duration = Duration::from_secs(1);

/// The most missed ticks that are counted one by one.
const MOST_COUNTED: u32 = 10_000;

/// The ticks of a timetable as they come.
///
/// Each is later than the one before, whatever the clock does: after a step back there is none until the clock has
/// caught up, since those ticks have been already. What became due while the machine slept, or the clock stepped over
/// it, comes as one tick, the latest, which tells how many were missed.
#[derive(Debug)]
pub struct Ticks {
    timetable: Timetable,
    wall: WallClock,
    last: Option<Tick>,
    look: Duration,
}

/// A tick that has come.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The tick.
    pub tick: Tick,
    /// How many ticks before it, and after the last that was told, were not told; 10,000 stands for that and more.
    pub missed: u32,
}

impl Ticks {
    /// The ticks after the present moment.
    pub fn new(timetable: Timetable, wall: WallClock) -> Self {
        let last = Tick::at(wall.now()).ok();
        Self { timetable, wall, last, look: LOOK }
    }

    /// Starts with the first tick after this one, which may be past: for a process that was started anew.
    pub fn after(mut self, tick: Tick) -> Self {
        self.last = Some(tick);
        self
    }

    /// Sets how often the wall clock is looked at; a second unless set.
    pub fn look_every(mut self, look: Duration) -> Self {
        self.look = look.max(Duration::from_millis(1));
        self
    }

    /// The tick that comes next by the timetable; `None` = there is none.
    pub fn upcoming(&self) -> Option<Tick> {
        self.timetable.next(self.last?)
    }

    /// Waits for the next tick; `None` = the timetable has no more.
    ///
    /// # Cancel safety
    ///
    /// No tick is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Due> {
        loop {
            let upcoming = self.upcoming()?;
            let now = self.wall.now();
            match upcoming.time().duration_since(now) {
                Ok(left) if !left.is_zero() => tokio::time::sleep(left.min(self.look)).await,
                _ => return self.come(upcoming, Tick::at(now).ok()?),
            }
        }
    }

    /// `first` has come, and maybe others after it.
    fn come(&mut self, first: Tick, now: Tick) -> Option<Due> {
        let latest = self.timetable.latest(now).unwrap_or(first).max(first);
        let mut missed = 0;
        let mut tick = first;
        while tick < latest && missed < MOST_COUNTED {
            missed += 1;
            tick = self.timetable.next(tick)?;
        }
        self.last = Some(latest);
        Some(Due { tick: latest, missed })
    }
}
