//! What is under way for one owner of one key, beyond the calls that began it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::store::Loss;
use crate::types::{Key, OwnerToken};

/// The records of a quorum, as long as somebody has one in hand.
#[derive(Debug)]
pub(super) struct Records {
    nodes: usize,
    max_ttl: Duration,
    table: Mutex<HashMap<(Key, OwnerToken), Weak<Record>>>,
}

/// One owner of one key.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) key: Key,
    pub(super) owner: OwnerToken,
    records: Arc<Records>,
    state: Mutex<State>,
    /// Rung when the owner gave up, got a lease on one more node, or might have got one.
    pub(super) changed: Notify,
}

#[derive(Debug)]
struct State {
    /// Whether a grant that comes late is welcome.
    wanted: bool,
    /// The longest ttl that was asked for here.
    ttl: Option<Duration>,
    by_node: Vec<AtNode>,
}

#[derive(Clone, Debug, Default)]
struct AtNode {
    /// Releases that are sent and not answered: until they are, a grant may be gone as soon as it is given.
    undoing: u32,
    /// How many were ever sent.
    undos: u32,
    /// Whether it gave a lease that nothing was done about since.
    kept: bool,
    restoring: bool,
    loss: Option<Loss>,
}

impl Records {
    pub(super) fn new(nodes: usize, max_ttl: Duration) -> Arc<Self> {
        Arc::new(Self { nodes, max_ttl, table: Mutex::default() })
    }

    /// The record of an owner; a new one if there is none.
    pub(super) fn of(self: &Arc<Self>, key: &Key, owner: &OwnerToken) -> Arc<Record> {
        let mut table = self.table.lock();
        let place = table.entry((key.clone(), owner.clone())).or_default();
        place.upgrade().unwrap_or_else(|| {
            let state = State { wanted: true, ttl: None, by_node: vec![AtNode::default(); self.nodes] };
            let record = Arc::new(Record {
                key: key.clone(),
                owner: owner.clone(),
                records: Arc::clone(self),
                state: Mutex::new(state),
                changed: Notify::new(),
            });
            *place = Arc::downgrade(&record);
            record
        })
    }
}

impl Record {
    /// The owner asks for the lease.
    pub(super) fn want(&self, ttl: Duration) {
        let mut state = self.state.lock();
        state.wanted = true;
        state.ttl = state.ttl.max(Some(ttl));
    }

    /// The owner does not have the lease, and shall not get it.
    pub(super) fn give_up(&self) {
        self.state.lock().wanted = false;
        self.changed.notify_waiters();
    }

    /// Resolves when the owner has given up.
    pub(super) async fn given_up(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !self.is_wanted() {
                return;
            }
            changed.await;
        }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.state.lock().wanted
    }

    /// How long a lease of this owner can stand.
    pub(super) fn ttl(&self) -> Duration {
        self.state.lock().ttl.unwrap_or(self.records.max_ttl)
    }

    /// Takes a grant of one node, with its flag; `false` = it is not wanted any more and has to be given back.
    pub(super) fn keep(&self, index: usize, loss: Option<Loss>) -> bool {
        let mut state = self.state.lock();
        if state.wanted {
            let node = &mut state.by_node[index];
            (node.kept, node.loss) = (true, loss);
            self.changed.notify_waiters();
        }
        state.wanted
    }

    /// The nodes that gave a lease which was kept, and has to be given back if the owner does not get it.
    pub(super) fn kept(&self) -> Vec<usize> {
        let state = self.state.lock();
        state.by_node.iter().enumerate().filter(|(_, node)| node.kept).map(|(index, _)| index).collect()
    }

    /// The flags of the nodes that gave one. That of a node which is just being given its lease back is an old one.
    pub(super) fn losses(&self) -> Vec<Loss> {
        let state = self.state.lock();
        state.by_node.iter().filter(|node| !node.restoring).filter_map(|node| node.loss.clone()).collect()
    }

    pub(super) fn is_undoing(&self, index: usize) -> bool {
        self.state.lock().by_node[index].undoing > 0
    }

    /// How many releases were ever sent to each node; `None` = one of them is not answered. What a node said counts only
    /// if this is the same number before and after.
    pub(super) fn undos(&self) -> Vec<Option<u32>> {
        self.state.lock().by_node.iter().map(|node| (node.undoing == 0).then_some(node.undos)).collect()
    }

    /// Begins to give back what stands on a node; `None` = it is wanted again.
    pub(super) fn undo(self: &Arc<Self>, index: usize) -> Option<Undoing> {
        let mut state = self.state.lock();
        if state.wanted {
            return None;
        }
        Some(self.begin_undo(&mut state, index))
    }

    /// Begins to give back what stands on a node, wanted or not.
    pub(super) fn undo_anyway(self: &Arc<Self>, index: usize) -> Undoing {
        self.begin_undo(&mut self.state.lock(), index)
    }

    fn begin_undo(self: &Arc<Self>, state: &mut State, index: usize) -> Undoing {
        let node = &mut state.by_node[index];
        node.undoing += 1;
        node.kept = false;
        node.undos = node.undos.wrapping_add(1);
        Undoing(Arc::clone(self), index)
    }

    /// Begins to give a lease back to a node that lost it; `None` = not wanted, or under way.
    pub(super) fn restore(self: &Arc<Self>, index: usize) -> Option<Restoring> {
        let mut state = self.state.lock();
        let wanted = state.wanted;
        let node = &mut state.by_node[index];
        if !wanted || node.restoring || node.undoing > 0 {
            return None;
        }
        node.restoring = true;
        Some(Restoring(Arc::clone(self), index))
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let mut table = self.records.table.lock();
        let name = (self.key.clone(), self.owner.clone());
        // Unless there is a newer one by now.
        if table.get(&name).is_some_and(|record| record.strong_count() == 0) {
            table.remove(&name);
        }
    }
}

/// Lasts until a release was answered.
#[derive(Debug)]
pub(super) struct Undoing(Arc<Record>, usize);

impl Undoing {
    pub(super) const fn record(&self) -> &Arc<Record> {
        &self.0
    }

    pub(super) const fn index(&self) -> usize {
        self.1
    }
}

impl Drop for Undoing {
    fn drop(&mut self) {
        self.0.state.lock().by_node[self.1].undoing -= 1;
    }
}

/// Lasts until a lease was given back to its node, or not.
#[derive(Debug)]
pub(super) struct Restoring(Arc<Record>, usize);

impl Drop for Restoring {
    fn drop(&mut self) {
        self.0.state.lock().by_node[self.1].restoring = false;
        self.0.changed.notify_waiters();
    }
}
