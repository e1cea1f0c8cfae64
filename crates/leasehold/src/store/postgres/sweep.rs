//! Rows that nobody has used for a day go, a few at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::link::Link;
use super::wire::Parameter;

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
    /// The user may not delete what waiters leave.
    leaves_waits: AtomicBool,
}

impl Link {
    /// Looks at some rows after one grant in many; what one sweep does not do the next one does.
    pub(super) fn sweep_now_and_then(self: &Arc<Self>, granted: &str) {
        if fastrand::u32(..EVERY) > 0 || self.sweep.is_out.swap(true, Ordering::AcqRel) {
            return;
        }
        // A process that grants seldom begins elsewhere each time.
        let after = self.sweep.reached.lock().take().unwrap_or_else(|| granted.to_owned());
        let round = Round { link: Arc::clone(self), reached: None, may_again: true };
        tokio::spawn(round.go(after));
    }
}

/// One sweep. However it ends, also with its runtime, there may be another one.
struct Round {
    link: Arc<Link>,
    reached: Option<String>,
    may_again: bool,
}

impl Round {
    async fn go(mut self, after: String) {
        let Ok((wire, facts)) = self.link.wire().await else { return };
        let (statements, looking): (_, [Parameter<'_>; 2]) =
            (&self.link.statements, [(&after, Type::TEXT), (&ROWS, Type::INT8)]);
        // Where a table is missing the connection stays: that is told to the next who needs it.
        let forgetting = async {
            let may = facts.may_wait && !self.link.sweep.leaves_waits.load(Ordering::Relaxed);
            if may { wire.ask_aside(&statements.sweep_waits, &looking).await.map(drop) } else { Ok(()) }
        };
        let (swept, forgotten) = tokio::join!(biased; wire.ask_aside(&statements.sweep, &looking), forgetting);
        let is_refused = |error: &tokio_postgres::Error| error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
        self.may_again = !swept.as_ref().is_err_and(is_refused);
        if forgotten.as_ref().is_err_and(is_refused) {
            self.link.sweep.leaves_waits.store(true, Ordering::Relaxed);
        }
        if let Ok(rows) = swept {
            // After the last key comes the first one.
            self.reached = rows.first().map_or(Some(String::new()), |row| row.try_get(0).ok());
        }
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        *self.link.sweep.reached.lock() = self.reached.take();
        self.link.sweep.is_out.store(!self.may_again, Ordering::Release);
    }
}
