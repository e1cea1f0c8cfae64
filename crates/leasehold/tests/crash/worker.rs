//! A process that takes leases, holds them and gives them back, until it is killed or has done so often enough.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;
use leasehold::clock::{Clock, Moment};
use leasehold::store::sqlite::SqliteStore;
use leasehold::{Backoff, Close, Error, ErrorKind, LockGuard, LockManager, LostReason, Margin};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use tokio::time::sleep;

use super::records::{Entry, Journal, What};

pub(crate) const SHORTEST_TTL: Duration = Duration::from_millis(200);
pub(crate) const LONGEST_TTL: Duration = Duration::from_millis(300);

const STORE: &str = "LEASEHOLD_CRASH_STORE";
const ORDER: &str = "LEASEHOLD_CRASH_ORDER";

/// What a worker is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    /// The process that it must not outlive.
    pub(crate) parent: u64,
    /// Tells it apart from all other workers of the test.
    pub(crate) number: u64,
    pub(crate) keys: u64,
    pub(crate) cycles: u64,
    pub(crate) seed: u64,
}

impl Order {
    pub(crate) fn variables(&self, store: &Path) -> [(&'static str, OsString); 2] {
        [(STORE, store.into()), (ORDER, self.to_string().into())]
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parent, number, keys, cycles, seed } = self;
        write!(f, "{parent} {number} {keys} {cycles} {seed}")
    }
}

impl FromStr for Order {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers: Vec<u64> = text.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [parent, number, keys, cycles, seed] = numbers[..] else { panic!("{text}") };
        Ok(Self { parent, number, keys, cycles, seed })
    }
}

/// The name of the key of this number.
pub(crate) fn key_name(number: u64) -> String {
    format!("key {number}")
}

/// Where the worker of this number writes its records.
pub(crate) fn journal(store: &Path, number: u64) -> PathBuf {
    store.with_file_name(format!("worker-{number}"))
}

/// The whole life of a worker.
pub(crate) async fn work() {
    let (Some(store), Ok(order)) = (env::var_os(STORE).map(PathBuf::from), env::var(ORDER)) else {
        return;
    };
    let order: Order = order.parse().unwrap();
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    if getppid().map(|parent| Pid::as_raw(Some(parent)).unsigned_abs().into()) != Some(order.parent) {
        return;
    }
    let mut rng = Rng::with_seed(order.seed ^ order.number);
    let locks = LockManager::builder(open(&store).await)
        .ttl(SHORTEST_TTL + up_to(&mut rng, LONGEST_TTL - SHORTEST_TTL))
        // One machine, one clock: nothing has to be taken off, and a deadline that is off by anything shows.
        .margin(Margin::new(0.0, Duration::ZERO).unwrap())
        .backoff(Backoff::new(Duration::from_micros(500), Duration::from_millis(4), 2.0).unwrap())
        .build()
        .unwrap();
    let mut worker = Worker { locks, rng, journal: Journal::create(&journal(&store, order.number)), order };
    let mut cycles = 0;
    while cycles < order.cycles {
        cycles += u64::from(worker.cycle().await);
    }
    worker.locks.close(Close::Release).await.unwrap_or_else(|error| expect_busy(&error));
}

struct Worker {
    locks: LockManager,
    rng: Rng,
    journal: Journal,
    order: Order,
}

impl Worker {
    /// Whether it came to hold a lease.
    async fn cycle(&mut self) -> bool {
        let number = self.rng.u64(0..self.order.keys);
        let lock = self.locks.lock(&key_name(number));
        let got = match self.rng.u8(0..4) {
            0 => lock.try_acquire().await,
            _ => lock.acquire_within(up_to(&mut self.rng, 2 * LONGEST_TTL)).await,
        };
        let held = match got {
            Ok(Some(guard)) => self.hold(number, guard).await,
            Ok(None) => false,
            Err(error) => {
                expect_busy(&error);
                false
            }
        };
        sleep(up_to(&mut self.rng, Duration::from_millis(2))).await;
        held
    }

    /// Holds the lease for a while and gives it back, and writes down what it believes, before it acts on that.
    async fn hold(&mut self, key: u64, guard: LockGuard) -> bool {
        let fencing = guard.fencing_token().unwrap().get();
        // Over before anybody knew that it had begun: the process was stopped just here.
        let Some((from, mut promise)) = look(&guard) else {
            return false;
        };
        self.journal.write(Entry { what: What::Held, key, fencing, at: from, until: promise });
        // On a single key others wait meanwhile.
        let long = if self.order.keys == 1 { 1.0 / 200.0 } else { 1.0 / 20.0 };
        let hold = if self.rng.f64() < long { up_to(&mut self.rng, 2 * LONGEST_TTL) } else { Duration::from_millis(1) };
        loop {
            sleep(hold.min(Duration::from_millis(1))).await;
            let Some((at, until)) = look(&guard) else {
                let what = match guard.check().unwrap_err().lost_reason() {
                    Some(LostReason::Expired) => What::Expired,
                    _ => What::TakenAway,
                };
                self.journal.write(Entry { what, key, fencing, at: Clock::system().now(), until: promise });
                break;
            };
            promise = promise.max(until);
            if at.since(from) >= hold {
                self.journal.write(Entry { what: What::GivenBack, key, fencing, at, until: promise });
                break;
            }
            self.journal.write(Entry { what: What::StillHeld, key, fencing, at, until: promise });
        }
        match self.rng.u8(0..8) {
            0 => drop(guard),
            _ => guard.release().await.unwrap_or_else(|error| expect_busy(&error)),
        }
        true
    }
}

/// Whether the lease may be assumed: at which moment, and until when it will be if nothing else is heard.
fn look(guard: &LockGuard) -> Option<(Moment, Moment)> {
    let at = Clock::system().now();
    guard.check().ok()?;
    Some((at, at + guard.remaining()))
}

async fn open(store: &Path) -> SqliteStore {
    loop {
        match SqliteStore::open(store).await {
            Ok(store) => return store,
            Err(error) => expect_busy(&error),
        }
    }
}

/// A process that was stopped in the middle of a write keeps the others from writing; any other error fails the test.
pub(crate) fn expect_busy(error: &Error) {
    let kinds = [ErrorKind::Unavailable, ErrorKind::Indeterminate, ErrorKind::NotHeld];
    assert!(kinds.contains(&error.kind()), "{error:?}");
}

fn up_to(rng: &mut Rng, longest: Duration) -> Duration {
    longest.mul_f64(rng.f64())
}
