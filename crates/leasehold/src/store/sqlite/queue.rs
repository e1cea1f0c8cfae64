//! The jobs that wait for the store's thread.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::limit::Patience;
use super::thread::Worker;
use crate::error::{Error, ErrorKind, Result};

/// Which jobs go first, and which are left out when nobody waits for their answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Before all others, and always: what gives back.
    Must,
    /// Before all others: what keeps a lease.
    Soon,
    /// In turn: what takes a lease, or only reads.
    Normal,
}

/// Jobs in two lines.
#[derive(Debug, Default)]
pub(super) struct Queue {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Default)]
struct Lines {
    first: VecDeque<Box<dyn Job>>,
    then: VecDeque<Box<dyn Job>>,
    end: Option<End>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Closed,
    Broken,
}

pub(super) enum Next {
    Job(Box<dyn Job>),
    Idle,
    Ended,
}

impl Queue {
    pub(super) fn push(&self, urgency: Urgency, job: Box<dyn Job>) -> Result<()> {
        let mut lines = self.lines.lock();
        match (lines.end, urgency) {
            (Some(End::Closed), _) => {
                return Err(Error::new(ErrorKind::Closed, "the store was closed"));
            }
            (Some(End::Broken), _) => return Err(broken(ErrorKind::Unavailable)),
            (None, Urgency::Must | Urgency::Soon) => lines.first.push_back(job),
            (None, Urgency::Normal) => lines.then.push_back(job),
        }
        drop(lines);
        self.changed.notify_one();
        Ok(())
    }

    /// The next job; waits for one, but only so long if that is limited.
    pub(super) fn next(&self, limit: Option<Duration>) -> Next {
        let mut lines = self.lines.lock();
        loop {
            let job = match lines.first.pop_front() {
                Some(job) => Some(job),
                None => lines.then.pop_front(),
            };
            if let Some(job) = job {
                return Next::Job(job);
            }
            if lines.end.is_some() {
                return Next::Ended;
            }
            match limit {
                None => self.changed.wait(&mut lines),
                Some(limit) => {
                    if self.changed.wait_for(&mut lines, limit).timed_out() {
                        return Next::Idle;
                    }
                }
            }
        }
    }

    pub(super) fn end(&self, end: End) {
        self.lines.lock().end.get_or_insert(end);
        self.changed.notify_one();
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lines({} first, {} then, {:?})", self.first.len(), self.then.len(), self.end)
    }
}

/// Lives on the thread, so that no job waits for a thread that is gone, whatever ended it.
pub(super) struct Ending(pub(super) Arc<Queue>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end(End::Broken);
        let mut lines = self.0.lines.lock();
        let left: Vec<_> =
            std::mem::take(&mut lines.first).into_iter().chain(std::mem::take(&mut lines.then)).collect();
        // Answers wake callers, which is not done under a lock.
        drop(lines);
        for job in left {
            job.refuse(broken(ErrorKind::Unavailable));
        }
    }
}

pub(super) trait Job: Send {
    fn run(self: Box<Self>, worker: &mut Worker);
    fn refuse(self: Box<Self>, error: Error);
}

pub(super) struct Task<W, T> {
    pub(super) work: W,
    pub(super) reply: oneshot::Sender<Result<T>>,
    pub(super) patience: Patience,
}

impl<W, T> Job for Task<W, T>
where
    W: FnOnce(&mut Worker) -> Result<T> + Send,
    T: Send,
{
    fn run(self: Box<Self>, worker: &mut Worker) {
        if self.patience.wanted.is_none() || !self.reply.is_closed() {
            worker.limit.set(self.patience);
            let answer = (self.work)(worker);
            self.reply.send(answer).ok();
        }
    }

    fn refuse(self: Box<Self>, error: Error) {
        self.reply.send(Err(error)).ok();
    }
}

pub(super) fn broken(kind: ErrorKind) -> Error {
    Error::new(kind, "the store's thread ended unexpectedly: open the store again")
}
