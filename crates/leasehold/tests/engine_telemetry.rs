//! What observers are told: of every call and every lease, in order, whatever becomes of it; and that nothing an
//! observer does costs a lease.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

mod support {
    pub(crate) mod bent;
    pub(crate) mod rig;
}

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::{Context, Poll, Waker};

use leasehold::observe::{Event, Observer};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{Attempt, Capabilities, Grant, Scope};
use leasehold::testkit::{Fault, Residue, ScriptedStore};
use leasehold::{Close, ErrorKind, LockManager, LostReason, Operation, Renew, Wait};
use parking_lot::Mutex;
use support::rig::{Rig, TTL, ms, secs, settle, until_nothing_is_left};
use tokio::time::{sleep, timeout};

/// Writes down the names of events, and what gauges they make.
#[derive(Clone, Debug, Default)]
struct Names(Arc<Mutex<Told>>);

type Told = (Vec<String>, BTreeMap<&'static str, i64>);

impl Names {
    /// What was told since the last call, without requests to the store.
    async fn take(&self) -> String {
        // Paused time goes on when another thread that tells has done so.
        sleep(ms(1)).await;
        std::mem::take(&mut self.0.lock().0).join(" ")
    }

    fn gauge(&self, name: &str) -> i64 {
        self.0.lock().1.get(name).copied().unwrap_or_default()
    }
}

impl Observer for Names {
    fn observe(&self, event: &Event) {
        let (name, gauge) = match event {
            Event::Acquiring(_) => ("acquiring", Some(("calls", 1))),
            Event::Waiting(_) => ("waiting", Some(("waiters", 1))),
            Event::WaitEnded(_) => ("wait-ended", Some(("waiters", -1))),
            Event::Polled(_) => ("polled", None),
            Event::Acquired(_) => ("acquired", Some(("held", 1))),
            Event::Contended(_) => ("contended", None),
            Event::TimedOut(_) => ("timed-out", None),
            Event::Cancelled(_) => ("cancelled", None),
            Event::Resumed(_) => ("resumed", Some(("held", 1))),
            Event::Failed(_) => ("failed", None),
            Event::Ended(_) => ("ended", Some(("held", -1))),
            Event::Lost(_) => ("lost", None),
            Event::Released(it) if it.failed.is_some() => ("release-failed", None),
            Event::Released(_) => ("released", None),
            Event::Dropped(_) => ("dropped", None),
            _ => return,
        };
        let mut told = self.0.lock();
        told.0.push(name.to_owned());
        let ends_call = match event {
            Event::Failed(it) => it.operation == Operation::Acquire,
            Event::Acquired(_) | Event::Contended(_) | Event::TimedOut(_) | Event::Cancelled(_) => true,
            _ => false,
        };
        let ended = ends_call.then_some(("calls", -1));
        for (name, by) in gauge.into_iter().chain(ended) {
            *told.1.entry(name).or_default() += by;
        }
    }
}

fn observed(rig: &Rig) -> (LockManager, Names) {
    let names = Names::default();
    (rig.builder().observer(names.clone()).build().unwrap(), names)
}

#[tokio::test(start_paused = true)]
async fn every_call_tells_how_it_began_and_how_it_ended() {
    let rig = Rig::new();
    let (manager, told) = observed(&rig);
    let lock = manager.lock("k");
    let guard = lock.try_acquire().await.unwrap().unwrap();
    assert_eq!(told.take().await, "acquiring acquired");
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert_eq!(told.take().await, "acquiring contended");
    assert!(lock.acquire_within(ms(10)).await.unwrap().is_none());
    assert_eq!(told.take().await, "acquiring waiting polled wait-ended timed-out");
    let waiter = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap() }
    });
    settle().await;
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap();
    let told_of = told.take().await;
    assert!(told_of.starts_with("acquiring waiting ended "), "{told_of}");
    assert!(told_of.contains("released") && told_of.ends_with("polled wait-ended acquired"), "{told_of}");
    assert!(timeout(ms(10), lock.acquire()).await.is_err());
    assert_eq!(told.take().await, "acquiring waiting wait-ended cancelled");
    drop(guard);
    assert_eq!(told.take().await, "ended dropped");
    until_nothing_is_left(&manager).await;
    rig.store.once(Operation::Acquire, Fault::fail(ErrorKind::Rejected));
    assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::Rejected);
    assert_eq!(told.take().await, "acquiring failed");
    let brief = lock.clone().ttl(secs(1)).renew(Renew::Off).try_acquire().await.unwrap().unwrap();
    sleep(secs(1)).await;
    settle().await;
    assert_eq!(told.take().await, "acquiring acquired ended lost");
    assert_eq!(brief.release().await.unwrap_err().lost_reason(), Some(LostReason::Expired));
    assert_eq!(told.take().await, "release-failed");
    let token = lock.try_acquire().await.unwrap().unwrap().hand_over().await.unwrap();
    let resumed = lock.resume(&token).await.unwrap();
    assert_eq!(told.take().await, "acquiring acquired ended resumed");
    manager.close(Close::Release).await.unwrap();
    assert_eq!(told.take().await, "ended lost");
    drop(resumed);
    assert!(lock.try_acquire().await.is_err());
    assert_eq!(told.take().await, "acquiring failed");
    assert_eq!(["calls", "waiters", "held"].map(|gauge| told.gauge(gauge)), [0; 3]);
}

