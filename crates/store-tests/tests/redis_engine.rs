//! What an engine promises, in real time and over a network.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use leasehold::{Clock, ErrorKind, LostReason, Renew};
use store_tests::{Site, on_every_server};
use tokio::time::{sleep, timeout};

/// Long enough to be renewed in time on a busy machine, short enough to wait for its end.
const TTL: Duration = Duration::from_secs(6);
/// Five times and more of what anything here needs on a busy machine.
const SOON: Duration = Duration::from_secs(10);

on_every_server! {
    a_bounded_wait_ends_when_it_should
    a_lease_is_renewed_beyond_its_ttl
    without_renewal_it_ends_and_the_next_one_starts_later
    waiters_of_one_manager_are_served_in_order
    waiters_of_other_managers_are_served
    exactly_one_of_many_resumers_wins
    a_kept_lease_stands_without_its_manager
    acting_by_owner_needs_no_guard
    work_is_stopped_when_its_lease_is_removed
    what_closes_gives_back
}

async fn a_bounded_wait_ends_when_it_should(site: Site) {
    let (holder, locks) = (site.manager().await, site.manager().await);
    let _guard = holder.lock("job").try_acquire().await.unwrap().unwrap();
    for wait in [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(300)] {
        let began = Clock::system().now();
        let outcome = timeout(SOON, locks.lock("job").acquire_within(wait)).await.unwrap();
        assert!(outcome.unwrap().is_none());
        assert!(Clock::system().now().since(began) >= wait);
    }
}

async fn a_lease_is_renewed_beyond_its_ttl(site: Site) {
    let (holder, locks) = (site.builder().await.ttl(TTL).build().unwrap(), site.manager().await);
    let guard = holder.lock("job").try_acquire().await.unwrap().unwrap();
    for _ in 0..10 {
        sleep(TTL / 8).await;
        guard.check().unwrap();
        assert!(locks.lock("job").try_acquire().await.unwrap().is_none());
    }
    guard.release().await.unwrap();
    locks.lock("job").try_acquire().await.unwrap().unwrap().release().await.unwrap();
}

async fn without_renewal_it_ends_and_the_next_one_starts_later(site: Site) {
    let (holder, locks) = (site.manager().await, site.manager().await);
    let guard = holder.lock("job").ttl(TTL / 2).renew(Renew::Off).try_acquire().await.unwrap().unwrap();
    let until = Clock::system().now() + guard.remaining();
    let next = tokio::spawn(async move {
        let next = locks.lock("job").acquire().await.unwrap();
        (Clock::system().now(), next)
    });
    assert_eq!(guard.lost().await, LostReason::Expired);
    let (began, next) = timeout(SOON, next).await.unwrap().unwrap();
    assert!(began >= until, "two held it at the same time");
    assert!(next.fencing_token() > guard.fencing_token());
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
    next.check().unwrap();
}

async fn waiters_of_one_manager_are_served_in_order(site: Site) {
    let (holder, locks) = (site.manager().await, site.manager().await);
    let guard = holder.lock("job").try_acquire().await.unwrap().unwrap();
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut waiters: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
    for number in 0..20 {
        let (lock, served) = (locks.lock("job"), served.clone());
        let mut waiter: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            let guard = lock.acquire().await.unwrap();
            served.send(number).unwrap();
            guard.release().await.unwrap();
        });
        // Looked at once, so that it has joined the line.
        assert!(timeout(Duration::ZERO, &mut waiter).await.is_err());
        waiters.push(waiter);
    }
    drop(served);
    waiters.into_iter().for_each(|waiter| drop(tokio::spawn(waiter)));
    guard.release().await.unwrap();
    for number in 0..20 {
        assert_eq!(timeout(SOON, order.recv()).await.unwrap(), Some(number));
    }
    assert_eq!(order.recv().await, None);
}

async fn waiters_of_other_managers_are_served(site: Site) {
    let mut managers = Vec::new();
    for _ in 0..8 {
        managers.push(site.manager().await);
    }
    let guard = managers[0].lock("job").try_acquire().await.unwrap().unwrap();
    let turns: Vec<_> = managers
        .iter()
        .map(|locks| {
            let lock = locks.lock("job");
            tokio::spawn(async move {
                for _ in 0..3 {
                    lock.acquire().await.unwrap().release().await.unwrap();
                }
            })
        })
        .collect();
    guard.release().await.unwrap();
    for turn in turns {
        timeout(6 * SOON, turn).await.unwrap().unwrap();
    }
    site.at_rest(&managers).await;
}

