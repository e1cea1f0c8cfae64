//! Tasks that many servers have on their timetable: once per tick on one of them, not while the last run lasts, and
//! jobs of which one at a time is under way.
//!
//! ```
//! use std::time::Duration;
//!
//! use leasehold::LockManager;
//! use leasehold::schedule::{Run, Scheduler, Task, Ticks, Timetable, WallClock};
//! # use leasehold::store::memory::MemoryStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> leasehold::Result<()> {
//! # let locks = LockManager::new(MemoryStore::new());
//! let nightly = Timetable::cron("30 2 * * *", "Europe/Berlin")?;
//! # let nightly = Timetable::every(Duration::from_millis(5))?;
//! let minute = Duration::from_secs(60);
//! let task = Task::new("report").timetable(nightly.clone()).on_one_server().without_overlapping(minute);
//! let scheduler = Scheduler::builder(&locks).task(task);
//! # let scheduler = scheduler.allow_unshared();
//! let scheduler = scheduler.build()?;
//!
//! let mut ticks = Ticks::new(nightly, WallClock::system());
//! let mut hourly = tokio::time::interval(60 * minute);
//! loop {
//!     tokio::select! {
//!         due = ticks.next() => {
//!             let Some(due) = due else { break };
//!             let work = async |run: Run| println!("run of {:?}, told of {:?}", run.tick(), run.lost());
//!             if let Some(skipped) = scheduler.run("report", due.tick, work).await?.skipped() {
//!                 println!("{skipped}");
//!             }
//! #           break;
//!         }
//!         // The claim on a tick whose server crashed may have ended before the next night.
//!         _ = hourly.tick() => {
//!             for lost in scheduler.look("report").await? {
//!                 println!("{lost}");
//!             }
//!         }
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What a tick is when clocks change, how late is too late, and what becomes of a tick whose server crashed is told in
//! `docs/schedule.md`.

use std::time::Duration;

use crate::manager::LockManager;

mod claim;
mod look;
mod occurrence;
mod outcome;
mod scheduler;
mod task;
mod tick;
mod ticks;
mod timetable;
mod unique;
mod unshared;

pub use self::claim::TickClaim;
pub use self::occurrence::{Begun, Occurrence, Started};
pub use self::outcome::{LostTick, Outcome, Run, SkipReason, Skipped};
pub use self::scheduler::{Scheduler, SchedulerBuilder};
pub use self::task::{DEFAULT_CLAIM, Task};
pub use self::tick::{Tick, WallClock};
pub use self::ticks::{Due, Ticks};
pub use self::timetable::Timetable;
pub use self::unique::{JobEnd, UniqueJob};

impl LockManager {
    /// A task that is skipped while its last run lasts, wherever that is. `ttl` is how long its lease outlives a crash.
    pub fn without_overlapping(&self, name: &str, ttl: Duration) -> Occurrence {
        Occurrence::new(self, Task::new(name).without_overlapping(ttl), None)
    }

    /// A task that runs once for this tick, on the server that comes first.
    pub fn on_one_server(&self, name: &str, tick: Tick) -> Occurrence {
        Occurrence::new(self, Task::new(name).on_one_server(), Some(tick))
    }

    /// A job of which one at a time is under way for each `id`, from when it is dispatched to when it has ended.
    pub fn unique(&self, name: &str, id: &str) -> UniqueJob {
        UniqueJob::new(self, name, id)
    }
}