/// What is refused before the store is asked ends with one event, too.
#[tokio::test(start_paused = true)]
async fn a_call_that_makes_no_sense_is_told_as_failed() {
    let rig = Rig::new();
    let (manager, told) = observed(&rig);
    let (lock, hasty) = (manager.lock("k"), manager.lock("k").ttl(ms(1)));
    assert_eq!(hasty.try_acquire().await.unwrap_err().operation(), Some(Operation::Acquire));
    assert_eq!(told.take().await, "acquiring failed");
    assert!(hasty.run(async |_| ()).await.unwrap_err().store().is_some());
    assert_eq!(told.take().await, "acquiring failed");
    assert!(lock.clone().max_hold(ms(0)).acquire().await.is_err());
    assert_eq!(told.take().await, "acquiring failed");
    let guard = lock.try_acquire().await.unwrap().unwrap();
    told.take().await;
    assert_eq!(guard.extend(ms(1)).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(told.take().await, "failed");
    assert_eq!(hasty.resume(guard.owner_token()).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(told.take().await, "failed");
    assert_eq!(lock.extend_by(guard.owner_token(), ms(1)).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(told.take().await, "failed");
    // There is no key to tell of.
    assert!(manager.lock("").try_acquire().await.is_err());
    assert!(manager.force_release("a\nb", None).await.is_err());
    assert_eq!(told.take().await, "");
    assert_eq!(told.gauge("calls"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_that_cannot_be_is_told_as_failed() {
    let store = ScriptedStore::new()
        .with_capabilities(Capabilities::new(Scope::Process))
        .on_acquire("k", Ok(Attempt::Acquired(Grant::new(TTL))))
        .on_release("k", Ok(true));
    let told = Names::default();
    let manager = LockManager::builder(store).observer(told.clone()).build().unwrap();
    let guard = manager.lock("k").try_acquire().await.unwrap().unwrap();
    told.take().await;
    assert_eq!(guard.hand_over().await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(told.take().await, "failed");
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn contention_is_told_once_per_call_however_often_it_asks() {
    for rig in [Rig::new(), Rig::polled()] {
        let holder = rig.manager().lock("k").acquire().await.unwrap();
        let (manager, told) = observed(&rig);
        let waiters: Vec<_> = (0..20)
            .map(|_| {
                let lock = manager.lock("k");
                tokio::spawn(async move { lock.acquire_within(secs(20)).await.unwrap().is_none() })
            })
            .collect();
        for waiter in waiters {
            assert!(waiter.await.unwrap());
        }
        let told_of = told.take().await;
        let count = |name: &str| told_of.split(' ').filter(|told| *told == name).count();
        assert_eq!(["waiting", "wait-ended", "timed-out", "contended"].map(count), [20, 20, 20, 0], "{told_of}");
        assert_eq!(told.gauge("waiters"), 0);
        drop(holder);
    }
}

/// Every call of the library that takes or holds a lease, dropped at each of its awaits.
#[tokio::test(start_paused = true)]
async fn gauges_return_to_zero_wherever_a_future_is_dropped() {
    for fault in [None, Some(Fault::delay(ms(3))), Some(Fault::lose_reply())] {
        for held_by_another in [false, true] {
            for polls in 0..12 {
                let rig = Rig::new();
                let (manager, told) = observed(&rig);
                let other = rig.manager();
                let holder = if held_by_another { other.lock("k").try_acquire().await.unwrap() } else { None };
                if let Some(fault) = &fault {
                    rig.store.once(Operation::Acquire, fault.clone());
                    rig.store.once(Operation::Release, fault.clone());
                }
                let lock = manager.lock("k").wait(Wait::Forever);
                {
                    let mut work = pin!(lock.run(async |lease| {
                        tokio::task::yield_now().await;
                        lease.check().unwrap();
                        sleep(ms(1)).await;
                    }));
                    for _ in 0..polls {
                        let polled = work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                        if matches!(polled, Poll::Ready(_)) {
                            break;
                        }
                        sleep(ms(2)).await;
                    }
                }
                drop(holder);
                until_nothing_is_left(&manager).await;
                let gauges = ["calls", "waiters", "held"].map(|gauge| told.gauge(gauge));
                assert_eq!(gauges, [0; 3], "{fault:?}, {held_by_another}, {polls} polls");
            }
        }
    }
}

/// Says when it is told of an event of this kind, and then blocks until it is let go, once.
#[derive(Debug)]
struct Blocks {
    on: fn(&Event) -> bool,
    has_blocked: Arc<Mutex<bool>>,
    go_on: Mutex<Receiver<()>>,
    missed: Arc<Mutex<u64>>,
}

impl Observer for Blocks {
    fn observe(&self, event: &Event) {
        if let Event::Missed(it) = event {
            *self.missed.lock() += it.events;
        }
        if (self.on)(event) && !std::mem::replace(&mut *self.has_blocked.lock(), true) {
            self.go_on.lock().recv().ok();
        }
    }
}

/// An observer that blocks at the first event of this kind until the sender is dropped.
fn blocks(on: fn(&Event) -> bool) -> (Blocks, SyncSender<()>, Arc<Mutex<u64>>) {
    let (let_go, go_on) = sync_channel(1);
    let missed = Arc::<Mutex<u64>>::default();
    let observer = Blocks { on, has_blocked: Arc::default(), go_on: Mutex::new(go_on), missed: Arc::clone(&missed) };
    (observer, let_go, missed)
}

/// On a runtime with a single thread, since there everything stands still when that one is blocked.
#[tokio::test]
async fn an_observer_that_blocks_in_a_renewal_costs_no_lease() {
    let mut cases = Vec::new();
    for on in [
        |event: &Event| matches!(event, Event::Renewed(_)),
        |event: &Event| matches!(event, Event::Lost(_)),
        |event: &Event| matches!(event, Event::StoreCall(call) if call.operation == Operation::Extend),
    ] {
        let (observer, let_go, _) = blocks(on);
        let manager = LockManager::builder(MemoryStore::new()).ttl(secs(6)).observer(observer).build().unwrap();
        let brief = manager.lock("brief").ttl(secs(1)).renew(Renew::Off).try_acquire().await.unwrap().unwrap();
        let mut guards = Vec::new();
        for number in 0..5 {
            guards.push(manager.lock(&number.to_string()).try_acquire().await.unwrap().unwrap());
        }
        cases.push((manager, let_go, brief, guards));
    }
    sleep(secs(7)).await;
    for (manager, let_go, brief, guards) in cases {
        for guard in &guards {
            guard.check().unwrap();
        }
        // Others are served, and do not wait for the one that blocks.
        timeout(secs(10), manager.with_lock("other", async |_| ())).await.unwrap().unwrap().into_value().unwrap();
        drop(let_go);
        for guard in guards {
            guard.release().await.unwrap();
        }
        drop(brief);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_an_observer_blocks_holds_up_nobody_else() {
    let (observer, let_go, missed) = blocks(|event| matches!(event, Event::Acquired(it) if it.key.name() == "blocked"));
    let has_blocked = Arc::clone(&observer.has_blocked);
    let manager = LockManager::builder(MemoryStore::new()).ttl(secs(6)).observer(observer).build().unwrap();
    // The first, so that the renewal task, which tells elsewhere, sleeps when the call ends.
    let held = manager.lock("held").try_acquire().await.unwrap().unwrap();
    while Residue::of(&manager).events > 0 {
        sleep(ms(1)).await;
    }
    let lock = manager.lock("blocked");
    let blocked = tokio::spawn(async move { lock.acquire().await });
    while !*has_blocked.lock() {
        sleep(ms(1)).await;
    }
    // More events than are kept.
    for _ in 0..3000 {
        manager.lock("k").try_acquire().await.unwrap().unwrap().release().await.unwrap();
    }
    sleep(secs(7)).await;
    held.check().unwrap();
    drop(let_go);
    // It was renewed all the while.
    blocked.await.unwrap().unwrap().release().await.unwrap();
    held.release().await.unwrap();
    // What was kept is told by whoever comes first, the rest is counted.
    for _ in 0..1000 {
        if *missed.lock() > 0 {
            break;
        }
        manager.lock("k").try_acquire().await.unwrap().unwrap().release().await.unwrap();
        sleep(ms(10)).await;
    }
    assert!(*missed.lock() > 3000);
}

/// Jobs that block often run under the very leases that are told of.
#[test]
fn events_are_told_while_every_thread_for_blocking_work_is_busy() {
    let builder = &mut tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).max_blocking_threads(1).enable_time().build().unwrap();
    let told = Names::default();
    let (let_go, go_on) = sync_channel::<()>(1);
    runtime.block_on(async {
        let manager = LockManager::builder(MemoryStore::new()).observer(told.clone()).build().unwrap();
        let job = tokio::task::spawn_blocking(move || go_on.recv().is_ok());
        let lock = manager.lock("held").renew(Renew::Every(secs(1)));
        let held = lock.try_acquire().await.unwrap().unwrap();
        // Its renewal is to be told on such a thread.
        sleep(secs(2)).await;
        manager.lock("other").try_acquire().await.unwrap().unwrap().release().await.unwrap();
        // The next who has something to tell finds that nobody does.
        let all_told = async {
            while told.0.lock().0.join(" ") != "acquiring acquired acquiring acquired ended released" {
                held.check().unwrap();
                manager.lock("other").holder().await.unwrap();
                sleep(ms(20)).await;
            }
        };
        timeout(secs(30), all_told).await.unwrap();
        drop(let_go);
        held.release().await.unwrap();
        assert!(!job.await.unwrap());
    });
}

#[derive(Debug)]
struct Panics;

impl Observer for Panics {
    #[expect(clippy::panic, reason = "that is the test")]
    fn observe(&self, _: &Event) {
        panic!("an observer that panics");
    }
}

#[tokio::test(start_paused = true)]
async fn observers_are_told_although_another_one_panics() {
    let rig = Rig::new();
    let names = Names::default();
    let manager = rig.builder().observer(Panics).observer(names.clone()).build().unwrap();
    let guard = manager.lock("k").try_acquire().await.unwrap().unwrap();
    sleep(3 * TTL).await;
    guard.release().await.unwrap();
    assert_eq!(names.take().await, "acquiring acquired ended released");
}
