//! Looking at all nodes: who holds a key, which keys are held, what the nodes are like.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::tally::error;
use super::{Core, SURVEY_LIMIT};
use crate::error::{ErrorKind, Result};
use crate::store::{Entry, Finding, Holder, Inspection, Level, Listing, Page, Probe};
use crate::types::Key;

/// What each node said; `None` = not asked to the end.
pub(super) type Said<T> = Vec<Option<Result<T>>>;

impl Core {
    /// What the nodes know of a key.
    pub(super) async fn look(
        self: &Arc<Self>,
        key: &Key,
        is_enough: impl Fn(&[Option<Result<Inspection>>]) -> bool + Send,
    ) -> Said<Inspection> {
        let key = key.clone();
        let look = move |core: Arc<Self>, index: usize| -> crate::store::BoxFuture<Result<Inspection>> {
            let key = key.clone();
            Box::pin(async move { core.nodes[index].store().inspect(&key).await })
        };
        self.gather(self.node_timeout, ErrorKind::Unavailable, look, is_enough, None).await
    }

    pub(super) async fn inspect(self: &Arc<Self>, key: &Key) -> Result<Inspection> {
        let said =
            self.look(key, |said| answered(said).filter(|found| found.holders.is_empty()).count() >= self.majority());
        let said = said.await;
        self.check_majority(&said)?;
        let found = said.into_iter().enumerate().filter_map(|(index, said)| Some((index, said?.ok()?)));
        let found: Vec<_> = found.map(|(index, found)| (index, found.holders)).collect();
        let answers = found.len();
        let holders =
            found.into_iter().flat_map(|(index, holders)| holders.into_iter().map(move |holder| (index, holder)));
        Ok(Inspection::new(self.holder(answers, holders.collect()).into_iter().collect()))
    }

    /// Who holds a key of which so many nodes told; `None` = a majority says that nobody does, so that an acquire would
    /// be granted.
    pub(super) fn holder(&self, answers: usize, told: Vec<(usize, Holder)>) -> Option<Holder> {
        let mut nodes: Vec<_> = told.iter().map(|(index, _)| *index).collect();
        nodes.dedup();
        if answers.saturating_sub(nodes.len()) >= self.majority() {
            return None;
        }
        let shared_by = |holder: &Holder| told.iter().filter(|(_, other)| other.owner == holder.owner).count();
        let most = told.iter().map(|(_, holder)| shared_by(holder)).max()?;
        let owner = told.iter().find(|(_, holder)| shared_by(holder) == most)?.1.owner.clone();
        let mut same: Vec<_> = told.into_iter().filter(|(_, holder)| holder.owner == owner).collect();
        let fencing = same.iter().find(|(index, _)| self.fence == Some(*index)).and_then(|(_, holder)| holder.fencing);
        // The lease ends where it ends on one too many.
        same.sort_by_key(|(_, holder)| std::cmp::Reverse(holder.remaining));
        let at = self.majority().min(same.len()) - 1;
        Some(Holder { fencing, ..same.swap_remove(at).1 })
    }

    pub(super) async fn list(self: &Arc<Self>, prefix: &str, page: Page) -> Result<Listing> {
        let (prefix, limit) = (prefix.to_owned(), page.limit);
        let list = move |core: Arc<Self>, index: usize| -> crate::store::BoxFuture<Result<Listing>> {
            let (prefix, page) = (prefix.clone(), page.clone());
            Box::pin(async move { core.nodes[index].store().list(&prefix, page).await })
        };
        let said = self.gather(SURVEY_LIMIT, ErrorKind::Unavailable, list, |_| false, None).await;
        self.check_majority(&said)?;
        let listings: Vec<_> =
            said.into_iter().enumerate().filter_map(|(index, said)| Some((index, said?.ok()?))).collect();
        let answers = listings.len();
        // Up to here all have told everything.
        let horizon = listings.iter().filter_map(|(_, listing)| listing.next.clone()).min();
        let mut keys: BTreeMap<String, Vec<(usize, Holder)>> = BTreeMap::new();
        for (index, listing) in listings {
            for entry in listing.entries {
                let told = keys.entry(entry.key).or_default();
                told.extend(entry.holders.into_iter().map(|holder| (index, holder)));
            }
        }
        let mut listing = Listing::default();
        for (key, told) in keys {
            if horizon.as_ref().is_some_and(|horizon| key > *horizon) {
                break;
            }
            let Some(holder) = self.holder(answers, told) else { continue };
            if listing.entries.len() == limit {
                listing.next = listing.entries.last().map(|entry: &Entry| entry.key.clone());
                return Ok(listing);
            }
            listing.entries.push(Entry::new(key, vec![holder]));
        }
        listing.next = horizon;
        Ok(listing)
    }

