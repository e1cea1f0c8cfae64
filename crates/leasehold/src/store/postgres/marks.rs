//! Which keys this process has marked as waited for, so that whoever releases them says so.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{Clock, Moment};

/// How long a mark counts for those who release.
pub(super) const MARK: Duration = Duration::from_secs(20);

/// After this long a key is marked anew: the rest is time enough for a slow request.
const FRESH: Duration = Duration::from_secs(10);

/// Below this many keys nothing is swept.
const FEW: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Marks(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// When the request was sent that marked a key.
    keys: HashMap<Arc<str>, Moment>,
    /// How many there were after the last sweep.
    settled: usize,
}

impl Marks {
    /// Whether the key is marked and need not be marked again.
    pub(super) fn has(&self, key: &str) -> bool {
        let now = Clock::system().now();
        self.0.lock().keys.get(key).is_some_and(|sent| now.since(*sent) < FRESH)
    }

    /// The key was marked by a request sent then.
    pub(super) fn add(&self, key: &str, sent: Moment) {
        let mut table = self.0.lock();
        let Table { keys, settled } = &mut *table;
        if keys.len() >= FEW && keys.len() >= 2 * *settled {
            let now = Clock::system().now();
            keys.retain(|_, sent| now.since(*sent) < FRESH);
            *settled = keys.len();
        }
        keys.insert(key.into(), sent);
    }

    /// The server may have lost them: they are not on its disk.
    pub(super) fn forget(&self) {
        self.0.lock().keys.clear();
    }
}