async fn exactly_one_of_many_resumers_wins(site: Site) {
    let giver = site.manager().await;
    let mut managers = Vec::new();
    for _ in 0..8 {
        managers.push(site.manager().await);
    }
    for _ in 0..20 {
        let guard = giver.lock("job").acquire().await.unwrap();
        let token = guard.hand_over().await.unwrap();
        assert_eq!(guard.check().unwrap_err().lost_reason(), Some(LostReason::HandedOver));
        let resumers: Vec<_> = managers
            .iter()
            .map(|locks| {
                let (lock, token) = (locks.lock("job"), token.clone());
                tokio::spawn(async move { lock.resume(&token).await })
            })
            .collect();
        let mut won = Vec::new();
        for resumer in resumers {
            match resumer.await.unwrap() {
                Ok(guard) => won.push(guard),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotHeld),
            }
        }
        assert_eq!(won.len(), 1);
        let winner = won.pop().unwrap();
        assert!(winner.fencing_token() > guard.fencing_token());
        // The old token is dead.
        assert_eq!(giver.lock("job").release_by(&token).await.unwrap_err().kind(), ErrorKind::NotHeld);
        assert_eq!(giver.lock("job").extend_by(&token, 5 * TTL).await.unwrap_err().kind(), ErrorKind::NotHeld);
        winner.check().unwrap();
        winner.release().await.unwrap();
    }
    site.at_rest(&managers).await;
}

async fn a_kept_lease_stands_without_its_manager(site: Site) {
    let (keeper, locks) = (site.manager().await, site.manager().await);
    let guard = keeper.lock("job").ttl(TTL).try_acquire().await.unwrap().unwrap();
    let kept = Clock::system().now();
    guard.keep().await.unwrap();
    drop(guard);
    keeper.close(leasehold::Close::Release).await.unwrap();
    drop(keeper);
    assert!(locks.lock("job").try_acquire().await.unwrap().is_none());
    let next = timeout(TTL + SOON, locks.lock("job").acquire()).await.unwrap().unwrap();
    // The server's clock counts in whole milliseconds, from when the request arrived.
    assert!(Clock::system().now().since(kept) >= TTL / 2, "it did not stand");
    next.release().await.unwrap();
}

async fn acting_by_owner_needs_no_guard(site: Site) {
    let (giver, locks) = (site.manager().await, site.manager().await);
    let lock = locks.lock("job");
    let token = giver.lock("job").ttl(TTL).try_acquire().await.unwrap().unwrap().hand_over().await.unwrap();
    lock.extend_by(&token, 20 * TTL).await.unwrap();
    assert!(lock.holder().await.unwrap().unwrap().remaining.unwrap() > 10 * TTL);
    lock.release_by(&token).await.unwrap();
    assert!(lock.holder().await.unwrap().is_none());
    assert_eq!(lock.release_by(&token).await.unwrap_err().kind(), ErrorKind::NotHeld);
    assert_eq!(lock.resume(&token).await.unwrap_err().kind(), ErrorKind::NotHeld);
}

async fn work_is_stopped_when_its_lease_is_removed(site: Site) {
    let often = Renew::Every(Duration::from_millis(300));
    let (worker, operator) = (site.builder().await.ttl(TTL).renew(often).build().unwrap(), site.manager().await);
    let (started, is_started) = tokio::sync::oneshot::channel();
    let work = tokio::spawn(async move {
        let work = async |_| {
            started.send(()).unwrap();
            std::future::pending::<()>().await;
        };
        worker.with_lock("job", work).await.map(drop)
    });
    is_started.await.unwrap();
    // Renewed a few times by then.
    sleep(Duration::from_secs(1)).await;
    let removed = operator.force_release("job", None).await.unwrap().unwrap();
    // By a push, or by the next renewal at the latest.
    let error = timeout(SOON, work).await.unwrap().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.lost_reason()), (ErrorKind::Lost, Some(LostReason::NotHeld)));
    let next = operator.lock("job").try_acquire().await.unwrap().unwrap();
    assert!(next.fencing_token() > removed.fence_floor);
}

async fn what_closes_gives_back(site: Site) {
    let (closing, locks) = (site.manager().await, site.manager().await);
    let guards = [closing.lock("one").acquire().await.unwrap(), closing.lock("two").acquire().await.unwrap()];
    closing.close(leasehold::Close::Release).await.unwrap();
    for (name, guard) in ["one", "two"].into_iter().zip(&guards) {
        assert_eq!(guard.check().unwrap_err().lost_reason(), Some(LostReason::Closed));
        locks.lock(name).try_acquire().await.unwrap().unwrap().release().await.unwrap();
    }
    assert_eq!(closing.lock("one").try_acquire().await.unwrap_err().kind(), ErrorKind::Closed);
}