    pub(super) async fn probe(self: &Arc<Self>) -> Result<Probe> {
        let probe = |core: Arc<Self>, index: usize| -> crate::store::BoxFuture<Result<Probe>> {
            Box::pin(async move { core.nodes[index].store().probe().await })
        };
        let said = self.gather(SURVEY_LIMIT, ErrorKind::Unavailable, probe, |_| false, None).await;
        self.check_majority(&said)?;
        let mut findings = Vec::new();
        if self.nodes.len().is_multiple_of(2) {
            findings.push(Finding::new(
                Level::Warn,
                format!("{} nodes stand no more failures than {}", self.nodes.len(), self.nodes.len() - 1),
                "use an odd number of nodes",
            ));
        }
        let mut seen: Vec<(&str, &str)> = Vec::new();
        let mut uptimes: Vec<Duration> = Vec::new();
        for (node, said) in self.nodes.iter().zip(&said) {
            let name = &*node.name;
            match said {
                Some(Ok(probe)) => {
                    uptimes.extend(probe.uptime);
                    if let Some(identity) = probe.identity.as_deref() {
                        if let Some((twin, _)) = seen.iter().find(|(_, known)| *known == identity) {
                            let what = format!("{name} is the same server as {twin}");
                            findings.push(Finding::new(Level::Fail, what, "name servers that fail independently"));
                        }
                        seen.push((name, identity));
                    }
                    // What is as it should be for a server alone need not be so for one of several.
                    let told = probe.findings.iter().filter(|finding| finding.level > Level::Ok);
                    findings.extend(
                        told.map(|finding| Finding { what: format!("{name}: {}", finding.what), ..finding.clone() }),
                    );
                }
                Some(Err(error)) => {
                    let what = format!("{name} does not answer: {}", error.message());
                    findings.push(Finding::new(Level::Fail, what, "start it again, or replace it"));
                }
                None => {}
            }
        }
        let mut times: Vec<_> = answered(&said).filter_map(|probe| probe.server_time).collect();
        times.sort_unstable();
        let mut probe = Probe::new();
        probe.server_time = times.get(times.len() / 2).copied();
        // The name of the whole, which is another one if any node is.
        if seen.len() == self.nodes.len() {
            probe.identity = Some(seen.iter().map(|(_, identity)| *identity).collect::<Vec<_>>().join("+"));
        }
        if uptimes.len() >= self.majority() {
            probe.uptime = Some(super::tally::majority_of(uptimes, self.majority()));
        }
        probe.findings = findings;
        Ok(probe)
    }

    /// An error that names each node, unless a majority answered.
    pub(super) fn check_majority<T>(&self, said: &Said<T>) -> Result<()> {
        self.check_applied(said, |_| false)
    }

    /// The same of a change, which some of those who answered may have made.
    pub(super) fn check_applied<T>(&self, said: &Said<T>, is_change: impl Fn(&T) -> bool) -> Result<()> {
        if answered(said).count() >= self.majority() {
            return Ok(());
        }
        let mut words = Vec::new();
        let mut faults = Vec::new();
        for (index, said) in said.iter().enumerate() {
            match said {
                Some(Err(fault)) => {
                    words.push((index, format!("{}, {}", fault.kind(), fault.message())));
                    faults.push((index, fault.clone()));
                }
                _ => words.push((index, "answered".to_owned())),
            }
        }
        let is_certain =
            faults.iter().all(|(_, fault)| fault.kind() != ErrorKind::Indeterminate) && !answered(said).any(is_change);
        Err(error(self, words, &faults, is_certain))
    }
}

pub(super) fn answered<T>(said: &[Option<Result<T>>]) -> impl Iterator<Item = &T> {
    said.iter().filter_map(|said| said.as_ref()?.as_ref().ok())
}
