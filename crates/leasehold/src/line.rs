//! The local line: waiters for one key in one manager stand in one line, in front of every store, and only its head
//! asks. So the load on the store grows with processes, not with waiters.
//!
//! Each question to the store has a number. An answer belongs to everybody who stood in line when the question was
//! sent; one who joined later needs a later answer.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::{Error, ErrorKind, Result};
use crate::types::Key;

/// The lines of one manager, by key; a key without waiters has none.
#[derive(Debug)]
pub(crate) struct Lines {
    max_waiters: usize,
    lines: Mutex<HashMap<Key, Line>>,
}

#[derive(Debug, Default)]
struct Line {
    next_ticket: u64,
    waiting: BTreeMap<u64, Arc<Spot>>,
    /// The number of the last question sent.
    sent: u64,
    in_flight: bool,
    /// The number of the last question that was answered by "held".
    answered: u64,
    /// The last question that failed, and how.
    failed: Option<(u64, Error)>,
    /// How many followers wait for an answer although their time is up.
    due: usize,
    /// One of them needs another question.
    urged: bool,
}

/// Where one waiter stands.
#[derive(Debug, Default)]
struct Spot {
    look: Notify,
    /// A release by this manager rang.
    rung: AtomicBool,
    /// Its time is up, and it waits for an answer.
    due: AtomicBool,
}

impl Lines {
    pub(crate) fn new(max_waiters: usize) -> Self {
        Self { max_waiters, lines: Mutex::default() }
    }

    /// Joins the line for `key` at its end; dropping the turn leaves it.
    pub(crate) fn join<'a>(&'a self, key: &'a Key) -> Result<Turn<'a>> {
        let mut lines = self.lines.lock();
        let line = lines.entry(key.clone()).or_default();
        if line.waiting.len() >= self.max_waiters {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("too many waiters: {} stand in line for this key in this process", self.max_waiters),
            ));
        }
        let ticket = line.next_ticket;
        line.next_ticket += 1;
        let spot = Arc::<Spot>::default();
        line.waiting.insert(ticket, Arc::clone(&spot));
        Ok(Turn { lines: self, key, ticket, spot, joined: line.sent })
    }

    /// Tells the head of the line for `key` that this manager gave the lease back.
    pub(crate) fn ring(&self, key: &Key) {
        let head = self.lines.lock().get(key).and_then(Line::head);
        if let Some(head) = head {
            head.rung.store(true, Ordering::Release);
            head.look.notify_one();
        }
    }

    #[cfg(any(test, feature = "testkit"))]
    pub(crate) fn len(&self) -> usize {
        self.lines.lock().len()
    }
}

impl Line {
    fn head(&self) -> Option<Arc<Spot>> {
        self.waiting.first_key_value().map(|(_, spot)| Arc::clone(spot))
    }
}

/// Where a waiter finds itself in its line.
#[derive(Debug)]
pub(crate) enum Standing {
    /// It is the head, and asks.
    Head,
    /// Behind others, who have an answer "held" that counts for it as well.
    Answered,
    /// Behind others, without such an answer yet.
    Unanswered,
    /// The question that was asked for it as well failed.
    Failed(Error),
}

/// A waiter's turn in a line.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    lines: &'a Lines,
    key: &'a Key,
    ticket: u64,
    spot: Arc<Spot>,
    joined: u64,
}

