//! One leader among replicas: each of them campaigns, one leads, and another follows when it is lost.
//!
//! ```
//! use leasehold::LockManager;
//! use leasehold::election::Candidate;
//! # use leasehold::store::memory::MemoryStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> leasehold::Result<()> {
//! # let locks = LockManager::new(MemoryStore::new());
//! let candidate = Candidate::campaign(locks.lock("scheduler"));
//! let leadership = candidate.elected().await?;
//! // Before each step that only the leader may take:
//! leadership.check()?;
//! // On shutdown, so that another replica need not wait for the ttl:
//! candidate.resign().await?;
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{LeaseHandle, LockGuard};
use crate::lock::Lock;
use crate::options::MAX_OPERATION_LIMIT;
use crate::store::Holder;

/// How long one attempt at a time waits, so that the campaign shows that it is alive.
const ROUND: Duration = Duration::from_secs(5);

/// The pause after a failed attempt, doubled up to the second number.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// How long a campaign may show no sign of life: twice what one attempt and the pause after it take at most on a store
/// that does not answer.
pub const STUCK_AFTER: Duration =
    Duration::from_secs(2 * (ROUND.as_secs() + 4 * MAX_OPERATION_LIMIT.as_secs() + PAUSES.1.as_secs()));

/// A replica that campaigns for a leadership, leads while it is the leader, and campaigns again after a loss.
///
/// Dropping it ends the campaign and gives a leadership back in the background, at best effort; prefer
/// [`resign`](Self::resign). It has to be built within a tokio runtime, on which it runs.
#[must_use = "dropping it ends the campaign"]
pub struct Candidate {
    shared: Arc<Shared>,
    campaign: Option<JoinHandle<()>>,
    resigned: watch::Sender<bool>,
}

struct Shared {
    lock: Lock,
    clock: Clock,
    state: watch::Sender<Option<LeaseHandle>>,
    signs: Mutex<Signs>,
}

/// What the campaign has shown of itself.
struct Signs {
    alive: Moment,
    error: Option<Error>,
}

impl Candidate {
    /// Campaigns for the lock's key, from now on. Who leads is whoever holds its lease; its ttl is how long the others
    /// wait for one that crashed.
    pub fn campaign(lock: Lock) -> Self {
        let clock = lock.clock();
        let signs = Mutex::new(Signs { alive: clock.now(), error: None });
        let shared = Arc::new(Shared { lock, clock, state: watch::Sender::new(None), signs });
        let resigned = watch::Sender::new(false);
        let campaign = tokio::spawn(campaign(Arc::clone(&shared), resigned.subscribe()));
        Self { shared, campaign: Some(campaign), resigned }
    }

    /// Whether this replica leads at this moment: by its lease and its clock, not by what it was told last.
    pub fn is_leader(&self) -> bool {
        self.leadership().is_some()
    }

    /// The lease under which this replica leads, if it does at this moment. Its `check`, `lost` and `fencing_token` are
    /// for the work.
    pub fn leadership(&self) -> Option<LeaseHandle> {
        let latest = self.shared.state.borrow().clone();
        latest.filter(|lease| lease.check().is_ok())
    }

    /// Waits until this replica leads.
    ///
    /// # Errors
    ///
    /// What ends the campaign for good: [`ErrorKind::Closed`], [`ErrorKind::InvalidInput`]. Everything else is tried
    /// again, and told by [`health`](Self::health).
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped; the campaign goes on.
    pub async fn elected(&self) -> Result<LeaseHandle> {
        let mut state = self.shared.state.subscribe();
        loop {
            if let Some(lease) = state.borrow_and_update().clone().filter(|lease| lease.check().is_ok()) {
                return Ok(lease);
            }
            if self.campaign.as_ref().is_none_or(JoinHandle::is_finished) {
                return Err(self.shared.end());
            }
            // The end of the campaign is noticed within a second, too.
            tokio::time::timeout(Duration::from_secs(1), state.changed()).await.ok();
        }
    }

    /// Who leads, here or elsewhere, as the store says: for people, not for decisions.
    ///
    /// # Errors
    ///
    /// As [`Lock::holder`].
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed if the future is dropped.
    pub async fn leader(&self) -> Result<Option<Holder>> {
        self.shared.lock.holder().await
    }

