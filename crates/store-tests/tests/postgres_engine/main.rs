//! What an engine promises, over leases in a table, and over locks that end with their session: many on one, and each on
//! its own.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold::testkit::{History, Record};
use leasehold::{Clock, Close, ErrorKind, Key, LostReason, Renew};
use store_tests::run;
use tokio::time::{sleep, timeout};

use self::owner::*;
use self::site::Site;

mod owner;
mod site;

/// Short enough to wait for its end.
const TTL: Duration = Duration::from_millis(1500);
/// Long enough to be renewed in time on a busy machine, many times over.
const RENEWED: Duration = Duration::from_secs(15);
const EVERY: Duration = Duration::from_millis(300);
/// Five times and more of what anything here needs on a busy machine.
const SOON: Duration = Duration::from_secs(30);

macro_rules! in_every_mode {
    ($($test:ident)*) => {
        in_every_mode! { in_mode_advisory Site::direct("advisory"), has_postgres, $($test)* }
        in_every_mode! { in_mode_xact Site::direct("xact"), has_postgres, $($test)* }
        in_every_mode! {
            in_mode_xact_through_a_pooler Site::pooled("xact", "transaction"), all(has_postgres, has_pgbouncer), $($test)*
        }
    };
    ($mode:ident $site:expr, $has:meta, $($test:ident)*) => {
        mod $mode {
            use super::*;

            $(
                #[test]
                #[cfg_attr(not($has), ignore = "postgres or pgbouncer is not installed")]
                fn $test() {
                    run(async { super::$test($site).await });
                }
            )*
        }
    };
}

/// A lease in a table does not end with a session.
macro_rules! in_a_table {
    ($($test:ident)*) => {
        in_every_mode! { in_mode_table Site::direct("table"), has_postgres, $($test)* }
        in_every_mode! {
            in_mode_table_through_a_pooler_of_sessions
            Site::pooled("table", "session"), all(has_postgres, has_pgbouncer), $($test)*
        }
        in_every_mode! {
            in_mode_table_through_a_pooler_of_transactions
            Site::pooled("table", "transaction"), all(has_postgres, has_pgbouncer), $($test)*
        }
        in_every_mode! {
            in_mode_table_through_a_pooler_of_statements
            Site::pooled("table", "statement"), all(has_postgres, has_pgbouncer), $($test)*
        }
    };
}

in_a_table! {
    a_bounded_wait_ends_when_it_should
    a_lease_is_renewed_beyond_its_ttl
    without_renewal_it_ends_and_is_given_back
    waiters_of_one_manager_are_served_in_order
    holders_of_many_managers_never_overlap
    a_panic_gives_back
    what_closes_gives_back
    a_storm_of_cancelled_calls_leaves_nothing
    exactly_one_of_many_resumers_wins
    a_kept_lease_stands_without_its_manager
    acting_by_owner_needs_no_guard
    work_is_stopped_when_its_lease_is_removed
}

in_every_mode! {
    a_bounded_wait_ends_when_it_should
    a_lease_is_renewed_beyond_its_ttl
    without_renewal_it_ends_and_is_given_back
    waiters_of_one_manager_are_served_in_order
    holders_of_many_managers_never_overlap
    work_is_stopped_when_its_session_ends
    a_panic_gives_back
    what_closes_gives_back
    a_storm_of_cancelled_calls_leaves_nothing
}

async fn a_bounded_wait_ends_when_it_should(site: Site) {
    let (holder, locks) = (site.manager().await, site.manager().await);
    let guard = holder.lock("job").try_acquire().await.unwrap().unwrap();
    for wait in [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(300)] {
        let began = Clock::system().now();
        let outcome = timeout(SOON, locks.lock("job").acquire_within(wait)).await.unwrap();
        assert!(outcome.unwrap().is_none());
        assert!(Clock::system().now().since(began) >= wait);
    }
    guard.release().await.unwrap();
    site.at_rest(&[holder, locks]).await;
}

async fn a_lease_is_renewed_beyond_its_ttl(site: Site) {
    let (holder, locks) = (site.renewing(RENEWED, EVERY).await, site.manager().await);
    let guard = holder.lock("job").try_acquire().await.unwrap().unwrap();
    for _ in 0..12 {
        sleep(RENEWED / 10).await;
        guard.check().unwrap();
        assert!(locks.lock("job").try_acquire().await.unwrap().is_none());
    }
    guard.release().await.unwrap();
    locks.lock("job").try_acquire().await.unwrap().unwrap().release().await.unwrap();
    site.at_rest(&[holder, locks]).await;
}