impl Turn<'_> {
    pub(crate) fn standing(&self) -> Standing {
        self.with_line(|line| match &line.failed {
            Some((number, error)) if *number > self.joined => Standing::Failed(error.clone()),
            _ if line.waiting.first_key_value().is_some_and(|(first, _)| *first == self.ticket) => Standing::Head,
            _ if line.answered > self.joined => Standing::Answered,
            _ => Standing::Unanswered,
        })
    }

    /// Whether a question sent since it joined was answered by "held".
    pub(crate) fn is_answered(&self) -> bool {
        self.with_line(|line| line.answered > self.joined)
    }

    /// As a follower whose time is up: makes the head ask once more, unless a question that counts is in flight.
    pub(crate) fn urge(&self) {
        let whom = self.with_line(|line| {
            if !self.spot.due.swap(true, Ordering::AcqRel) {
                line.due += 1;
            }
            if line.answered > self.joined {
                // The answer came since it last looked.
                return Some(Arc::clone(&self.spot));
            }
            if line.in_flight && line.sent > self.joined {
                return None;
            }
            line.urged = true;
            line.head()
        });
        if let Some(spot) = whom {
            spot.look.notify_one();
        }
    }

    /// Resolves when it is worth looking at the standing again.
    pub(crate) async fn look(&self) {
        self.spot.look.notified().await;
    }

    /// As the head: resolves when somebody needs an answer, or, if `heed_ring`, when this manager gave the lease back.
    pub(crate) async fn called(&self, heed_ring: bool) -> bool {
        loop {
            let rung = heed_ring && self.spot.rung.swap(false, Ordering::AcqRel);
            if rung || self.with_line(|line| line.urged) {
                return rung;
            }
            self.spot.look.notified().await;
        }
    }

    /// As the head: a question is about to be sent; it counts for everybody in line.
    pub(crate) fn asking(&self) -> Question<'_> {
        // A ring so far is answered by this question.
        self.spot.rung.store(false, Ordering::Release);
        let number = self.with_line(|line| {
            line.sent += 1;
            line.in_flight = true;
            line.urged = false;
            line.sent
        });
        Question { turn: self, number }
    }

    fn with_line<T>(&self, act: impl FnOnce(&mut Line) -> T) -> T {
        let mut lines = self.lines.lines.lock();
        // The line exists while somebody stands in it, and we do.
        act(lines.entry(self.key.clone()).or_default())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let head = {
            let mut lines = self.lines.lines.lock();
            let Some(line) = lines.get_mut(self.key) else { return };
            let was_head = line.waiting.first_key_value().is_some_and(|(first, _)| *first == self.ticket);
            line.waiting.remove(&self.ticket);
            line.due -= usize::from(self.spot.due.load(Ordering::Acquire));
            if was_head {
                line.in_flight = false;
                line.urged = false;
            }
            let head = line.head();
            if head.is_none() {
                lines.remove(self.key);
            }
            head.filter(|_| was_head)
        };
        if let Some(head) = head {
            head.look.notify_one();
        }
    }
}

/// A question that the head has sent.
#[derive(Debug)]
pub(crate) struct Question<'a> {
    turn: &'a Turn<'a>,
    number: u64,
}

impl Question<'_> {
    /// Nobody behind the head can have the lease now.
    pub(crate) fn answered(self) {
        self.tell(|line, number| {
            line.answered = number;
            if line.due == 0 {
                return Vec::new();
            }
            line.waiting.values().filter(|spot| spot.due.load(Ordering::Acquire)).map(Arc::clone).collect()
        });
    }

    /// Ends the wait of all for whom it was asked.
    pub(crate) fn failed(self, error: Error) {
        self.tell(|line, number| {
            line.failed = Some((number, error));
            line.waiting.values().map(Arc::clone).collect()
        });
    }

    /// Wakes tasks without holding the lock: a waker is foreign code, which may drop a turn.
    fn tell(self, note: impl FnOnce(&mut Line, u64) -> Vec<Arc<Spot>>) {
        let whom = self.turn.with_line(|line| {
            line.in_flight = false;
            note(line, self.number)
        });
        for spot in whom {
            spot.look.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::new("", "k").unwrap()
    }

    #[test]
    fn the_line_is_gone_with_its_last_waiter() {
        let (lines, key) = (Lines::new(9), key());
        let turns: Vec<_> = (0..3).map(|_| lines.join(&key).unwrap()).collect();
        assert_eq!(lines.len(), 1);
        drop(turns);
        assert_eq!(lines.len(), 0);
    }

    #[test]
    fn a_dropped_head_passes_the_line_on_in_order() {
        let (lines, key) = (Lines::new(9), key());
        let first = lines.join(&key).unwrap();
        let second = lines.join(&key).unwrap();
        let third = lines.join(&key).unwrap();
        assert!(matches!(second.standing(), Standing::Unanswered));
        drop(first);
        assert!(matches!(second.standing(), Standing::Head));
        drop(second);
        assert!(matches!(third.standing(), Standing::Head));
    }

    #[test]
    fn an_answer_belongs_to_those_who_stood_in_line_when_it_was_sent() {
        let (lines, key) = (Lines::new(9), key());
        let head = lines.join(&key).unwrap();
        let early = lines.join(&key).unwrap();
        let question = head.asking();
        let late = lines.join(&key).unwrap();
        question.answered();
        assert!(matches!(early.standing(), Standing::Answered));
        assert!(matches!(late.standing(), Standing::Unanswered));
        head.asking().failed(Error::new(ErrorKind::Unavailable, "down"));
        assert!(matches!(late.standing(), Standing::Failed(_)));
        let later = lines.join(&key).unwrap();
        assert!(matches!(later.standing(), Standing::Unanswered));
    }

    #[test]
    fn the_line_is_bounded() {
        let (lines, key) = (Lines::new(1), key());
        let _head = lines.join(&key).unwrap();
        assert_eq!(lines.join(&key).unwrap_err().kind(), ErrorKind::Unavailable);
    }
}
