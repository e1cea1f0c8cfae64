//! Pushing ends out on a majority of nodes, and giving leases back to nodes that lost them.

use std::future::ready;
use std::sync::{Arc, OnceLock};

use tokio::time::timeout;

use super::Core;
use super::acquire::Remains;
use super::record::Record;
use super::round::{LINGER, Late, Round};
use super::tally::{Tally, Verdict, majority_of};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Attempt, BoxFuture, Claim, Grant, OwnedClaim};

/// What a node says to a batch.
type Answers = Result<Vec<Result<Option<Grant>>>>;

/// A lease whose end is to be pushed out.
#[derive(Clone, Debug)]
struct Extension {
    claim: OwnedClaim,
    record: Arc<Record>,
    /// As they were before anything was asked.
    undos: Vec<Option<u32>>,
}

impl Core {
    pub(super) async fn extend(self: &Arc<Self>, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        let Some(shortest) = claims.iter().map(|claim| claim.ttl).min() else { return Ok(Vec::new()) };
        for claim in claims {
            self.check_ttl(claim.ttl)?;
        }
        let of = |claim: &Claim<'_>| {
            // Held on to until all is answered, so that a release in between is known.
            let record = self.records.of(claim.key, claim.owner);
            Extension { claim: OwnedClaim::new(claim), undos: record.undos(), record }
        };
        let claims: Arc<[Extension]> = claims.iter().map(of).collect();
        let extended: Arc<OnceLock<Vec<bool>>> = Arc::default();
        let late: Late<Answers> = {
            let (core, claims, extended) = (Arc::clone(self), Arc::clone(&claims), Arc::clone(&extended));
            Arc::new(move |index, answers| {
                let missed = missed(&claims, extended.get(), answers);
                Box::pin(Arc::clone(&core).restore_all(index, missed))
            })
        };
        let mut round = Round::new(self, self.limit(shortest), |index| self.ask_to_extend(index, &claims)).late(late);
        let mut tallies: Vec<Tally<Grant, ()>> = claims.iter().map(|_| Tally::default()).collect();
        while tallies.iter().any(|tally| tally.verdict(self, None).is_none()) || round.is_outrun() {
            let answers = round.next().await;
            if answers.is_empty() {
                for (index, error) in round.missing(ErrorKind::Indeterminate) {
                    tallies.iter_mut().for_each(|tally| tally.faults.push((index, error.clone())));
                }
            }
            for (index, answers) in answers {
                count(&mut tallies, index, answers);
            }
        }
        let answers: Vec<_> = claims.iter().zip(tallies).map(|(claim, tally)| self.extended(claim, tally)).collect();
        // Before the round ends, and answers are late.
        extended.get_or_init(|| answers.iter().map(|answer| matches!(answer, Ok(Some(_)))).collect());
        drop(round);
        Ok(answers)
    }

    async fn restore_all(self: Arc<Self>, index: usize, claims: Vec<Extension>) {
        for claim in claims {
            Arc::clone(&self).restore(index, claim).await;
        }
    }

    fn ask_to_extend(self: &Arc<Self>, index: usize, claims: &Arc<[Extension]>) -> BoxFuture<Answers> {
        if let Err(error) = self.nodes[index].check_crowd() {
            return Box::pin(ready(Err(error)));
        }
        let (core, claims) = (Arc::clone(self), Arc::clone(claims));
        Box::pin(async move {
            let claims: Vec<_> = claims.iter().map(|asked| asked.claim.borrow()).collect();
            core.nodes[index].store().extend(&claims).await
        })
    }

    fn extended(self: &Arc<Self>, asked: &Extension, mut tally: Tally<Grant, ()>) -> Result<Option<Grant>> {
        // A release is or was on its way there, and may have come after the answer.
        let undos = asked.record.undos();
        let is_undone = |index: usize| undos[index].is_none() || undos[index] != asked.undos[index];
        let undone: Vec<_> = tally.yes.extract_if(.., |(index, _)| is_undone(*index)).collect();
        let error = Error::new(ErrorKind::Indeterminate, "an earlier request is still being undone");
        tally.faults.extend(undone.into_iter().map(|(index, _)| (index, error.clone())));
        match tally.verdict(self, None) {
            Some(Verdict::Yes) => {
                for (index, ()) in &tally.no {
                    self.run_on(*index, Arc::clone(self).restore(*index, asked.clone()));
                }
                let validities = tally.yes.iter().map(|(_, grant)| grant.validity).collect();
                let mut extended = Grant::new(majority_of(validities, self.majority()));
                let fence = tally.yes.iter().find(|(index, _)| self.fence == Some(*index));
                extended.fencing = fence.and_then(|(_, grant)| grant.fencing);
                Ok(Some(extended))
            }
            // It may stand on the nodes that are silent, and only a majority of noes says that it does not.
            Some(Verdict::No) if tally.no.len() > self.spare() => Ok(None),
            _ => {
                let is_certain = tally.yes.is_empty()
                    && tally.faults.iter().all(|(_, error)| error.kind() != ErrorKind::Indeterminate);
                Err(tally.error(self, ["extended", "not held"], is_certain))
            }
        }
    }

    /// Gives a lease back to a node that lost it, when a majority of the others has just extended it.
    async fn restore(self: Arc<Self>, index: usize, asked: Extension) {
        let Extension { claim, record, .. } = asked;
        let Some(restoring) = record.restore(index) else { return };
        let claim = claim.borrow();
        let remains = match timeout(LINGER, self.nodes[index].store().acquire(&claim.waits(false))).await {
            // A release that came meanwhile has not met it there.
            Ok(Ok(Attempt::Acquired(grant))) => {
                if self.is_still_held(index, &claim).await && record.keep(index, grant.loss) {
                    return;
                }
                Remains::Surely
            }
            Err(_) => Remains::Perhaps,
            Ok(Err(error)) if error.kind() == ErrorKind::Indeterminate => Remains::Perhaps,
            Ok(_) => return,
        };
        let undoing = record.undo_anyway(index);
        // It has not got it back, so its flag counts, however long it takes to be sure that nothing is left there.
        drop(restoring);
        self.give_back(undoing, remains).await;
    }

    /// Whether a majority, this node included, may still have the lease: otherwise it was given up meanwhile.
    async fn is_still_held(self: &Arc<Self>, index: usize, claim: &Claim<'_>) -> bool {
        let found = self.look(claim.key, |_| false).await;
        let gone = found.iter().enumerate().filter(|(other, found)| match found {
            Some(Ok(found)) => *other != index && !found.holders.iter().any(|holder| holder.owner == *claim.owner),
            _ => false,
        });
        gone.count() <= self.spare()
    }
}

/// The claims that were extended, but not on a node that answered too late to be counted.
fn missed(claims: &[Extension], extended: Option<&Vec<bool>>, answers: Option<Answers>) -> Vec<Extension> {
    let (Some(Ok(answers)), Some(extended)) = (answers, extended) else { return Vec::new() };
    let claims = claims.iter().zip(extended).zip(answers);
    claims
        .filter(|((_, extended), answer)| **extended && matches!(answer, Ok(None)))
        .map(|((claim, _), _)| claim.clone())
        .collect()
}

fn count(tallies: &mut [Tally<Grant, ()>], index: usize, answers: Answers) {
    let answers = match answers {
        Ok(answers) if answers.len() == tallies.len() => answers,
        Ok(_) => {
            let error = Error::new(ErrorKind::Indeterminate, "another number of answers than of claims");
            tallies.iter().map(|_| Err(error.clone())).collect()
        }
        Err(error) => tallies.iter().map(|_| Err(error.clone())).collect(),
    };
    for (tally, answer) in tallies.iter_mut().zip(answers) {
        match answer {
            Ok(Some(grant)) => tally.yes.push((index, grant)),
            Ok(None) => tally.no.push((index, ())),
            Err(error) => tally.faults.push((index, error)),
        }
    }
}
