//! What a manager still holds on to: for tests that nothing is left behind.

use crate::manager::LockManager;

/// What a manager holds on to at one moment. All zero when nobody waits, holds or gives back.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Residue {
    /// Keys for which somebody stands in the local line.
    pub lines: usize,
    /// Leases that are looked after.
    pub leases: usize,
    /// Undos and releases under way, and work that runs under a lease.
    pub background: usize,
    /// Events that observers are yet to be told.
    pub events: usize,
}

impl Residue {
    /// What `manager` holds on to now.
    pub fn of(manager: &LockManager) -> Self {
        let engine = manager.engine();
        Self {
            lines: engine.lines.len(),
            leases: engine.renewals.len(),
            background: engine.background.running(),
            events: engine.teller.untold(),
        }
    }

    /// Whether there is nothing.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}
