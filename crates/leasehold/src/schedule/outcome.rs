//! What came of a run: it ran, or it was skipped for a reason that can be shown.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::tick::Tick;
use crate::error::Result;
use crate::guard::LeaseHandle;
use crate::scoped::Ran;
use crate::store::{Holder, HolderInfo};

/// What came of a task at one tick.
#[non_exhaustive]
#[derive(Debug)]
pub enum Outcome<T> {
    /// It ran to its end here.
    Ran(Ran<T>),
    /// It did not run here.
    Skipped(Skipped),
}

impl<T> Outcome<T> {
    /// What the work returned; `None` = it was skipped.
    ///
    /// # Errors
    ///
    /// What came of giving the lease back: see [`Ran::release`].
    pub fn into_value(self) -> Result<Option<T>> {
        match self {
            Self::Ran(ran) => ran.into_value().map(Some),
            Self::Skipped(_) => Ok(None),
        }
    }

    /// Why it was skipped, if it was.
    pub fn skipped(&self) -> Option<&Skipped> {
        match self {
            Self::Ran(_) => None,
            Self::Skipped(skipped) => Some(skipped),
        }
    }
}

/// A task that did not run. `Display` says why, which key keeps it and for how long still.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Skipped {
    /// The task.
    pub task: String,
    /// The tick, if there was one.
    pub tick: Option<Tick>,
    /// Why.
    pub reason: SkipReason,
    /// The key that somebody else holds, if that is why.
    pub key: Option<String>,
    /// Who holds it, if that could be learned.
    pub holder: Option<Holder>,
}

/// Why a task was skipped.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// A condition was not met: its name.
    Condition(String),
    /// The last run still lasts.
    StillRunning,
    /// Another server has this tick.
    OtherServer,
    /// The tick is this long ago, so that nobody's claim on it has to stand any more.
    TooLate(Duration),
    /// This process stood still so long between its claim and its run that others took it for dead.
    GivenUp,
}

impl SkipReason {
    /// In one word, for programs.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Condition(_) => "condition",
            Self::StillRunning => "still_running",
            Self::OtherServer => "other_server",
            Self::TooLate(_) => "too_late",
            Self::GivenUp => "given_up",
        }
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Condition(name) => write!(f, "condition \"{name}\" is not met"),
            Self::StillRunning => f.write_str("the last run still lasts"),
            Self::OtherServer => f.write_str("another server has this tick"),
            Self::TooLate(age) => write!(f, "it was due {age:.0?} ago, which is too late to know who has run it"),
            Self::GivenUp => f.write_str("this process stood still for so long that others took it for dead"),
        }
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "skipped \"{}\"", self.task)?;
        if let Some(tick) = self.tick {
            write!(f, " at {tick}")?;
        }
        write!(f, ": {}", self.reason)?;
        let Some(key) = &self.key else { return Ok(()) };
        write!(f, " (key \"{key}\"")?;
        if let Some(holder) = &self.holder {
            write!(f, ", held by {}", who(&holder.info))?;
            if let Some(remaining) = holder.remaining {
                write!(f, ", lease ends in {remaining:.0?}")?;
            }
        }
        f.write_str(")")
    }
}

/// `web-3 (pid 4121)`.
fn who(info: &HolderInfo) -> String {
    let host = info.host.as_deref().unwrap_or("somebody");
    info.pid.map_or_else(|| host.to_owned(), |pid| format!("{host} (pid {pid})"))
}

/// A tick that was claimed, and whose holder is gone without having ended: it crashed, lost its lease, or could not tell
/// the store that it was done.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct LostTick {
    /// The tick.
    pub tick: Tick,
    /// Who had it.
    pub holder: Arc<HolderInfo>,
    /// Since when, by that one's wall clock.
    pub since: Option<SystemTime>,
    /// Whether the work had begun.
    pub begun: bool,
}

impl fmt::Display for LostTick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.begun { "did not end" } else { "did not begin" };
        write!(f, "the run at {} {how}: {} is gone", self.tick, who(&self.holder))
    }
}

/// What the work of a task is given.
#[derive(Clone, Debug)]
pub struct Run {
    pub(super) lease: LeaseHandle,
    pub(super) tick: Option<Tick>,
    pub(super) lost: Vec<LostTick>,
}

impl Run {
    /// The lease under which the work runs.
    pub fn lease(&self) -> &LeaseHandle {
        &self.lease
    }

    /// The tick.
    pub fn tick(&self) -> Option<Tick> {
        self.tick
    }

    /// Earlier ticks of this task that were found unfinished by this run; nobody else is told of them, unless the store's
    /// answer to somebody was lost. Whether their work is done now is up to this run.
    ///
    /// Claims stand for a day at most and may have ended by now, so for a task that is due once a day or less often call
    /// [`Scheduler::look`](super::Scheduler::look) every hour or so.
    pub fn lost(&self) -> &[LostTick] {
        &self.lost
    }
}
