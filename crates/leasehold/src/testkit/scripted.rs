//! A store that follows a script.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::thread;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::error::{Error, ErrorKind, Operation, Result};
use crate::store::{
    Attempt, Capabilities, Claim, Fencing, Grant, Inspection, Listing, Page, Probe, Removed, Scope, Store,
};
use crate::types::{Key, OwnerToken};

/// A store that expects certain calls, in order, and answers each as the script says.
///
/// A call that is not the next one of the script is answered with [`ErrorKind::Rejected`] and remembered. Clones are
/// the same store; the last one panics when it is dropped, unless the whole script was followed or
/// [`verify`](Self::verify) was asked.
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::{Key, OwnerToken, testkit::ScriptedStore};
/// # use leasehold::store::{Attempt, Claim, Grant, Store};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let ttl = Duration::from_secs(30);
/// let store = ScriptedStore::new()
///     .on_acquire("nightly", Ok(Attempt::Acquired(Grant::new(ttl))))
///     .on_release("nightly", Ok(true));
/// let (key, owner) = (Key::new("docs", "nightly")?, OwnerToken::mint()?);
/// store.acquire(&Claim::new(&key, &owner, ttl)).await?;
/// assert!(store.verify().is_err(), "the release is still to come");
/// store.release(&key, &owner).await?;
/// assert!(store.verify().is_ok());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ScriptedStore {
    capabilities: Capabilities,
    script: Arc<Mutex<Script>>,
}

#[derive(Default)]
struct Script {
    steps: VecDeque<(String, Answer)>,
    deviations: Vec<String>,
    verified: bool,
}

enum Answer {
    Acquire(Result<Attempt>),
    Extend(Result<Vec<Result<Option<Grant>>>>),
    Release(Result<bool>),
    Transfer(Result<Option<Grant>>),
    ForceRelease(Result<Option<Removed>>),
    Inspect(Result<Inspection>),
    List(Result<Listing>),
    Probe(Result<Probe>),
    Close(Result<()>),
}

impl ScriptedStore {
    /// A store of process scope that can do everything, with an empty script.
    pub fn new() -> Self {
        let capabilities = Capabilities::new(Scope::Process).fencing(Fencing::Monotonic).hand_over().lists();
        Self { capabilities, script: Arc::default() }
    }

    /// Sets what it says of itself.
    pub const fn with_capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// Then somebody acquires the key of this name.
    pub fn on_acquire(self, name: &str, answer: Result<Attempt>) -> Self {
        self.step(Operation::Acquire, name, Answer::Acquire(answer))
    }

    /// Then somebody extends leases on the keys of these names, in one call.
    pub fn on_extend(self, names: &[&str], answer: Result<Vec<Result<Option<Grant>>>>) -> Self {
        self.step(Operation::Extend, &names.join(", "), Answer::Extend(answer))
    }

    /// Then somebody releases the key of this name.
    pub fn on_release(self, name: &str, answer: Result<bool>) -> Self {
        self.step(Operation::Release, name, Answer::Release(answer))
    }

    /// Then somebody passes the key of this name on.
    pub fn on_transfer(self, name: &str, answer: Result<Option<Grant>>) -> Self {
        self.step(Operation::Transfer, name, Answer::Transfer(answer))
    }

    /// Then an operator removes the lease on the key of this name.
    pub fn on_force_release(self, name: &str, answer: Result<Option<Removed>>) -> Self {
        self.step(Operation::ForceRelease, name, Answer::ForceRelease(answer))
    }

    /// Then somebody asks who holds the key of this name.
    pub fn on_inspect(self, name: &str, answer: Result<Inspection>) -> Self {
        self.step(Operation::Inspect, name, Answer::Inspect(answer))
    }

    /// Then somebody lists the keys with this prefix.
    pub fn on_list(self, prefix: &str, answer: Result<Listing>) -> Self {
        self.step(Operation::List, prefix, Answer::List(answer))
    }

    /// Then somebody asks whether the store is reachable.
    pub fn on_probe(self, answer: Result<Probe>) -> Self {
        self.step(Operation::Probe, "", Answer::Probe(answer))
    }

    /// Then the store is closed.
    pub fn on_close(self, answer: Result<()>) -> Self {
        self.step(Operation::Close, "", Answer::Close(answer))
    }

    /// Whether the script was followed to its end; otherwise what was different.
    ///
    /// # Errors
    ///
    /// A text with every unexpected call and every call that is still missing, one a line.
    pub fn verify(&self) -> Result<(), String> {
        let mut script = self.script.lock();
        script.verified = true;
        script.outcome()
    }

    fn step(self, operation: Operation, what: &str, answer: Answer) -> Self {
        self.script.lock().steps.push_back((describe(operation, what), answer));
        self
    }

    fn next(&self, operation: Operation, what: &str) -> Result<Answer> {
        let called = describe(operation, what);
        let mut script = self.script.lock();
        if script.steps.front().is_some_and(|(expected, _)| *expected == called)
            && let Some((_, answer)) = script.steps.pop_front()
        {
            return Ok(answer);
        }
        let expected = script.steps.front().map_or("nothing", |(expected, _)| expected);
        let deviation = format!("{called} was called, but {expected} was to come");
        script.deviations.push(deviation.clone());
        Err(Error::new(ErrorKind::Rejected, deviation))
    }
}

