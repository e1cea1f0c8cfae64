//! A quorum some of whose nodes are dead, silent, slow, wiped, or wrong about the time.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::sync::Arc;

use leasehold::store::memory::MemoryStore;
use leasehold::store::quorum::Quorum;
use leasehold::store::{Attempt, Claim, Store, Wake};
use leasehold::testkit::{Fault, History, Record};
use leasehold::{Clock, ErrorKind, Key, Operation, OwnerToken, Result};

#[path = "fixtures/nodes.rs"]
mod nodes;
use self::nodes::{MAX_TTL, Nodes, TTL, ms};

fn key(name: &str) -> Key {
    Key::new("test", name).unwrap()
}

fn owner() -> OwnerToken {
    OwnerToken::mint().unwrap()
}

async fn ask(quorum: &Quorum, key: &Key, owner: &OwnerToken) -> Result<Attempt> {
    quorum.acquire(&Claim::new(key, owner, TTL)).await
}

async fn take(quorum: &Quorum, key: &Key, owner: &OwnerToken) {
    match ask(quorum, key, owner).await.unwrap() {
        Attempt::Acquired(_) => {}
        refused => panic!("refused: {refused:?}"),
    }
}

async fn extend(quorum: &Quorum, key: &Key, owner: &OwnerToken) -> Result<bool> {
    let mut answers = quorum.extend(&[Claim::new(key, owner, TTL)]).await?;
    Ok(answers.remove(0)?.is_some())
}

