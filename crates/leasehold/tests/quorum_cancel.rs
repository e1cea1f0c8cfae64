//! Calls on a quorum that are dropped, and asks that are repeated, at every moment.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use leasehold::store::{Attempt, Claim, Store};
use leasehold::testkit::{Fault, FaultStore};
use leasehold::{ErrorKind, Key, Operation, OwnerToken};

#[path = "fixtures/nodes.rs"]
mod nodes;
use self::nodes::{Nodes, TTL, ms};

fn key() -> Key {
    Key::new("test", "shared").unwrap()
}

/// Nodes at different distances; one of them refuses, or not.
fn scattered(delays: [u64; 3]) -> Nodes {
    let nodes = Nodes::new(3);
    for (node, delay) in nodes.faults.iter().zip(delays) {
        for operation in [Operation::Acquire, Operation::Release, Operation::Extend, Operation::Transfer] {
            // Half of the way there, half of it back.
            node.always(operation, Fault::delay(ms(delay)));
        }
    }
    nodes
}

async fn poll_times<F: Future>(future: F, mut times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| {
        if times == 0 {
            return Poll::Ready(None);
        }
        times -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await
}

const DISTANCES: [[u64; 3]; 5] = [[0, 0, 0], [1, 4, 9], [9, 4, 1], [3, 70, 70], [3, 3, 1500]];

#[tokio::test(start_paused = true)]
async fn a_dropped_ask_leaves_nothing() {
    for delays in DISTANCES {
        for after in [0, 1, 2, 3, 4, 5, 8, 9, 10, 30, 49, 50, 51, 69, 71, 99, 101] {
            for rival in [None, Some(0), Some(1)] {
                let nodes = scattered(delays);
                let (key, owner, other) = (key(), OwnerToken::mint().unwrap(), OwnerToken::mint().unwrap());
                if let Some(rival) = rival {
                    let memory = nodes.servers[rival].memory();
                    memory.acquire(&Claim::new(&key, &other, TTL)).await.unwrap();
                }
                let quorum = nodes.quorum();
                let claim = Claim::new(&key, &owner, TTL);
                let asked = tokio::time::timeout(ms(after), quorum.acquire(&claim)).await;
                if let Ok(Ok(Attempt::Acquired(_))) = asked {
                    continue;
                }
                tokio::time::sleep(ms(4000)).await;
                let holders = nodes.holders(&key).await;
                assert!(
                    !holders.contains(&Some(owner)),
                    "{delays:?}, dropped after {after} ms, {rival:?}: {holders:?}"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_ask_dropped_between_polls_leaves_nothing() {
    for delays in DISTANCES {
        for polls in 0..8 {
            let nodes = scattered(delays);
            let (quorum, key, owner) = (nodes.quorum(), key(), OwnerToken::mint().unwrap());
            let claim = Claim::new(&key, &owner, TTL);
            let asked = poll_times(quorum.acquire(&claim), polls).await;
            if let Some(Ok(Attempt::Acquired(_))) = asked {
                continue;
            }
            nodes.check_nothing_left().await;
            tokio::time::sleep(ms(4000)).await;
            nodes.check_nothing_left().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_grant_does_not_outlive_its_release() {
    for (delay, pause) in [(5, 0), (40, 0), (40, 39), (60, 0), (60, 59), (900, 100), (1500, 100), (5000, 4000)] {
        let nodes = Nodes::new(3);
        nodes.faults[2].once(Operation::Acquire, Fault::delay(ms(delay)));
        let (quorum, key, owner) = (nodes.quorum(), key(), OwnerToken::mint().unwrap());
        let attempt = quorum.acquire(&Claim::new(&key, &owner, TTL)).await.unwrap();
        assert!(matches!(attempt, Attempt::Acquired(_)));
        tokio::time::sleep(ms(pause)).await;
        assert!(quorum.release(&key, &owner).await.unwrap());
        tokio::time::sleep(ms(delay + 3000)).await;
        assert!(nodes.left().await.iter().all(Vec::is_empty), "{delay} ms: {:?}", nodes.left().await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_grant_stands_while_it_is_wanted() {
    let nodes = Nodes::new(3);
    nodes.faults[2].once(Operation::Acquire, Fault::delay(ms(900)));
    let (quorum, key, owner) = (nodes.quorum(), key(), OwnerToken::mint().unwrap());
    quorum.acquire(&Claim::new(&key, &owner, TTL)).await.unwrap();
    tokio::time::sleep(ms(4000)).await;
    assert_eq!(nodes.holders(&key).await, vec![Some(owner); 3]);
}

/// An undo of an earlier ask must not take what a later one was granted.
#[tokio::test(start_paused = true)]
async fn a_repeated_ask_is_granted_only_what_stays() {
    for delays in DISTANCES {
        for release in [0, 5, 30, 80, 1200] {
            for after in [0, 1, 3, 5, 10, 49, 51] {
                for pause in [0, 1, 4, 20, 60, 200] {
                    let nodes = scattered(delays);
                    for node in &nodes.faults[..2] {
                        node.once(Operation::Release, Fault::delay(ms(release)));
                    }
                    let (quorum, key, owner) = (nodes.quorum(), key(), OwnerToken::mint().unwrap());
                    let claim = Claim::new(&key, &owner, TTL);
                    drop(tokio::time::timeout(ms(after), quorum.acquire(&claim)).await);
                    tokio::time::sleep(ms(pause)).await;
                    if !matches!(quorum.acquire(&claim).await, Ok(Attempt::Acquired(_))) {
                        continue;
                    }
                    tokio::time::sleep(ms(5000)).await;
                    let holders = nodes.holders(&key).await;
                    let standing = holders.iter().filter(|holder| **holder == Some(owner.clone())).count();
                    assert!(standing >= 2, "{delays:?}, {release}, {after}, {pause}: {holders:?}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_release_is_carried_out() {
    for delays in [[1, 4, 9], [9, 4, 1], [3, 3, 1500]] {
        for after in [0, 1, 3, 5, 10] {
            let nodes = scattered(delays);
            let (quorum, key, owner) = (nodes.quorum(), key(), OwnerToken::mint().unwrap());
            quorum.acquire(&Claim::new(&key, &owner, TTL)).await.unwrap();
            drop(tokio::time::timeout(ms(after), quorum.release(&key, &owner)).await);
            nodes.check_nothing_left().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn through_a_manager_nothing_is_left_either() {
    let nodes = scattered([2, 5, 60]);
    let manager = nodes.manager();
    for after in 0..80 {
        let lock = manager.lock("shared");
        drop(tokio::time::timeout(ms(after), lock.try_acquire()).await);
    }
    tokio::time::sleep(ms(3000)).await;
    assert!(nodes.left().await.iter().all(Vec::is_empty), "{:?}", nodes.left().await);
    manager.close(leasehold::Close::Release).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_what_is_being_undone() {
    let nodes = Nodes::new(3);
    nodes.faults[2].once(Operation::Acquire, Fault::delay(ms(400)));
    let (quorum, key, owner) = (nodes.quorum(), key(), OwnerToken::mint().unwrap());
    quorum.acquire(&Claim::new(&key, &owner, TTL)).await.unwrap();
    quorum.release(&key, &owner).await.unwrap();
    quorum.close().await.unwrap();
    assert!(nodes.left().await.iter().all(Vec::is_empty));
    assert_eq!(quorum.inspect(&key).await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_transfer_that_found_no_majority_is_undone() {
    let nodes = Nodes::new(3);
    let (quorum, key) = (nodes.quorum(), key());
    let (giver, taker) = (OwnerToken::mint().unwrap(), OwnerToken::mint().unwrap());
    quorum.acquire(&Claim::new(&key, &giver, TTL)).await.unwrap();
    nodes.faults[1..].iter().for_each(|node| node.outage(Fault::fail(ErrorKind::Unavailable)));
    let error = quorum.transfer(&giver, &Claim::new(&key, &taker, TTL)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    nodes.faults.iter().for_each(FaultStore::heal);
    assert_eq!(nodes.holders(&key).await, vec![Some(giver.clone()); 3], "it went back");
    // One node forgot it, another does not answer: the rest is no majority; with the third there is one.
    nodes.servers[0].wipe();
    assert!(quorum.transfer(&giver, &Claim::new(&key, &taker, TTL)).await.unwrap().is_some());
    let holders = nodes.holders(&key).await;
    assert_eq!(holders[1..], [Some(taker.clone()), Some(taker)]);
}

#[tokio::test(start_paused = true)]
async fn a_grant_whose_answer_was_lost_does_not_outlive_its_release() {
    for delay in [0, 40, 700, 5000] {
        let nodes = Nodes::new(3);
        nodes.faults[0].once(Operation::Acquire, Fault::apply_late(ms(delay)));
        let (quorum, key, owner) = (nodes.quorum(), key(), OwnerToken::mint().unwrap());
        quorum.acquire(&Claim::new(&key, &owner, TTL)).await.unwrap();
        tokio::time::sleep(ms(delay.saturating_sub(500))).await;
        assert!(quorum.release(&key, &owner).await.unwrap());
        tokio::time::sleep(ms(delay + 3000)).await;
        assert!(nodes.left().await.iter().all(Vec::is_empty), "{delay} ms: {:?}", nodes.left().await);
    }
}
