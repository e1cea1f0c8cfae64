//! A place in the server's line: the task that stands in it, and what fires when it is its turn.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::super::super::fault::{self, Effect};
use super::super::connections::Connections;
use super::super::transaction::{Transaction, pooled};
use super::{Held, Seat, State};
use crate::error::{Error, ErrorKind, Result};
use crate::store::BoxFuture;

/// How often it is looked whether a place is still one: at least three times in a ttl, and within these bounds.
const LOOKS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// The first pause between looks whether a claim has come to the line; doubled each time.
const PAUSE: Duration = Duration::from_micros(500);

impl Seat {
    /// Waits until the server has put the claim into its line, so that whoever comes later stands behind it.
    pub(super) async fn until_in_line(&self, transaction: &Transaction) -> Result<()> {
        let mut pause = PAUSE;
        while self.is_waiting() && transaction.standing().await?.is_none() {
            tokio::time::timeout(pause, self.until_settled()).await.ok();
            pause *= 2;
        }
        Ok(())
    }

    /// Waits in the server's line, and then until somebody has looked.
    pub(super) async fn stand(self: Arc<Self>, transaction: Arc<Transaction>, ttl: Duration) {
        let answer = {
            let mut asked = pin!(transaction.lock());
            tokio::select! { biased;
                answer = &mut asked => Some(answer),
                () = self.dismissed.notified() => {
                    transaction.leave(asked).await;
                    return self.over(None);
                }
                () = is_broken(&transaction, ttl) => None,
            }
        };
        let granted = match answer {
            Some(Ok(Some(_))) => transaction.draw().await,
            Some(Ok(None)) => Err(pooled()),
            Some(Err(error)) => Err(fault::of(error, Effect::Change)),
            None => {
                Err(Error::new(ErrorKind::Unavailable, "the server does not know of the place in its line any more"))
            }
        };
        match granted {
            Ok((fence, loss)) => {
                *self.state.lock() = State::Granted(Held { transaction, fence, loss });
                self.changed.notify_waiters();
            }
            Err(error) => {
                transaction.abandon().await;
                return self.over(Some(error));
            }
        }
        self.dismissed.notified().await;
        let unseen = {
            let mut state = self.state.lock();
            match std::mem::replace(&mut *state, State::Over(None)) {
                State::Granted(held) => Some(held),
                other => {
                    *state = other;
                    None
                }
            }
        };
        if let Some(held) = unseen {
            held.transaction.end().await.ok();
            self.over(None);
        }
    }

    /// Waits until it is not in line any more.
    pub(super) async fn until_settled(&self) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if !self.is_waiting() {
                return;
            }
            changed.await;
        }
    }
}

/// Resolves once it was seen twice in a row that the server's word does not come: the claim is not in line any more, or was
/// granted, or nobody can tell.
async fn is_broken(transaction: &Transaction, ttl: Duration) {
    let interval = (ttl / 3).clamp(LOOKS.0, LOOKS.1);
    let mut doubts = 0;
    while doubts < 2 {
        tokio::time::sleep(interval / 2).await;
        match tokio::time::timeout(interval / 2, transaction.standing()).await {
            Ok(Ok(Some(false))) => doubts = 0,
            _ => doubts += 1,
        }
    }
}

/// A place in the server's line. Dropped before it fired, it leaves the line.
pub(super) struct Place {
    seat: Arc<Seat>,
    connections: Arc<Connections>,
    fires: BoxFuture,
    has_fired: bool,
}

impl Place {
    pub(super) fn of(seat: &Arc<Seat>, connections: &Arc<Connections>) -> Self {
        let settled = Arc::clone(seat);
        Self {
            seat: Arc::clone(seat),
            connections: Arc::clone(connections),
            fires: Box::pin(async move { settled.until_settled().await }),
            has_fired: false,
        }
    }
}

impl Future for Place {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let fired = self.fires.as_mut().poll(context);
        self.has_fired |= fired.is_ready();
        fired
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What it was granted after that is given back by its owner.
        if !self.has_fired {
            self.seat.leave(self.connections.leaving());
        }
    }
}