fn describe(operation: Operation, what: &str) -> String {
    format!("{operation} {what:?}")
}

/// The answer of a kind that the operation cannot give: excluded, because steps are found by their operation.
fn wrong_answer<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Rejected, "the script answers another operation"))
}

impl Script {
    fn outcome(&self) -> Result<(), String> {
        let missing = self.steps.iter().map(|(expected, _)| format!("{expected} was not called"));
        let lines: Vec<_> = self.deviations.iter().cloned().chain(missing).collect();
        if lines.is_empty() { Ok(()) } else { Err(lines.join("\n")) }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        if !self.verified
            && !thread::panicking()
            && let Err(outcome) = self.outcome()
        {
            panic!("the script was not followed:\n{outcome}");
        }
    }
}

impl Default for ScriptedStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ScriptedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let script = self.script.lock();
        let steps: Vec<_> = script.steps.iter().map(|(expected, _)| expected).collect();
        f.debug_struct("ScriptedStore").field("to_come", &steps).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for ScriptedStore {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt> {
        match self.next(Operation::Acquire, claim.key.name())? {
            Answer::Acquire(answer) => answer,
            _ => wrong_answer(),
        }
    }

    async fn extend(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        let names: Vec<_> = claims.iter().map(|claim| claim.key.name()).collect();
        match self.next(Operation::Extend, &names.join(", "))? {
            Answer::Extend(answer) => answer,
            _ => wrong_answer(),
        }
    }

    async fn release(&self, key: &Key, _owner: &OwnerToken) -> Result<bool> {
        match self.next(Operation::Release, key.name())? {
            Answer::Release(answer) => answer,
            _ => wrong_answer(),
        }
    }

    async fn transfer(&self, _from: &OwnerToken, claim: &Claim<'_>) -> Result<Option<Grant>> {
        match self.next(Operation::Transfer, claim.key.name())? {
            Answer::Transfer(answer) => answer,
            _ => wrong_answer(),
        }
    }

    async fn force_release(&self, key: &Key, _expected: Option<&OwnerToken>) -> Result<Option<Removed>> {
        match self.next(Operation::ForceRelease, key.name())? {
            Answer::ForceRelease(answer) => answer,
            _ => wrong_answer(),
        }
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        match self.next(Operation::Inspect, key.name())? {
            Answer::Inspect(answer) => answer,
            _ => wrong_answer(),
        }
    }

    async fn list(&self, prefix: &str, _page: Page) -> Result<Listing> {
        match self.next(Operation::List, prefix)? {
            Answer::List(answer) => answer,
            _ => wrong_answer(),
        }
    }

    async fn probe(&self) -> Result<Probe> {
        match self.next(Operation::Probe, "")? {
            Answer::Probe(answer) => answer,
            _ => wrong_answer(),
        }
    }

    async fn close(&self) -> Result<()> {
        match self.next(Operation::Close, "")? {
            Answer::Close(answer) => answer,
            _ => wrong_answer(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TTL: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn an_unexpected_call_is_rejected_and_told() {
        let store = ScriptedStore::new().on_release("one", Ok(true)).on_probe(Ok(Probe::new()));
        let (key, owner) = (Key::new("t", "one").unwrap(), OwnerToken::mint().unwrap());
        let error = store.acquire(&Claim::new(&key, &owner, TTL)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected);
        assert!(store.release(&key, &owner).await.unwrap());
        assert_eq!(
            store.verify().unwrap_err(),
            "acquire \"one\" was called, but release \"one\" was to come\nprobe \"\" was not called"
        );
    }

    #[tokio::test]
    #[should_panic(expected = "release \"one\" was not called")]
    async fn an_unfinished_script_panics_when_dropped() {
        drop(ScriptedStore::new().on_release("one", Ok(true)));
    }

    #[tokio::test]
    async fn every_operation_can_be_scripted() {
        let store = ScriptedStore::new()
            .on_extend(&["one", "one"], Ok(vec![Ok(None), Ok(Some(Grant::new(TTL)))]))
            .on_transfer("one", Ok(None))
            .on_force_release("one", Ok(None))
            .on_inspect("one", Ok(Inspection::default()))
            .on_list("t:", Ok(Listing::default()))
            .on_close(Ok(()));
        let (key, owner) = (Key::new("t", "one").unwrap(), OwnerToken::mint().unwrap());
        let claim = Claim::new(&key, &owner, TTL);
        assert_eq!(store.extend(&[claim, claim]).await.unwrap().len(), 2);
        assert!(store.transfer(&owner, &claim).await.unwrap().is_none());
        assert!(store.force_release(&key, None).await.unwrap().is_none());
        assert!(store.inspect(&key).await.unwrap().holders.is_empty());
        assert!(store.list("t:", Page::first(1)).await.unwrap().entries.is_empty());
        assert!(store.close().await.is_ok());
    }
}
