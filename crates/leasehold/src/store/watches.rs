//! Who in this process wants to know when somebody changes a key: those who wait for it, and the one who holds it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::LostReason;
use crate::store::Loss;
use crate::types::{Key, OwnerToken};

/// Everything that is watched.
#[derive(Debug, Default)]
pub(super) struct Watches(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    keys: HashMap<Arc<str>, Arc<Watch>>,
    /// How many keys there were after the last search for those that nobody watches.
    settled: usize,
}

/// One key.
#[derive(Debug, Default)]
struct Watch {
    /// How often it was touched by others.
    touched: AtomicU64,
    bell: Notify,
    held: Mutex<Option<Held>>,
}

#[derive(Clone, Debug)]
struct Held {
    owner: OwnerToken,
    loss: Loss,
}

/// Somebody who listens at a key. What happens from its creation on is heard.
#[derive(Debug)]
pub(super) struct Ear {
    watches: Arc<Watches>,
    key: Arc<str>,
    watch: Arc<Watch>,
    seen: u64,
}

/// A lease that may be gone.
#[derive(Debug)]
pub(super) struct Doubt {
    pub(super) key: Arc<str>,
    pub(super) owner: OwnerToken,
}

/// Below this many keys nothing is swept.
const FEW: usize = 64;

impl Watches {
    /// Listens at a key; to be called before the request whose answer may be overtaken.
    pub(super) fn listen(self: &Arc<Self>, key: &Key) -> Ear {
        let (key, watch) = {
            let keys = &mut self.0.lock().keys;
            let known = keys.get_key_value(key.as_stored()).map(|(key, watch)| (Arc::clone(key), Arc::clone(watch)));
            known.unwrap_or_else(|| {
                let (key, watch) = (Arc::<str>::from(key.as_stored()), Arc::<Watch>::default());
                keys.insert(Arc::clone(&key), Arc::clone(&watch));
                (key, watch)
            })
        };
        let seen = watch.touched.load(Ordering::Acquire);
        Ear { watches: Arc::clone(self), key, watch, seen }
    }

    /// Somebody changed this key. Answers with the lease that is now in doubt.
    pub(super) fn touched(&self, key: &str) -> Option<Doubt> {
        let (key, watch) = {
            let table = self.0.lock();
            let (key, watch) = table.keys.get_key_value(key)?;
            (Arc::clone(key), Arc::clone(watch))
        };
        watch.ring();
        watch.doubt(key)
    }

    /// Anything may have happened to any key. Answers with every lease.
    pub(super) fn all_touched(&self) -> Vec<Doubt> {
        let keys: Vec<_> = self.0.lock().keys.iter().map(|(key, watch)| (Arc::clone(key), Arc::clone(watch))).collect();
        keys.into_iter()
            .filter_map(|(key, watch)| {
                watch.ring();
                watch.doubt(key)
            })
            .collect()
    }

    /// The doubt was justified.
    pub(super) fn lost(&self, doubt: &Doubt) {
        self.lose(&doubt.key, &doubt.owner);
    }

    /// The server said that this owner does not hold the key.
    pub(super) fn gone(&self, key: &Key, owner: &OwnerToken) {
        self.lose(key.as_stored(), owner);
    }

    fn lose(&self, key: &str, owner: &OwnerToken) {
        let watch = self.0.lock().keys.get(key).cloned();
        if let Some(watch) = watch {
            let lost = watch.held.lock().take_if(|held| held.owner == *owner);
            if let Some(lost) = lost {
                lost.loss.raise(LostReason::NotHeld);
            }
            self.forget(key, &watch);
        }
    }

    /// This owner gave the key back.
    pub(super) fn released(&self, key: &Key, owner: &OwnerToken) {
        let watch = self.0.lock().keys.get(key.as_stored()).cloned();
        if let Some(watch) = watch {
            watch.held.lock().take_if(|held| held.owner == *owner);
            watch.ring();
            self.forget(key.as_stored(), &watch);
        }
    }

    /// Somebody here removed whatever lease there was.
    pub(super) fn removed(&self, key: &Key) {
        if let Some(doubt) = self.touched(key.as_stored()) {
            self.lost(&doubt);
        }
    }

    /// Drops a key that nobody watches.
    fn forget(&self, key: &str, watch: &Arc<Watch>) {
        let keys = &mut self.0.lock().keys;
        // The map's and the caller's; others are made under the lock.
        if Arc::strong_count(watch) == 2 && watch.held.lock().is_none() {
            keys.remove(key);
        }
    }

    /// Drops the leases that nobody looks at any more, now and then: those that were handed over, kept or ran out.
    fn sweep(&self) {
        let mut table = self.0.lock();
        let Table { keys, settled } = &mut *table;
        if keys.len() < FEW || keys.len() < 2 * *settled {
            return;
        }
        keys.retain(|_, watch| {
            let mut held = watch.held.lock();
            held.take_if(|held| !held.loss.is_watched());
            held.is_some() || Arc::strong_count(watch) > 1
        });
        *settled = keys.len();
    }
}

impl Watch {
    fn ring(&self) {
        self.touched.fetch_add(1, Ordering::AcqRel);
        self.bell.notify_waiters();
    }

    fn doubt(&self, key: Arc<str>) -> Option<Doubt> {
        let held = self.held.lock();
        held.as_ref().map(|held| Doubt { key, owner: held.owner.clone() })
    }
}

impl Ear {
    /// The key is held by this owner from now on. Answers with the flag to raise when it is gone, and with a doubt if
    /// the key was touched after the server had granted it, or just before.
    pub(super) fn hold(self, owner: &OwnerToken) -> (Loss, Option<Doubt>) {
        let mut slot = self.watch.held.lock();
        let loss = match &*slot {
            Some(held) if held.owner == *owner => held.loss.clone(),
            _ => Loss::new(),
        };
        let before = slot.replace(Held { owner: owner.clone(), loss: loss.clone() });
        drop(slot);
        // The server gave the key to somebody else, so whoever had it before has not.
        if let Some(before) = before.filter(|before| before.owner != *owner) {
            before.loss.raise(LostReason::NotHeld);
        }
        let is_touched = self.watch.touched.load(Ordering::Acquire) != self.seen;
        let doubt = is_touched.then(|| Doubt { key: Arc::clone(&self.key), owner: owner.clone() });
        self.watches.sweep();
        (loss, doubt)
    }

    /// Resolves once the key was touched.
    pub(super) async fn touched(self) {
        loop {
            let rung = self.watch.bell.notified();
            tokio::pin!(rung);
            rung.as_mut().enable();
            if self.watch.touched.load(Ordering::Acquire) != self.seen {
                return;
            }
            rung.await;
        }
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.watches.forget(&self.key, &self.watch);
    }
}
