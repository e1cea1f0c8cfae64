//! Answers that somebody reads late: what they say was true when the server said it, and others hold the key by now.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use leasehold::store::redis::RedisStore;
use leasehold::store::{Attempt, Claim, Loss, Store};
use leasehold::testkit::Proxy;
use leasehold::{Key, LostReason, OwnerToken};
use store_tests::{Monitor, Site, on_every_server};
use tokio::time::{sleep, timeout};

/// Five times and more of what anything here needs on a busy machine.
const SOON: Duration = Duration::from_secs(10);
/// Nothing that lasts so long happens within a test.
const LONG: Duration = Duration::from_secs(600);

on_every_server! {
    a_grant_that_is_read_late_is_no_loss_of_the_next_holder
    a_removal_that_is_read_late_is_no_loss_of_the_next_holder
    a_removal_that_nobody_waits_for_is_told_all_the_same
}

struct Bench {
    store: RedisStore,
    key: Key,
}

impl Bench {
    async fn new(site: &Site) -> Self {
        Self::with(site.store().await).await
    }

    async fn with(store: RedisStore) -> Self {
        let bench = Self { store, key: Key::new("leasehold", "job").unwrap() };
        // The server knows the scripts from here on.
        let owner = OwnerToken::mint().unwrap();
        bench.grant(&owner).await;
        bench.store.force_release(&bench.key, None).await.unwrap().unwrap();
        bench
    }

    async fn grant(&self, owner: &OwnerToken) -> Loss {
        loss_of(self.store.acquire(&Claim::new(&self.key, owner, LONG)).await.unwrap())
    }

    /// That this lease is not told to be lost, although whatever there was to look at was looked at.
    async fn stands(&self, loss: &Loss, owner: &OwnerToken) {
        sleep(Duration::from_millis(200)).await;
        assert_eq!(self.store.inspect(&self.key).await.unwrap().holders[0].owner, *owner);
        assert_eq!(loss.raised(), None);
    }
}

fn loss_of(attempt: Attempt) -> Loss {
    match attempt {
        Attempt::Acquired(grant) => grant.loss.unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn begun<T>(request: &mut Pin<Box<impl Future<Output = T> + ?Sized>>) {
    poll_fn(|context| {
        assert!(request.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

/// Waits until this owner has been granted the key, and its lease has ended.
async fn granted_and_gone(site: &Site, owner: &OwnerToken) {
    let mut client = site.client();
    let mut is_granted = || {
        let companion = ["leasehold:job:fence{leasehold:job}", "held"];
        let held: Vec<u8> = redis::cmd("HGET").arg(&companion).query(&mut client).unwrap();
        held.ends_with(owner.as_bytes())
    };
    let mut client = site.client();
    let mut is_gone = || redis::cmd("EXISTS").arg("leasehold:job").query::<u32>(&mut client).unwrap() == 0;
    let waiting = async {
        while !(is_granted() && is_gone()) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, waiting).await.unwrap();
}

/// Sends a request, and looks at nothing that comes back.
async fn sent<T>(site: &Site, request: &mut Pin<Box<impl Future<Output = T> + ?Sized>>) {
    site.server().stop().unwrap();
    begun(request).await;
    // Time for it to go out.
    sleep(Duration::from_millis(50)).await;
    site.server().cont().unwrap();
}

async fn a_grant_that_is_read_late_is_no_loss_of_the_next_holder(site: Site) {
    let bench = Bench::new(&site).await;
    let (first, second) = (OwnerToken::mint().unwrap(), OwnerToken::mint().unwrap());
    let claim = Claim::new(&bench.key, &first, Duration::from_millis(20));
    let mut late = bench.store.acquire(&claim);
    sent(&site, &mut late).await;
    granted_and_gone(&site, &first).await;
    let next = bench.grant(&second).await;
    let old = loss_of(late.await.unwrap());
    bench.stands(&next, &second).await;
    // And the old one is.
    timeout(SOON, old.wait()).await.unwrap();
    assert_eq!(old.raised(), Some(LostReason::NotHeld));
    // Whose loss is still told.
    bench.store.force_release(&bench.key, None).await.unwrap().unwrap();
    assert_eq!(next.raised(), Some(LostReason::NotHeld));
}

async fn a_removal_that_is_read_late_is_no_loss_of_the_next_holder(site: Site) {
    let bench = Bench::new(&site).await;
    let (first, second) = (OwnerToken::mint().unwrap(), OwnerToken::mint().unwrap());
    let old = bench.grant(&first).await;
    let mut late = bench.store.force_release(&bench.key, None);
    sent(&site, &mut late).await;
    let next = bench.grant(&second).await;
    assert_eq!(late.await.unwrap().unwrap().holders[0].owner, first);
    bench.stands(&next, &second).await;
    timeout(SOON, old.wait()).await.unwrap();
    assert_eq!(old.raised(), Some(LostReason::NotHeld));
}

async fn a_removal_that_nobody_waits_for_is_told_all_the_same(site: Site) {
    let proxy = Proxy::start(site.server().address()).unwrap();
    let bench = Bench::with(RedisStore::connect(&format!("redis://{}", proxy.address())).await.unwrap()).await;
    let owner = OwnerToken::mint().unwrap();
    let loss = bench.grant(&owner).await;
    let mut monitor = Monitor::start(site.server().address());
    proxy.replies().hold();
    let mut dropped = bench.store.force_release(&bench.key, None);
    begun(&mut dropped).await;
    monitor.until("EVALSHA", "leasehold:job").await;
    drop(dropped);
    proxy.heal();
    assert_eq!(timeout(SOON, loss.wait()).await.unwrap(), LostReason::NotHeld);
}