/// The server knows no ttl, but a holder that is past its own gives back.
async fn without_renewal_it_ends_and_is_given_back(site: Site) {
    let (holder, locks) = (site.manager().await, site.manager().await);
    let brief = holder.lock("job").ttl(TTL).renew(Renew::Off);
    let guard = timeout(SOON, async {
        loop {
            match brief.try_acquire().await {
                Ok(Some(guard)) => break guard,
                // What was undone may be there a moment longer.
                Ok(None) => {}
                Err(error) => {
                    let unknown = [ErrorKind::Unavailable, ErrorKind::Indeterminate];
                    assert!(unknown.contains(&error.kind()), "{error}");
                }
            }
            sleep(EVERY).await;
        }
    });
    let guard = guard.await.unwrap();
    let token = guard.fencing_token();
    let next = tokio::spawn(async move { locks.lock("job").acquire().await.unwrap() });
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
    let next = timeout(SOON, next).await.unwrap().unwrap();
    assert!(next.fencing_token() > token);
    next.release().await.unwrap();
    site.at_rest(&[holder]).await;
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
    site.at_rest(&[holder, locks]).await;
}

async fn holders_of_many_managers_never_overlap(site: Site) {
    let history = Arc::new(History::new());
    let (mut managers, mut workers) = (Vec::new(), Vec::new());
    for number in 0..6 {
        let locks = site.manager().await;
        let (worker, history) = (locks.clone(), Arc::clone(&history));
        workers.push(tokio::spawn(async move {
            for round in 0..15 {
                let guard = timeout(2 * SOON, worker.lock("job").acquire()).await.expect("a turn").unwrap();
                let (from, key) = (Clock::system().now(), Key::new("leasehold", "job").unwrap());
                tokio::task::yield_now().await;
                guard.check().unwrap();
                let record = Record::new(key, number * 1000 + round, from, Clock::system().now());
                history.record(record.fencing(guard.fencing_token()));
                guard.release().await.unwrap();
            }
        }));
        managers.push(locks);
    }
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!((history.len(), history.check()), (90, Vec::new()));
    site.at_rest(&managers).await;
}

async fn work_is_stopped_when_its_session_ends(site: Site) {
    let (worker, others) = (site.manager().await, site.manager().await);
    let (started, is_started) = tokio::sync::oneshot::channel();
    let locks = worker.clone();
    let work = tokio::spawn(async move {
        let work = async |_| {
            started.send(()).unwrap();
            std::future::pending::<()>().await;
        };
        locks.with_lock("job", work).await.map(drop)
    });
    is_started.await.unwrap();
    site.end_holders().await;
    let error = timeout(SOON, work).await.unwrap().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.lost_reason()), (ErrorKind::Lost, Some(LostReason::ConnectionLost)));
    timeout(SOON, others.lock("job").acquire()).await.unwrap().unwrap().release().await.unwrap();
    site.at_rest(&[worker, others]).await;
}

async fn a_panic_gives_back(site: Site) {
    let (worker, others) = (site.manager().await, site.manager().await);
    let locks = worker.clone();
    let work = tokio::spawn(async move {
        locks.with_lock("job", async |_| -> () { std::panic::resume_unwind(Box::new("on purpose")) }).await.map(drop)
    });
    assert!(work.await.unwrap_err().is_panic());
    timeout(SOON, others.lock("job").try_acquire()).await.unwrap().unwrap().unwrap().release().await.unwrap();
    site.at_rest(&[worker, others]).await;
}

async fn what_closes_gives_back(site: Site) {
    let (closing, locks) = (site.manager().await, site.manager().await);
    let guards = [closing.lock("one").acquire().await.unwrap(), closing.lock("two").acquire().await.unwrap()];
    closing.close(Close::Release).await.unwrap();
    for (name, guard) in ["one", "two"].into_iter().zip(&guards) {
        assert_eq!(guard.check().unwrap_err().lost_reason(), Some(LostReason::Closed));
        locks.lock(name).try_acquire().await.unwrap().unwrap().release().await.unwrap();
    }
    assert_eq!(closing.lock("one").try_acquire().await.unwrap_err().kind(), ErrorKind::Closed);
    site.at_rest(&[locks]).await;
}

async fn a_storm_of_cancelled_calls_leaves_nothing(site: Site) {
    let managers = [site.manager().await, site.manager().await];
    let mut calls = Vec::new();
    for number in 0..200_u64 {
        let lock = managers[usize::try_from(number % 2).unwrap()].lock(&format!("key {}", number % 3));
        calls.push(tokio::spawn(async move {
            let limit = Duration::from_micros(number * 71 % 8000);
            if let Ok(Ok(guard)) = timeout(limit, lock.acquire()).await {
                guard.release().await.unwrap();
            }
        }));
        if number % 10 == 0 {
            sleep(Duration::from_millis(4)).await;
        }
    }
    for call in calls {
        call.await.unwrap();
    }
    site.at_rest(&managers).await;
    for number in 0..3 {
        let lock = managers[0].lock(&format!("key {number}"));
        timeout(SOON, lock.acquire()).await.unwrap().unwrap().release().await.unwrap();
    }
}
