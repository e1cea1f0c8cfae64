//! A claim that outlives its call.

use std::sync::Arc;
use std::time::Duration;

use crate::store::{Claim, HolderInfo, Share, Tie};
use crate::types::{Key, OwnerToken};

#[derive(Clone, Debug)]
pub(crate) struct OwnedClaim {
    pub(crate) key: Key,
    pub(crate) owner: OwnerToken,
    pub(crate) ttl: Duration,
    pub(crate) tie: Option<Tie>,
    waits: bool,
    takes_turns: bool,
    share: Share,
    holder: Option<Arc<HolderInfo>>,
}

impl OwnedClaim {
    pub(crate) fn new(claim: &Claim<'_>) -> Self {
        let Claim { key, owner, ttl, waits, takes_turns, share, tie, holder } = *claim;
        Self { key: key.clone(), owner: owner.clone(), ttl, tie, waits, takes_turns, share, holder: holder.cloned() }
    }

    pub(crate) const fn borrow(&self) -> Claim<'_> {
        let Self { key, owner, ttl, tie, waits, takes_turns, share, holder } = self;
        Claim {
            key,
            owner,
            ttl: *ttl,
            tie: *tie,
            waits: *waits,
            takes_turns: *takes_turns,
            share: *share,
            holder: holder.as_ref(),
        }
    }
}
