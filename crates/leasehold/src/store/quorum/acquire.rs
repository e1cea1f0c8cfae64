//! Taking a lease on a majority of nodes, and giving back what is no lease.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::Core;
use super::record::{Record, Undoing};
use super::round::{LINGER, Late, Round};
use super::tally::{Tally, Verdict, majority_of};
use super::watch::{any_of, watch};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Attempt, BoxFuture, Claim, Contention, Grant, OwnedClaim, Wake};

/// When an undo that found nothing is repeated, as it may have overtaken what it undoes.
const UNDO_AGAIN: [Duration; 3] = [Duration::from_millis(10), Duration::from_millis(100), Duration::from_millis(1000)];

/// Who met others half-way asks again after a random part of this: long enough for their undos, and for one of them to
/// be the first.
const SPLIT: Duration = Duration::from_millis(40);

/// What one node said to a claim, and what it may have been left with.
#[derive(Debug)]
struct Vote {
    said: Result<Attempt>,
    remains: Remains,
}

/// Whether the owner has a lease on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remains {
    Nothing,
    Perhaps,
    Surely,
}

/// A vote on a claim. Dropped before it was decided, it gives back whatever it was granted or will be.
#[derive(Debug)]
struct Ballot {
    core: Arc<Core>,
    record: Arc<Record>,
    round: Option<Round<Vote>>,
    tally: Tally<Grant, Contention>,
    /// Nodes that may have been left with a lease, of those that answered.
    left: Vec<(usize, Remains)>,
    is_decided: bool,
}

impl Core {
    pub(super) async fn acquire(self: &Arc<Self>, claim: &Claim<'_>) -> Result<Attempt> {
        self.check_ttl(claim.ttl)?;
        let limit = self.limit(claim.ttl);
        let record = self.records.of(claim.key, claim.owner);
        record.want(claim.ttl);
        let mut ballot = Ballot::new(self, record, &Arc::new(OwnedClaim::new(claim)), limit);
        let verdict = ballot.vote().await;
        if verdict == Verdict::Yes {
            return Ok(Attempt::Acquired(ballot.won()));
        }
        let is_surely_undone = ballot.undo(limit).await;
        if verdict == Verdict::No {
            return Ok(Attempt::Contended(self.contention(std::mem::take(&mut ballot.tally))));
        }
        Err(ballot.tally.error(self, ["granted", "held by another"], is_surely_undone))
    }

    fn vote(self: &Arc<Self>, index: usize, record: &Arc<Record>, claim: &Arc<OwnedClaim>) -> BoxFuture<Vote> {
        let is_undone = if record.is_undoing(index) {
            Err(Error::new(ErrorKind::Unavailable, "not asked: an earlier request is still being undone"))
        } else {
            Ok(())
        };
        if let Err(error) =
            is_undone.and_then(|()| self.nodes[index].check_crowd()).and_then(|()| self.check_bar(index))
        {
            return Box::pin(ready(Vote { said: Err(error), remains: Remains::Nothing }));
        }
        let (core, claim) = (Arc::clone(self), Arc::clone(claim));
        Box::pin(async move {
            let node = &core.nodes[index];
            let claim = claim.borrow();
            // Each node would have somebody else come first.
            let claim = claim.waits(claim.waits && node.hints()).takes_turns(false);
            let said = node.store().acquire(&claim).await;
            let remains = match &said {
                Ok(Attempt::Acquired(_)) => Remains::Surely,
                Err(error) if error.kind() == ErrorKind::Indeterminate => Remains::Perhaps,
                Ok(Attempt::Contended(_)) | Err(_) => Remains::Nothing,
            };
            let connection = match &said {
                Ok(Attempt::Acquired(grant)) => grant.connection,
                _ => return Vote { said, remains },
            };
            Vote { said: core.vet(index, connection).await.and(said), remains }
        })
    }

