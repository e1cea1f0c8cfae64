//! Several clients of a quorum, and trouble at one node after the other: never two holders, and nothing is left.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use leasehold::testkit::{Fault, FaultStore, History, Record};
use leasehold::{Clock, ErrorKind, Key, LockManager, Operation, OwnerToken};
use parking_lot::Mutex;

#[path = "fixtures/nodes.rs"]
mod nodes;
use self::nodes::{Nodes, ms};

/// Long enough that whatever is gone a few seconds after the trouble was given back.
const LONG: Duration = ms(30_000);
const SHORT: Duration = ms(3000);

#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// Requests and answers are late or lost.
    Network,
    /// So they are, and nodes restart.
    Restarts,
    /// Nodes lose their leases, with renewals in between.
    Memory,
}

struct Run {
    ttl: Duration,
    nodes: Nodes,
    history: History,
    is_over: AtomicBool,
    tokens: AtomicU64,
    /// The last lease that was handed over, to whoever takes it.
    handed: Mutex<Option<OwnerToken>>,
}

fn random_fault(rng: &mut Rng) -> Fault {
    let length = ms([1, 5, 20, 48, 52, 90, 300, 800, 1100, 2000][rng.usize(..10)]);
    match rng.u8(..8) {
        0 => Fault::fail(ErrorKind::Unavailable),
        1 => Fault::hang(),
        2 => Fault::lose_reply(),
        3 => Fault::lose_reply().silently(),
        // Where the answer is lost at once, what comes much later than a second is left to its ttl.
        4 => Fault::apply_late(length.min(ms(1000))),
        5 => Fault::delay_reply(length),
        6 => Fault::apply_late(length).silently(),
        _ => Fault::delay(length),
    }
}

async fn trouble(run: Arc<Run>, kind: Trouble, mut rng: Rng) {
    let operations = [Operation::Acquire, Operation::Extend, Operation::Release, Operation::Transfer];
    let operations = [operations.as_slice(), &[Operation::Inspect, Operation::Probe]].concat();
    while !run.is_over.load(Ordering::Relaxed) {
        let at = rng.usize(..run.nodes.faults.len());
        let (node, server) = (&run.nodes.faults[at], &run.nodes.servers[at]);
        match kind {
            Trouble::Network | Trouble::Restarts => {
                match rng.u8(..4) {
                    0 => node.outage(random_fault(&mut rng)),
                    1 => node.always(operations[rng.usize(..6)], random_fault(&mut rng)),
                    2 => (0..20).for_each(|_| node.once(operations[rng.usize(..6)], random_fault(&mut rng))),
                    _ if matches!(kind, Trouble::Restarts) && rng.u8(..4) == 0 => server.restart(),
                    _ => server.reconnect(),
                }
                tokio::time::sleep(ms(rng.u64(10..3000))).await;
                node.heal();
            }
            Trouble::Memory => {
                match rng.bool() {
                    true => server.wipe(),
                    false => server.step(run.ttl * 3),
                }
                tokio::time::sleep(run.ttl + ms(rng.u64(..1000))).await;
            }
        }
    }
}

async fn client(run: Arc<Run>, manager: LockManager, number: u64, mut rng: Rng) {
    let clock = Clock::from(run.nodes.clock.clone());
    let lock = manager.lock("shared");
    for _ in 0..40 {
        let limit = ms([0, 3, 40, 60, 500, 4000][rng.usize(..6)]);
        let handed = run.handed.lock().clone().filter(|_| rng.bool());
        let asked = async {
            if let Some(owner) = handed {
                lock.resume(&owner).await.map(Some)
            } else if rng.bool() {
                lock.try_acquire().await
            } else {
                lock.acquire_within(ms(2000)).await
            }
        };
        let Ok(Ok(Some(guard))) = tokio::time::timeout(limit, asked).await else {
            tokio::time::sleep(ms(rng.u64(..300))).await;
            continue;
        };
        let from = clock.now();
        let end = from + ms([1, 30, 700, 5000][rng.usize(..4)]);
        let mut held = from;
        while clock.now() < end {
            if guard.check().is_err() {
                break;
            }
            held = clock.now();
            if rng.u8(..20) == 0 {
                drop(tokio::time::timeout(ms(rng.u64(..70)), guard.extend(run.ttl)).await);
            } else {
                tokio::time::sleep(ms(rng.u64(1..60))).await;
            }
        }
        if guard.check().is_ok() {
            held = clock.now();
        }
        let name = number * 1000 + run.tokens.fetch_add(1, Ordering::Relaxed);
        run.history.record(Record::new(Key::new("test", "shared").unwrap(), name, from, held));
        match rng.u8(..4) {
            0 => drop(guard),
            1 => drop(tokio::time::timeout(ms(rng.u64(..70)), guard.release()).await),
            // Its ttl ends what nobody takes.
            2 if run.ttl == SHORT => {
                if let Ok(owner) = guard.hand_over().await {
                    *run.handed.lock() = Some(owner);
                }
            }
            _ => drop(guard.release().await),
        }
    }
}

async fn run(count: usize, ttl: Duration, kind: Trouble, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let run = Arc::new(Run {
        ttl,
        nodes: Nodes::new(count),
        history: History::new(),
        is_over: AtomicBool::new(false),
        tokens: AtomicU64::new(0),
        handed: Mutex::default(),
    });
    let troubled = tokio::spawn(trouble(Arc::clone(&run), kind, rng.fork()));
    let clients: Vec<_> = (0..3)
        .map(|number| {
            let quorum = run.nodes.builder().max_ttl(ttl * 2).build().unwrap();
            let manager = LockManager::builder(quorum).clock(run.nodes.clock.clone().into()).ttl(ttl).build().unwrap();
            tokio::spawn(client(Arc::clone(&run), manager, number, rng.fork()))
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    run.is_over.store(true, Ordering::Relaxed);
    troubled.await.unwrap();
    run.nodes.faults.iter().for_each(FaultStore::heal);
    assert_eq!(run.history.check(), vec![], "{kind:?} with {count} nodes, seed {seed}");
    // With a node that does not vote after its restart, and trouble at another, little is granted.
    assert!(!run.history.is_empty(), "{kind:?} with {count} nodes, seed {seed}");
    tokio::time::sleep(ms(8000)).await;
    let left = run.nodes.left().await;
    assert!(left.iter().all(Vec::is_empty), "{kind:?} with {count} nodes, seed {seed}: {left:?}");
}

/// A few seeds; `QUORUM_SEEDS` of them, from `QUORUM_SEED` on, if set.
fn seeds() -> std::ops::Range<u64> {
    let of = |name| std::env::var(name).ok()?.parse().ok();
    let from = of("QUORUM_SEED").unwrap_or(0);
    from..from + of("QUORUM_SEEDS").unwrap_or(3)
}

#[tokio::test(start_paused = true)]
async fn with_a_troubled_network_there_are_never_two_holders() {
    for seed in seeds() {
        for ttl in [SHORT, LONG] {
            run(3, ttl, Trouble::Network, seed).await;
            run(5, ttl, Trouble::Network, seed).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn with_nodes_that_restart_there_are_never_two_holders() {
    for seed in seeds() {
        run(3, SHORT, Trouble::Restarts, seed).await;
        run(5, SHORT, Trouble::Restarts, seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn with_forgetful_nodes_there_are_never_two_holders() {
    for seed in seeds() {
        run(3, SHORT, Trouble::Memory, seed).await;
        run(5, SHORT, Trouble::Memory, seed).await;
    }
}