/// Grants go on, and nothing is left on any node, neither while the trouble lasts nor after it.
async fn grants_go_on(count: usize, trouble: impl Fn(&Nodes, usize)) {
    let nodes = Nodes::new(count);
    let (one, other) = (nodes.manager(), nodes.manager());
    for round in 0..20 {
        let guard = one.lock("shared").acquire_within(ms(5000)).await.unwrap().unwrap();
        trouble(&nodes, round);
        assert!(other.lock("shared").try_acquire().await.unwrap().is_none(), "two hold");
        guard.extend(TTL).await.unwrap();
        guard.release().await.unwrap();
        let guard = other.lock("shared").acquire_within(ms(5000)).await.unwrap().unwrap();
        drop(guard);
    }
    nodes.faults.iter().for_each(leasehold::testkit::FaultStore::heal);
    nodes.check_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_node_is_no_hindrance() {
    for (count, dead) in [(3, 1), (5, 2)] {
        grants_go_on(count, |nodes, _| {
            nodes.faults[..dead].iter().for_each(|node| node.outage(Fault::fail(ErrorKind::Unavailable)));
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_that_die_in_turn_are_no_hindrance() {
    let nodes = Nodes::new(3);
    let manager = nodes.manager();
    let guard = manager.lock("kept").try_acquire().await.unwrap().unwrap();
    for round in 0..12 {
        let dead = &nodes.faults[round % 3];
        let brief = manager.lock("brief").acquire_within(ms(5000)).await.unwrap().unwrap();
        dead.outage(Fault::fail(ErrorKind::Unavailable));
        nodes.servers[round % 3].wipe();
        tokio::time::sleep(TTL / 3).await;
        guard.check().unwrap();
        brief.release().await.unwrap();
        dead.heal();
        // A renewal gives it back to the node that forgot it.
        tokio::time::sleep(TTL / 2).await;
    }
    guard.release().await.unwrap();
    nodes.check_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_out_for_long_is_cleaned_up_when_it_answers() {
    for fault in [Fault::fail(ErrorKind::Unavailable), Fault::hang(), Fault::delay(ms(20_000))] {
        let nodes = Nodes::new(3);
        let manager = nodes.manager();
        let guard = manager.lock("kept").try_acquire().await.unwrap().unwrap();
        nodes.faults[1].outage(fault);
        guard.release().await.unwrap();
        let guard = manager.lock("other").try_acquire().await.unwrap().unwrap();
        guard.release().await.unwrap();
        tokio::time::sleep(TTL / 2).await;
        nodes.faults[1].heal();
        nodes.check_nothing_left().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_node_is_no_hindrance() {
    // What it was sent is applied when it goes on.
    grants_go_on(3, |nodes, round| {
        nodes.faults[1].heal();
        if round < 19 {
            nodes.faults[1].outage(Fault::starve());
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_node_is_no_hindrance() {
    for delay in [20, 49, 51, 200, 900, 1500, 5000] {
        grants_go_on(3, |nodes, _| nodes.faults[2].outage(Fault::delay(ms(delay)))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_answers_are_lost_is_no_hindrance() {
    grants_go_on(3, |nodes, _| nodes.faults[0].outage(Fault::lose_reply().silently())).await;
    grants_go_on(3, |nodes, _| nodes.faults[0].outage(Fault::lose_reply())).await;
    grants_go_on(3, |nodes, _| nodes.faults[0].always(Operation::Acquire, Fault::apply_late(ms(700)))).await;
}

/// A repeat may meet nodes that still undo the first round: it is refused for certain, and asked again.
#[tokio::test(start_paused = true)]
async fn one_slow_round_is_healed_within_the_call() {
    let slow = |by: u64| [Fault::delay(ms(by)), Fault::delay_reply(ms(by))];
    let lost = [Fault::lose_reply(), Fault::lose_reply().silently(), Fault::apply_late(ms(60)), Fault::hang()];
    for fault in [60, 200, 900].into_iter().flat_map(slow).chain(lost) {
        let nodes = Nodes::new(3);
        let (manager, other) = (nodes.manager(), nodes.manager());
        nodes.faults.iter().for_each(|node| node.once(Operation::Acquire, fault.clone()));
        let guard = manager.lock("k").acquire().await.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        // What is still undone of the first round takes nothing of it.
        tokio::time::sleep(ms(3000)).await;
        guard.check().unwrap();
        guard.extend(TTL).await.unwrap();
        assert!(other.lock("k").try_acquire().await.unwrap().is_none(), "{fault:?}");
        guard.release().await.unwrap();
        nodes.check_nothing_left().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_wiped_node_is_no_hindrance() {
    grants_go_on(3, |nodes, round| nodes.servers[round % 3].wipe()).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_with_a_wrong_clock_is_no_hindrance() {
    grants_go_on(3, |nodes, _| nodes.servers[1].step(TTL * 3)).await;
}

#[tokio::test(start_paused = true)]
async fn with_two_of_three_dead_it_refuses_at_once_and_names_them() {
    let nodes = Nodes::new(3);
    let quorum = nodes.builder().names(["oak", "ash", "elm"]).build().unwrap();
    nodes.faults[0].outage(Fault::fail(ErrorKind::Unavailable));
    nodes.faults[2].outage(Fault::fail(ErrorKind::Unavailable));
    let clock = Clock::from(nodes.clock.clone());
    let asked = clock.now();
    let error = ask(&quorum, &key("refused"), &owner()).await.unwrap_err();
    assert!(clock.now().since(asked) <= ms(10));
    assert_eq!(error.kind(), ErrorKind::Unavailable, "surely nothing remains: {error}");
    let said = error.to_string();
    assert!(said.contains("oak: unavailable") && said.contains("ash: granted") && said.contains("elm: "), "{said}");
    assert!(nodes.left().await.iter().all(Vec::is_empty));

    let error = quorum.inspect(&key("refused")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let error = nodes.manager().lock("refused").acquire_within(TTL).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "not waited for: {error}");
}

#[tokio::test(start_paused = true)]
async fn with_two_of_three_silent_it_refuses_in_time_and_does_not_claim_to_know() {
    let nodes = Nodes::new(3);
    let quorum = nodes.quorum();
    nodes.faults[0].outage(Fault::hang());
    nodes.faults[2].outage(Fault::delay(ms(300)));
    let clock = Clock::from(nodes.clock.clone());
    let asked = clock.now();
    let error = ask(&quorum, &key("refused"), &owner()).await.unwrap_err();
    assert!(clock.now().since(asked) <= ms(110), "two limits of a node: {:?}", clock.now().since(asked));
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
    assert!(nodes.left().await[1].is_empty(), "the one that granted was given back");
    nodes.check_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_for_good_is_told_as_one() {
    let nodes = Nodes::new(3);
    nodes.faults.iter().take(2).for_each(|node| node.outage(Fault::fail(ErrorKind::Rejected)));
    let error = ask(&nodes.quorum(), &key("rejected"), &owner()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Rejected);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_out_never_makes_it_contended_nor_free() {
    let nodes = Nodes::new(3);
    let (one, other, key) = (nodes.quorum(), nodes.quorum(), key("held"));
    let (holder, rival) = (owner(), owner());
    nodes.faults[0].outage(Fault::fail(ErrorKind::Unavailable));
    take(&one, &key, &holder).await;
    assert!(matches!(ask(&other, &key, &rival).await.unwrap(), Attempt::Contended(_)));
    // One is free again, one holds, one is dead: somebody does hold a part of it.
    nodes.faults[0].heal();
    nodes.faults[1].outage(Fault::fail(ErrorKind::Unavailable));
    assert!(matches!(ask(&other, &key, &rival).await.unwrap(), Attempt::Contended(_)));
    assert_eq!(other.inspect(&key).await.unwrap().holders[0].owner, holder);
    // The lease stands on a node that is out: nobody knows.
    assert!(extend(&one, &key, &holder).await.is_err());
    nodes.faults[1].heal();
    assert!(extend(&one, &key, &holder).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn three_clients_on_five_nodes_make_progress_and_never_overlap() {
    let nodes = Arc::new(Nodes::new(5));
    let history = Arc::new(History::new());
    // Each meets the nodes in another order.
    for (index, node) in nodes.faults.iter().enumerate() {
        for _ in 0..400 {
            let delay = ms(fastrand::u64(..4) * (1 + index as u64 % 3));
            node.once(Operation::Acquire, Fault::delay(delay));
        }
    }
    let mut clients = Vec::new();
    for client in 0..3 {
        let (manager, clock, history) = (nodes.manager(), Clock::from(nodes.clock.clone()), Arc::clone(&history));
        clients.push(tokio::spawn(async move {
            for round in 0..30 {
                let guard = manager.lock("shared").acquire_within(ms(60_000)).await.unwrap();
                let guard = guard.expect("no progress within a minute");
                let from = clock.now();
                tokio::time::sleep(ms(3)).await;
                guard.check().unwrap();
                history.record(Record::new(key("shared"), client * 100 + round, from, clock.now()));
                guard.release().await.unwrap();
            }
        }));
    }
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(history.check(), vec![]);
    assert_eq!(history.len(), 90);
    nodes.check_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn who_meets_others_half_way_asks_again_soon_and_at_random() {
    let nodes = Nodes::new(3);
    let (quorum, key) = (nodes.quorum(), key("split"));
    let (one, other) = (owner(), owner());
    nodes.servers[0].memory().acquire(&Claim::new(&key, &one, TTL)).await.unwrap();
    nodes.faults[1].outage(Fault::fail(ErrorKind::Unavailable));
    let mut pauses = Vec::new();
    for _ in 0..10 {
        let Attempt::Contended(contention) = ask(&quorum, &key, &other).await.unwrap() else { panic!("granted") };
        pauses.push(contention.retry_after.unwrap());
        assert_eq!(nodes.holders(&key).await[2], None, "a minority's grant was left");
    }
    assert!(pauses.iter().all(|pause| *pause <= ms(40)) && pauses.iter().any(|pause| *pause != pauses[0]));
}

#[tokio::test(start_paused = true)]
async fn waiters_are_woken_by_the_nodes() {
    let nodes = Nodes::new(3);
    let (one, other, key) = (nodes.quorum(), nodes.quorum(), key("woken"));
    let (holder, waiter) = (owner(), owner());
    take(&one, &key, &holder).await;
    let claim = Claim::new(&key, &waiter, TTL).waits(true);
    let Attempt::Contended(contention) = other.acquire(&claim).await.unwrap() else { panic!("granted") };
    assert!(contention.retry_after.unwrap() > ms(29_000));
    let Some(Wake::Hint(mut wake)) = contention.wake else { panic!("no wake-up") };
    // One free node is not enough.
    nodes.servers[0].release(&key, &holder).await.unwrap();
    assert!(tokio::time::timeout(ms(1000), &mut wake).await.is_err());
    one.release(&key, &holder).await.unwrap();
    tokio::time::timeout(ms(1000), wake).await.unwrap();
    take(&other, &key, &waiter).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_that_lose_the_lease_one_after_the_other_get_it_back() {
    let nodes = Nodes::new(3);
    let (quorum, key, holder) = (nodes.quorum(), key("kept"), owner());
    take(&quorum, &key, &holder).await;
    for round in 0..6 {
        nodes.servers[round % 3].wipe();
        assert!(extend(&quorum, &key, &holder).await.unwrap());
        tokio::time::sleep(ms(10)).await;
        assert_eq!(nodes.holders(&key).await, vec![Some(holder.clone()); 3], "round {round}");
    }
    // Two at once: it is lost, and not brought back.
    nodes.servers[0].wipe();
    nodes.servers[1].wipe();
    assert!(!extend(&quorum, &key, &holder).await.unwrap());
    tokio::time::sleep(ms(10)).await;
    assert_eq!(nodes.holders(&key).await[..2], [None, None]);
    quorum.release(&key, &holder).await.unwrap();
    nodes.check_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_keeps_what_it_got_back_although_the_next_one_loses_it_at_once() {
    for silent in [false, true] {
        let nodes = Nodes::new(3);
        let (quorum, key, holder) = (nodes.quorum(), key("kept"), owner());
        take(&quorum, &key, &holder).await;
        for round in 0..6 {
            nodes.servers[round % 3].wipe();
            for node in &nodes.faults {
                // Whether it is still held is asked, and answered late or never.
                let late = if silent { Fault::hang() } else { Fault::delay(ms(20)) };
                node.once(Operation::Inspect, late);
            }
            assert!(extend(&quorum, &key, &holder).await.unwrap(), "round {round}, {silent}");
            tokio::time::sleep(ms(10)).await;
            nodes.servers[(round + 1) % 3].wipe();
            tokio::time::sleep(ms(2000)).await;
            assert!(extend(&quorum, &key, &holder).await.unwrap(), "round {round}, {silent}");
            tokio::time::sleep(ms(10)).await;
        }
        quorum.release(&key, &holder).await.unwrap();
        nodes.check_nothing_left().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_answers_last_gets_its_lease_back_as_well() {
    for delay in [1, 20, 60, 900] {
        let nodes = Nodes::new(3);
        let (quorum, key, holder) = (nodes.quorum(), key("kept"), owner());
        take(&quorum, &key, &holder).await;
        nodes.servers[1].wipe();
        nodes.faults[1].once(Operation::Extend, Fault::delay(ms(delay)));
        assert!(extend(&quorum, &key, &holder).await.unwrap());
        tokio::time::sleep(ms(delay + 100)).await;
        assert_eq!(nodes.holders(&key).await, vec![Some(holder.clone()); 3], "{delay} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_brought_back_late_does_not_outlive_its_release() {
    for delay in [5, 60, 900, 1500] {
        let nodes = Nodes::new(3);
        let (quorum, key, holder) = (nodes.quorum(), key("late"), owner());
        take(&quorum, &key, &holder).await;
        nodes.servers[2].wipe();
        nodes.faults[2].once(Operation::Acquire, Fault::delay(ms(delay)));
        assert!(extend(&quorum, &key, &holder).await.unwrap());
        tokio::time::sleep(ms(1)).await;
        assert!(quorum.release(&key, &holder).await.unwrap());
        tokio::time::sleep(ms(3000)).await;
        assert!(nodes.left().await.iter().all(Vec::is_empty), "after {delay} ms: {:?}", nodes.left().await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_told_when_most_nodes_have_told_it() {
    let nodes = Nodes::new(3);
    let (quorum, key, holder) = (nodes.quorum(), key("lost"), owner());
    let Attempt::Acquired(grant) = ask(&quorum, &key, &holder).await.unwrap() else { panic!("refused") };
    let loss = grant.loss.unwrap();
    nodes.servers[1].wipe();
    tokio::time::sleep(ms(10)).await;
    assert_eq!(loss.raised(), None);
    assert!(extend(&quorum, &key, &holder).await.unwrap());
    tokio::time::sleep(ms(10)).await;
    nodes.servers[0].wipe();
    tokio::time::sleep(ms(10)).await;
    assert_eq!(loss.raised(), None, "the second node had it back by then");
    nodes.servers[2].wipe();
    tokio::time::timeout(ms(1000), loss.wait()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_get_its_lease_back_hides_no_loss() {
    let nodes = Nodes::new(3);
    let (quorum, key, holder) = (nodes.quorum(), key("hidden"), owner());
    let Attempt::Acquired(grant) = ask(&quorum, &key, &holder).await.unwrap() else { panic!("refused") };
    let loss = grant.loss.unwrap();
    nodes.servers[0].wipe();
    // It says that it lost the lease, and then nothing any more.
    nodes.faults[0].always(Operation::Acquire, Fault::hang());
    nodes.faults[0].always(Operation::Release, Fault::hang());
    assert!(extend(&quorum, &key, &holder).await.unwrap());
    tokio::time::sleep(ms(10)).await;
    nodes.servers[1].wipe();
    tokio::time::timeout(ms(3000), loss.wait()).await.expect("most have lost it");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_has_just_got_its_lease_back_has_not_lost_it() {
    let nodes = Nodes::new(3);
    let (quorum, key, holder) = (nodes.quorum(), key("back"), owner());
    let Attempt::Acquired(grant) = ask(&quorum, &key, &holder).await.unwrap() else { panic!("refused") };
    let loss = grant.loss.unwrap();
    nodes.servers[0].wipe();
    tokio::time::sleep(ms(10)).await;
    // Whether the others still have theirs is answered late, and so the lease counts late that the node has by then.
    nodes.faults.iter().for_each(|node| node.once(Operation::Inspect, Fault::delay(ms(50))));
    assert!(extend(&quorum, &key, &holder).await.unwrap());
    tokio::time::sleep(ms(10)).await;
    assert_eq!(nodes.holders(&key).await[0], Some(holder.clone()));
    nodes.servers[1].wipe();
    tokio::time::sleep(ms(10)).await;
    assert_eq!(loss.raised(), None, "two of three have it");
    tokio::time::sleep(ms(100)).await;
    assert_eq!(loss.raised(), None, "two of three have it");
    nodes.servers[2].wipe();
    tokio::time::timeout(ms(1000), loss.wait()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_makes_no_quorum_is_refused() {
    for count in 0..3 {
        let error = Nodes::new(count).builder().build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    }
    let nodes = Nodes::new(3);
    let key = key("long");
    let claim = (owner(), MAX_TTL + ms(1));
    let error = nodes.quorum().acquire(&Claim::new(&key, &claim.0, claim.1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.message().contains("max_ttl"), "{error}");
    assert_eq!(nodes.builder().fence_from(3).build().unwrap_err().kind(), ErrorKind::InvalidConfig);
    // The fence of a node is handed out only with that node.
    nodes.faults[2].outage(Fault::fail(ErrorKind::Unavailable));
    let fenced = nodes.builder().fence_from(2).build().unwrap();
    assert_eq!(ask(&fenced, &key, &owner()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(nodes.left().await.iter().all(Vec::is_empty));
}

#[tokio::test(start_paused = true)]
async fn one_server_under_two_names_has_no_vote() {
    let nodes = Nodes::new(2);
    let twice = [nodes.servers[0].clone(), nodes.servers[0].clone(), nodes.servers[1].clone()];
    let quorum = Quorum::builder(twice).clock(nodes.clock.clone().into()).build().unwrap();
    quorum.connect().await.unwrap();
    take(&quorum, &key("once"), &owner()).await;
    nodes.servers[1].restart();
    let error = ask(&quorum, &key("twice"), &owner()).await.unwrap_err();
    assert!(error.message().contains("same server"), "{error}");
    let findings = quorum.probe().await.unwrap().findings;
    assert!(findings.iter().any(|finding| finding.what.contains("same server")), "{findings:?}");
    let stores = [MemoryStore::new(), MemoryStore::new(), MemoryStore::new(), MemoryStore::new()];
    let findings = Quorum::new(stores).unwrap().probe().await.unwrap().findings;
    assert!(findings.iter().any(|finding| finding.what.contains("no more failures than 3")), "{findings:?}");
}