    fn contention(&self, tally: Tally<Grant, Contention>) -> Contention {
        let majority = self.majority();
        // So many nodes have to become free.
        let need = majority.saturating_sub(tally.yes.len()).max(1);
        let is_split = !tally.yes.is_empty() && tally.no.len() < majority;
        let mut ends: Vec<_> = tally.no.iter().filter_map(|(_, contention)| contention.retry_after).collect();
        ends.sort_unstable();
        let mut told = Contention::new();
        told.retry_after = if is_split {
            Some(SPLIT.mul_f64(fastrand::f64()).max(Duration::from_millis(1)))
        } else {
            ends.get(need - 1).copied()
        };
        let mut wakes = Vec::new();
        for (_, contention) in tally.no {
            told.holder = told.holder.or(contention.holder);
            if let Some(Wake::Hint(wake)) = contention.wake {
                wakes.push(wake);
            }
        }
        told.holder = told.holder.filter(|_| !is_split).map(|mut holder| {
            holder.fencing = None;
            holder
        });
        if !wakes.is_empty() {
            told = told.wake(Wake::Hint(Box::pin(any_of(wakes, need))));
        }
        told
    }

    /// Gives back what an owner may have on a node; `true` = it is surely gone.
    pub(super) async fn give_back(self: Arc<Self>, undoing: Undoing, remains: Remains) -> bool {
        let mut is_lost = false;
        let is_gone = self.release_until_gone(&undoing, remains, &mut is_lost).await;
        if is_lost {
            // A release that was not answered may still come, and take what the owner is granted there until then.
            tokio::spawn(async move {
                sleep(LINGER).await;
                drop(undoing);
            });
        }
        is_gone
    }

    async fn release_until_gone(&self, undoing: &Undoing, remains: Remains, is_lost: &mut bool) -> bool {
        let (record, index) = (undoing.record(), undoing.index());
        let give_up = self.clock.now() + record.ttl();
        let mut pauses = UNDO_AGAIN.into_iter();
        let mut is_answering = true;
        loop {
            let release = self.nodes[index].store().release(&record.key, &record.owner);
            let answer = timeout(LINGER, release).await;
            *is_lost |= match &answer {
                Ok(Err(error)) => error.kind() == ErrorKind::Indeterminate,
                answer => answer.is_err(),
            };
            match answer {
                Ok(Ok(true)) => return true,
                Ok(Ok(false)) if remains == Remains::Surely => return true,
                Ok(Err(error)) if error.kind() == ErrorKind::Closed => return false,
                Ok(Ok(false)) => {}
                Ok(Err(_)) | Err(_) if self.clock.now() >= give_up => return false,
                // What was sent before may come when it answers again.
                Ok(Err(_)) | Err(_) => {
                    sleep(pauses.next().unwrap_or(LINGER)).await;
                    is_answering = false;
                    continue;
                }
            }
            if !is_answering {
                (is_answering, pauses) = (true, UNDO_AGAIN.into_iter());
            }
            match pauses.next() {
                Some(pause) => sleep(pause).await,
                None => return true,
            }
        }
    }

    /// Begins to give back what an owner may have on a node, unless it is wanted.
    pub(super) fn undo(
        self: &Arc<Self>,
        record: &Arc<Record>,
        index: usize,
        remains: Remains,
    ) -> Option<JoinHandle<bool>> {
        self.nodes[index].check_crowd().ok()?;
        self.run_on(index, Arc::clone(self).give_back(record.undo(index)?, remains))
    }
}

impl Ballot {
    fn new(core: &Arc<Core>, record: Arc<Record>, claim: &Arc<OwnedClaim>, limit: Duration) -> Self {
        let late: Late<Vote> = {
            let (core, record) = (Arc::clone(core), Arc::clone(&record));
            Arc::new(move |index, vote| Box::pin(late_vote(Arc::clone(&core), Arc::clone(&record), index, vote)))
        };
        let round = Round::new(core, limit, |index| core.vote(index, &record, claim)).late(late);
        Self {
            core: Arc::clone(core),
            record,
            round: Some(round),
            tally: Tally::default(),
            left: Vec::new(),
            is_decided: false,
        }
    }

    async fn vote(&mut self) -> Verdict {
        loop {
            match (self.tally.verdict(&self.core, self.core.fence), &self.round) {
                // Whether something remains is known only when all have answered.
                (Some(Verdict::Unknown), Some(round)) if !round.is_over() => {}
                (Some(_), Some(round)) if round.is_outrun() => {}
                (Some(verdict), _) => return verdict,
                (None, _) => {}
            }
            let Some(round) = &mut self.round else { return Verdict::Unknown };
            let votes = round.next().await;
            if votes.is_empty() {
                let missing: Vec<_> = round.missing(ErrorKind::Indeterminate).collect();
                self.left.extend(missing.iter().map(|(index, _)| (*index, Remains::Perhaps)));
                self.tally.faults.extend(missing);
            }
            for (index, vote) in votes {
                if vote.remains != Remains::Nothing {
                    self.left.push((index, vote.remains));
                }
                match vote.said {
                    Ok(Attempt::Acquired(grant)) => self.tally.yes.push((index, grant)),
                    Ok(Attempt::Contended(contention)) => self.tally.no.push((index, contention)),
                    Err(error) => self.tally.faults.push((index, error)),
                }
            }
        }
    }

