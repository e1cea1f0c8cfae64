//! Work under a lease: given back on every way out, stopped when the lease is lost.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

#[path = "fixtures/bed.rs"]
mod bed;

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use leasehold::store::memory::MemoryStore;
use leasehold::testkit::Fault;
use leasehold::{ErrorKind, LeaseHandle, Lock, LockManager, LostReason, Operation, Ran, Renew, Wait};
use parking_lot::Mutex;
use tokio::time::timeout;

use self::bed::{Bed, Happened, Recorder, SECOND, Shaped, TTL, at_rest, ms, others_run};

#[tokio::test(start_paused = true)]
async fn with_lock_waits_and_try_does_not() {
    for bed in [Bed::new(), Bed::polled()] {
        let (locks, others) = (bed.manager(), bed.manager());
        let holder = others.lock("shared").try_acquire().await.unwrap().unwrap();
        assert!(locks.try_with_lock("shared", async |_| panic!("ran")).await.unwrap().is_none());
        let upto = locks.lock("shared").wait(Wait::UpTo(SECOND));
        assert!(upto.run(async |_| panic!("ran")).await.unwrap().is_none());
        let waiting = tokio::spawn({
            let locks = locks.clone();
            async move { locks.with_lock("shared", async |lease| lease.check().is_ok()).await.unwrap().value }
        });
        tokio::time::sleep(2 * TTL).await;
        assert!(!waiting.is_finished());
        holder.release().await.unwrap();
        assert!(timeout(5 * SECOND, waiting).await.unwrap().unwrap());
        at_rest(&locks).await;
        assert_eq!(bed.held().await, Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn there_is_no_reentrancy() {
    let bed = Bed::new();
    let locks = bed.manager();
    let ran = locks
        .with_lock("nested", async |_| {
            let inner = locks.try_with_lock("nested", async |_| ()).await.unwrap();
            assert!(inner.is_none());
            locks.with_lock("other", async |_| 7).await.unwrap().value
        })
        .await
        .unwrap();
    assert_eq!(ran.into_value().unwrap(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_panic_goes_on_after_the_release() {
    let bed = Bed::new();
    let locks = bed.manager();
    let panicking = async |_| -> () {
        tokio::task::yield_now().await;
        panic!("at work");
    };
    let panic = caught(locks.with_lock("panic", panicking)).await.unwrap_err();
    assert_eq!(*panic.downcast_ref::<&str>().unwrap(), "at work");
    assert_eq!(bed.owner("panic").await, None, "given back before the panic went on");
    assert_eq!(bed.store.calls(Operation::Release), 1);
    at_rest(&locks).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_before_the_first_await_is_no_different() {
    let bed = Bed::new();
    let locks = bed.manager();
    let lock = locks.lock("panic");
    let work = |_| -> std::future::Ready<()> { panic!("at once") };
    let panic = caught(lock.run_future(work)).await.unwrap_err();
    assert_eq!(*panic.downcast_ref::<&str>().unwrap(), "at once");
    assert_eq!(bed.owner("panic").await, None, "given back before the panic went on");
    at_rest(&locks).await;
}

/// Polls a future to its end or its panic.
async fn caught<T>(future: impl Future<Output = T>) -> std::thread::Result<T> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| match std::panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => std::task::Poll::Ready(Err(panic)),
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_rethrown_even_if_the_release_fails() {
    let bed = Bed::new();
    let locks = bed.manager();
    bed.store.always(Operation::Release, Fault::hang());
    let panicking = tokio::spawn({
        let locks = locks.clone();
        async move { locks.with_lock("panic", async |_| -> () { panic!("at work") }).await }
    });
    assert!(timeout(TTL, panicking).await.unwrap().unwrap_err().is_panic());
}

#[tokio::test(start_paused = true)]
async fn cancelled_work_is_dropped_before_its_release_is_sent() {
    work_ends_before_the_release(async |locks, work| {
        let running = tokio::spawn(async move { locks.lock("order").run_future(work).await.map(drop) });
        others_run().await;
        running.abort();
        drop(running.await);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn work_of_a_closed_manager_is_dropped_before_its_release_is_sent() {
    work_ends_before_the_release(async |locks, work| {
        let running = tokio::spawn({
            let locks = locks.clone();
            async move { locks.lock("order").run_future(work).await }
        });
        others_run().await;
        locks.close(leasehold::Close::Release).await.unwrap();
        let error = running.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.lost_reason()), (ErrorKind::Lost, Some(LostReason::Closed)));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn work_beyond_its_longest_hold_is_dropped_before_its_release_is_sent() {
    work_ends_before_the_release(async |locks, work| {
        let error = locks.lock("order").max_hold(TTL / 2).run_future(work).await.unwrap_err();
        assert_eq!((error.kind(), error.lost_reason()), (ErrorKind::Lost, Some(LostReason::MaxHold)));
    })
    .await;
}

/// Runs work that never ends by itself, and checks at the moment of the release that it is gone.
async fn work_ends_before_the_release(run: impl AsyncFnOnce(LockManager, EndlessWork)) {
    let (alive, seen) = (Arc::new(()), Arc::new(Mutex::new(Vec::new())));
    let bed = Bed::shaped(|shaped| {
        let (alive, seen) = (Arc::downgrade(&alive), Arc::clone(&seen));
        shaped.on_call(move |operation| {
            if operation == Operation::Release {
                seen.lock().push(alive.strong_count());
            }
        })
    });
    let locks = bed.manager();
    let work: EndlessWork = Box::new(|lease| {
        Box::pin(async move {
            let _alive = alive;
            lease.check().unwrap();
            std::future::pending().await
        })
    });
    run(locks.clone(), work).await;
    at_rest(&locks).await;
    assert_eq!(bed.owner("order").await, None);
    assert_eq!(*seen.lock(), [0], "one release, with the work gone");
}

type EndlessWork = Box<dyn FnOnce(LeaseHandle) -> leasehold::store::BoxFuture + Send>;

#[tokio::test(start_paused = true)]
async fn lost_work_stops_before_the_deadline_of_the_store_and_is_told_why() {
    let bed = Bed::new();
    let locks = bed.manager();
    let running = tokio::spawn({
        let locks = locks.clone();
        async move { locks.with_lock("lost", async |_| std::future::pending::<()>().await).await }
    });
    others_run().await;
    bed.store.outage(Fault::hang());
    let error = running.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.lost_reason()), (ErrorKind::Lost, Some(LostReason::Expired)));
    assert!(bed.owner("lost").await.is_some(), "nobody else could hold it by then");
    assert_eq!(error.key().unwrap().name(), "lost");

    bed.store.heal();
    let running = tokio::spawn({
        let locks = locks.clone();
        async move { locks.with_lock("taken", async |_| std::future::pending::<()>().await).await }
    });
    others_run().await;
    locks.force_release("taken", None).await.unwrap().unwrap();
    let error = running.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.lost_reason()), (ErrorKind::Lost, Some(LostReason::NotHeld)));
}

#[tokio::test(start_paused = true)]
async fn after_a_suspend_the_work_is_not_polled_once_more() {
    let bed = Bed::new();
    let locks = bed.manager();
    let steps = Arc::new(AtomicU32::new(0));
    let go_on = Arc::new(tokio::sync::Notify::new());
    let running = tokio::spawn({
        let (locks, steps, go_on) = (locks.clone(), Arc::clone(&steps), Arc::clone(&go_on));
        async move {
            locks
                .with_lock("asleep", async |_| {
                    loop {
                        steps.fetch_add(1, Ordering::SeqCst);
                        go_on.notified().await;
                    }
                })
                .await
                .map(|ran: Ran<()>| ran.value)
        }
    });
    others_run().await;
    go_on.notify_one();
    others_run().await;
    assert_eq!(steps.load(Ordering::SeqCst), 2);
    bed.clock.suspend(2 * TTL);
    go_on.notify_one();
    let error = running.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.lost_reason()), (ErrorKind::Lost, Some(LostReason::Expired)));
    assert_eq!(steps.load(Ordering::SeqCst), 2);
    at_rest(&locks).await;
}

#[tokio::test(start_paused = true)]
async fn blocking_work_that_overran_keeps_its_value_and_hears_of_it() {
    let bed = Bed::new();
    let events = Recorder::default();
    let locks = bed.builder().observer(events.clone()).build().unwrap();
    let others = bed.manager();
    // Nothing else can run while the work blocks: time passes, renewals do not.
    let ran = locks
        .with_lock("blocked", async |lease| {
            bed.clock.suspend(2 * TTL);
            assert_eq!(lease.check().unwrap_err().lost_reason(), Some(LostReason::Expired));
            "done"
        })
        .await
        .unwrap();
    assert_eq!(ran.value, "done");
    let error = ran.release.unwrap_err();
    assert_eq!((error.kind(), error.lost_reason()), (ErrorKind::NotHeld, Some(LostReason::Expired)));
    assert_eq!(error.operation(), Some(Operation::Release));
    at_rest(&locks).await;
    assert_eq!(events.all(), [Happened::Lost(LostReason::Expired), Happened::Released(Some(ErrorKind::NotHeld))]);
    // What the next holder has is not touched.
    let guard = others.lock("blocked").try_acquire().await.unwrap().unwrap();
    guard.check().unwrap();
    assert!(bed.owner("blocked").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn the_work_s_own_result_stands_beside_that_of_the_release() {
    let bed = Bed::new();
    let locks = bed.manager();
    let ran = locks.with_lock("nested", async |_| Err::<u32, &str>("work")).await.unwrap();
    assert_eq!((ran.value, ran.release.is_ok()), (Err("work"), true));

    bed.store.always(Operation::Release, Fault::fail(ErrorKind::Unavailable));
    let ran = locks.with_lock("failing", async |_| Ok::<u32, &str>(7)).await.unwrap();
    assert_eq!(ran.value, Ok(7));
    assert_eq!(ran.release.as_ref().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(ran.into_value().unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn renewal_goes_on_while_the_work_waits_and_stops_with_it() {
    let bed = Bed::new();
    let locks = bed.manager();
    let ran = locks
        .with_lock("long", async |lease| {
            tokio::time::sleep(10 * TTL).await;
            lease.check()
        })
        .await
        .unwrap();
    ran.value.unwrap();
    ran.release.unwrap();
    let asked = bed.store.total_calls();
    tokio::time::sleep(10 * TTL).await;
    assert_eq!(bed.store.total_calls(), asked);
    let error = locks.lock("long").renew(Renew::Off).run(async |_| std::future::pending::<()>().await).await;
    assert_eq!(error.unwrap_err().lost_reason(), Some(LostReason::Expired));
}

#[tokio::test(start_paused = true)]
async fn a_handle_outlives_its_lease_and_says_so() {
    let bed = Bed::new();
    let locks = bed.manager();
    let handle = locks.with_lock("handle", async |lease| lease).await.unwrap().value;
    assert_eq!(handle.check().unwrap_err().lost_reason(), Some(LostReason::Released));
    assert_eq!(handle.lost().await, LostReason::Released);
    assert!(handle.remaining().is_zero());
}

// What has to compile: work with borrows, on any worker, behind a trait object, and in generic code.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_with_borrows_can_be_spawned() {
    let locks = LockManager::new(Shaped::new(&MemoryStore::new()));
    let tasks: Vec<_> = (0..8_u64)
        .map(|number| {
            let locks = locks.clone();
            tokio::spawn(async move {
                let (text, mut sum) = (format!("task {number}"), 0);
                let ran = locks
                    .with_lock("spawned", async |lease| {
                        tokio::task::yield_now().await;
                        sum += lease.fencing_token().unwrap().get();
                        text.len()
                    })
                    .await
                    .unwrap();
                assert_eq!(ran.value, text.len());
                sum
            })
        })
        .collect();
    let mut fences = Vec::new();
    for task in tasks {
        fences.push(task.await.unwrap());
    }
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), 8);
}

#[async_trait]
trait Job: Send + Sync {
    async fn run(&self, locks: &LockManager, log: &mut Vec<String>) -> leasehold::Result<()>;
}

struct Import(String);

#[async_trait]
impl Job for Import {
    async fn run(&self, locks: &LockManager, log: &mut Vec<String>) -> leasehold::Result<()> {
        let ran = locks
            .with_lock("import", async |lease| {
                tokio::task::yield_now().await;
                log.push(format!("{} under {}", self.0, lease.key()));
            })
            .await?;
        ran.into_value()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_can_stand_behind_a_trait_object() {
    let locks = LockManager::new(MemoryStore::new());
    let job: Box<dyn Job> = Box::new(Import("nightly".to_owned()));
    let log = tokio::spawn(async move {
        let mut log = Vec::new();
        job.run(&locks, &mut log).await.unwrap();
        log
    });
    assert_eq!(log.await.unwrap(), ["nightly under import"]);
}

fn spawn_under<T, F>(lock: Lock, work: impl FnOnce(LeaseHandle) -> F + Send + 'static) -> tokio::task::JoinHandle<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    tokio::spawn(async move { lock.run_future(work).await.unwrap().unwrap().value })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generic_code_can_spawn_work() {
    let locks = LockManager::new(MemoryStore::new());
    let work = |lease: LeaseHandle| async move {
        tokio::task::yield_now().await;
        lease.check().is_ok()
    };
    assert!(spawn_under(locks.lock("generic"), work).await.unwrap());
    let doubled = locks.lock("generic").run_future(async |lease: LeaseHandle| lease.ttl() + ms(1)).await;
    assert!(doubled.unwrap().is_some());
}
