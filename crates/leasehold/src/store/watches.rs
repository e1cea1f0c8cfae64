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
    /// Who holds it, as far as answers were read: more than one while it is open which of them was given last.
    held: Mutex<Vec<Held>>,
}

#[derive(Clone, Debug)]
struct Held {
    owner: OwnerToken,
    loss: Loss,
    /// Which answer said so last.
    told: u64,
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
#[derive(Clone, Debug)]
pub(super) struct Doubt {
    pub(super) key: Arc<str>,
    pub(super) owner: OwnerToken,
}

/// A doubt that the server is being asked about.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) doubt: Doubt,
    told: u64,
}

/// How many answers said that somebody holds a key.
static ANSWERS: AtomicU64 = AtomicU64::new(0);

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

    /// Somebody changed this key. Answers with the leases that are now in doubt.
    pub(super) fn touched(&self, key: &str) -> Vec<Doubt> {
        let (key, watch) = {
            let table = self.0.lock();
            let Some((key, watch)) = table.keys.get_key_value(key) else { return Vec::new() };
            (Arc::clone(key), Arc::clone(watch))
        };
        watch.ring();
        watch.doubts(&key)
    }

    /// Anything may have happened to any key. Answers with every lease.
    pub(super) fn all_touched(&self) -> Vec<Doubt> {
        self.touched_where(|_| true)
    }

    /// As [`all_touched`](Self::all_touched), for some of the keys.
    pub(super) fn touched_where(&self, is_meant: impl Fn(&str) -> bool) -> Vec<Doubt> {
        let keys: Vec<_> = self.0.lock().keys.iter().map(|(key, watch)| (Arc::clone(key), Arc::clone(watch))).collect();
        keys.into_iter()
            .filter(|(key, _)| is_meant(key))
            .flat_map(|(key, watch)| {
                watch.ring();
                watch.doubts(&key)
            })
            .collect()
    }

    #[cfg(all(feature = "redis", feature = "testkit"))]
    pub(super) fn len(&self) -> usize {
        self.0.lock().keys.len()
    }

    /// To be called before the server is asked. What nobody holds any more is no question.
    pub(super) fn questions(&self, doubts: &[Doubt]) -> Vec<Question> {
        let table = self.0.lock();
        let question = |doubt: &Doubt| {
            let told = table.keys.get(&doubt.key)?.told(&doubt.owner)?;
            Some(Question { doubt: doubt.clone(), told })
        };
        doubts.iter().filter_map(question).collect()
    }

    /// The server said that the doubt is justified. It stays one if the owner was given the key since the question was
    /// put: which of the two came first is not known.
    pub(super) fn lost(&self, question: &Question) -> Option<Doubt> {
        let Question { doubt, told } = question;
        let is_meant = |held: &Held| held.owner == doubt.owner && held.told == *told;
        if self.lose(&doubt.key, is_meant) {
            return None;
        }
        self.0.lock().keys.get(&doubt.key)?.told(&doubt.owner).map(|_| doubt.clone())
    }

    /// The server said that this owner does not hold the key.
    pub(super) fn gone(&self, key: &Key, owner: &OwnerToken) {
        self.lose(key.as_stored(), |held| held.owner == *owner);
    }

    fn lose(&self, key: &str, is_meant: impl Fn(&Held) -> bool) -> bool {
        let Some(watch) = self.0.lock().keys.get(key).cloned() else { return false };
        let lost = watch.take(is_meant);
        if let Some(lost) = &lost {
            lost.loss.raise(LostReason::NotHeld);
        }
        self.forget(key, &watch);
        lost.is_some()
    }

    /// This owner gave the key back.
    pub(super) fn released(&self, key: &Key, owner: &OwnerToken) {
        let watch = self.0.lock().keys.get(key.as_stored()).cloned();
        if let Some(watch) = watch {
            watch.take(|held| held.owner == *owner);
            watch.ring();
            self.forget(key.as_stored(), &watch);
        }
    }

    /// Drops a key that nobody watches.
    fn forget(&self, key: &str, watch: &Arc<Watch>) {
        let keys = &mut self.0.lock().keys;
        // The map's and the caller's; others are made under the lock.
        if Arc::strong_count(watch) == 2 && watch.held.lock().is_empty() {
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
            held.retain(|held| held.loss.is_watched());
            !held.is_empty() || Arc::strong_count(watch) > 1
        });
        *settled = keys.len();
    }
}

