//! Giving a lease back, passing it on, and removing it.

use std::sync::Arc;

use tokio::time::{sleep, timeout};

use super::Core;
use super::acquire::Remains;
use super::record::Record;
use super::round::{LINGER, Late};
use super::survey::answered;
use super::tally::{Tally, Verdict, majority_of};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{BoxFuture, Claim, Grant, OwnedClaim, Removed, Tie};
use crate::types::{Key, OwnerToken};

impl Core {
    pub(super) async fn release(self: &Arc<Self>, key: &Key, owner: &OwnerToken) -> Result<bool> {
        // Grants that are still on their way are given back when they come.
        let record = self.records.of(key, owner);
        record.give_up();
        let release = {
            let record = Arc::clone(&record);
            move |core: Arc<Self>, index: usize| -> BoxFuture<Result<bool>> {
                let record = Arc::clone(&record);
                Box::pin(async move {
                    let Some(_undoing) = record.undo(index) else { return Ok(false) };
                    let released = core.nodes[index].store().release(&record.key, &record.owner).await;
                    if matches!(&released, Err(error) if error.kind() != ErrorKind::Closed) {
                        core.undo(&record, index, Remains::Perhaps);
                    }
                    released
                })
            }
        };
        let late: Late<Result<bool>> = {
            let (core, record) = (Arc::clone(self), Arc::clone(&record));
            Arc::new(move |index, answer| {
                Box::pin(release_again(Arc::clone(&core), Arc::clone(&record), index, answer))
            })
        };
        let is_enough = |said: &[Option<Result<bool>>]| {
            [true, false]
                .into_iter()
                .any(|word| answered(said).filter(|released| **released == word).count() >= self.majority())
        };
        let said = self.gather(self.node_timeout, ErrorKind::Indeterminate, release, is_enough, Some(late)).await;
        self.check_applied(&said, |released| *released)?;
        // Where a majority had no lease, the owner had none.
        Ok(answered(&said).filter(|released| !**released).count() < self.majority())
    }

    /// Removes the lease on every node.
    pub(super) async fn force_release(
        self: &Arc<Self>,
        key: &Key,
        expected: Option<&OwnerToken>,
    ) -> Result<Option<Removed>> {
        let (key, expected) = (key.clone(), expected.cloned());
        let remove = move |core: Arc<Self>, index: usize| -> BoxFuture<Result<Option<Removed>>> {
            let (key, expected) = (key.clone(), expected.clone());
            Box::pin(async move { core.nodes[index].store().force_release(&key, expected.as_ref()).await })
        };
        let said = self.gather(self.node_timeout, ErrorKind::Indeterminate, remove, |_| false, None).await;
        self.check_applied(&said, Option::is_some)?;
        let answers = answered(&said).count();
        let mut told = Vec::new();
        let mut floor = None;
        for (index, removed) in said.into_iter().enumerate().filter_map(|(index, said)| Some((index, said?.ok()??))) {
            if self.fence == Some(index) {
                floor = removed.fence_floor;
            }
            told.extend(removed.holders.into_iter().map(|holder| (index, holder)));
        }
        Ok(self.holder(answers, told).map(|holder| {
            let mut removed = Removed::new(vec![holder]);
            removed.fence_floor = floor;
            removed
        }))
    }

