//! Looking back: which earlier ticks were claimed by somebody who is gone.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use parking_lot::Mutex;

use super::claim::{Stage, TickClaim, claim_key};
use super::occurrence::Occurrence;
use super::outcome::LostTick;
use super::tick::Tick;
use crate::error::{ErrorKind, Result};
use crate::observe::{self, Event};
use crate::store::Holder;

/// How far back a look goes, in ticks.
const REACH: usize = 1000;

/// How many ticks one look asks the store for; the next look goes on from there.
const ASKED: usize = 32;

/// Which ticks need not be looked at again, or not yet.
#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<HashMap<String, BTreeMap<Tick, Duration>>>);

impl Seen {
    /// Whether a tick of this age need not be looked at.
    fn rests(&self, task: &str, tick: Tick, age: Duration) -> bool {
        let seen = self.0.lock();
        seen.get(task).and_then(|ticks| ticks.get(&tick)).is_some_and(|next| age < *next)
    }

    /// Has a tick looked at again when it has this age.
    fn rest(&self, task: &str, tick: Tick, until: Duration) {
        let mut seen = self.0.lock();
        let ticks = seen.entry(task.to_owned()).or_default();
        ticks.insert(tick, until);
        if ticks.len() > 2 * REACH {
            ticks.pop_first();
        }
    }
}

/// What a look at one tick came to.
enum Finding {
    /// It will not change any more.
    Ended,
    /// It may, by somebody who comes late.
    Idle,
    /// It will.
    Open,
    Lost(LostTick),
}

impl Occurrence {
    /// The ticks before this one that nobody will end any more, the latest first; each is told to one of those who look,
    /// or to two if the store's answer was lost. `alone`: whether the caller holds the lease without which this task does not run.
    pub(super) async fn look(&self, before: Tick, alone: bool) -> Vec<LostTick> {
        let mut lost = Vec::new();
        let Some(timetable) = &self.task.timetable else { return lost };
        let (task, mut tick) = (self.task.name.as_str(), before);
        let mut left = ASKED;
        for _ in 0..REACH {
            let Some(earlier) = timetable.previous(tick).filter(|_| left > 0) else { break };
            tick = earlier;
            let age = tick.age(self.wall.now());
            if age > self.task.claim_ttl(tick).saturating_add(self.task.claim) {
                break;
            }
            if self.seen.rests(task, tick, age) {
                continue;
            }
            left -= 1;
            match self.judge(tick, alone).await {
                Ok(Finding::Open) => {}
                // The older it is the less likely that somebody comes; so there are few looks at each.
                Ok(Finding::Idle) => self.seen.rest(task, tick, age * 2),
                Ok(Finding::Ended) => self.seen.rest(task, tick, Duration::MAX),
                Ok(Finding::Lost(found)) => {
                    tracing::warn!(task, tick = %tick, "{found}");
                    let (task, tick) = (task.to_owned(), tick.to_string());
                    let teller = &self.locks.engine().teller;
                    teller.note(|store| Event::TickLost(observe::TickLost { store, task, tick }));
                    teller.tell();
                    lost.push(found);
                }
                Err(error) => {
                    // The next one looks again.
                    tracing::warn!(task, %error, "cannot look whether earlier ticks were lost");
                    break;
                }
            }
        }
        lost
    }

    async fn judge(&self, tick: Tick, alone: bool) -> Result<Finding> {
        let key = claim_key(&self.task.name, tick);
        // Nobody has claimed it yet, or everybody skipped it before that.
        let Some(holder) = self.locks.holder(&key).await? else { return Ok(Finding::Idle) };
        let ttl = self.task.claim_ttl(tick);
        let begun = match Stage::of(&holder) {
            None | Some(Stage::Done | Stage::Skipped) => return Ok(Finding::Ended),
            // It may be run again.
            Some(Stage::Lost) => return Ok(Finding::Idle),
            Some(Stage::Claimed) if is_fresh(&holder, ttl, self.patience()) => return Ok(Finding::Open),
            Some(Stage::Claimed) => false,
            // Read after the claim: whoever says that it runs has held this lease since before.
            Some(Stage::Runs) if !(alone && self.task.overlap.is_some()) && self.runs(tick).await? => {
                return Ok(Finding::Open);
            }
            Some(Stage::Runs) => true,
        };
        match TickClaim::take_from(&self.locks, key, ttl, holder.owner.clone(), Stage::Lost).await {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(Finding::Open),
            // It may be marked by now, and then nobody else will tell it.
            Err(error) if error.kind() == ErrorKind::Indeterminate => {}
            Err(error) => return Err(error),
        }
        Ok(Finding::Lost(LostTick { tick, holder: holder.info, since: holder.since, begun }))
    }

    async fn runs(&self, tick: Tick) -> Result<bool> {
        Ok(self.run_lock(Some(tick)).0.holder().await?.is_some())
    }

    /// How long whoever has claimed a tick may take to begin.
    fn patience(&self) -> Duration {
        self.task.overlap.unwrap_or_else(|| self.locks.ttl())
    }
}

/// Whether a claim of `ttl` was made less than `patience` ago, by the store's own clock.
fn is_fresh(holder: &Holder, ttl: Duration, patience: Duration) -> bool {
    holder.remaining.is_some_and(|remaining| ttl.saturating_sub(remaining) < patience)
}
