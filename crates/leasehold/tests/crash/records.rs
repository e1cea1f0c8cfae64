//! What a worker writes down of what it holds, so that its death takes nothing away that matters.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

use leasehold::clock::Moment;

/// Divides a page, so that no record lies across two of them: a write within one page is done or not.
const LENGTH: usize = 128;

/// One thing that a worker knows of a lease at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) what: What,
    pub(crate) key: u64,
    pub(crate) fencing: u64,
    /// When it was so, read before the guard was asked.
    pub(crate) at: Moment,
    /// Until when the guard said that it would be so, if nothing else was heard; the last that was said, once it is
    /// lost.
    pub(crate) until: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// It is held, for all that the worker knows for the first time.
    Held,
    /// It still is.
    StillHeld,
    /// It still is, and will be given back next.
    GivenBack,
    /// Its deadline has passed.
    Expired,
    /// The store says that it is gone, before its deadline.
    TakenAway,
}

const WHATS: [(What, &str); 5] = [
    (What::Held, "held"),
    (What::StillHeld, "still-held"),
    (What::GivenBack, "given-back"),
    (What::Expired, "expired"),
    (What::TakenAway, "taken-away"),
];

/// Where one worker writes.
#[derive(Debug)]
pub(crate) struct Journal(File);

impl Journal {
    pub(crate) fn create(path: &Path) -> Self {
        Self(OpenOptions::new().append(true).create_new(true).open(path).unwrap())
    }

    /// One write, which needs no sync: the page cache outlives the process.
    pub(crate) fn write(&mut self, entry: Entry) {
        let Entry { what, key, fencing, at, until } = entry;
        let (_, word) = WHATS.into_iter().find(|(known, _)| *known == what).unwrap();
        let text = format!("{word} {key} {fencing} {} {}", at.as_nanos(), until.as_nanos());
        let line = format!("{text:<width$}\n", width = LENGTH - 1);
        assert_eq!(self.0.write(line.as_bytes()).unwrap(), LENGTH);
    }
}

/// What a worker wrote; nothing if it died before it began to.
pub(crate) fn read(path: &Path) -> Vec<Entry> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => panic!("{}: {error}", path.display()),
    };
    let records = bytes.chunks_exact(LENGTH);
    assert!(records.remainder().is_empty(), "{}: a torn record", path.display());
    records.map(|record| parse(std::str::from_utf8(record).unwrap())).collect()
}

fn parse(line: &str) -> Entry {
    let (word, numbers) = line.split_once(' ').unwrap();
    let (what, _) = WHATS.into_iter().find(|(_, known)| *known == word).unwrap();
    let numbers: Vec<u64> = numbers.split_ascii_whitespace().map(|number| number.parse().unwrap()).collect();
    let [key, fencing, at, until] = numbers[..] else { panic!("{line}") };
    Entry { what, key, fencing, at: Moment::from_nanos(at), until: Moment::from_nanos(until) }
}
