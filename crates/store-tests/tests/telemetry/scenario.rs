//! What happens: every way in which a call for a lease, and a lease, can end.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold::testkit::Residue;
use leasehold::{Close, ErrorKind, LeaseHandle, Lock, LockGuard, LockManager, LostReason, OwnerToken, Renew};
use parking_lot::Mutex;

use crate::story::Story;

mod scoped;

/// Five times and more of what anything here needs on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Short, so that it is over soon, and long enough for a first question on a busy machine.
const BRIEF: Duration = Duration::from_millis(500);

/// What must be shown nowhere, and what must.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Arc<Mutex<Vec<OwnerToken>>>);

impl Secrets {
    /// The tokens as text and as numbers.
    pub(crate) fn tokens(&self) -> Vec<String> {
        let tokens = self.0.lock();
        let numbers = |token: &OwnerToken| format!("{:?}", token.as_bytes()).trim_matches(['[', ']']).to_owned();
        tokens.iter().flat_map(|token| [token.expose(), numbers(token)]).collect()
    }

    pub(crate) fn fingerprints(&self) -> Vec<String> {
        self.0.lock().iter().map(OwnerToken::fingerprint).collect()
    }

    fn note(&self, guard: &LockGuard) {
        self.0.lock().push(guard.owner_token().clone());
    }

    /// Notes who holds the lease under which the work runs.
    async fn note_work(&self, locks: &LockManager, lease: &LeaseHandle) {
        let holder = locks.holder(lease.key().name()).await.unwrap().unwrap();
        self.0.lock().push(holder.owner);
    }
}

/// What it tells: each line is a key with what became of it, requests and polls left out.
const TOLD: &[&str] = &[
    "tried: acquiring, acquired, ended released, released",
    "taken: acquiring, contended",
    "overlong: acquiring, waiting, wait ended, timed out",
    "awaited: acquiring, waiting, wait ended, acquired, ended released, released",
    "given-up: acquiring, waiting, wait ended, cancelled",
    "scoped: acquiring, acquired, ended released, released",
    "scoped-try: acquiring, acquired, ended released, released",
    "scoped-taken: acquiring, contended",
    "scoped-panic: acquiring, acquired, ended released, released",
    "scoped-dropped: acquiring, acquired, ended released, dropped",
    "scoped-lost: acquiring, acquired, ended longest holding time reached, lost longest holding time reached, failed lost, dropped",
    "future: acquiring, acquired, ended released, released",
    "future-taken: acquiring, contended",
    "future-panic: acquiring, acquired, ended released, released",
    "future-dropped: acquiring, acquired, ended released, dropped",
    "future-lost: acquiring, acquired, ended longest holding time reached, lost longest holding time reached, failed lost, dropped",
    "extended: acquiring, acquired, ended released, dropped",
    "renewed: acquiring, acquired, renewed, ended released, released",
    "overrun: acquiring, acquired, ended expired, lost expired, release failed not held",
    PASSED,
    "closed: acquiring, acquired, ended closed, lost closed",
    "late: acquiring, failed closed",
];

/// Where leases can be passed on, and where they end with their session.
const PASSED: &str = "passed: acquiring, acquired, ended handed over, resumed, ended released, released";
const UNPASSED: &str = "passed: acquiring, acquired, failed unsupported, failed unsupported, ended released, released";

pub(crate) fn told(passes: bool) -> Vec<&'static str> {
    TOLD.iter().map(|line| if *line == PASSED && !passes { UNPASSED } else { line }).collect()
}

/// What is measured of it; of histograms, how often.
const MEASURED: &[&str] = &[
    "leasehold.acquire.duration{outcome=cancelled} 1",
    "leasehold.acquire.duration{outcome=contended} 3",
    "leasehold.acquire.duration{outcome=failed,type=closed} 1",
    "leasehold.acquire.duration{outcome=granted} 16",
    RESUMED,
    "leasehold.acquire.duration{outcome=timed out} 1",
    "leasehold.contentions{} 6",
    "leasehold.dropped{} 5",
    "leasehold.held{} 0",
    "leasehold.hold.duration{reason=closed} 1",
    "leasehold.hold.duration{reason=expired} 1",
    HANDED_OVER,
    "leasehold.hold.duration{reason=longest holding time reached} 2",
    "leasehold.hold.duration{reason=released} 12",
    "leasehold.lost{reason=closed} 1",
    "leasehold.lost{reason=expired} 1",
    "leasehold.lost{reason=longest holding time reached} 2",
    "leasehold.release.failures{type=not held} 1",
    "leasehold.waiters{} 0",
];