impl Watch {
    fn ring(&self) {
        self.touched.fetch_add(1, Ordering::AcqRel);
        self.bell.notify_waiters();
    }

    fn doubts(&self, key: &Arc<str>) -> Vec<Doubt> {
        let held = self.held.lock();
        held.iter().map(|held| Doubt { key: Arc::clone(key), owner: held.owner.clone() }).collect()
    }

    fn take(&self, is_meant: impl Fn(&Held) -> bool) -> Option<Held> {
        let mut held = self.held.lock();
        let at = held.iter().position(is_meant)?;
        Some(held.swap_remove(at))
    }

    fn told(&self, owner: &OwnerToken) -> Option<u64> {
        self.held.lock().iter().find(|held| held.owner == *owner).map(|held| held.told)
    }
}

impl Ear {
    /// The server said that this owner holds the key. Answers with the flag to raise when that is over, and with what
    /// is in doubt: this lease if the key was touched since, and all if others are thought to stand. Whichever answer was
    /// read last need not be the server's last.
    pub(super) fn hold(self, owner: &OwnerToken) -> (Loss, Vec<Doubt>) {
        let mut held = self.watch.held.lock();
        held.retain(|held| held.owner == *owner || held.loss.is_watched());
        let told = ANSWERS.fetch_add(1, Ordering::Relaxed);
        let known = held.iter_mut().find(|held| held.owner == *owner).map(|held| {
            held.told = told;
            held.loss.clone()
        });
        let loss = known.unwrap_or_else(|| {
            let loss = Loss::new();
            held.push(Held { owner: owner.clone(), loss: loss.clone(), told });
            loss
        });
        let is_certain = held.len() == 1 && self.watch.touched.load(Ordering::Acquire) == self.seen;
        drop(held);
        let doubts = if is_certain { Vec::new() } else { self.watch.doubts(&self.key) };
        self.watches.sweep();
        (loss, doubts)
    }

    /// Has [`touched`](Self::touched) heed only what happens from now on.
    #[cfg(feature = "redis")]
    pub(super) fn listen_anew(&mut self) {
        self.seen = self.watch.touched.load(Ordering::Acquire);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_is_no_loss_for_the_next_holder() {
        let watches = Arc::new(Watches::default());
        let key = Key::new("", "job").unwrap();
        let owners = [OwnerToken::mint().unwrap(), OwnerToken::mint().unwrap()];
        let (first, _) = watches.listen(&key).hold(&owners[0]);
        // The answer to the removal is looked at only after the next one was told of its grant.
        let (next, doubts) = watches.listen(&key).hold(&owners[1]);
        assert_eq!(doubts.len(), 2);
        watches.gone(&key, &owners[0]);
        assert!(first.raised().is_some() && next.raised().is_none());
        watches.gone(&key, &owners[1]);
        assert!(next.raised().is_some());
    }

    #[test]
    fn a_question_says_nothing_of_what_was_granted_after_it() {
        let watches = Arc::new(Watches::default());
        let (key, owner) = (Key::new("", "job").unwrap(), OwnerToken::mint().unwrap());
        let hold = || watches.listen(&key).hold(&owner).0;
        let first = hold();
        let doubts = watches.touched(key.as_stored());
        let questions = watches.questions(&doubts);
        // Lost, and given back, before the answer to the question is looked at.
        watches.gone(&key, &owner);
        let second = hold();
        assert!(first.raised().is_some());
        let doubt = watches.lost(&questions[0]).expect("the doubt stays");
        assert!(second.raised().is_none());
        // The same by a repeated grant.
        let questions = watches.questions(&[doubt]);
        hold();
        let doubt = watches.lost(&questions[0]).expect("the doubt stays");
        assert!(second.raised().is_none());
        // And now it is known.
        let questions = watches.questions(std::slice::from_ref(&doubt));
        assert!(watches.lost(&questions[0]).is_none());
        assert!(second.raised().is_some());
        assert!(watches.questions(&[doubt]).is_empty());
    }
}
