//! A proof, from what holders recorded, that they excluded each other.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::clock::Moment;
use crate::types::{FencingToken, Key};

/// What holders recorded, from any number of threads.
///
/// Each holder records when it began to believe in its lease and the last moment at which it still did; all by clocks
/// with one origin. [`check`](Self::check) then says who believed at the same time, and where fencing did not grow.
#[derive(Debug, Default)]
pub struct History(Mutex<Vec<Record>>);

/// One holder's belief in a lease.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The key.
    pub key: Key,
    /// Who held it: a number that the test gave. Records of one holder may overlap.
    pub holder: u64,
    /// The fencing token of the lease.
    pub fencing: Option<FencingToken>,
    /// When the holder first believed that it held the lease.
    pub from: Moment,
    /// Until when it did: the end is not part of the interval.
    pub until: Moment,
}

impl Record {
    /// The belief of `holder` in `key`, from and until these moments.
    pub const fn new(key: Key, holder: u64, from: Moment, until: Moment) -> Self {
        Self { key, holder, fencing: None, from, until }
    }

    /// Sets the fencing token of the lease.
    pub const fn fencing(mut self, token: Option<FencingToken>) -> Self {
        self.fencing = token;
        self
    }
}

/// Something that must not be.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two holders believed in the lease at the same time.
    Overlap(Conflict),
    /// A later holder had a fencing token that was not higher.
    Fencing(Conflict),
}

/// The two records that contradict each other.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The one that began earlier.
    pub earlier: Record,
    /// The one that began later.
    pub later: Record,
}

impl History {
    /// A history of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a record.
    pub fn record(&self, record: Record) {
        self.0.lock().push(record);
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Every record that contradicts an earlier one of its key; empty = at most one holder was valid at a time and
    /// fencing grew.
    ///
    /// One pass, in time linear in the number of records, after a sort if they were not recorded in order.
    pub fn check(&self) -> Vec<Violation> {
        let mut records = self.0.lock();
        if !records.is_sorted_by_key(|record| record.from) {
            records.sort_by_key(|record| record.from);
        }
        let mut violations = Vec::new();
        let mut keys: HashMap<&Key, Seen<'_>> = HashMap::new();
        for record in records.iter() {
            match keys.get_mut(&record.key) {
                None => {
                    keys.insert(&record.key, Seen { longest: record, longest_other: None, highest: record });
                }
                Some(seen) => seen.compare(record, &mut violations),
            }
        }
        violations
    }
}

/// What one pass has to remember of a key.
struct Seen<'a> {
    /// The record that reaches furthest.
    longest: &'a Record,
    /// The one that does so among those of other holders than that of `longest`.
    longest_other: Option<&'a Record>,
    /// The one with the highest fencing token, the first if several have it.
    highest: &'a Record,
}

impl<'a> Seen<'a> {
    fn compare(&mut self, later: &'a Record, violations: &mut Vec<Violation>) {
        let conflict = |earlier: &Record| Conflict { earlier: earlier.clone(), later: later.clone() };
        let rival = if self.longest.holder == later.holder { self.longest_other } else { Some(self.longest) };
        if let Some(rival) = rival.filter(|rival| later.from < rival.until && later.from < later.until) {
            violations.push(Violation::Overlap(conflict(rival)));
        }
        if let (Some(highest), Some(token)) = (self.highest.fencing, later.fencing) {
            let same = self.highest.holder == later.holder;
            if token < highest || (token == highest && !same) {
                violations.push(Violation::Fencing(conflict(self.highest)));
            }
        }
        if later.fencing > self.highest.fencing {
            self.highest = later;
        }
        if later.until >= self.longest.until {
            if later.holder != self.longest.holder {
                self.longest_other = Some(self.longest);
            }
            self.longest = later;
        } else if later.holder != self.longest.holder
            && self.longest_other.is_none_or(|other| later.until > other.until)
        {
            self.longest_other = Some(later);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of (key, holder, token, from, until); violations as (kind, earlier holder, later holder).
    fn violations(rows: &[(&str, u64, u64, u64, u64)]) -> Vec<(char, u64, u64)> {
        let history = History::new();
        for &(name, holder, token, from, until) in rows {
            let key = Key::new("history", name).unwrap();
            let (from, until) = (Moment::from_nanos(from), Moment::from_nanos(until));
            let token = (token > 0).then(|| FencingToken::new(token));
            history.record(Record::new(key, holder, from, until).fencing(token));
        }
        let short = |violation| match violation {
            Violation::Overlap(Conflict { earlier, later }) => ('o', earlier.holder, later.holder),
            Violation::Fencing(Conflict { earlier, later }) => ('f', earlier.holder, later.holder),
        };
        history.check().into_iter().map(short).collect()
    }

    #[test]
    fn a_lawful_history_has_no_violation() {
        assert_eq!(violations(&[]), []);
        assert_eq!(violations(&[("a", 1, 1, 0, 10), ("a", 1, 1, 5, 20), ("b", 2, 2, 5, 15), ("a", 3, 3, 20, 30)]), []);
        // Recorded in the order in which they ended up in the list, not in that of time.
        assert_eq!(violations(&[("a", 2, 2, 20, 30), ("a", 1, 1, 0, 20)]), []);
        // No tokens, and an empty belief inside that of another.
        assert_eq!(violations(&[("a", 1, 0, 0, 10), ("a", 2, 0, 5, 5)]), []);
    }

    #[test]
    fn overlapping_holders_are_found() {
        assert_eq!(violations(&[("a", 1, 1, 0, 11), ("a", 2, 2, 10, 20)]), [('o', 1, 2)]);
        // The rival is not the neighbour.
        assert_eq!(violations(&[("a", 1, 1, 0, 100), ("a", 1, 1, 5, 6), ("a", 2, 2, 50, 60)]), [('o', 1, 2)]);
        // The one that reaches furthest is of the same holder, another one still overlaps.
        assert_eq!(
            violations(&[("a", 1, 1, 0, 50), ("a", 2, 2, 10, 100), ("a", 2, 2, 20, 30), ("a", 2, 2, 60, 70)]),
            [('o', 1, 2), ('o', 1, 2)]
        );
        assert_eq!(
            violations(&[("a", 2, 0, 0, 100), ("a", 1, 0, 10, 50), ("a", 2, 0, 20, 30)]),
            [('o', 2, 1), ('o', 1, 2)]
        );
    }

    #[test]
    fn fencing_that_does_not_grow_is_found() {
        assert_eq!(violations(&[("a", 1, 7, 0, 10), ("a", 2, 7, 10, 20)]), [('f', 1, 2)]);
        assert_eq!(violations(&[("a", 1, 7, 0, 10), ("a", 2, 9, 10, 20), ("a", 3, 8, 30, 40)]), [('f', 2, 3)]);
        // The same holder with an older token, and a reset.
        assert_eq!(
            violations(&[("a", 1, 7, 0, 10), ("a", 1, 6, 5, 20), ("a", 2, 1, 30, 40)]),
            [('f', 1, 1), ('f', 1, 2)]
        );
        // Each key counts for itself.
        assert_eq!(violations(&[("a", 1, 7, 0, 10), ("b", 2, 1, 0, 10)]), []);
    }

    #[test]
    fn a_million_records_take_one_pass() {
        let history = History::new();
        let key = Key::new("history", "long").unwrap();
        for index in 0..1_000_000 {
            let (from, until) = (Moment::from_nanos(index), Moment::from_nanos(index + 1));
            history.record(Record::new(key.clone(), index, from, until).fencing(Some(FencingToken::new(index))));
        }
        assert_eq!(history.check(), []);
    }
}
