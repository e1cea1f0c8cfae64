//! Taking back what a dropped or failed call may have left in the store.

use std::sync::Arc;
use std::time::Duration;

use crate::background::Ticket;
use crate::engine::{Engine, log};
use crate::error::{Operation, Result};
use crate::store::{Claim, Tie};
use crate::types::{Key, OwnerToken};

/// When an undo is asked: at once, and again because it may have overtaken the request that it undoes.
const ASKS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(10), Duration::from_millis(100), Duration::from_millis(1000)];

/// Gives a lease back in the background when dropped, unless it was disarmed or there is nothing to undo.
#[derive(Debug)]
pub(crate) struct Undo {
    /// What to undo; `None` = disarmed.
    target: Option<Target>,
    /// How many requests have no certain answer, one in flight included.
    pub(crate) unsettled: u32,
    /// Something stands in the store for certain: a place in line, or a lease to give back.
    pub(crate) stands: bool,
}

#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) engine: Arc<Engine>,
    pub(crate) key: Key,
    pub(crate) owner: OwnerToken,
    pub(crate) ttl: Duration,
    /// For a lease that was taken on: the token it came with, to which it goes back.
    pub(crate) back_to: Option<OwnerToken>,
    /// Has closing the manager wait.
    pub(crate) ticket: Option<Ticket>,
}

impl Undo {
    /// Not yet needed: nothing was sent.
    pub(crate) fn new(target: Target) -> Self {
        Self { target: Some(target), unsettled: 0, stands: false }
    }

    /// Before something is sent: closing the manager waits until it is answered or undone.
    pub(crate) fn hold_up_closing(&mut self) {
        if let Some(target) = &mut self.target {
            target.ticket.get_or_insert_with(|| target.engine.background.ticket());
        }
    }

    /// Closing the manager need not wait if there is nothing to undo: a waiter may not be polled any more.
    pub(crate) fn let_close(&mut self) {
        if self.unsettled == 0
            && !self.stands
            && let Some(target) = &mut self.target
        {
            target.ticket = None;
        }
    }

    pub(crate) fn disarm(&mut self) {
        self.target = None;
    }

    pub(crate) fn target(&self) -> Option<&Target> {
        self.target.as_ref()
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if self.unsettled == 0 && !self.stands {
            return;
        }
        if let Some(target) = self.target.take() {
            target.undo_in_background(late_requests(self.unsettled, self.stands));
        }
    }
}

/// How many requests may bring the lease into being after an undo was asked, what stands already included;
/// 0 = none can come late.
pub(crate) fn late_requests(unsettled: u32, stands: bool) -> u32 {
    if unsettled == 0 { 0 } else { unsettled + u32::from(stands) }
}

impl Target {
    /// `false` if there is no runtime to do so: then the ttl ends what may stand.
    pub(crate) fn undo_in_background(mut self, late: u32) -> bool {
        if self.engine.is_forked() {
            return false;
        }
        let engine = Arc::clone(&self.engine);
        let ticket = self.ticket.take().unwrap_or_else(|| engine.background.ticket());
        engine.background.spawn(async move {
            let teller = Arc::clone(&self.engine.teller);
            self.undo(late).await;
            drop(ticket);
            // This may be the thread that renews every lease.
            teller.tell_apart();
        })
    }

    async fn undo(self, late: u32) {
        // Of several requests one may still be on its way when another's lease was found. A lease that has to go back
        // to an earlier token is also found there when it never left.
        let settled_if_found = late == 0 || (late == 1 && self.back_to.is_none());
        let mut answered = false;
        for pause in ASKS {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            let found = self.ask().await;
            answered |= found.is_ok();
            match found {
                Ok(true) => {
                    self.engine.lines.ring(&self.key);
                    if settled_if_found {
                        return;
                    }
                }
                // Every request was answered, so none can come late.
                Ok(false) if late == 0 => return,
                Ok(false) | Err(_) => {}
            }
        }
        if !answered {
            log(|| tracing::warn!(key = self.key.name(), "a lease could not be given back: its ttl ends it"));
            self.engine.background.gave_up();
        }
    }

    async fn ask(&self) -> Result<bool> {
        let Self { engine, key, owner, ttl, back_to, .. } = self;
        let limit = engine.limit(*ttl);
        match back_to {
            None => engine.ask(Operation::Release, Some(key), limit, engine.store().release(key, owner)).await,
            Some(earlier) => {
                let claim = Claim::new(key, earlier, *ttl).tie(Tie::Nothing);
                let back = engine.store().transfer(owner, &claim);
                engine.ask(Operation::Transfer, Some(key), limit, back).await.map(|grant| grant.is_some())
            }
        }
    }
}
