//! What once went wrong at the seams of the engine, and must not again: closing against work that is under way,
//! requests that overtake each other, wake-ups that fire for nothing, observers that panic, numbers out of bounds.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

mod support {
    pub(crate) mod bent;
    pub(crate) mod rig;
}

use std::future::ready;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use leasehold::observe::{Event, Observer};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{Attempt, Contention, Grant, Wake};
use leasehold::testkit::{Fault, FaultStore, TestClock};
use leasehold::{
    Backoff, Clock, Close, ErrorKind, Jitter, Lock, LockGuard, LockManager, LostReason, Margin, Operation, OwnerToken,
    Renew,
};
use support::bent::BentStore;
use support::rig::{Rig, TTL, ms, reason, secs, settle, until_nothing_is_left};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

/// Waits for a lock in a task of its own.
fn waiting(lock: Lock, wait: Duration) -> tokio::task::JoinHandle<leasehold::Result<Option<LockGuard>>> {
    tokio::spawn(async move { lock.acquire_within(wait).await })
}

/// Stops the renewal task where it tells of a lease that expired, until it is told to go on.
#[derive(Debug)]
struct StopsAtLoss {
    reached: SyncSender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl Observer for StopsAtLoss {
    fn observe(&self, event: &Event) {
        if let Event::Lost(lost) = event
            && lost.reason == LostReason::Expired
        {
            self.reached.send(()).unwrap();
            self.go_on.lock().unwrap().recv().unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_while_another_thread_looks_for_what_is_due_ends_every_lease() {
    let (reached, at_loss) = sync_channel(1);
    let (go_on, told) = sync_channel(1);
    let store = FaultStore::new(MemoryStore::new());
    let observer = StopsAtLoss { reached, go_on: Mutex::new(told) };
    let manager = LockManager::builder(store.clone()).observer(observer).build().unwrap();
    let brief = manager.lock("brief").ttl(secs(1)).renew(Renew::Off).try_acquire().await.unwrap().unwrap();
    // Due some 10 ms after the other one expires, so that one look takes both.
    let lock = manager.lock("renewed").renew(Renew::Every(ms(998)));
    let renewed = lock.try_acquire().await.unwrap().unwrap();
    tokio::task::spawn_blocking(move || at_loss.recv_timeout(secs(60)).unwrap()).await.unwrap();
    let closed = timeout(secs(10), manager.close(Close::Release)).await;
    go_on.send(()).unwrap();
    closed.unwrap().unwrap();
    assert_eq!(reason(&renewed), Some(LostReason::Closed));
    let extends = store.calls(Operation::Extend);
    sleep(secs(1)).await;
    assert_eq!(store.calls(Operation::Extend), extends, "nothing is renewed after the end");
    drop(brief);
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_a_release_that_is_under_way() {
    for fault in [Fault::delay(ms(300)), Fault::delay_reply(ms(300)), Fault::lose_reply()] {
        let rig = Rig::new();
        let manager = rig.manager();
        let guard = manager.lock("k").try_acquire().await.unwrap().unwrap();
        rig.store.once(Operation::Release, fault.clone());
        let releasing = tokio::spawn(guard.release());
        settle().await;
        manager.close(Close::Release).await.unwrap();
        settle().await;
        assert!(rig.is_free("k").await, "{fault:?}");
        assert!(releasing.is_finished(), "{fault:?}");
        releasing.await.unwrap().unwrap();
        assert_eq!(rig.store.log().last().map(|call| call.operation), Some(Operation::Close), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_way_of_closing_is_the_one_that_counts() {
    let rig = Rig::new();
    let manager = rig.manager();
    let left = manager.lock("left").try_acquire().await.unwrap().unwrap();
    let (first, second) = tokio::join!(manager.close(Close::LeaveToTtl), manager.close(Close::Release));
    first.unwrap();
    second.unwrap();
    drop(left);
    settle().await;
    assert!(!rig.is_free("left").await);
    assert_eq!((rig.calls(Operation::Release), rig.calls(Operation::Close)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_after_a_place_was_granted_is_indeterminate_and_cleaned_up() {
    let rig = Rig::new();
    let (manager, other) = (rig.manager(), rig.manager());
    let held = other.lock("k").try_acquire().await.unwrap().unwrap();
    let waiter = waiting(manager.lock("k"), secs(20));
    settle().await;
    rig.store.once(Operation::Acquire, Fault::fail(ErrorKind::Unavailable));
    held.release().await.unwrap();
    let error = waiter.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Indeterminate, Some(Operation::Acquire)));
    until_nothing_is_left(&manager).await;
    assert!(rig.is_free("k").await);
    assert!(rig.now() < TTL, "no ttl did that");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_after_a_request_without_answer_is_indeterminate_and_cleaned_up() {
    let rig = Rig::new();
    let (manager, other) = (rig.manager(), rig.manager());
    let held = other.lock("k").try_acquire().await.unwrap().unwrap();
    rig.store.once(Operation::Acquire, Fault::apply_late(ms(500)));
    let waiter = waiting(manager.lock("k"), secs(20));
    sleep(ms(50)).await;
    rig.store.once(Operation::Acquire, Fault::fail(ErrorKind::Unavailable));
    held.release().await.unwrap();
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Indeterminate);
    sleep(ms(500)).await;
    until_nothing_is_left(&manager).await;
    assert!(rig.is_free("k").await);
    assert!(rig.now() < TTL, "no ttl did that");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_may_have_been_released_by_a_lost_request_is_told_as_indeterminate() {
    let rig = Rig::new();
    let lock = rig.manager().lock("k");
    let guard = lock.try_acquire().await.unwrap().unwrap();
    let stranger = OwnerToken::mint().unwrap();
    assert_eq!(lock.release_by(&stranger).await.unwrap_err().kind(), ErrorKind::NotHeld);
    rig.store.once(Operation::Release, Fault::lose_reply());
    assert_eq!(lock.release_by(&stranger).await.unwrap_err().kind(), ErrorKind::Indeterminate);
    assert_eq!(reason(&guard), None);
    let asked = rig.calls(Operation::Release);
    let error = lock.clone().ttl(Duration::ZERO).release_by(&stranger).await.unwrap_err();
    assert_eq!((error.kind(), rig.calls(Operation::Release)), (ErrorKind::InvalidInput, asked));
}

#[derive(Debug)]
struct Panics(fn(&Event) -> bool);

impl Observer for Panics {
    fn observe(&self, event: &Event) {
        assert!(!(self.0)(event), "the observer panics");
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_stops_no_renewal() {
    for on in [
        |event: &Event| matches!(event, Event::Lost(_)),
        |event: &Event| matches!(event, Event::Renewed(_)),
        |event: &Event| matches!(event, Event::StoreCall(call) if call.operation == Operation::Extend),
    ] {
        let rig = Rig::new();
        let manager = rig.builder().observer(Panics(on)).build().unwrap();
        let held = manager.lock("held").try_acquire().await.unwrap().unwrap();
        let brief = manager.lock("brief").renew(Renew::Off).ttl(secs(1)).try_acquire().await.unwrap().unwrap();
        sleep(3 * TTL).await;
        held.check().unwrap();
        assert_eq!(reason(&brief), Some(LostReason::Expired));
        held.release().await.unwrap();
        drop(brief);
        until_nothing_is_left(&manager).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_at_every_event_leaks_no_lease() {
    let rig = Rig::new();
    let manager = rig.builder().observer(Panics(|_| true)).build().unwrap();
    manager.lock("k").try_acquire().await.unwrap().unwrap().release().await.unwrap();
    assert!(rig.is_free("k").await);
    drop(manager.lock("k").try_acquire().await.unwrap());
    until_nothing_is_left(&manager).await;
    assert!(rig.is_free("k").await);
    assert_eq!(manager.with_lock("k", async |_| 7).await.unwrap().into_value().unwrap(), 7);
    let held = manager.lock("k").try_acquire().await.unwrap().unwrap();
    manager.close(Close::Release).await.unwrap();
    assert_eq!(reason(&held), Some(LostReason::Closed));
    assert!(rig.is_free("k").await);
}

/// As `grant`, for a quarter of the time.
fn quartered(mut grant: Grant) -> Grant {
    grant.validity /= 4;
    grant
}

#[tokio::test(start_paused = true)]
async fn a_lease_granted_for_much_less_than_was_asked_is_renewed_before_it_ends() {
    let rig = Rig::bent(|bent| {
        bent.acquire(|_, attempt| match attempt {
            Attempt::Acquired(grant) => Attempt::Acquired(quartered(grant)),
            contended => contended,
        })
        .extend(|_, answers| {
            let bend = |answer: leasehold::Result<Option<Grant>>| answer.map(|grant| grant.map(quartered));
            answers.map(|answers| answers.into_iter().map(bend).collect())
        })
    });
    let guard = rig.manager().lock("k").try_acquire().await.unwrap().unwrap();
    assert!(guard.remaining() < TTL / 4);
    sleep(10 * TTL).await;
    guard.check().unwrap();
    let calls = rig.calls(Operation::Extend);
    assert!((40..=400).contains(&calls), "{calls} calls in 300 s for validities of 7.5 s");
}

/// A store whose answer "held" is always the same.
fn answering(held: impl Fn() -> Contention + Send + Sync + 'static) -> Rig {
    Rig::bent(|bent| {
        bent.without_wakes().acquire(move |_, attempt| match attempt {
            Attempt::Contended(_) => Attempt::Contended(held()),
            acquired => acquired,
        })
    })
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_that_is_always_ready_makes_no_spin() {
    let answers: [fn() -> Contention; 4] = [
        || Contention::new().wake(Wake::Hint(Box::pin(ready(())))),
        || Contention::new().wake(Wake::Place(Box::pin(ready(())))),
        || Contention::new().retry_after(Duration::ZERO),
        || Contention::new().retry_after(Duration::ZERO).wake(Wake::Hint(Box::pin(ready(())))),
    ];
    for (number, held) in answers.into_iter().enumerate() {
        let rig = answering(held);
        let manager = rig.manager();
        let _held = manager.lock("k").try_acquire().await.unwrap().unwrap();
        assert!(manager.lock("k").acquire_within(secs(10)).await.unwrap().is_none());
        let calls = rig.calls(Operation::Acquire);
        assert!(calls < 400, "{calls} calls in 10 s with answer {number}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_longest_durations_are_no_cause_for_panic() {
    let rig = answering(|| Contention::new().retry_after(Duration::MAX));
    for share in [0.0, 1.0] {
        let steep = Backoff::new(ms(1), Duration::MAX, f64::MAX).unwrap().jitter(Jitter::from_fn(move || share));
        let manager = rig.builder().backoff(steep).build().unwrap();
        let held = manager.lock("k").max_hold(Duration::MAX).try_acquire().await.unwrap().unwrap();
        assert!(manager.lock("k").acquire_within(secs(60)).await.unwrap().is_none());
        let waiter = waiting(manager.lock("k"), Duration::MAX);
        sleep(secs(60)).await;
        held.release().await.unwrap();
        assert!(waiter.await.unwrap().unwrap().is_some(), "the release rang");
        until_nothing_is_left(&manager).await;
    }
    for share in [0.0, 0.01, 0.5] {
        let margin = Margin::new(share, Duration::MAX).unwrap();
        let error = rig.builder().margin(margin).build().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::InvalidConfig), "{error:?}");
    }
    let manager = rig.manager();
    assert_eq!(manager.lock("k").ttl(Duration::MAX).try_acquire().await.unwrap_err().kind(), ErrorKind::InvalidInput);
    let guard = manager.lock("k").try_acquire().await.unwrap().unwrap();
    assert_eq!(guard.extend(Duration::MAX).await.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_whose_time_is_up_just_when_an_answer_comes_are_told_promptly() {
    const BEAT: Duration = ms(5);
    let store = BentStore::new(MemoryStore::new()).without_wakes();
    let beat = Backoff::new(BEAT, BEAT, 1.0).unwrap().jitter(Jitter::from_fn(|| 1.0));
    let manager = LockManager::builder(store).backoff(beat).build().unwrap();
    let _held = manager.lock("k").try_acquire().await.unwrap().unwrap();
    let head = tokio::spawn({
        let lock = manager.lock("k");
        async move { lock.acquire().await.map(drop) }
    });
    for round in 0..60_u32 {
        let followers: Vec<_> = (0..40_u64)
            .map(|number| {
                let around = Duration::from_micros(number * 20) + BEAT * (1 + round % 3) - Duration::from_micros(400);
                tokio::spawn(timeout(secs(4), {
                    let lock = manager.lock("k");
                    async move { lock.acquire_within(around).await.map(|guard| guard.is_some()) }
                }))
            })
            .collect();
        for follower in followers {
            let told = follower.await.unwrap();
            assert!(matches!(told, Ok(Ok(false))), "in round {round}: {told:?}");
        }
    }
    head.abort();
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_too_late_sends_the_next_in_line_to_ask_at_once() {
    // The machine sleeps while the first request is under way.
    let clock = TestClock::start();
    let memory = MemoryStore::with_clock(Clock::tokio());
    let (asleep, once) = (clock.clone(), AtomicBool::new(true));
    let bent = BentStore::new(memory.clone()).without_wakes().acquire(move |_, attempt| {
        if once.swap(false, Ordering::Relaxed) {
            asleep.suspend(TTL);
        }
        attempt
    });
    let rig = Rig::of(clock, memory, bent);
    let rare = Backoff::new(secs(600), secs(600), 1.0).unwrap().jitter(Jitter::from_fn(|| 1.0));
    let manager = rig.builder().backoff(rare).build().unwrap();
    rig.store.once(Operation::Acquire, Fault::delay(ms(100)));
    rig.store.once(Operation::Release, Fault::delay(ms(100)));
    let head = waiting(manager.lock("k"), secs(900));
    settle().await;
    let due = waiting(manager.lock("k"), TTL / 2);
    let patient = waiting(manager.lock("k"), secs(900));
    assert_eq!(head.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    // Its own question was answered by "held": the late grant was not given back yet.
    assert!(due.await.unwrap().unwrap().is_none());
    assert!(rig.calls(Operation::Acquire) > 1, "the late grant was no answer");
    let granted = patient.await.unwrap().unwrap().unwrap();
    assert!(rig.now() < TTL + secs(10), "{:?}: the release rang", rig.now());
    granted.release().await.unwrap();
    until_nothing_is_left(&manager).await;
}

#[tokio::test(start_paused = true)]
async fn an_extend_that_waits_behind_a_hand_over_is_not_sent() {
    let rig = Rig::new();
    let manager = rig.manager();
    let guard = manager.lock("k").try_acquire().await.unwrap().unwrap();
    rig.store.once(Operation::Extend, Fault::delay_reply(secs(1)));
    let (token, extended) = tokio::join!(guard.hand_over(), guard.extend(secs(60)));
    let error = extended.unwrap_err();
    assert_eq!((error.kind(), error.lost_reason()), (ErrorKind::NotHeld, Some(LostReason::HandedOver)));
    assert_eq!(rig.calls(Operation::Extend), 1);
    assert_eq!(rig.holder("k").await.map(|holder| holder.owner), Some(token.unwrap()));
}

#[test]
fn an_extend_behind_a_renewal_on_a_runtime_that_stands_still_ends_by_the_deadline() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = FaultStore::new(MemoryStore::new());
    let (still, other) = (runtime(), runtime());
    let guard = still.block_on(async {
        let manager = LockManager::new(store.clone());
        let lock = manager.lock("k").ttl(secs(6)).renew(Renew::Every(ms(300)));
        let guard = lock.try_acquire().await.unwrap().unwrap();
        store.always(Operation::Extend, Fault::hang().silently());
        while store.calls(Operation::Extend) == 0 {
            // Not asleep: the runtime stops as soon as the request is under way.
            yield_now().await;
        }
        guard
    });
    store.heal();
    let error = other.block_on(async { timeout(secs(30), guard.extend(secs(6))).await }).unwrap().unwrap_err();
    assert_eq!((error.kind(), error.lost_reason()), (ErrorKind::NotHeld, Some(LostReason::Expired)));
    drop((guard, still));
}

#[tokio::test(start_paused = true)]
async fn the_longest_hold_is_told_from_an_ordinary_end() {
    let rig = Rig::new();
    let lock = rig.manager().lock("k").renew(Renew::Off);
    for (hold, expected) in [(TTL / 2, LostReason::MaxHold), (2 * TTL, LostReason::Expired)] {
        let guard = lock.clone().max_hold(hold).try_acquire().await.unwrap().unwrap();
        assert_eq!(guard.lost().await, expected);
        assert!(guard.release().await.is_err());
    }
    // Renewal that fails ends it before the longest hold does.
    let guard = rig.manager().lock("k").max_hold(4 * TTL).try_acquire().await.unwrap().unwrap();
    rig.store.always(Operation::Extend, Fault::fail(ErrorKind::Unavailable));
    assert_eq!(guard.lost().await, LostReason::Expired);
}
