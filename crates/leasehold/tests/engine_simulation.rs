//! Many holders, many faults, all by chance and in paused time: whatever happens, nobody overlaps and nothing stays.
//!
//! `LEASEHOLD_TEST_SEED` runs a single seed, `LEASEHOLD_TEST_SEEDS` so many.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

mod support {
    pub(crate) mod bent;
    pub(crate) mod rig;
}

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use leasehold::clock::TimeSource;
use leasehold::store::{Attempt, Wake};
use leasehold::testkit::{Fault, History, Record};
use leasehold::{ErrorKind, LockGuard, LockManager, LostReason, Operation};
use support::rig::{Rig, ms, secs, until_nothing_is_left};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const SEEDS: u64 = 60;
const LEASE: Duration = secs(3);
const RUN: Duration = secs(60);
const KEYS: [&str; 2] = ["a", "b"];

/// What the workers of one run share.
struct Run {
    rig: Rig,
    managers: Vec<LockManager>,
    history: History,
    holders: AtomicU64,
}

fn up_to(rng: &mut Rng, longest: Duration) -> Duration {
    longest.mul_f64(rng.f64())
}

fn fault(rng: &mut Rng) -> Fault {
    let fault = match rng.u8(0..7) {
        0 => Fault::delay(up_to(rng, 2 * LEASE)),
        1 => Fault::delay(up_to(rng, ms(200))),
        2 => Fault::delay_reply(up_to(rng, LEASE)),
        3 => Fault::fail(ErrorKind::Unavailable),
        4 => Fault::lose_reply(),
        5 => Fault::apply_late(up_to(rng, 2 * LEASE)),
        _ => Fault::hang(),
    };
    if rng.bool() { fault.silently() } else { fault }
}

async fn disturb(run: Arc<Run>, mut rng: Rng) {
    while run.rig.now() < RUN {
        sleep(up_to(&mut rng, ms(300))).await;
        let operation = [Operation::Acquire, Operation::Extend, Operation::Release][rng.usize(0..3)];
        match rng.u8(0..20) {
            0 => {
                let fault = fault(&mut rng);
                run.rig.store.outage(fault);
                sleep(up_to(&mut rng, LEASE)).await;
                run.rig.store.heal();
            }
            1 => run.rig.clock.suspend(up_to(&mut rng, LEASE)),
            _ => run.rig.store.once(operation, fault(&mut rng)),
        }
    }
    run.rig.store.heal();
}

async fn acquire(run: &Run, rng: &mut Rng) -> Option<LockGuard> {
    let lock = run.managers[rng.usize(0..run.managers.len())].lock(KEYS[rng.usize(0..KEYS.len())]);
    let wait = up_to(rng, secs(2));
    let outcome = match rng.u8(0..4) {
        0 => lock.try_acquire().await,
        1 => lock.acquire_within(wait).await,
        2 => timeout(wait, lock.acquire()).await.ok()?.map(Some),
        _ => timeout(up_to(rng, secs(2)), lock.acquire_within(wait)).await.ok()?,
    };
    outcome.unwrap_or_else(|error| {
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate), "{error}");
        None
    })
}

/// Believes in the lease as long as its guard says so, and records that.
async fn hold(run: &Run, rng: &mut Rng, guard: LockGuard) {
    let clock = &run.rig.clock;
    let from = clock.now();
    let end = from + up_to(rng, 2 * LEASE);
    let mut until = from;
    loop {
        let now = clock.now();
        match guard.check() {
            // It would go on believing until then if it heard nothing.
            Ok(()) => until = now + guard.remaining(),
            Err(error) => {
                if error.lost_reason() != Some(LostReason::Expired) {
                    panic!("{error}: nobody else takes a lease away here");
                }
                break;
            }
        }
        if now >= end {
            until = now;
            break;
        }
        if rng.u8(0..10) == 0 {
            drop(guard.extend(LEASE + up_to(rng, LEASE)).await);
        } else {
            sleep(up_to(rng, ms(400))).await;
        }
    }
    let holder = run.holders.fetch_add(1, Ordering::Relaxed);
    run.history.record(Record::new(guard.key().clone(), holder, from, until).fencing(guard.fencing_token()));
    if rng.bool() {
        drop(guard);
    } else {
        drop(timeout(up_to(rng, secs(2)), guard.release()).await);
    }
}

async fn work(run: Arc<Run>, mut rng: Rng) {
    while run.rig.now() < RUN {
        sleep(up_to(&mut rng, ms(300))).await;
        if let Some(guard) = acquire(&run, &mut rng).await {
            hold(&run, &mut rng, guard).await;
        }
    }
}

async fn simulate(seed: u64) -> usize {
    let mut rng = Rng::with_seed(seed);
    let rig = match seed % 3 {
        0 => Rig::new(),
        1 => Rig::polled(),
        _ => Rig::bent(|bent| {
            let hints = std::sync::Mutex::new(rng.fork());
            bent.without_wakes().acquire(move |_, attempt| match attempt {
                Attempt::Contended(contention) => {
                    let after = up_to(&mut hints.lock().unwrap(), ms(900));
                    Attempt::Contended(contention.wake(Wake::Hint(Box::pin(sleep(after)))))
                }
                acquired => acquired,
            })
        }),
    };
    let managers: Vec<_> = (0..3).map(|_| rig.builder().ttl(LEASE).build().unwrap()).collect();
    let run = Arc::new(Run { rig, managers, history: History::new(), holders: AtomicU64::new(1) });
    let mut tasks = JoinSet::new();
    tasks.spawn(disturb(Arc::clone(&run), rng.fork()));
    for _ in 0..8 {
        tasks.spawn(work(Arc::clone(&run), rng.fork()));
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    // Once all is well, everybody gets what is asked for, no later than late requests and their ttl allow.
    for (manager, name) in run.managers.iter().zip(KEYS.iter().cycle()) {
        let guard = manager.lock(name).acquire_within(6 * LEASE).await.unwrap();
        guard.unwrap_or_else(|| panic!("seed {seed}: \"{name}\" is not to be had")).release().await.unwrap();
    }
    for manager in &run.managers {
        until_nothing_is_left(manager).await;
    }
    sleep(6 * LEASE).await;
    for name in KEYS {
        assert!(run.rig.is_free(name).await, "seed {seed}: \"{name}\" is held for ever");
    }
    assert_eq!(run.history.check(), [], "seed {seed}");
    run.history.len()
}

#[tokio::test(start_paused = true)]
async fn nobody_overlaps_and_nothing_stays() {
    let given = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seeds = match given("LEASEHOLD_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..given("LEASEHOLD_TEST_SEEDS").unwrap_or(SEEDS),
    };
    let mut total = 0;
    for seed in seeds.clone() {
        let held = simulate(seed).await;
        assert!(held > 10, "seed {seed}: only {held} leases were held");
        total += held;
    }
    println!("simulation: seeds {seeds:?}, {total} leases held, 0 overlaps, 0 fence regressions");
}
