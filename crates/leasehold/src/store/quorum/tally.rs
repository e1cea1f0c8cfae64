//! What nodes said, and what follows from it.

use std::time::Duration;

use super::Core;
use crate::error::{Error, ErrorKind};

/// How a question to all nodes ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A majority said yes.
    Yes,
    /// No majority said yes, because of those who said no.
    No,
    /// No majority can be had, because of those who said neither.
    Unknown,
}

/// Votes on one question.
#[derive(Debug)]
pub(super) struct Tally<Y, N> {
    pub(super) yes: Vec<(usize, Y)>,
    pub(super) no: Vec<(usize, N)>,
    pub(super) faults: Vec<(usize, Error)>,
}

impl<Y, N> Default for Tally<Y, N> {
    fn default() -> Self {
        Self { yes: Vec::new(), no: Vec::new(), faults: Vec::new() }
    }
}

impl<Y, N> Tally<Y, N> {
    /// The verdict as soon as no further vote can change it. With a node that `must` say yes, only it and a majority
    /// together are one.
    pub(super) fn verdict(&self, core: &Core, must: Option<usize>) -> Option<Verdict> {
        let spare = core.spare();
        if self.yes.len() >= core.majority() && must.is_none_or(|must| self.yes.iter().any(|vote| vote.0 == must)) {
            return Some(Verdict::Yes);
        }
        if self.no.len() > spare || must.is_some_and(|must| self.no.iter().any(|vote| vote.0 == must)) {
            return Some(Verdict::No);
        }
        if self.faults.len() > spare || must.is_some_and(|must| self.faults.iter().any(|fault| fault.0 == must)) {
            return Some(Verdict::Unknown);
        }
        // All have voted, and faults alone did not prevent a majority: somebody's no did.
        (self.yes.len() + self.no.len() + self.faults.len() == core.nodes.len()).then_some(Verdict::No)
    }

    /// Why there is no majority, with what each node said.
    pub(super) fn error(&self, core: &Core, words: [&str; 2], is_surely_undone: bool) -> Error {
        let mut said: Vec<(usize, String)> = Vec::new();
        said.extend(self.yes.iter().map(|vote| (vote.0, words[0].to_owned())));
        said.extend(self.no.iter().map(|vote| (vote.0, words[1].to_owned())));
        said.extend(
            self.faults.iter().map(|(index, error)| (*index, format!("{}, {}", error.kind(), error.message()))),
        );
        error(core, said, &self.faults, is_surely_undone)
    }
}

/// An error that names every node. It is a refusal for good only if that alone prevents a majority.
pub(super) fn error(
    core: &Core,
    mut said: Vec<(usize, String)>,
    faults: &[(usize, Error)],
    is_surely_undone: bool,
) -> Error {
    said.sort_by_key(|(index, _)| *index);
    let said: Vec<_> = said.iter().map(|(index, words)| format!("{}: {words}", core.nodes[*index].name)).collect();
    let for_good = [ErrorKind::Closed, ErrorKind::InvalidConfig, ErrorKind::Rejected, ErrorKind::Unsupported];
    let kind = for_good
        .into_iter()
        .find(|kind| faults.iter().filter(|(_, error)| error.kind() == *kind).count() > core.spare())
        .filter(|_| is_surely_undone)
        .unwrap_or(if is_surely_undone { ErrorKind::Unavailable } else { ErrorKind::Indeterminate });
    let message = format!("no majority of {} nodes: {}", core.nodes.len(), said.join("; "));
    match faults.first() {
        Some((_, first)) => Error::new(kind, message).with_source(first.clone()),
        None => Error::new(kind, message),
    }
}

/// How long most of what these nodes gave stands: the shortest of the longest that make a majority.
pub(super) fn majority_of(mut lengths: Vec<Duration>, majority: usize) -> Duration {
    lengths.sort_unstable_by(|one, other| other.cmp(one));
    lengths.get(majority - 1).or(lengths.last()).copied().unwrap_or_default()
}
