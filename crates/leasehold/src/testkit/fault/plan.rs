//! Which faults are due, and what was asked for.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::error::{ErrorKind, Operation};
use crate::store::{OwnedClaim, Tie};
use crate::types::{Key, OwnerToken};

/// What a [`FaultStore`](super::FaultStore) does to a call.
#[derive(Clone, Debug)]
pub struct Fault {
    pub(super) effect: Effect,
    pub(super) silent: bool,
    key: Option<Key>,
}

#[derive(Clone, Debug)]
pub(super) enum Effect {
    Delay(Duration),
    DelayReply(Duration),
    Fail(ErrorKind),
    LoseReply,
    ApplyLate(Duration),
    Hang,
    Starve(Arc<Semaphore>),
}

impl Fault {
    /// The request is under way for this long before it is applied, also if its caller has given up by then.
    pub const fn delay(duration: Duration) -> Self {
        Self::new(Effect::Delay(duration))
    }

    /// The request is applied at once, but its answer is under way for this long.
    pub const fn delay_reply(duration: Duration) -> Self {
        Self::new(Effect::DelayReply(duration))
    }

    /// The request is not applied; the answer is an error of this kind.
    pub const fn fail(kind: ErrorKind) -> Self {
        Self::new(Effect::Fail(kind))
    }

    /// The request is applied and its answer lost: [`ErrorKind::Indeterminate`], or nothing if
    /// [`silent`](Self::silently).
    pub const fn lose_reply() -> Self {
        Self::new(Effect::LoseReply)
    }

    /// The answer is lost as with [`lose_reply`](Self::lose_reply), and the request applied this much later.
    pub const fn apply_late(duration: Duration) -> Self {
        Self::new(Effect::ApplyLate(duration))
    }

    /// The request is never applied and never answered.
    pub const fn hang() -> Self {
        Self::new(Effect::Hang).silently()
    }

    /// The request is held back until [`FaultStore::heal`](super::FaultStore::heal), then applied and answered. A
    /// caller that gives up before takes its request along.
    pub fn starve() -> Self {
        Self::new(Effect::Starve(gate()))
    }

    /// Where the answer is lost, the caller hears nothing for ever, rather than an error at once.
    pub const fn silently(mut self) -> Self {
        self.silent = true;
        self
    }

    /// Only calls for this key; of a batch, one such claim is enough.
    pub fn on(mut self, key: &Key) -> Self {
        self.key = Some(key.clone());
        self
    }

    const fn new(effect: Effect) -> Self {
        Self { effect, silent: false, key: None }
    }

    fn concerns(&self, calls: &[Call]) -> bool {
        self.key.is_none() || calls.iter().any(|call| call.key == self.key)
    }
}

/// Something that a [`FaultStore`](super::FaultStore) was asked for.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which call it was, from 0; the claims of a batch share it.
    pub number: usize,
    /// What was called.
    pub operation: Operation,
    /// For which key, if for a single one.
    pub key: Option<Key>,
    /// By which owner, if the call names one; of a transfer the new one.
    pub owner: Option<OwnerToken>,
    /// For how long, if the call is a claim.
    pub ttl: Option<Duration>,
    /// Tied to whom, if the claim says so.
    pub tie: Option<Tie>,
}

impl Call {
    pub(super) const fn new(operation: Operation, key: Option<Key>, owner: Option<OwnerToken>) -> Self {
        Self { number: 0, operation, key, owner, ttl: None, tie: None }
    }

    pub(super) fn of_claim(operation: Operation, claim: &OwnedClaim) -> Self {
        let call = Self::new(operation, Some(claim.key.clone()), Some(claim.owner.clone()));
        Self { ttl: Some(claim.ttl), tie: claim.tie, ..call }
    }
}

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) once: Vec<(Operation, Fault)>,
    pub(super) always: Vec<(Option<Operation>, Fault)>,
    /// Closed when the store is healed.
    pub(super) gate: Arc<Semaphore>,
    pub(super) count: usize,
    pub(super) log: Vec<Call>,
}

/// A gate for starved calls. It never has a permit: all that can happen to it is to be closed, which lets all pass.
pub(super) fn gate() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(0))
}

impl Default for Plan {
    fn default() -> Self {
        Self { once: Vec::new(), always: Vec::new(), gate: gate(), count: 0, log: Vec::new() }
    }
}

impl Plan {
    /// Records a call and says which fault is due for it.
    pub(super) fn begin(&mut self, operation: Operation, calls: Vec<Call>) -> Option<Fault> {
        let single = self.once.iter().position(|(of, fault)| *of == operation && fault.concerns(&calls));
        let fault = match single {
            Some(at) => Some(self.once.remove(at).1),
            None => self
                .always
                .iter()
                .rfind(|(of, fault)| of.is_none_or(|of| of == operation) && fault.concerns(&calls))
                .map(|(_, fault)| fault.clone()),
        };
        let number = self.count;
        self.count += 1;
        self.log.extend(calls.into_iter().map(|call| Call { number, ..call }));
        fault.map(|fault| match fault.effect {
            Effect::Starve(_) => Fault { effect: Effect::Starve(Arc::clone(&self.gate)), ..fault },
            _ => fault,
        })
    }
}
