//! A claim that outlives its call.

use std::sync::Arc;
use std::time::Duration;

use crate::store::{Claim, HolderInfo, Share, Tie};
use crate::types::{Key, OwnerToken};

#[derive(Clone, Debug)]
pub(super) struct OwnedClaim {
    pub(super) key: Key,
    pub(super) owner: OwnerToken,
    pub(super) ttl: Duration,
    pub(super) tie: Option<Tie>,
    waits: bool,
    share: Share,
    holder: Option<Arc<HolderInfo>>,
}

impl OwnedClaim {
    pub(super) fn new(claim: &Claim<'_>) -> Self {
        let Claim { key, owner, ttl, waits, share, tie, holder } = *claim;
        Self { key: key.clone(), owner: owner.clone(), ttl, tie, waits, share, holder: holder.cloned() }
    }

    pub(super) const fn borrow(&self) -> Claim<'_> {
        let Self { key, owner, ttl, tie, waits, share, holder } = self;
        Claim { key, owner, ttl: *ttl, tie: *tie, waits: *waits, share: *share, holder: holder.as_ref() }
    }
}
