//! For which keys others wait, as they have told; so that a release tells of itself only where somebody hears it.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use parking_lot::Mutex;

use super::marks::MARK;
use crate::clock::{Clock, Moment};

/// Of more keys than this it is not kept who waits for them.
pub(super) const MOST: usize = 10_000;

/// How late word of a waiter may come, so that a release that did not know of him is told afterwards.
const LATE: Duration = Duration::from_secs(5);

/// How many releases are remembered for that.
const RELEASES: usize = 4096;

/// What is known of waiters in other processes.
///
/// A waiter marks its key, says so to all who listen, and asks once more. Whoever released the key before that question
/// hears of the mark before or after; so it is told in one case with the release, in the other when the mark is heard.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    table: Mutex<Table>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Table {
    /// Every mark that counts is among them, or will be heard.
    is_complete: bool,
    /// Until when a mark counts. By number: two keys with one cost a needless notification.
    marked: HashMap<u64, Moment>,
    /// What was released, and when, with no word to anybody.
    released: VecDeque<(u64, Moment)>,
}

/// Whom to tell of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Telling {
    /// All who listen: somebody waits.
    All,
    /// Nobody, unless a mark is heard yet.
    Nobody,
    /// It has to be looked up.
    Unknown,
}

impl Waiters {
    /// From now on each mark is heard, and these count already, each for so long; `None` = they are not known.
    pub(super) fn begin(&self, marks: Option<Vec<(String, Duration)>>) {
        let now = Clock::system().now();
        let mut table = self.table.lock();
        table.is_complete = marks.is_some();
        for (key, left) in marks.into_iter().flatten() {
            table.marked.insert(self.number(&key), now + left);
        }
    }

    /// Nothing is heard any more.
    pub(super) fn end(&self) {
        *self.table.lock() = Table::default();
    }

    pub(super) fn telling(&self, key: &str) -> Telling {
        let table = self.table.lock();
        match (table.is_complete, table.has(self.number(key))) {
            (_, true) => Telling::All,
            (true, false) => Telling::Nobody,
            (false, false) => Telling::Unknown,
        }
    }

    /// The key was released, and nobody was told; `true` = somebody has to be, after all.
    pub(super) fn released(&self, key: &str) -> bool {
        let (number, now) = (self.number(key), Clock::system().now());
        let mut table = self.table.lock();
        if table.has(number) {
            return true;
        }
        let is_old = |(_, then): &(u64, Moment)| now.since(*then) > LATE;
        while table.released.front().is_some_and(is_old) || table.released.len() >= RELEASES {
            table.released.pop_front();
        }
        table.released.push_back((number, now));
        false
    }

    /// Somebody has marked the key; `true` = it was released shortly before, and he has to be told.
    pub(super) fn marked(&self, key: &str) -> bool {
        let (number, now) = (self.number(key), Clock::system().now());
        let mut table = self.table.lock();
        if table.marked.len() >= MOST {
            table.marked.retain(|_, until| *until > now);
            if table.marked.len() >= MOST {
                table.is_complete = false;
                return true;
            }
        }
        table.marked.insert(number, now + MARK);
        let before = table.released.len();
        table.released.retain(|(released, _)| *released != number);
        table.released.len() < before
    }

    fn number(&self, key: &str) -> u64 {
        self.hasher.hash_one(key)
    }
}

impl Table {
    fn has(&self, number: u64) -> bool {
        self.marked.get(&number).is_some_and(|until| *until > Clock::system().now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_told_before_or_after_the_mark_is_heard() {
        let waiters = Waiters::default();
        assert_eq!(waiters.telling("k"), Telling::Unknown);
        waiters.begin(Some(vec![("early".to_owned(), MARK)]));
        assert_eq!((waiters.telling("early"), waiters.telling("k")), (Telling::All, Telling::Nobody));
        // Heard after the release: once is enough.
        assert!(!waiters.released("k"));
        assert!(waiters.marked("k"));
        assert!(!waiters.marked("k"));
        // Heard while it was on its way.
        assert_eq!(waiters.telling("k"), Telling::All);
        assert!(waiters.released("k"));
        waiters.end();
        assert_eq!(waiters.telling("k"), Telling::Unknown);
    }

    #[test]
    fn what_is_too_much_is_not_kept() {
        let waiters = Waiters::default();
        waiters.begin(Some(Vec::new()));
        for number in 0..RELEASES + 10 {
            assert!(!waiters.released(&number.to_string()));
        }
        assert!(!waiters.marked("0") && waiters.marked("100"));
        for number in 0..MOST {
            waiters.marked(&format!("m{number}"));
        }
        assert_eq!(waiters.telling("new"), Telling::Unknown);
    }
}
