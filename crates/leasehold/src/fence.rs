//! The resource's side of fencing: it refuses a token lower than the highest it has seen, and with it a holder that woke
//! up too late.
//!
//! A resource in this process is guarded by a [`FenceGate`]. One in a database keeps the highest token beside the data
//! and compares it in the statement that writes: [`SQLITE`] and [`REDIS_SET`] are such statements;
//! `docs/stores-postgres.md` has one for PostgreSQL. A check before the write, in a step of its own, is no fence: the
//! holder may sleep in between.

use std::fmt;

use parking_lot::Mutex;

use crate::error::{Error, ErrorKind, Result};
use crate::types::FencingToken;

/// For SQLite, in the transaction that writes: raises the highest token of a resource. If it changes no row, the token is
/// too low: roll back.
///
/// Parameters: `?1` the resource's name, `?2` the token.
pub const SQLITE: Statements = Statements {
    create: include_str!("fence/create.sql"),
    admit: include_str!("fence/admit.sql"),
    upsert: include_str!("fence/upsert.sql"),
};

/// For Redis: sets a key to a value unless a higher token was seen; answers 1 if it did and 0 if not.
///
/// `KEYS[1]` is the key, `KEYS[2]` keeps the highest token and has to be in the same slot of a cluster; `ARGV[1]` is the
/// token, `ARGV[2]` the value. Keep the second key as long as the first: without it every token is new.
pub const REDIS_SET: &str = include_str!("fence/set.lua");

/// Statements that fence writes to a database.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct Statements {
    /// Makes the table of highest tokens, unless it is there.
    pub create: &'static str,
    /// Raises the highest token of a resource (`?1`) to this one (`?2`); changes no row if that is too low. To be the
    /// first statement of the transaction that writes.
    pub admit: &'static str,
    /// An example of the other form, in which each row keeps the token it was written under: inserts or updates the row
    /// `?1` of the table `documents` with the content `?2`, unless it was written under a higher token than `?3`.
    pub upsert: &'static str,
}

/// A resource in this process that refuses holders that woke up too late.
///
/// The resource is reached through the gate only, so that nobody can sleep between the check and the write.
///
/// ```
/// use leasehold::FencingToken;
/// use leasehold::fence::FenceGate;
///
/// let (early, late) = (FencingToken::new(7), FencingToken::new(8));
/// let file = FenceGate::new(String::new());
/// file.enter(late, |content| content.push_str("new"))?;
/// assert!(file.enter(early, |content| content.push_str("old")).is_err());
/// assert_eq!(file.into_inner(), "new");
/// # Ok::<(), leasehold::Error>(())
/// ```
pub struct FenceGate<R> {
    state: Mutex<State<R>>,
}

struct State<R> {
    highest: Option<FencingToken>,
    resource: R,
}

impl<R> FenceGate<R> {
    /// A gate in front of a resource that has seen no token.
    pub const fn new(resource: R) -> Self {
        Self { state: Mutex::new(State { highest: None, resource }) }
    }

    /// A gate that refuses everything below `highest`: after a restart, or after a lease was removed by force
    /// ([`Removed::fence_floor`](crate::store::Removed::fence_floor)).
    pub const fn from_highest(resource: R, highest: FencingToken) -> Self {
        Self { state: Mutex::new(State { highest: Some(highest), resource }) }
    }

    /// Does something to the resource under a token. The same holder may come again; nobody with a lower token may.
    ///
    /// Others wait meanwhile: it must be quick and must not block.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotHeld`] if a higher token was seen: another holder has been here since.
    pub fn enter<T>(&self, token: FencingToken, act: impl FnOnce(&mut R) -> T) -> Result<T> {
        let mut state = self.state.lock();
        if let Some(highest) = state.highest.filter(|highest| token < *highest) {
            let message = format!("fenced off: token {token} is lower than {highest}, which another holder came with");
            return Err(Error::new(ErrorKind::NotHeld, message));
        }
        state.highest = Some(token);
        Ok(act(&mut state.resource))
    }

    /// The highest token that was seen.
    pub fn highest(&self) -> Option<FencingToken> {
        self.state.lock().highest
    }

    /// The resource, without its gate.
    pub fn into_inner(self) -> R {
        self.state.into_inner().resource
    }
}

impl<R> fmt::Debug for FenceGate<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceGate").field("highest", &self.highest()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lower_tokens_are_refused() {
        let gate = FenceGate::from_highest(Vec::new(), FencingToken::new(5));
        for (number, admitted) in [(4, false), (5, true), (5, true), (9, true), (8, false), (9, true), (10, true)] {
            let entered = gate.enter(FencingToken::new(number), |seen| seen.push(number));
            assert_eq!(entered.is_ok(), admitted, "{number}");
        }
        assert_eq!(gate.highest(), Some(FencingToken::new(10)));
        assert_eq!(gate.into_inner(), [5, 5, 9, 9, 10]);
    }
}
