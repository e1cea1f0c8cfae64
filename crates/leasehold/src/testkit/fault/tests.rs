use std::time::Duration;

use super::*;
use crate::clock::Clock;
use crate::store::Tie;
use crate::store::memory::MemoryStore;

const TTL: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn without_a_fault_calls_pass_and_are_recorded() {
    let (store, key, owner) = fixture();
    assert!(acquire(&store, &key, &owner).await.is_ok());
    let claim = Claim::new(&key, &owner, TTL).tie(Tie::Nothing);
    assert_eq!(store.extend(&[claim, claim]).await.unwrap().len(), 2);
    assert!(store.release(&key, &owner).await.unwrap());
    assert_eq!([Operation::Acquire, Operation::Extend, Operation::Release].map(|op| store.calls(op)), [1, 1, 1]);
    assert_eq!(store.total_calls(), 3);
    let log = store.log();
    assert_eq!(log.iter().map(|call| call.number).collect::<Vec<_>>(), [0, 1, 1, 2]);
    assert_eq!((log[1].tie, log[1].ttl, log[1].key.as_ref()), (Some(Tie::Nothing), Some(TTL), Some(&key)));
    assert_eq!(log[3].owner, Some(owner));
}

#[tokio::test(start_paused = true)]
async fn a_failed_call_is_not_applied_and_the_next_one_passes() {
    let (store, key, owner) = fixture();
    store.once(Operation::Acquire, Fault::fail(ErrorKind::Unavailable));
    assert_eq!(acquire(&store, &key, &owner).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(is_free(&store, &key).await);
    assert!(acquire(&store, &key, &owner).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_is_applied() {
    let (store, key, owner) = fixture();
    store.once(Operation::Acquire, Fault::lose_reply());
    assert_eq!(acquire(&store, &key, &owner).await.unwrap_err().kind(), ErrorKind::Indeterminate);
    assert!(!is_free(&store, &key).await);
    store.once(Operation::Release, Fault::lose_reply().silently());
    assert!(tokio::time::timeout(SECOND, store.release(&key, &owner)).await.is_err());
    assert!(is_free(&store, &key).await);
}

#[tokio::test(start_paused = true)]
async fn a_late_request_is_applied_after_its_caller_gave_up() {
    let (store, key, owner) = fixture();
    store.once(Operation::Acquire, Fault::apply_late(SECOND * 2));
    assert!(acquire(&store, &key, &owner).await.is_err());
    store.once(Operation::Release, Fault::delay(SECOND * 4));
    assert!(tokio::time::timeout(SECOND, store.release(&key, &owner)).await.is_err());
    assert!(is_free(&store, &key).await);
    tokio::time::sleep(SECOND * 2).await;
    assert!(!is_free(&store, &key).await);
    tokio::time::sleep(SECOND * 2).await;
    assert!(is_free(&store, &key).await);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_reply_arrives() {
    let (store, key, owner) = fixture();
    store.once(Operation::Acquire, Fault::delay(SECOND));
    store.once(Operation::Release, Fault::delay_reply(SECOND));
    let clock = Clock::tokio();
    let begin = clock.now();
    assert!(acquire(&store, &key, &owner).await.is_ok());
    assert!(store.release(&key, &owner).await.unwrap());
    assert_eq!(clock.now().since(begin), SECOND * 2);
}

#[tokio::test(start_paused = true)]
async fn a_fault_for_one_key_spares_the_others_and_poisons_its_batch() {
    let (store, key, owner) = fixture();
    let other = Key::new("faults", "other").unwrap();
    store.outage(Fault::hang().on(&key));
    assert!(acquire(&store, &other, &owner).await.is_ok());
    let claims = [Claim::new(&other, &owner, TTL), Claim::new(&key, &owner, TTL)];
    assert!(store.extend(&claims[..1]).await.is_ok());
    assert!(tokio::time::timeout(SECOND, store.extend(&claims)).await.is_err());
    store.heal();
    assert!(store.extend(&claims).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn starved_calls_go_on_when_healed() {
    let (store, key, owner) = fixture();
    store.always(Operation::Acquire, Fault::starve());
    let starved = tokio::spawn({
        let (store, key, owner) = (store.clone(), key.clone(), owner.clone());
        async move { acquire(&store, &key, &owner).await.is_ok() }
    });
    tokio::time::sleep(SECOND * 60).await;
    assert!(!starved.is_finished());
    store.heal();
    assert!(starved.await.unwrap());
}

fn fixture() -> (FaultStore, Key, OwnerToken) {
    let store = FaultStore::new(MemoryStore::with_clock(Clock::tokio()));
    (store, Key::new("faults", "key").unwrap(), OwnerToken::mint().unwrap())
}

async fn acquire(store: &FaultStore, key: &Key, owner: &OwnerToken) -> Result<Attempt> {
    store.acquire(&Claim::new(key, owner, TTL)).await
}

async fn is_free(store: &FaultStore, key: &Key) -> bool {
    store.inspect(key).await.unwrap().holders.is_empty()
}
