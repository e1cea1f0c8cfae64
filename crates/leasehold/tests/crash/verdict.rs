//! Whether what the workers wrote is lawful.

use std::collections::HashMap;
use std::fmt;

use leasehold::clock::Moment;
use leasehold::testkit::{History, Record, Violation};
use leasehold::{FencingToken, Key};

use super::crew::{Deeds, Life, Stop};
use super::records::{Entry, What};
use super::worker::key_name;

#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) cycles: u64,
    /// Leases whose holder was killed.
    killed: u64,
    /// Those of them that somebody else had before their deadline.
    taken_over: u64,
    violations: Vec<Violation>,
    /// Tokens that were given twice.
    repeated: Vec<u64>,
    /// Leases that the store took away before their deadline.
    taken_away: Vec<Entry>,
    losses: Losses,
}

/// Leases whose deadline passed while their holder worked, by what kept them from being renewed.
#[derive(Debug, Default)]
struct Losses {
    /// The holder was stopped.
    own_stop: u64,
    /// Another process was stopped inside a write.
    stopped_writer: u64,
    /// The machine had other things to do.
    slow: u64,
}

/// A holding, from what is known of it.
struct Holding {
    first: Entry,
    last: Entry,
}

impl Verdict {
    pub(crate) fn of(deeds: &Deeds) -> Self {
        let mut verdict = Self::default();
        let history = History::new();
        let mut tokens = HashMap::new();
        let stops = || deeds.lives.iter().flat_map(|life| &life.stops);
        let mut beliefs = Vec::new();
        let in_a_write: Vec<_> = stops().filter(|stop| stop.in_a_write).copied().collect();
        for life in &deeds.lives {
            for Holding { first, last } in holdings(life) {
                verdict.cycles += 1;
                let until = match last.what {
                    What::GivenBack => last.at,
                    What::Expired => {
                        verdict.losses.count(first, last, life, &in_a_write);
                        last.until
                    }
                    What::TakenAway => {
                        verdict.taken_away.push(last);
                        last.until
                    }
                    What::Held | What::StillHeld => {
                        // It lived, and believed in its lease, when it was sentenced, unless that was over by then.
                        verdict.killed += 1;
                        let killed = life.killed.unwrap_or_else(|| panic!("ended while it held {last:?}"));
                        last.until.min(killed)
                    }
                };
                if tokens.insert(first.fencing, first.key).is_some() {
                    verdict.repeated.push(first.fencing);
                }
                let left_behind = matches!(last.what, What::Held | What::StillHeld).then_some(last.until);
                beliefs.push((first.key, first.at, left_behind));
                let key = Key::new("crash", &key_name(first.key)).unwrap();
                let record = Record::new(key, verdict.cycles, first.at, until);
                history.record(record.fencing(Some(FencingToken::new(first.fencing))));
            }
        }
        beliefs.sort_unstable();
        let is_early = |pair: &&[(u64, Moment, Option<Moment>)]| pair[0].0 == pair[1].0 && Some(pair[1].1) < pair[0].2;
        verdict.taken_over = beliefs.windows(2).filter(is_early).count() as u64;
        verdict.violations = history.check();
        verdict
    }

    fn overlaps(&self) -> usize {
        self.violations.iter().filter(|violation| matches!(violation, Violation::Overlap(_))).count()
    }

    pub(crate) fn assert_lawful(&self) {
        assert_eq!(self.violations, []);
        assert_eq!(self.repeated, [], "tokens given twice");
        assert_eq!(self.taken_away, [], "leases taken away before their deadline");
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Losses { own_stop, stopped_writer, slow } = self.losses;
        let overlaps = self.overlaps();
        let regressions = self.violations.len() - overlaps + self.repeated.len();
        write!(f, "{} holdings judged ({} ended by a kill, ", self.cycles, self.killed)?;
        write!(f, "{} of them taken over before their deadline), {overlaps} overlaps, ", self.taken_over)?;
        write!(f, "{regressions} fence regressions, {} leases taken away; ", self.taken_away.len())?;
        write!(f, "lawful losses: {own_stop} of stopped holders, {stopped_writer} to stopped writers, {slow} to load")
    }
}

impl Losses {
    fn count(&mut self, first: Entry, last: Entry, life: &Life, in_a_write: &[Stop]) {
        let meets = |stop: &&Stop| stop.from < last.at && first.at < stop.until;
        if life.stops.iter().any(|stop| meets(&stop)) {
            self.own_stop += 1;
        } else if in_a_write.iter().any(|stop| meets(&stop)) {
            self.stopped_writer += 1;
        } else {
            self.slow += 1;
        }
    }
}

/// The holdings of one worker, which has one at a time.
fn holdings(life: &Life) -> Vec<Holding> {
    let mut holdings: Vec<Holding> = Vec::new();
    for &entry in &life.entries {
        match holdings.last_mut() {
            Some(open) if entry.what != What::Held => {
                assert_eq!((open.first.fencing, open.first.key), (entry.fencing, entry.key));
                assert!(matches!(open.last.what, What::Held | What::StillHeld), "{entry:?} after {:?}", open.last);
                open.last = entry;
            }
            _ => {
                assert_eq!(entry.what, What::Held, "{entry:?}");
                holdings.push(Holding { first: entry, last: entry });
            }
        }
    }
    holdings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(what: What, fencing: u64, at: u64, until: u64) -> Entry {
        Entry { what, key: 0, fencing, at: Moment::from_nanos(at), until: Moment::from_nanos(until) }
    }

    fn life(entries: &[Entry], killed: Option<u64>) -> Life {
        Life { entries: entries.to_vec(), killed: killed.map(Moment::from_nanos), ..Life::default() }
    }

    /// Overlaps and other violations, of a holder from 10 to 20 with the token 2, and of these.
    fn judged(lives: Vec<Life>) -> (usize, usize) {
        let other = life(&[entry(What::Held, 2, 10, 90), entry(What::GivenBack, 2, 20, 90)], None);
        let verdict = Verdict::of(&Deeds { lives: lives.into_iter().chain([other]).collect() });
        (verdict.overlaps(), verdict.violations.len() - verdict.overlaps() + verdict.repeated.len())
    }

    #[test]
    fn a_belief_ends_when_it_is_given_up_or_its_holder_dies() {
        let held = entry(What::Held, 1, 0, 50);
        assert_eq!(judged(vec![life(&[held, entry(What::GivenBack, 1, 10, 50)], None)]), (0, 0));
        assert_eq!(judged(vec![life(&[held, entry(What::GivenBack, 1, 11, 50)], None)]), (1, 0));
        assert_eq!(judged(vec![life(&[held], Some(10))]), (0, 0));
        assert_eq!(judged(vec![life(&[held, entry(What::StillHeld, 1, 5, 50)], Some(11))]), (1, 0));
        // Stopped, or lost: until its own deadline.
        assert_eq!(judged(vec![life(&[held, entry(What::Expired, 1, 60, 50)], None)]), (1, 0));
        assert_eq!(judged(vec![life(&[held, entry(What::Expired, 1, 60, 10)], None)]), (0, 0));
    }

    #[test]
    fn tokens_have_to_grow() {
        assert_eq!(judged(vec![life(&[entry(What::Held, 3, 0, 5)], Some(9))]), (0, 1));
        assert_eq!(judged(vec![life(&[entry(What::Held, 2, 0, 5)], Some(9))]), (0, 2));
    }
}
