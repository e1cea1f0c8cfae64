//! Every way in which work under a lease can end, in both forms of it.

use std::future::Future;
use std::time::Duration;

use leasehold::{LeaseHandle, LockManager, LostReason, Wait};
use tokio::sync::oneshot::{Receiver, Sender, channel};

use super::{SOON, Secrets, at_rest, held, soon};

/// Far longer than it takes to be granted a lease: it counts from before that.
const MAX_HOLD: Duration = Duration::from_secs(3);

/// Work that is given as an async closure.
pub(super) async fn closures(locks: &LockManager, others: &LockManager, secrets: &Secrets) {
    let note = async |lease: LeaseHandle| secrets.note_work(locks, &lease).await;
    locks.with_lock("scoped", note).await.unwrap().into_value().unwrap();
    locks.try_with_lock("scoped-try", note).await.unwrap().unwrap().into_value().unwrap();
    let taken = held(others, "scoped-taken", secrets).await;
    assert!(locks.try_with_lock("scoped-taken", note).await.unwrap().is_none());
    taken.release().await.unwrap();

    let (panicking, noted) = (locks.clone(), secrets.clone());
    let work = tokio::spawn(async move {
        let work = panicking.with_lock("scoped-panic", async |lease| {
            noted.note_work(&panicking, &lease).await;
            by_design();
        });
        work.await.map(drop)
    });
    assert!(work.await.unwrap_err().is_panic());

    let (started, has_started) = channel();
    let work = locks.with_lock("scoped-dropped", async move |lease| {
        secrets.note_work(locks, &lease).await;
        goes_on(started).await;
    });
    dropped_when(has_started, work).await;
    at_rest(locks).await;

    let lost = locks.lock("scoped-lost").max_hold(MAX_HOLD);
    let lost = lost.run(async |lease| {
        secrets.note_work(locks, &lease).await;
        std::future::pending::<()>().await;
    });
    assert_eq!(soon(lost).await.unwrap_err().lost_reason(), Some(LostReason::MaxHold));
}

/// The same of work that is given as a closure that makes a future.
pub(super) async fn futures(locks: &LockManager, others: &LockManager, secrets: &Secrets) {
    let lock = |name: &str| locks.lock(name).wait(Wait::UpTo(SOON));
    let note = |lease: LeaseHandle| async move { secrets.note_work(locks, &lease).await };
    lock("future").run_future(note).await.unwrap().unwrap().into_value().unwrap();
    let taken = held(others, "future-taken", secrets).await;
    assert!(lock("future-taken").wait(Wait::No).run_future(note).await.unwrap().is_none());
    taken.release().await.unwrap();

    let (panicking, noting, noted) = (lock("future-panic"), locks.clone(), secrets.clone());
    let work = tokio::spawn(async move {
        let work = panicking.run_future(|lease| async move {
            noted.note_work(&noting, &lease).await;
            by_design();
        });
        work.await.map(drop)
    });
    assert!(work.await.unwrap_err().is_panic());

    let (started, has_started) = channel();
    let dropped = lock("future-dropped");
    let work = dropped.run_future(|lease| async move {
        secrets.note_work(locks, &lease).await;
        goes_on(started).await;
    });
    dropped_when(has_started, work).await;
    at_rest(locks).await;

    let lost = lock("future-lost").max_hold(MAX_HOLD);
    let lost = lost.run_future(|lease| async move {
        secrets.note_work(locks, &lease).await;
        std::future::pending::<()>().await;
    });
    assert_eq!(soon(lost).await.unwrap_err().lost_reason(), Some(LostReason::MaxHold));
}

#[expect(clippy::panic, reason = "that is the test")]
fn by_design() {
    panic!("by design");
}

async fn goes_on(started: Sender<()>) {
    started.send(()).unwrap();
    std::future::pending().await
}

/// Drops the work when it has started.
async fn dropped_when<T>(has_started: Receiver<()>, work: impl Future<Output = T>) {
    tokio::select! {
        _ = work => unreachable!("it goes on"),
        started = soon(has_started) => started.unwrap(),
    }
}