    /// Passes a lease on, one node after the other: of many takers one is then the first at every node that another has
    /// not reached, so that one of them wins. Goes on when the caller does.
    pub(super) async fn transfer(self: &Arc<Self>, from: &OwnerToken, claim: &Claim<'_>) -> Result<Option<Grant>> {
        self.check_ttl(claim.ttl)?;
        let (from, claim) = (from.clone(), OwnedClaim::new(claim));
        let passing = Arc::clone(self).pass_on(from, claim);
        match self.run_on(0, passing) {
            Some(task) => {
                task.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Indeterminate, "the runtime has ended")))
            }
            None => Err(Error::new(ErrorKind::Unavailable, "there is no runtime")),
        }
    }

    async fn pass_on(self: Arc<Self>, from: OwnerToken, claim: OwnedClaim) -> Result<Option<Grant>> {
        let claim = claim.borrow();
        let limit = self.limit(claim.ttl);
        let record = self.records.of(claim.key, claim.owner);
        let undos = record.undos();
        let mut tally: Tally<Grant, ()> = Tally::default();
        for (index, node) in self.nodes.iter().enumerate() {
            let answer = timeout(limit, node.store().transfer(&from, &claim)).await;
            let answer = answer
                .unwrap_or_else(|_| Err(Error::new(ErrorKind::Indeterminate, format!("no answer within {limit:?}"))));
            match answer {
                // What it says may be gone already.
                Ok(Some(_)) if undos[index].is_none() || record.undos()[index] != undos[index] => {
                    let error = Error::new(ErrorKind::Indeterminate, "an earlier request is still being undone");
                    tally.faults.push((index, error));
                }
                Ok(Some(grant)) => tally.yes.push((index, grant)),
                Ok(None) => tally.no.push((index, ())),
                Err(error) => tally.faults.push((index, error)),
            }
            if matches!(tally.verdict(&self, self.fence), Some(Verdict::No | Verdict::Unknown)) {
                break;
            }
        }
        if tally.verdict(&self, self.fence) == Some(Verdict::Yes) {
            record.want(claim.ttl);
            self.clear(&from, &claim, &tally);
            let validities = tally.yes.iter().map(|(_, grant)| grant.validity).collect();
            let mut won = Grant::new(majority_of(validities, self.majority()));
            let fence = tally.yes.iter().find(|(index, _)| self.fence == Some(*index));
            won.fencing = fence.and_then(|(_, grant)| grant.fencing);
            let is_watched = tally.yes.iter().any(|(_, grant)| grant.loss.is_some());
            for (index, grant) in tally.yes {
                record.keep(index, grant.loss);
            }
            if is_watched {
                won.loss = Some(super::watch::watch(&self, &record));
            }
            return Ok(Some(won));
        }
        let unknown = || tally.faults.iter().filter(|(_, error)| error.kind() == ErrorKind::Indeterminate);
        // Where others have the lease, ours is in their way; where nobody answers, it goes back to whom it came from.
        if tally.no.len() > self.spare() {
            self.clear(&from, &claim, &tally);
            record.want(claim.ttl);
            record.give_up();
            let passed = tally.yes.iter().map(|(index, _)| (*index, Remains::Surely));
            let left = passed.chain(unknown().map(|(index, _)| (*index, Remains::Perhaps)));
            let tasks: Vec<_> =
                left.filter_map(|(index, remains)| Some((remains, self.undo(&record, index, remains)?))).collect();
            let surely = tasks.into_iter().filter(|(remains, _)| *remains == Remains::Surely);
            let all = async {
                for (_, task) in surely {
                    drop(task.await)
                }
            };
            drop(timeout(limit, all).await);
            return Ok(None);
        }
        let mut is_certain = unknown().next().is_none();
        for (index, _) in &tally.yes {
            is_certain &= self.pass_back(&record, *index, &from, &claim).await;
        }
        for (index, _) in unknown() {
            self.pass_back(&record, *index, &from, &claim).await;
        }
        Err(tally.error(&self, ["passed on", "not held"], is_certain))
    }

    /// Gives back what a former owner may have on the nodes that did not say that it is gone: it would be in the way.
    fn clear(self: &Arc<Self>, from: &OwnerToken, claim: &Claim<'_>, tally: &Tally<Grant, ()>) {
        let giver = self.records.of(claim.key, from);
        giver.want(claim.ttl);
        giver.give_up();
        let is_gone = |index: usize| {
            tally.yes.iter().map(|vote| vote.0).chain(tally.no.iter().map(|vote| vote.0)).any(|gone| gone == index)
        };
        for index in (0..self.nodes.len()).filter(|index| !is_gone(*index)) {
            self.undo(&giver, index, Remains::Perhaps);
        }
    }

    async fn pass_back(&self, record: &Arc<Record>, index: usize, from: &OwnerToken, claim: &Claim<'_>) -> bool {
        let undoing = record.undo_anyway(index);
        let back = Claim::new(claim.key, from, claim.ttl).tie(Tie::Nothing);
        let passing = self.nodes[index].store().transfer(claim.owner, &back);
        let answer = timeout(self.node_timeout, passing).await;
        let is_back = matches!(answer, Ok(Ok(_)));
        if !is_back {
            // It may still come, and take what a repeat is given there until then.
            tokio::spawn(async move {
                sleep(LINGER).await;
                drop(undoing);
            });
        }
        is_back
    }
}

/// A release that nobody waits for any more, and that went unanswered.
async fn release_again(core: Arc<Core>, record: Arc<Record>, index: usize, answer: Option<Result<bool>>) {
    if answer.is_none()
        && let Some(undoing) = record.undo(index)
    {
        core.give_back(undoing, Remains::Perhaps).await;
    }
}
