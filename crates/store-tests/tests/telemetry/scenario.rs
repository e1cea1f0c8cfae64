//! What happens: every way in which a call for a lease, and a lease, can end.

use std::future::Future;
use std::time::Duration;

use leasehold::testkit::Residue;
use leasehold::{Close, Lock, LockGuard, LockManager, LostReason, Renew, Wait};

use crate::story::Story;

/// Five times and more of what anything here needs on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Short, so that it is over soon; on a slow machine only a longer wait.
const BRIEF: Duration = Duration::from_millis(20);

/// What must be shown nowhere, and what must.
pub(crate) struct Secrets {
    pub(crate) tokens: Vec<String>,
    pub(crate) fingerprints: Vec<String>,
}

impl Secrets {
    fn note(&mut self, guard: &LockGuard) {
        let token = guard.owner_token();
        self.tokens.push(token.expose());
        self.tokens.push(format!("{:?}", token.as_bytes()).trim_matches(['[', ']']).to_owned());
        self.fingerprints.push(token.fingerprint());
    }
}

/// What it tells: each line is a key with what became of it, requests and polls left out.
pub(crate) const TOLD: &[&str] = &[
    "tried: acquiring, acquired, ended released, released",
    "taken: acquiring, contended",
    "overlong: acquiring, waiting, wait ended, timed out",
    "awaited: acquiring, waiting, wait ended, acquired, ended released, released",
    "given-up: acquiring, waiting, wait ended, cancelled",
    "scoped: acquiring, acquired, ended released, released",
    "scoped-try: acquiring, acquired, ended released, released",
    "scoped-taken: acquiring, contended",
    "scoped-future: acquiring, acquired, ended released, released",
    "panicking: acquiring, acquired, ended released, released",
    "dropped-work: acquiring, acquired, ended released, dropped",
    "extended: acquiring, acquired, ended released, dropped",
    "renewed: acquiring, acquired, renewed, ended released, released",
    "overrun: acquiring, acquired, ended expired, lost expired, release failed not held",
    "stopped: acquiring, acquired, ended longest holding time reached, lost longest holding time reached, failed lost, dropped",
    "closed: acquiring, acquired, ended closed, lost closed",
    "late: acquiring, failed closed",
];

/// What is measured of it; of histograms, how often.
pub(crate) const MEASURED: &[&str] = &[
    "leasehold.acquire.duration{outcome=cancelled} 1",
    "leasehold.acquire.duration{outcome=contended} 2",
    "leasehold.acquire.duration{outcome=failed,type=closed} 1",
    "leasehold.acquire.duration{outcome=granted} 12",
    "leasehold.acquire.duration{outcome=timed out} 1",
    "leasehold.contentions{} 5",
    "leasehold.dropped{} 3",
    "leasehold.held{} 0",
    "leasehold.hold.duration{reason=closed} 1",
    "leasehold.hold.duration{reason=expired} 1",
    "leasehold.hold.duration{reason=longest holding time reached} 1",
    "leasehold.hold.duration{reason=released} 9",
    "leasehold.lost{reason=closed} 1",
    "leasehold.lost{reason=expired} 1",
    "leasehold.lost{reason=longest holding time reached} 1",
    "leasehold.release.failures{type=not held} 1",
    "leasehold.waiters{} 0",
];

pub(crate) async fn play(locks: &LockManager, others: &LockManager, story: &Story) -> Secrets {
    let mut secrets = Secrets { tokens: Vec::new(), fingerprints: Vec::new() };
    let guard = locks.lock("tried").try_acquire().await.unwrap().unwrap();
    secrets.note(&guard);
    guard.release().await.unwrap();
    calls_in_the_way(locks, others, story, &mut secrets).await;
    scoped_work(locks, others, &mut secrets).await;
    ends_of_leases(locks, story, &mut secrets).await;
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

async fn calls_in_the_way(locks: &LockManager, others: &LockManager, story: &Story, secrets: &mut Secrets) {
    let taken = held(others, "taken").await;
    assert!(locks.lock("taken").try_acquire().await.unwrap().is_none());
    let overlong = held(others, "overlong").await;
    assert!(locks.lock("overlong").acquire_within(BRIEF).await.unwrap().is_none());

    let awaited = held(others, "awaited").await;
    let waiter = waiting(locks.lock("awaited"));
    soon(story.until("awaited: acquiring, waiting")).await;
    awaited.release().await.unwrap();
    let guard = soon(waiter).await.unwrap();
    secrets.note(&guard);
    guard.release().await.unwrap();

    let given_up = held(others, "given-up").await;
    let waiter = waiting(locks.lock("given-up"));
    soon(story.until("given-up: acquiring, waiting")).await;
    waiter.abort();
    waiter.await.unwrap_err();
    for guard in [taken, overlong, given_up] {
        guard.release().await.unwrap();
    }
}

async fn scoped_work(locks: &LockManager, others: &LockManager, secrets: &mut Secrets) {
    locks.with_lock("scoped", async |_| ()).await.unwrap().into_value().unwrap();
    locks.try_with_lock("scoped-try", async |_| ()).await.unwrap().unwrap().into_value().unwrap();
    let taken = held(others, "scoped-taken").await;
    assert!(locks.try_with_lock("scoped-taken", async |_| ()).await.unwrap().is_none());
    taken.release().await.unwrap();
    let future = locks.lock("scoped-future").wait(Wait::UpTo(SOON));
    future.run_future(|_| async {}).await.unwrap().unwrap().into_value().unwrap();

    let panicking = locks.clone();
    #[expect(clippy::panic, reason = "that is the test")]
    let work = tokio::spawn(async move { panicking.with_lock("panicking", async |_| panic!("by design")).await });
    assert!(work.await.unwrap_err().is_panic());

    let (started, has_started) = tokio::sync::oneshot::channel();
    let dropped = locks.lock("dropped-work");
    let work = tokio::spawn(async move {
        dropped
            .run_future(|_| async {
                started.send(()).unwrap();
                std::future::pending::<()>().await;
            })
            .await
    });
    soon(has_started).await.unwrap();
    work.abort();
    work.await.unwrap_err();
    at_rest(locks).await;
    let guard = locks.lock("extended").acquire().await.unwrap();
    secrets.note(&guard);
    guard.extend(SOON).await.unwrap();
    drop(guard);
    at_rest(locks).await;
}

async fn ends_of_leases(locks: &LockManager, story: &Story, secrets: &mut Secrets) {
    let guard = locks.lock("renewed").renew(Renew::Every(Duration::from_millis(100))).acquire().await.unwrap();
    secrets.note(&guard);
    soon(story.until("renewed: acquiring, acquired, renewed")).await;
    guard.release().await.unwrap();

    let guard = locks.lock("overrun").ttl(Duration::from_secs(2)).renew(Renew::Off).acquire().await.unwrap();
    secrets.note(&guard);
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    guard.release().await.unwrap_err();

    let stopped = locks.lock("stopped").max_hold(Duration::from_secs(1));
    let stopped = soon(stopped.run_future(|_| std::future::pending::<()>())).await;
    assert_eq!(stopped.unwrap_err().lost_reason(), Some(LostReason::MaxHold));
}

pub(crate) async fn held(others: &LockManager, name: &str) -> LockGuard {
    others.lock(name).try_acquire().await.unwrap().unwrap()
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