    /// Whether the campaign goes on: for an answer to those who restart what is stuck. A replica that only waits for its
    /// turn is healthy, and so is one whose store is out: it is tried again, and [`last_error`](Self::last_error) says so.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if it has shown no sign of life for [`STUCK_AFTER`], or has ended.
    pub fn health(&self) -> Result<()> {
        if self.campaign.as_ref().is_none_or(JoinHandle::is_finished) {
            return Err(self.shared.end());
        }
        let silent = self.shared.clock.now().since(self.shared.signs.lock().alive);
        if silent > STUCK_AFTER {
            let message = format!("the campaign is stuck: no sign of life for {silent:.0?}");
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        Ok(())
    }

    /// Why the latest attempt failed; `None` = it did not.
    pub fn last_error(&self) -> Option<Error> {
        self.shared.signs.lock().error.clone()
    }

    /// Ends the campaign and gives a leadership back, so that another replica leads at once. Stop what only the leader may
    /// do before.
    ///
    /// From the first poll on this replica does not lead.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::release`].
    ///
    /// # Cancel safety
    ///
    /// If dropped, the campaign has ended and the lease is given back in the background.
    pub async fn resign(mut self) -> Result<()> {
        self.resigned.send_replace(true);
        if let Some(campaign) = self.campaign.take() {
            campaign.await.ok();
        }
        self.shared.signs.lock().error.take().map_or(Ok(()), Err)
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        // It ends at its next await, and drops the guard.
        if let Some(campaign) = &self.campaign {
            campaign.abort();
        }
    }
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate").field("lock", &self.shared.lock).field("is_leader", &self.is_leader()).finish()
    }
}

impl Shared {
    fn alive(&self) {
        self.signs.lock().alive = self.clock.now();
    }

    /// Why the campaign is over.
    fn end(&self) -> Error {
        let ended = || Error::new(ErrorKind::Unavailable, "the campaign has ended");
        self.signs.lock().error.clone().unwrap_or_else(ended)
    }
}

/// Campaigns until this replica resigns, or can never lead.
async fn campaign(shared: Arc<Shared>, mut resigned: watch::Receiver<bool>) {
    let mut pause = PAUSES.0;
    while !*resigned.borrow() {
        shared.alive();
        let attempt = tokio::select! {
            attempt = shared.lock.acquire_within(ROUND) => attempt,
            _ = resigned.wait_for(|resigned| *resigned) => break,
        };
        match attempt {
            Ok(None) => {
                shared.signs.lock().error = None;
                pause = PAUSES.0;
            }
            Ok(Some(guard)) => {
                shared.signs.lock().error = None;
                pause = PAUSES.0;
                if let Some(released) = lead(&shared, guard, &mut resigned).await {
                    shared.signs.lock().error = released.err();
                    return;
                }
            }
            Err(error) => {
                let for_good = matches!(
                    error.kind(),
                    ErrorKind::Closed | ErrorKind::InvalidInput | ErrorKind::InvalidConfig | ErrorKind::Unsupported
                );
                tracing::warn!(%error, for_good, "the campaign for a leadership failed");
                shared.signs.lock().error = Some(error);
                if for_good {
                    return;
                }
                tokio::select! {
                    () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSES.1),
                    _ = resigned.wait_for(|resigned| *resigned) => {}
                }
            }
        }
    }
    shared.signs.lock().error = None;
}

/// Leads until the lease is lost (`None`), or this replica resigns: what came of the release.
async fn lead(shared: &Shared, guard: LockGuard, resigned: &mut watch::Receiver<bool>) -> Option<Result<()>> {
    shared.state.send_replace(Some(guard.handle()));
    let resigns = loop {
        shared.alive();
        tokio::select! {
            _ = resigned.wait_for(|resigned| *resigned) => break true,
            _ = guard.lost() => break false,
            () = tokio::time::sleep(ROUND) => {}
        }
    };
    // The lease counts as lost from the first poll of this on.
    let released = guard.release().await;
    shared.state.send_replace(None);
    resigns.then_some(released)
}
