//! One request to many nodes at once.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep, timeout};

use super::Core;
use super::node::{Node, Running};
use crate::error::{Error, ErrorKind, Result};
use crate::store::BoxFuture;

/// How long a request runs on after its caller went on. Then it is dropped, so that a connection whose peer vanished
/// without a word is noticed.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// What is done with an answer that comes when nobody waits for it; `None` = none came.
pub(super) type Late<T> = Arc<dyn Fn(usize, Option<T>) -> BoxFuture + Send + Sync>;

/// Requests to nodes, sent at once. Those that are not answered when it is dropped run on.
pub(super) struct Round<T: Send + 'static> {
    core: Arc<Core>,
    pending: Vec<(usize, BoxFuture<T>)>,
    limit: Pin<Box<Sleep>>,
    length: Duration,
    is_sent: bool,
    is_over: bool,
    late: Option<Late<T>>,
}

impl<T: Send + 'static> Round<T> {
    /// A request to each node, answered within `length`.
    pub(super) fn new(core: &Arc<Core>, length: Duration, request: impl Fn(usize) -> BoxFuture<T>) -> Self {
        Self {
            core: Arc::clone(core),
            pending: (0..core.nodes.len()).map(|index| (index, request(index))).collect(),
            limit: Box::pin(sleep(length)),
            length,
            is_sent: false,
            is_over: false,
            late: None,
        }
    }

    /// Sets what is done with late answers.
    pub(super) fn late(mut self, late: Late<T>) -> Self {
        self.late = Some(late);
        self
    }

    /// The next answers: all that are there. Empty = there is none left, or the time is up.
    pub(super) async fn next(&mut self) -> Vec<(usize, T)> {
        poll_fn(|context| {
            self.is_sent = true;
            let mut answers = Vec::new();
            self.pending.retain_mut(|(index, request)| match request.as_mut().poll(context) {
                Poll::Ready(answer) => {
                    answers.push((*index, answer));
                    false
                }
                Poll::Pending => true,
            });
            if !answers.is_empty() {
                let now = self.core.clock.now();
                answers.iter().for_each(|(index, _)| self.core.nodes[*index].heard(now));
            }
            self.is_over = self.pending.is_empty();
            if answers.is_empty() {
                self.is_over |= self.limit.as_mut().poll(context).is_ready();
            }
            if self.is_over || !answers.is_empty() { Poll::Ready(answers) } else { Poll::Pending }
        })
        .await
    }

    /// Whether nobody else will answer in time.
    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether somebody who has not answered yet should be waited for, although the rest may be enough.
    pub(super) fn is_outrun(&self) -> bool {
        !self.is_over && self.pending.iter().any(|(index, _)| self.core.nodes[*index].is_behind(&self.core))
    }

    pub(super) fn is_pending(&self, index: usize) -> bool {
        self.pending.iter().any(|(pending, _)| *pending == index)
    }

    /// The nodes that have not answered, each with the error that it is.
    pub(super) fn missing(&self, kind: ErrorKind) -> impl Iterator<Item = (usize, Error)> {
        let message = format!("no answer within {:?}", self.length);
        self.pending.iter().map(move |(index, _)| (*index, Error::new(kind, message.clone())))
    }
}

impl<T: Send + 'static> Drop for Round<T> {
    fn drop(&mut self) {
        if !self.is_sent {
            return;
        }
        for (index, request) in self.pending.drain(..) {
            let (late, core) = (self.late.clone(), Arc::clone(&self.core));
            self.core.run_on(index, async move {
                let answer = timeout(LINGER, request).await.ok();
                if answer.is_some() {
                    core.nodes[index].heard(core.clock.now());
                }
                if let Some(late) = late {
                    late(index, answer).await;
                }
            });
        }
    }
}

impl<T: Send + 'static> fmt::Debug for Round<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Round").field("pending", &self.pending.len()).finish_non_exhaustive()
    }
}

impl Core {
    /// Does something at a node although nobody waits for it; `None` = there is no runtime to do so.
    pub(super) fn run_on<T: Send + 'static>(
        self: &Arc<Self>,
        index: usize,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        let runtime = Handle::try_current().ok().or_else(|| self.runtime.clone())?;
        let running = Running::start(self, index);
        Some(runtime.spawn(async move {
            let outcome = work.await;
            drop(running);
            outcome
        }))
    }

    /// Asks all nodes until `is_enough` is content with what they said, or the time is up. One answer per node;
    /// `None` = not needed. Who does not answer in time is `missing`.
    pub(super) async fn gather<T: Send + 'static>(
        self: &Arc<Self>,
        length: Duration,
        missing: ErrorKind,
        request: impl Fn(Arc<Self>, usize) -> BoxFuture<Result<T>>,
        is_enough: impl Fn(&[Option<Result<T>>]) -> bool + Send,
        late: Option<Late<Result<T>>>,
    ) -> Vec<Option<Result<T>>> {
        let mut round = Round::new(self, length, |index| match self.nodes[index].check_crowd() {
            Ok(()) => request(Arc::clone(self), index),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        });
        round.late = late;
        let mut said: Vec<_> = self.nodes.iter().map(|_: &Node| None).collect();
        loop {
            let answers = round.next().await;
            if answers.is_empty() {
                round.missing(missing).for_each(|(index, error)| said[index] = Some(Err(error)));
                return said;
            }
            answers.into_iter().for_each(|(index, answer)| said[index] = Some(answer));
            if is_enough(&said) && !round.is_outrun() {
                return said;
            }
        }
    }
}
