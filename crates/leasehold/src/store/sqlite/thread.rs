//! The thread that alone touches the file.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::file::LeaseFile;
use super::host::Host;
use super::limit::{Limit, Patience};
use super::queue::{End, Ending, Next, Queue, Task, Urgency, broken};
use super::upkeep::Upkeep;
use super::watch::Watches;
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};

const FORKED: &str = "exec after the fork, or open the store only in the child";

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
        static FIRST: OnceLock<u32> = OnceLock::new();
        refuse_forked(*FIRST.get_or_init(std::process::id), std::process::id())?;
        let queue = Arc::new(Queue::default());
        let (running, ended) = watch::channel(());
        let (reply, opened) = oneshot::channel();
        let handle = Self { queue: Arc::clone(&queue), ended, process: std::process::id() };
        let body = move || {
            let _running = running;
            let queue = Ending(queue);
            let mut worker = Worker {
                host,
                file: None,
                limit: Limit::new(Patience { until: Clock::system().now() + patience, wanted: None }),
                watches: Watches::new(&path),
                upkeep: Upkeep::default(),
                path,
            };
            let answer = worker.file().map(drop);
            let usable = answer.is_ok();
            worker.upkeep.at_start(worker.file.as_ref(), &worker.host);
            if reply.send(answer).is_ok() && usable {
                worker.serve(&queue.0);
            }
        };
        thread::Builder::new().name("leasehold-sqlite".to_owned()).spawn(body).map_err(|error| {
            Error::new(ErrorKind::Unavailable, "cannot start a thread for the file").with_source(error)
        })?;
        opened.await.unwrap_or_else(|_| Err(broken(ErrorKind::Unavailable)))?;
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
            // A fork copies the handle but not the thread.
            return Err(Error::new(ErrorKind::Closed, format!("this store belongs to the parent process: {FORKED}")));
        }
        let asking = (urgency != Urgency::Must).then(|| Arc::new(()));
        let wanted = asking.as_ref().map(Arc::downgrade);
        let patience = Patience { until: Clock::system().now() + patience, wanted };
        let (reply, answer) = oneshot::channel();
        self.queue.push(urgency, Box::new(Task { work, reply, patience }))?;
        // Left without an answer only by a panic in the very job.
        let answer = answer.await.unwrap_or_else(|_| Err(broken(ErrorKind::Indeterminate)));
        drop(asking);
        answer
    }

    /// Has the thread end after the jobs that it was given, and waits for that.
    pub(super) async fn close(&self) {
        if std::process::id() == self.process {
            self.queue.end(End::Closed);
            let mut ended = self.ended.clone();
            while ended.changed().await.is_ok() {}
        }
    }
}

impl Drop for StoreThread {
    fn drop(&mut self) {
        // In a forked child the queue's lock may have been copied in a locked state.
        if std::process::id() == self.process {
            self.queue.end(End::Closed);
        }
    }
}

/// SQLite keeps track of a process's locks in memory that a fork copies, without the locks: a child that used it would
/// take the parent's locks for its own.
fn refuse_forked(first: u32, process: u32) -> Result<()> {
    if process == first {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsupported, format!("the parent process has used this store: {FORKED}")))
}

/// What the thread works with.
#[derive(Debug)]
pub(super) struct Worker {
    path: PathBuf,
    host: Host,
    file: Option<LeaseFile>,
    pub(super) limit: Limit,
    pub(super) watches: Watches,
    upkeep: Upkeep,
}

impl Worker {
    /// The file that the path leads to at this moment.
    pub(super) fn file(&mut self) -> Result<(&LeaseFile, &Host)> {
        // Closed before another one is opened: closing it later would drop the locks of its successor wherever both
        // share a file.
        let current = self.file.take().filter(LeaseFile::is_current);
        let file = match current {
            Some(file) => file,
            None => {
                // Whatever they waited for went with the file that was there.
                self.watches.end();
                LeaseFile::open(&self.path, &self.host, &self.limit)?
            }
        };
        Ok((self.file.insert(file), &self.host))
    }

    fn serve(&mut self, queue: &Queue) {
        loop {
            let now = Clock::system().now();
            if self.watches.due().is_some_and(|due| due <= now) {
                self.look(now);
            }
            // After each look a job, if there is one: looks that take long must not keep renewals waiting.
            let now = Clock::system().now();
            let next = self.watches.due().into_iter().chain(self.upkeep.due()).min();
            match queue.next(next.map(|next| next.since(now)), self.watches.notices(now)) {
                Next::Job(job) => {
                    job.run(self);
                    let now = Clock::system().now();
                    // Upkeep waits for nobody, least of all before the next job.
                    self.limit.set(Patience { until: now, wanted: None });
                    self.upkeep.after_job(now, self.file.as_ref(), &self.host);
                }
                Next::Noticed => self.watches.noticed(),
                Next::Idle if self.upkeep.due().is_some_and(|due| due <= Clock::system().now()) => self.keep_up(),
                Next::Idle => {}
                Next::Ended => return,
            }
        }
    }

    fn keep_up(&mut self) {
        let now = Clock::system().now();
        self.limit.set(Patience { until: now, wanted: None });
        self.file.take_if(|file| !file.is_current());
        self.upkeep.when_quiet(now, self.file.as_ref(), &self.host);
    }

    fn look(&mut self, now: Moment) {
        // A look never waits: there will be another one.
        self.limit.set(Patience { until: now, wanted: None });
        match &self.file {
            Some(file) if file.is_current() => self.watches.look(file, &self.host),
            _ => self.watches.end(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_was_forked_after_the_first_use_is_refused() {
        refuse_forked(7, 7).unwrap();
        let error = refuse_forked(7, 8).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("exec after the fork, or open the store only in the child"), "{error}");
    }

    #[tokio::test]
    async fn a_handle_that_a_fork_copied_is_inert() {
        let directory = tempfile::tempdir().unwrap();
        let host = Host::present().unwrap();
        let patience = Duration::from_secs(4);
        let mut thread = StoreThread::start(directory.path().join("leases.db"), host, patience).await.unwrap();
        let own = thread.process;
        thread.process += 1;
        let error = thread.ask(Urgency::Must, patience, |_| Ok(())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        thread.close().await;
        thread.process = own;
        thread.ask(Urgency::Must, patience, |_| Ok(())).await.unwrap();
    }
}
