//! A place in the line for a key.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::Shared;
use super::table::Waiter;
use crate::types::Key;

/// The waiters that an operation took out of their lines; told, or dropped, when this is.
///
/// Waking a task or dropping its place runs foreign code that may come back to the store, so this must be made before
/// the table is locked: then it is dropped after the lock.
#[derive(Debug, Default)]
pub(super) struct Fired(Vec<Waiter>);

impl Fired {
    pub(super) fn push(&mut self, waiter: Waiter) {
        self.0.push(waiter);
    }
}

/// Fires when its owner was granted the lease or was taken out of the line.
pub(super) struct Place {
    shared: Arc<Shared>,
    key: Key,
    ticket: u64,
    signal: oneshot::Receiver<()>,
    fired: bool,
}

impl Place {
    pub(super) fn new(shared: Arc<Shared>, key: Key, ticket: u64, signal: oneshot::Receiver<()>) -> Self {
        Self { shared, key, ticket, signal, fired: false }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("key", &self.key).field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl Future for Place {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // The waiter's end is dropped, never used: out of the line is all there is to say.
        if !self.fired && Pin::new(&mut self.signal).poll(context).is_pending() {
            return Poll::Pending;
        }
        self.fired = true;
        Poll::Ready(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Once it fired, the owner knows; what becomes of the grant is its own affair.
        if !self.fired {
            let mut fired = Fired::default();
            let now = self.shared.clock.now();
            self.shared.table.lock().abandon(&self.key, self.ticket, now, &mut fired);
        }
    }
}
