//! A node that comes back without its memory while a lease stands that it forgot.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use leasehold::store::quorum::Quorum;
use leasehold::store::{Attempt, Claim, Store};
use leasehold::testkit::Fault;
use leasehold::{ErrorKind, Key, Operation, OwnerToken};

#[path = "fixtures/nodes.rs"]
mod nodes;
use self::nodes::{MAX_TTL, Nodes, TTL, ms};

/// A holder has nodes 1 and 2, whose third was out; node 2 restarts empty, and somebody else asks.
async fn second_owner(nodes: &Nodes, rival: &Quorum) -> leasehold::Result<Attempt> {
    let key = Key::new("test", "shared").unwrap();
    let (holder, other) = (OwnerToken::mint().unwrap(), OwnerToken::mint().unwrap());
    nodes.faults[2].once(Operation::Acquire, Fault::fail(ErrorKind::Unavailable));
    let granted = nodes.quorum().acquire(&Claim::new(&key, &holder, TTL)).await.unwrap();
    assert!(matches!(granted, Attempt::Acquired(_)));
    nodes.servers[1].restart();
    let attempt = rival.acquire(&Claim::new(&key, &other, TTL)).await;
    assert_eq!(nodes.holders(&key).await[0], Some(holder), "the first lease still stands");
    attempt
}

/// What the guard is for, and what happens without it: two owners of one key at one time.
#[tokio::test(start_paused = true)]
async fn without_the_guard_a_restarted_node_helps_a_second_owner() {
    let nodes = Nodes::new(3);
    let rival = nodes.builder().restart_guard(false).build().unwrap();
    assert!(matches!(second_owner(&nodes, &rival).await.unwrap(), Attempt::Acquired(_)));
}

#[tokio::test(start_paused = true)]
async fn with_the_guard_it_does_not() {
    for nodes in [Nodes::new(3), Nodes::unnumbered(3)] {
        let rival = nodes.quorum();
        // The rival has seen all nodes, and has no reason to look again but the new connection.
        let key = Key::new("test", "before").unwrap();
        let owner = OwnerToken::mint().unwrap();
        assert!(matches!(rival.acquire(&Claim::new(&key, &owner, TTL)).await.unwrap(), Attempt::Acquired(_)));
        rival.release(&key, &owner).await.unwrap();
        match second_owner(&nodes, &rival).await {
            Ok(Attempt::Contended(_)) => {}
            Err(error) => assert!(error.message().contains("node 2: unavailable, it was started"), "{error}"),
            Ok(attempt) => panic!("{attempt:?}"),
        }
        tokio::time::sleep(ms(2000)).await;
        let left = nodes.left().await;
        assert!(left[1].is_empty() && left[2].is_empty(), "the votes that did not count were given back: {left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn it_votes_again_when_every_lease_it_forgot_has_ended() {
    let nodes = Nodes::new(3);
    let quorum = nodes.quorum();
    let (key, owner) = (Key::new("test", "again").unwrap(), OwnerToken::mint().unwrap());
    let claim = Claim::new(&key, &owner, TTL);
    nodes.faults[2].outage(Fault::fail(ErrorKind::Unavailable));
    nodes.servers[1].restart();
    let error = quorum.acquire(&claim).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("node 2: unavailable, it was started less than 60s ago"), "{error}");
    tokio::time::sleep(MAX_TTL / 2).await;
    assert!(quorum.acquire(&claim).await.is_err());
    tokio::time::sleep(MAX_TTL / 2 + ms(1000)).await;
    assert!(matches!(quorum.acquire(&claim).await.unwrap(), Attempt::Acquired(_)));
}

#[tokio::test(start_paused = true)]
async fn leases_of_a_restarted_node_can_be_extended_and_given_back() {
    let nodes = Nodes::new(3);
    let manager = nodes.manager();
    let guard = manager.lock("kept").try_acquire().await.unwrap().unwrap();
    for round in 0..6 {
        nodes.servers[round % 3].restart();
        guard.extend(TTL).await.unwrap();
        tokio::time::sleep(ms(10)).await;
        guard.check().unwrap();
        let rival = nodes.manager();
        assert!(!matches!(rival.lock("kept").try_acquire().await, Ok(Some(_))), "two owners");
    }
    guard.release().await.unwrap();
    nodes.check_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_be_looked_at_does_not_vote() {
    let nodes = Nodes::new(3);
    let quorum = nodes.quorum();
    nodes.faults[..2].iter().for_each(|node| node.always(Operation::Probe, Fault::fail(ErrorKind::Unavailable)));
    let (key, owner) = (Key::new("test", "unseen").unwrap(), OwnerToken::mint().unwrap());
    let error = quorum.acquire(&Claim::new(&key, &owner, TTL)).await.unwrap_err();
    assert!(error.message().contains("node 1: unavailable, how long it has been up"), "{error}");
    nodes.check_nothing_left().await;
    assert_eq!(quorum.connect().await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_new_connection_to_a_node_that_stayed_up_changes_nothing() {
    let nodes = Nodes::new(3);
    let quorum = nodes.quorum();
    let (key, owner) = (Key::new("test", "again").unwrap(), OwnerToken::mint().unwrap());
    for _ in 0..3 {
        let attempt = quorum.acquire(&Claim::new(&key, &owner, TTL)).await.unwrap();
        assert!(matches!(attempt, Attempt::Acquired(_)));
        assert!(quorum.release(&key, &owner).await.unwrap());
        nodes.servers.iter().for_each(|server| server.reconnect());
    }
    // Looked at once for each connection, and no more often.
    let looks = nodes.faults[0].calls(Operation::Probe);
    assert_eq!(looks, 3);
    nodes.check_nothing_left().await;
}
