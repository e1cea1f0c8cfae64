//! What is done by an owner token: leases that pass on, stand alone, or are removed.

use std::time::Duration;

use leasehold::{Close, ErrorKind, LostReason};
use tokio::time::{sleep, timeout};

use crate::site::Site;
use crate::{EVERY, RENEWED, SOON, TTL};

/// Several times what is done with such a lease takes on a busy machine.
const KEPT: Duration = Duration::from_secs(10);

pub(crate) async fn exactly_one_of_many_resumers_wins(site: Site) {
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
        assert_eq!(giver.lock("job").extend_by(&token, TTL).await.unwrap_err().kind(), ErrorKind::NotHeld);
        winner.check().unwrap();
        winner.release().await.unwrap();
    }
    site.at_rest(&managers).await;
}

pub(crate) async fn a_kept_lease_stands_without_its_manager(site: Site) {
    let (keeper, locks) = (site.manager().await, site.manager().await);
    let guard = keeper.lock("job").ttl(KEPT).try_acquire().await.unwrap().unwrap();
    let token = guard.fencing_token();
    guard.keep().await.unwrap();
    drop(guard);
    keeper.close(Close::Release).await.unwrap();
    drop(keeper);
    assert!(locks.lock("job").try_acquire().await.unwrap().is_none());
    let next = timeout(SOON, locks.lock("job").acquire()).await.unwrap().unwrap();
    assert!(next.fencing_token() > token);
    next.release().await.unwrap();
}

pub(crate) async fn acting_by_owner_needs_no_guard(site: Site) {
    let (giver, locks) = (site.manager().await, site.manager().await);
    let lock = locks.lock("job");
    let token = giver.lock("job").ttl(KEPT).try_acquire().await.unwrap().unwrap().hand_over().await.unwrap();
    lock.extend_by(&token, 20 * TTL).await.unwrap();
    assert!(lock.holder().await.unwrap().unwrap().remaining.unwrap() > 10 * TTL);
    lock.release_by(&token).await.unwrap();
    assert!(lock.holder().await.unwrap().is_none());
    assert_eq!(lock.release_by(&token).await.unwrap_err().kind(), ErrorKind::NotHeld);
    assert_eq!(lock.resume(&token).await.unwrap_err().kind(), ErrorKind::NotHeld);
}

pub(crate) async fn work_is_stopped_when_its_lease_is_removed(site: Site) {
    let (worker, operator) = (site.renewing(RENEWED, EVERY).await, site.manager().await);
    let (started, is_started) = tokio::sync::oneshot::channel();
    let work = tokio::spawn(async move {
        let work = async |_| {
            started.send(()).unwrap();
            std::future::pending::<()>().await;
        };
        worker.with_lock("job", work).await.map(drop)
    });
    is_started.await.unwrap();
    // It was renewed meanwhile.
    sleep(RENEWED / 5).await;
    let removed = operator.force_release("job", None).await.unwrap().unwrap();
    // By a push, or by the next renewal at the latest.
    let error = timeout(SOON, work).await.unwrap().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.lost_reason()), (ErrorKind::Lost, Some(LostReason::NotHeld)));
    let next = operator.lock("job").try_acquire().await.unwrap().unwrap();
    assert!(next.fencing_token() > removed.fence_floor);
}
