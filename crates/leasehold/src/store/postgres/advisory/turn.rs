//! One at a time for each lock of a session.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use super::session::Session;

type Slot = tokio::sync::Mutex<()>;

/// The locks that somebody asks for or gives back at this moment.
#[derive(Debug, Default)]
pub(super) struct Slots(Mutex<HashMap<i64, Arc<Slot>>>);

impl Slots {
    pub(super) fn has(&self, id: i64) -> bool {
        self.0.lock().contains_key(&id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// Somebody who has to do with a lock, or stands in line for that. While he stands the session has a slot for it.
pub(super) struct Turn {
    session: Arc<Session>,
    id: i64,
    /// Taken on drop.
    slot: Option<Arc<Slot>>,
    turn: Option<OwnedMutexGuard<()>>,
}

impl Turn {
    pub(super) fn new(session: Arc<Session>, id: i64) -> Self {
        let slot = Arc::clone(session.slots().0.lock().entry(id).or_default());
        Self { session, id, slot: Some(slot), turn: None }
    }

    /// Waits for those who came before.
    pub(super) async fn begin(&mut self) {
        if let Some(slot) = &self.slot {
            self.turn = Some(Arc::clone(slot).lock_owned().await);
        }
    }

    pub(super) const fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub(super) const fn id(&self) -> i64 {
        self.id
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turn = None;
        let mut slots = self.session.slots().0.lock();
        self.slot = None;
        // Those of others are made and dropped under the lock, too.
        if slots.get(&self.id).is_some_and(|slot| Arc::strong_count(slot) == 1) {
            slots.remove(&self.id);
        }
    }
}
