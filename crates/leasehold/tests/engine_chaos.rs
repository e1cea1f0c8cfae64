//! Many holders on a store in changing weather: they never overlap, tokens grow, and nothing is left.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

#[path = "fixtures/bed.rs"]
mod bed;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold::clock::TimeSource;
use leasehold::testkit::{Fault, History, Record};
use leasehold::{Close, ErrorKind, Lock, LockGuard, LockManager, Operation, OwnerToken, Renew};
use parking_lot::Mutex;
use tokio::time::timeout;

use self::bed::{Bed, SECOND, at_rest, key, ms, seeded};

const SEEDS: usize = 10;
const CLIENTS: u64 = 8;
const KEYS: u64 = 3;
const TTL: std::time::Duration = ms(600);

#[tokio::test(start_paused = true)]
async fn holders_never_overlap_where_waiters_have_places() {
    every_weather_holds(Bed::new).await;
}

#[tokio::test(start_paused = true)]
async fn holders_never_overlap_where_waiters_poll() {
    every_weather_holds(Bed::polled).await;
}

async fn every_weather_holds(bed: impl Fn() -> Bed) {
    let mut random = seeded();
    let mut resumed = 0;
    for _ in 0..SEEDS {
        resumed += weather_holds(&bed(), random.fork()).await;
    }
    assert!(resumed > 0, "nobody ever took on a lease");
}

/// Answers how many leases were taken on.
async fn weather_holds(bed: &Bed, mut random: fastrand::Rng) -> usize {
    let history = Arc::new(History::new());
    let managers: Vec<_> = (0..CLIENTS / 2).map(|_| bed.builder().ttl(TTL).build().unwrap()).collect();
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let resumed = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let locks = managers[usize::try_from(number / 2).unwrap()].clone();
            let client = Client {
                bed: bed.clone(),
                locks,
                history: Arc::clone(&history),
                tokens: Arc::clone(&tokens),
                resumed: Arc::clone(&resumed),
                random: random.fork(),
                number: number * 1_000_000,
            };
            tokio::spawn(client.live())
        })
        .collect();
    let weather = tokio::spawn(change(bed.clone(), random.fork()));
    for client in clients {
        client.await.unwrap();
    }
    weather.abort();
    bed.store.heal();
    assert_eq!(history.check(), []);
    assert!(history.len() > 20, "hardly anybody ever held anything");
    for locks in &managers {
        at_rest(locks).await;
    }
    // What was left standing on purpose, or by an undo that the weather caught.
    tokio::time::sleep(20 * TTL).await;
    assert_eq!(bed.held().await, Vec::<String>::new());
    for number in 0..KEYS {
        managers[0].lock(&number.to_string()).try_acquire().await.unwrap().unwrap().release().await.unwrap();
    }
    for locks in managers {
        locks.close(Close::Release).await.unwrap();
    }
    resumed.load(Ordering::Relaxed)
}

/// Changes what the store does to requests, every now and then.
async fn change(bed: Bed, mut random: fastrand::Rng) {
    loop {
        bed.store.heal();
        for operation in [Operation::Acquire, Operation::Extend, Operation::Release, Operation::Transfer] {
            let some = ms(random.u64(1..1500));
            let fault = match random.u8(0..30) {
                0 => Fault::delay(some),
                1 => Fault::delay_reply(some),
                2 => Fault::lose_reply(),
                3 => Fault::lose_reply().silently(),
                4 => Fault::apply_late(some),
                5 => Fault::apply_late(some).silently(),
                6 => Fault::hang(),
                7 => Fault::fail(ErrorKind::Unavailable),
                8 => Fault::starve(),
                9..=11 => Fault::delay_reply(ms(random.u64(1..90))),
                _ => continue,
            };
            bed.store.always(operation, fault);
        }
        tokio::time::sleep(ms(random.u64(1..400))).await;
    }
}

struct Client {
    bed: Bed,
    locks: LockManager,
    history: Arc<History>,
    /// Leases that somebody handed over.
    tokens: Arc<Mutex<Vec<(String, OwnerToken)>>>,
    resumed: Arc<AtomicUsize>,
    random: fastrand::Rng,
    number: u64,
}

impl Client {
    async fn live(mut self) {
        for _ in 0..40 {
            let name = self.random.u64(0..KEYS).to_string();
            // Without renewal a deadline that is off by a little shows.
            let renew = if self.random.bool() { Renew::Automatic } else { Renew::Off };
            let lock = self.locks.lock(&name).renew(renew);
            let patience = ms(self.random.u64(0..3000));
            let what = self.random.u8(0..10);
            let guard = match what {
                0..=3 => timeout(patience, lock.acquire()).await.ok().and_then(Result::ok),
                4 | 5 => lock.acquire_within(patience).await.ok().flatten(),
                6 => lock.try_acquire().await.ok().flatten(),
                _ => self.take_on(patience).await,
            };
            match guard {
                Some(guard) => self.hold(guard).await,
                None => tokio::time::sleep(ms(self.random.u64(0..100))).await,
            }
        }
    }

    async fn take_on(&mut self, patience: std::time::Duration) -> Option<LockGuard> {
        let (name, token) = self.tokens.lock().pop()?;
        let lock: Lock = self.locks.lock(&name);
        match self.random.u8(0..4) {
            0 => _ = timeout(patience, lock.release_by(&token)).await,
            1 => _ = timeout(patience, lock.extend_by(&token, TTL)).await,
            _ => {
                let guard = timeout(patience, lock.resume(&token)).await.ok()?.ok()?;
                self.resumed.fetch_add(1, Ordering::Relaxed);
                return Some(guard);
            }
        }
        None
    }

    /// Believes in the guard for a while, and writes down for how long.
    async fn hold(&mut self, guard: LockGuard) {
        self.number += 1;
        let clock = &self.bed.clock;
        let from = clock.now();
        let mut until = from;
        for _ in 0..self.random.u8(1..6) {
            if guard.check().is_err() {
                break;
            }
            // The deadline may move up meanwhile, but belief goes no further than until the next look.
            let believed = clock.now() + guard.remaining();
            let patience = ms(self.random.u64(0..400));
            match self.random.u8(0..6) {
                0 => _ = timeout(patience, guard.extend(2 * TTL)).await,
                _ => tokio::time::sleep(patience).await,
            }
            until = if guard.check().is_ok() { clock.now() } else { believed.min(clock.now()) };
        }
        let ended = self.random.u8(0..6);
        // Handed over: believed until it was confirmed, as long as the guard was.
        if ended <= 1
            && let Ok(Ok(token)) = timeout(SECOND, guard.hand_over()).await
        {
            self.tokens.lock().push((guard.key().name().to_owned(), token));
        }
        let record = Record::new(key(guard.key().name()), self.number, from, until).fencing(guard.fencing_token());
        self.history.record(record);
        match ended {
            2 => drop(guard),
            3 => _ = timeout(ms(self.random.u64(0..50)), guard.release()).await,
            _ => _ = guard.release().await,
        }
    }
}
