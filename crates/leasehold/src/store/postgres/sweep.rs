//! Rows that nobody has used for a day go, a few at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio_postgres::types::Type;

use super::link::Link;
use crate::error::ErrorKind;

/// One grant in so many is followed by a look at some rows.
const EVERY: u32 = 100;

/// At how many rows a sweep looks, which takes a few milliseconds: more than are made meanwhile, so that it gets round.
const ROWS: i64 = 500;

/// How far the rows were looked at.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// The last key; `None` = it begins anywhere.
    reached: Mutex<Option<String>>,
    /// One at a time; and none any more if the user may not.
    is_out: AtomicBool,
}

impl Link {
    /// Looks at some rows after one grant in many; what one sweep does not do the next one does.
    pub(super) fn sweep_now_and_then(self: &Arc<Self>, granted: &str) {
        if fastrand::u32(..EVERY) > 0 || self.sweep.is_out.swap(true, Ordering::AcqRel) {
            return;
        }
        // A process that grants seldom begins elsewhere each time.
        let after = self.sweep.reached.lock().take().unwrap_or_else(|| granted.to_owned());
        let link = Arc::clone(self);
        tokio::spawn(async move {
            let swept = link.change(&link.statements.sweep, &[(&after, Type::TEXT), (&ROWS, Type::INT8)]).await;
            let (reached, may_again) = match swept {
                // After the last key comes the first one.
                Ok(rows) => (rows.first().map_or(Some(String::new()), |row| row.try_get(0).ok()), true),
                Err(error) => (None, error.kind() != ErrorKind::Rejected),
            };
            *link.sweep.reached.lock() = reached;
            link.sweep.is_out.store(!may_again, Ordering::Release);
        });
    }
}