    /// The lease that a majority granted. Nodes that grant it later have it, too.
    fn won(mut self) -> Grant {
        self.is_decided = true;
        let core = &self.core;
        let mut grants = std::mem::take(&mut self.tally.yes);
        let validity = majority_of(grants.iter().map(|(_, grant)| grant.validity).collect(), core.majority());
        let mut won = Grant::new(validity);
        let fence = grants.iter().find(|(index, _)| core.fence == Some(*index));
        won.fencing = fence.and_then(|(_, grant)| grant.fencing);
        for (index, remains) in &self.left {
            if *remains == Remains::Perhaps && !self.round.as_ref().is_some_and(|round| round.is_pending(*index)) {
                tokio::spawn(undo_later(Arc::clone(core), Arc::clone(&self.record), *index));
            }
        }
        let mut is_watched = false;
        for (index, grant) in &mut grants {
            is_watched |= grant.loss.is_some();
            self.record.keep(*index, grant.loss.take());
        }
        if is_watched {
            won.loss = Some(watch(core, &self.record));
        }
        won
    }

    /// Gives everything back, and waits for the answers for a while; `true` = surely nothing remains.
    async fn undo(&mut self, limit: Duration) -> bool {
        let tasks = self.begin_undo();
        let is_certain = self.left.iter().all(|(_, remains)| *remains == Remains::Surely);
        let mut are_done = true;
        let waited = timeout(limit, async {
            for task in tasks {
                are_done &= match task {
                    Some((Remains::Surely, task)) => task.await.unwrap_or(false),
                    Some(_) => true,
                    None => false,
                };
            }
        });
        waited.await.is_ok() && is_certain && are_done
    }

    fn begin_undo(&mut self) -> Vec<Option<(Remains, JoinHandle<bool>)>> {
        self.is_decided = true;
        self.record.give_up();
        // Requests that are not answered see to themselves when they are.
        let round = self.round.take();
        let is_pending = |index: usize| round.as_ref().is_some_and(|round| round.is_pending(index));
        // An answer to an earlier request of this owner came meanwhile.
        let late: Vec<_> = self.record.kept().into_iter().map(|index| (index, Remains::Surely)).collect();
        let late = late.iter().filter(|(index, _)| !self.left.iter().any(|(left, _)| left == index));
        let answered = self.left.iter().chain(late).filter(|(index, _)| !is_pending(*index));
        answered
            .map(|(index, remains)| self.core.undo(&self.record, *index, *remains).map(|task| (*remains, task)))
            .collect()
    }
}

impl Drop for Ballot {
    fn drop(&mut self) {
        if !self.is_decided {
            self.begin_undo();
        }
    }
}

/// A vote that came when the ballot was over.
async fn late_vote(core: Arc<Core>, record: Arc<Record>, index: usize, vote: Option<Vote>) {
    let remains = match vote {
        None => Remains::Perhaps,
        Some(Vote { said: Ok(Attempt::Acquired(grant)), .. }) if record.keep(index, grant.loss.clone()) => return,
        Some(vote) => vote.remains,
    };
    if remains == Remains::Nothing {
        return;
    }
    match record.undo(index) {
        Some(undoing) => _ = core.give_back(undoing, remains).await,
        // It may still arrive, and its owner may be gone by then.
        None if remains == Remains::Perhaps => _ = tokio::spawn(undo_later(core, record, index)),
        None => {}
    }
}

/// Gives back what may have come to a node as soon as the owner does not want it any more.
async fn undo_later(core: Arc<Core>, record: Arc<Record>, index: usize) {
    // Whatever comes has ended when its owner has had no lease for so long.
    if timeout(core.max_ttl * 2, record.given_up()).await.is_ok() {
        core.undo(&record, index, Remains::Perhaps);
    }
}