const RESUMED: &str = "leasehold.acquire.duration{outcome=resumed} 1";
const HANDED_OVER: &str = "leasehold.hold.duration{reason=handed over} 1";

pub(crate) fn measured(passes: bool) -> Vec<&'static str> {
    MEASURED.iter().copied().filter(|line| passes || ![RESUMED, HANDED_OVER].contains(line)).collect()
}

/// Plays it; `passes` says whether leases can be passed on.
pub(crate) async fn play(locks: &LockManager, others: &LockManager, story: &Story, passes: bool) -> Secrets {
    let secrets = Secrets::default();
    let guard = locks.lock("tried").try_acquire().await.unwrap().unwrap();
    secrets.note(&guard);
    guard.release().await.unwrap();
    calls_in_the_way(locks, others, story, &secrets).await;
    scoped::closures(locks, others, &secrets).await;
    scoped::futures(locks, others, &secrets).await;
    ends_of_leases(locks, story, &secrets).await;
    passed_on(locks, &secrets, passes).await;
    at_rest(locks).await;

    let guard = locks.lock("closed").acquire().await.unwrap();
    secrets.note(&guard);
    locks.close(Close::Release).await.unwrap();
    drop(guard);
    locks.lock("late").acquire().await.unwrap_err();
    // Another thread may be telling still.
    at_rest(locks).await;
    others.close(Close::Release).await.unwrap();
    secrets
}

async fn calls_in_the_way(locks: &LockManager, others: &LockManager, story: &Story, secrets: &Secrets) {
    let taken = held(others, "taken", secrets).await;
    assert!(locks.lock("taken").try_acquire().await.unwrap().is_none());
    let overlong = held(others, "overlong", secrets).await;
    assert!(locks.lock("overlong").acquire_within(BRIEF).await.unwrap().is_none());

    let awaited = held(others, "awaited", secrets).await;
    let waiter = waiting(locks.lock("awaited"));
    soon(story.until("awaited: acquiring, waiting")).await;
    awaited.release().await.unwrap();
    let guard = soon(waiter).await.unwrap();
    secrets.note(&guard);
    guard.release().await.unwrap();

    let given_up = held(others, "given-up", secrets).await;
    let waiter = waiting(locks.lock("given-up"));
    soon(story.until("given-up: acquiring, waiting")).await;
    waiter.abort();
    waiter.await.unwrap_err();
    for guard in [taken, overlong, given_up] {
        guard.release().await.unwrap();
    }
}

async fn ends_of_leases(locks: &LockManager, story: &Story, secrets: &Secrets) {
    let guard = locks.lock("extended").acquire().await.unwrap();
    secrets.note(&guard);
    guard.extend(SOON).await.unwrap();
    drop(guard);
    at_rest(locks).await;

    let guard = locks.lock("renewed").renew(Renew::Every(Duration::from_millis(100))).acquire().await.unwrap();
    secrets.note(&guard);
    soon(story.until("renewed: acquiring, acquired, renewed")).await;
    guard.release().await.unwrap();

    let guard = locks.lock("overrun").ttl(Duration::from_secs(9)).renew(Renew::Off).acquire().await.unwrap();
    secrets.note(&guard);
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    guard.release().await.unwrap_err();
}

async fn passed_on(locks: &LockManager, secrets: &Secrets, passes: bool) {
    let lock = locks.lock("passed");
    let guard = lock.acquire().await.unwrap();
    secrets.note(&guard);
    if passes {
        let token = guard.hand_over().await.unwrap();
        let resumed = lock.resume(&token).await.unwrap();
        secrets.note(&resumed);
        resumed.release().await.unwrap();
    } else {
        assert_eq!(guard.hand_over().await.unwrap_err().kind(), ErrorKind::Unsupported);
        let resumed = lock.resume(guard.owner_token()).await;
        assert_eq!(resumed.unwrap_err().kind(), ErrorKind::Unsupported);
        guard.release().await.unwrap();
    }
}

pub(crate) async fn held(others: &LockManager, name: &str, secrets: &Secrets) -> LockGuard {
    let guard = others.lock(name).try_acquire().await.unwrap().unwrap();
    secrets.note(&guard);
    guard
}

fn waiting(lock: Lock) -> tokio::task::JoinHandle<LockGuard> {
    tokio::spawn(async move { lock.acquire().await.unwrap() })
}

pub(crate) async fn at_rest(locks: &LockManager) {
    soon(async {
        while !Residue::of(locks).is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("it comes")
}
