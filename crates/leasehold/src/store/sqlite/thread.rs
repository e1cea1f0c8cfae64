//! The thread that alone touches the file, and the jobs that wait for it.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::{oneshot, watch};

use super::file::LeaseFile;
use super::host::Host;
use super::limit::Limit;
use super::watch::Watches;
use crate::clock::{Clock, Moment};
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

/// A handle on the thread; the thread ends with it, after the jobs that it was given.
#[derive(Debug)]
pub(super) struct StoreThread {
    queue: Arc<Queue>,
    ended: watch::Receiver<()>,
    process: u32,
}

impl StoreThread {
    /// Starts the thread and opens the file on it.
    pub(super) async fn start(path: PathBuf, host: Host, patience: Duration) -> Result<Self> {
        let queue = Arc::new(Queue::default());
        let (running, ended) = watch::channel(());
        let (reply, opened) = oneshot::channel();
        let handle = Self {
            queue: Arc::clone(&queue),
            ended,
            process: std::process::id(),
        };
        let body = move || {
            let _running = running;
            let queue = Ending(queue);
            let mut worker = Worker {
                path,
                host,
                file: None,
                limit: Limit::default(),
                watches: Watches::new(),
            };
            worker.limit.set(Clock::system().now() + patience);
            let answer = worker.file().map(drop);
            let usable = answer.is_ok();
            if reply.send(answer).is_ok() && usable {
                worker.serve(&queue.0);
            }
        };
        thread::Builder::new()
            .name("leasehold-sqlite".to_owned())
            .spawn(body)
            .map_err(|error| {
                Error::new(ErrorKind::Unavailable, "cannot start a thread for the file")
                    .with_source(error)
            })?;
        opened
            .await
            .unwrap_or_else(|_| Err(broken(ErrorKind::Unavailable)))?;
        Ok(handle)
    }

    /// Has `work` done on the thread. `patience` is how long it may wait for other processes, from now on.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        urgency: Urgency,
        patience: Duration,
        work: impl FnOnce(&mut Worker) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if std::process::id() != self.process {
            // A fork copies the handle but not the thread, and SQLite forbids to use the parent's connection.
            let message = "this store belongs to the parent process: open one after the fork";
            return Err(Error::new(ErrorKind::Closed, message));
        }
        let (reply, answer) = oneshot::channel();
        let until = Clock::system().now() + patience;
        self.queue.push(
            urgency,
            Box::new(Task {
                work,
                reply,
                until,
                always: urgency == Urgency::Must,
            }),
        )?;
        // Left without an answer only by a panic in the very job.
        answer
            .await
            .unwrap_or_else(|_| Err(broken(ErrorKind::Indeterminate)))
    }

    /// Has the thread end after the jobs that it was given, and waits for that.
    pub(super) async fn close(&self) {
        self.queue.end(End::Closed);
        if std::process::id() == self.process {
            let mut ended = self.ended.clone();
            while ended.changed().await.is_ok() {}
        }
    }
}

impl Drop for StoreThread {
    fn drop(&mut self) {
        self.queue.end(End::Closed);
    }
}

fn broken(kind: ErrorKind) -> Error {
    Error::new(
        kind,
        "the store's thread ended unexpectedly: open the store again",
    )
}

/// What the thread works with.
#[derive(Debug)]
pub(super) struct Worker {
    path: PathBuf,
    host: Host,
    file: Option<LeaseFile>,
    limit: Limit,
    pub(super) watches: Watches,
}

impl Worker {
    /// The file that the path leads to at this moment.
    pub(super) fn file(&mut self) -> Result<(&LeaseFile, &Host)> {
        let file = match self.file.take() {
            Some(file) if file.is_current() => file,
            _ => {
                // Whatever they waited for went with the file that was there.
                self.watches.wake_all();
                LeaseFile::open(&self.path, &self.host, &self.limit)?
            }
        };
        Ok((self.file.insert(file), &self.host))
    }

    fn serve(&mut self, queue: &Queue) {
        loop {
            let now = Clock::system().now();
            let due = self.watches.due();
            if due.is_some_and(|due| due <= now) {
                self.look(now);
                continue;
            }
            match queue.next(due.map(|due| due.since(now))) {
                Next::Job(job) => job.run(self),
                Next::Idle => {}
                Next::Ended => return,
            }
        }
    }

    fn look(&mut self, now: Moment) {
        // A look never waits: there will be another one.
        self.limit.set(now);
        match &self.file {
            Some(file) if file.is_current() => self.watches.look(file, &self.host),
            _ => self.watches.wake_all(),
        }
    }
}

/// Jobs in two lines.
#[derive(Debug, Default)]
struct Queue {
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
enum End {
    Closed,
    Broken,
}

enum Next {
    Job(Box<dyn Job>),
    Idle,
    Ended,
}

impl Queue {
    fn push(&self, urgency: Urgency, job: Box<dyn Job>) -> Result<()> {
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
    fn next(&self, limit: Option<Duration>) -> Next {
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

    fn end(&self, end: End) {
        self.lines.lock().end.get_or_insert(end);
        self.changed.notify_one();
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Lines({} first, {} then, {:?})",
            self.first.len(),
            self.then.len(),
            self.end
        )
    }
}

/// Lives on the thread, so that no job waits for a thread that is gone, whatever ended it.
struct Ending(Arc<Queue>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end(End::Broken);
        let mut lines = self.0.lines.lock();
        let left: Vec<_> = std::mem::take(&mut lines.first)
            .into_iter()
            .chain(std::mem::take(&mut lines.then))
            .collect();
        // Answers wake callers, which is not done under a lock.
        drop(lines);
        for job in left {
            job.refuse(broken(ErrorKind::Unavailable));
        }
    }
}

trait Job: Send {
    fn run(self: Box<Self>, worker: &mut Worker);
    fn refuse(self: Box<Self>, error: Error);
}

struct Task<W, T> {
    work: W,
    reply: oneshot::Sender<Result<T>>,
    until: Moment,
    always: bool,
}

impl<W, T> Job for Task<W, T>
where
    W: FnOnce(&mut Worker) -> Result<T> + Send,
    T: Send,
{
    fn run(self: Box<Self>, worker: &mut Worker) {
        if self.always || !self.reply.is_closed() {
            worker.limit.set(self.until);
            let answer = (self.work)(worker);
            self.reply.send(answer).ok();
        }
    }

    fn refuse(self: Box<Self>, error: Error) {
        self.reply.send(Err(error)).ok();
    }
}
