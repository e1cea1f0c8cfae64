//! The claim on one tick of one task: a lease that is tied to nothing and not renewed, and says how far the run has come.
//!
//! Whoever claims a tick holds a second lease, renewed, while the work runs. The claim says first that the tick is
//! claimed, then, under that lease, that it runs, and at last that it is done. Each step is a transfer to a new owner
//! token, so a step cannot succeed after somebody else has judged the claim, and no judgement after the step.

use std::time::Duration;

use super::tick::Tick;
use crate::error::{ErrorKind, Result};
use crate::lock::Lock;
use crate::manager::LockManager;
use crate::options::Renew;
use crate::store::{Holder, Tie};
use crate::types::OwnerToken;

/// How far a run has come, as people read it in the reason of the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Claimed,
    Runs,
    Done,
    Skipped,
    Lost,
}

const STAGES: [(Stage, &str); 5] = [
    (Stage::Claimed, "tick claimed"),
    (Stage::Runs, "tick runs"),
    (Stage::Done, "tick done"),
    (Stage::Skipped, "tick skipped"),
    (Stage::Lost, "tick lost"),
];

impl Stage {
    fn note(self) -> &'static str {
        STAGES.into_iter().find(|(stage, _)| *stage == self).map_or("", |(_, note)| note)
    }

    /// What a claim says; `None` = it is none of ours.
    pub(super) fn of(holder: &Holder) -> Option<Self> {
        let note = holder.info.reason.as_deref()?;
        STAGES.into_iter().find(|(_, known)| *known == note).map(|(stage, _)| stage)
    }
}

/// The key of the claim on a tick.
pub(super) fn claim_key(task: &str, tick: Tick) -> String {
    format!("{task}@{tick}")
}

/// The key that is held while a tick runs whose task may overlap with itself.
pub(super) fn run_key(task: &str, tick: Tick) -> String {
    format!("{task}@{tick}#run")
}

/// The lock that is a claim at this stage.
pub(super) fn claim_lock(locks: &LockManager, key: &str, ttl: Duration, stage: Stage) -> Lock {
    locks.lock(key).ttl(ttl).renew(Renew::Off).tie(Tie::Nothing).noted(stage.note())
}

/// A tick that is ours, to be run.
///
/// If it is dropped without a word the tick counts as lost, once the lease under which the work runs is gone.
#[derive(Debug)]
pub struct TickClaim {
    locks: LockManager,
    key: String,
    ttl: Duration,
    owner: OwnerToken,
}

impl TickClaim {
    /// Claims a tick; `None` = somebody else has it.
    ///
    /// If dropped before there is an answer, the claim is given back; from the answer on it stands.
    pub(super) async fn take(locks: &LockManager, key: String, ttl: Duration) -> Result<Option<Self>> {
        let lock = claim_lock(locks, &key, ttl, Stage::Claimed);
        let Some(guard) = lock.try_acquire().await? else { return Ok(None) };
        Ok(Some(Self { locks: locks.clone(), key, ttl, owner: guard.leave_standing() }))
    }

    /// Takes on a tick that was found lost, or that is to be judged; `None` = somebody else was faster.
    pub(super) async fn take_from(
        locks: &LockManager,
        key: String,
        ttl: Duration,
        owner: OwnerToken,
        stage: Stage,
    ) -> Result<Option<Self>> {
        let mut claim = Self { locks: locks.clone(), key, ttl, owner };
        Ok(claim.step(stage).await?.then_some(claim))
    }

    /// Says how far the run has come; `false` = the claim is not ours any more.
    pub(super) async fn step(&mut self, stage: Stage) -> Result<bool> {
        let lock = claim_lock(&self.locks, &self.key, self.ttl, stage);
        match lock.resume(&self.owner).await {
            Ok(guard) => {
                self.owner = guard.leave_standing();
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NotHeld => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Says that the run has ended, whatever came of it. To be called before its lease is given back: whoever finds neither
    /// takes the run for lost. An error is logged, and the run will be told as lost.
    ///
    /// # Cancel safety
    ///
    /// If dropped, it may or may not have been said.
    pub async fn done(mut self) {
        self.conclude(Stage::Done).await;
    }

    /// As a last word, after which nothing more is to be said: an error is logged.
    pub(super) async fn conclude(&mut self, stage: Stage) {
        match self.step(stage).await {
            Ok(true) => {}
            Ok(false) => tracing::warn!(key = self.key, "the claim on the tick was taken over"),
            Err(error) => tracing::warn!(key = self.key, %error, "the run will be told as lost although it has ended"),
        }
    }
}
