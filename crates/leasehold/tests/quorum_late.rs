//! Answers of a quorum's nodes that come late, get lost, or cross with a release, more than one at a time.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use leasehold::store::quorum::Quorum;
use leasehold::store::{Attempt, Claim, Store};
use leasehold::testkit::Fault;
use leasehold::{ErrorKind, Key, Operation, OwnerToken};

#[path = "fixtures/nodes.rs"]
mod nodes;
use self::nodes::{Nodes, TTL, ms};

fn key() -> Key {
    Key::new("test", "shared").unwrap()
}

fn owner() -> OwnerToken {
    OwnerToken::mint().unwrap()
}

async fn take(store: &dyn Store, key: &Key, owner: &OwnerToken) {
    let attempt = store.acquire(&Claim::new(key, owner, TTL)).await.unwrap();
    assert!(matches!(attempt, Attempt::Acquired(_)), "{attempt:?}");
}

async fn extend(quorum: &Quorum, key: &Key, owner: &OwnerToken) -> leasehold::Result<bool> {
    let mut answers = quorum.extend(&[Claim::new(key, owner, TTL)]).await?;
    Ok(answers.remove(0)?.is_some())
}

/// A node got the lease back, nobody knows, and so it is being taken away from there while the next extension asks.
#[tokio::test(start_paused = true)]
async fn an_extension_does_not_count_what_is_released_while_it_asks() {
    for (undo, pause, slow) in [(30, 10, 35), (15, 10, 40), (40, 35, 45), (20, 1, 30)] {
        let nodes = Nodes::new(3);
        let (quorum, key, holder) = (nodes.quorum(), key(), owner());
        take(&quorum, &key, &holder).await;
        nodes.servers[2].wipe();
        nodes.faults[2].once(Operation::Acquire, Fault::lose_reply());
        nodes.faults[2].once(Operation::Release, Fault::delay(ms(undo)));
        assert!(extend(&quorum, &key, &holder).await.unwrap());
        tokio::time::sleep(ms(pause)).await;
        nodes.servers[0].wipe();
        nodes.faults[1].once(Operation::Extend, Fault::delay_reply(ms(slow)));
        let extended = extend(&quorum, &key, &holder).await;
        let holders = nodes.holders(&key).await;
        let standing = holders.iter().filter(|at| **at == Some(holder.clone())).count();
        assert!(extended.is_err() || standing >= 2, "{undo}, {pause}, {slow}: {extended:?} with {holders:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_released_is_not_brought_back_although_nobody_can_be_asked() {
    let nodes = Nodes::new(3);
    let (quorum, key, holder) = (nodes.quorum(), key(), owner());
    take(&quorum, &key, &holder).await;
    nodes.servers[2].wipe();
    nodes.faults[2].once(Operation::Extend, Fault::delay(ms(900)));
    assert!(extend(&quorum, &key, &holder).await.unwrap());
    assert!(quorum.release(&key, &holder).await.unwrap());
    tokio::time::sleep(ms(100)).await;
    nodes.faults[..2].iter().for_each(|node| node.outage(Fault::fail(ErrorKind::Unavailable)));
    nodes.check_nothing_left().await;
}

/// The first ask is refused while a node is silent. That node grants when the owner asks again, and fails then.
#[tokio::test(start_paused = true)]
async fn a_late_grant_of_an_earlier_ask_is_given_back_when_the_next_one_is_refused() {
    let nodes = Nodes::new(3);
    let (quorum, key, waiter, holder) = (nodes.quorum(), key(), owner(), owner());
    for server in &nodes.servers[..2] {
        take(&server.memory(), &key, &holder).await;
    }
    let claim = Claim::new(&key, &waiter, TTL);
    nodes.faults[2].once(Operation::Acquire, Fault::delay(ms(30)));
    assert!(matches!(quorum.acquire(&claim).await.unwrap(), Attempt::Contended(_)));
    tokio::time::sleep(ms(20)).await;
    nodes.faults[..2].iter().for_each(|node| node.once(Operation::Acquire, Fault::delay(ms(20))));
    nodes.faults[2].once(Operation::Acquire, Fault::fail(ErrorKind::Unavailable));
    assert!(matches!(quorum.acquire(&claim).await.unwrap(), Attempt::Contended(_)));
    tokio::time::sleep(ms(2000)).await;
    assert_eq!(nodes.holders(&key).await[2], None);
}

/// What a refused ask was granted is given back twice, as the first release got no answer. That one comes last.
#[tokio::test(start_paused = true)]
async fn a_release_that_comes_late_does_not_take_what_the_next_ask_was_granted() {
    for late in [25, 50, 300, 900] {
        let nodes = Nodes::new(3);
        let (quorum, key, waiter, holder) = (nodes.quorum(), key(), owner(), owner());
        for server in &nodes.servers[..2] {
            take(&server.memory(), &key, &holder).await;
        }
        let claim = Claim::new(&key, &waiter, TTL);
        nodes.faults[2].once(Operation::Release, Fault::apply_late(ms(late)));
        assert!(matches!(quorum.acquire(&claim).await.unwrap(), Attempt::Contended(_)));
        nodes.servers[1].memory().release(&key, &holder).await.unwrap();
        tokio::time::sleep(ms(20)).await;
        let is_granted = matches!(quorum.acquire(&claim).await, Ok(Attempt::Acquired(_)));
        tokio::time::sleep(ms(late)).await;
        let holders = nodes.holders(&key).await;
        let standing = holders.iter().filter(|at| **at == Some(waiter.clone())).count();
        assert!(!is_granted || standing >= 2, "after {late} ms: {holders:?}");
        // And not for long.
        tokio::time::sleep(ms(2500)).await;
        take(&quorum, &key, &waiter).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_transfer_that_found_nothing_leaves_nothing() {
    for fault in [Fault::lose_reply(), Fault::delay(ms(200)), Fault::lose_reply().silently(), Fault::apply_late(ms(60))]
    {
        for at in 0..3 {
            let nodes = Nodes::new(3);
            let (quorum, key, giver, taker) = (nodes.quorum(), key(), owner(), owner());
            take(&quorum, &key, &giver).await;
            (0..3).filter(|index| *index != at).for_each(|index| nodes.servers[index].wipe());
            nodes.faults[at].once(Operation::Transfer, fault.clone());
            nodes.faults[at].once(Operation::Release, Fault::fail(ErrorKind::Unavailable));
            // Whether it is lost is known as soon as two have said so.
            drop(quorum.transfer(&giver, &Claim::new(&key, &taker, TTL)).await);
            tokio::time::sleep(ms(4000)).await;
            let holders = nodes.holders(&key).await;
            assert!(!holders.contains(&Some(taker)), "{fault:?} at {at}: {holders:?}");
        }
    }
}

/// A transfer fails and goes back, but word of that is late at one node, and the repeat is first.
#[tokio::test(start_paused = true)]
async fn a_transfer_that_goes_back_late_does_not_take_what_its_repeat_was_given() {
    let nodes = Nodes::new(3);
    let (quorum, key, giver, taker) = (nodes.quorum(), key(), owner(), owner());
    take(&quorum, &key, &giver).await;
    nodes.servers[0].wipe();
    let claim = Claim::new(&key, &taker, TTL);
    nodes.faults[2].once(Operation::Transfer, Fault::fail(ErrorKind::Unavailable));
    nodes.faults[1].once(Operation::Transfer, Fault::delay(ms(0)));
    nodes.faults[1].once(Operation::Transfer, Fault::delay(ms(300)));
    assert!(quorum.transfer(&giver, &claim).await.is_err());
    let passed = quorum.transfer(&giver, &claim).await;
    tokio::time::sleep(ms(400)).await;
    let holders = nodes.holders(&key).await;
    let standing = holders.iter().filter(|at| **at == Some(taker.clone())).count();
    assert!(!matches!(passed, Ok(Some(_))) || standing >= 2, "{passed:?} with {holders:?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_missed_a_transfer_does_not_keep_the_lease_for_the_former_owner() {
    let faults = [Fault::fail(ErrorKind::Unavailable), Fault::hang(), Fault::delay(ms(200)), Fault::apply_late(ms(60))];
    for fault in faults {
        for at in 0..3 {
            let nodes = Nodes::new(3);
            let (quorum, key, giver, taker) = (nodes.quorum(), key(), owner(), owner());
            take(&quorum, &key, &giver).await;
            nodes.faults[at].once(Operation::Transfer, fault.clone());
            assert!(quorum.transfer(&giver, &Claim::new(&key, &taker, TTL)).await.unwrap().is_some());
            tokio::time::sleep(ms(3000)).await;
            assert!(extend(&quorum, &key, &taker).await.unwrap());
            tokio::time::sleep(ms(100)).await;
            assert_eq!(nodes.holders(&key).await, vec![Some(taker.clone()); 3], "{fault:?} at {at}");
            assert!(quorum.release(&key, &taker).await.unwrap());
            nodes.check_nothing_left().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_passed_on_is_not_left_on_the_last_node() {
    let nodes = Nodes::new(3);
    let (quorum, key, giver, taker) = (nodes.quorum(), key(), owner(), owner());
    take(&quorum, &key, &giver).await;
    nodes.servers[..2].iter().for_each(|server| server.wipe());
    assert!(quorum.transfer(&giver, &Claim::new(&key, &taker, TTL)).await.unwrap().is_none());
    nodes.check_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_close_that_is_dropped_closes_the_nodes_all_the_same() {
    let nodes = Nodes::new(3);
    nodes.faults[2].once(Operation::Acquire, Fault::delay(ms(400)));
    let (quorum, key, owner) = (nodes.quorum(), key(), owner());
    take(&quorum, &key, &owner).await;
    quorum.release(&key, &owner).await.unwrap();
    assert!(tokio::time::timeout(ms(10), quorum.close()).await.is_err());
    quorum.close().await.unwrap();
    tokio::time::sleep(ms(3000)).await;
    assert!(nodes.left().await.iter().all(Vec::is_empty));
    assert_eq!(nodes.faults.iter().map(|node| node.calls(Operation::Close)).collect::<Vec<_>>(), [1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn one_server_under_two_names_goes_on_voting_once_over_new_connections() {
    let nodes = Nodes::new(2);
    let twice = [nodes.servers[0].clone(), nodes.servers[0].clone(), nodes.servers[1].clone()];
    let quorum = Quorum::builder(twice).clock(nodes.clock.clone().into()).build().unwrap();
    let (key, owner) = (key(), owner());
    for _ in 0..4 {
        take(&quorum, &key, &owner).await;
        quorum.release(&key, &owner).await.unwrap();
        nodes.servers[0].reconnect();
    }
    // And never twice.
    let rival = OwnerToken::mint().unwrap();
    take(&nodes.servers[1].memory(), &key, &rival).await;
    for _ in 0..4 {
        assert!(!matches!(quorum.acquire(&Claim::new(&key, &owner, TTL)).await, Ok(Attempt::Acquired(_))));
        nodes.servers[0].reconnect();
    }
}
