//! Connections, renewals and the notice of a loss on a thread of their own, while nothing else runs.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use leasehold::config::Config;
use leasehold::{Clock, LockManager, LostReason};
use store_tests::{Site, Table, run};
use tokio::runtime::Builder;
use tokio::time::sleep;

/// Long enough to be renewed in time on a busy machine, short enough to wait for three of them.
const TTL: Duration = Duration::from_secs(6);
/// Five times and more of what anything here needs on a busy machine.
const SOON: Duration = Duration::from_secs(15);

const WORKERS: usize = 2;

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_lease_on_redis_is_held_while_every_worker_is_blocked() {
    let site = Site::redis();
    held_while_blocked(&site.url());
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_lease_on_postgres_is_held_while_every_worker_is_blocked() {
    let table = Table::new();
    held_while_blocked(&table.url());
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn an_advisory_lock_on_postgres_is_held_while_every_worker_is_blocked() {
    let table = Table::new();
    let separator = if table.url().contains('?') { '&' } else { '?' };
    held_while_blocked(&format!("{}{separator}mode=advisory", table.url()));
}

/// Each lock has a connection of its own there.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_lock_of_a_transaction_on_postgres_is_held_while_every_worker_is_blocked() {
    let table = Table::new();
    let separator = if table.url().contains('?') { '&' } else { '?' };
    held_while_blocked(&format!("{}{separator}mode=xact", table.url()));
}

#[test]
fn a_lease_in_a_file_is_held_while_every_worker_is_blocked() {
    let directory = tempfile::tempdir().unwrap();
    held_while_blocked(&format!("sqlite://{}", directory.path().join("leases.db").display()));
}

fn held_while_blocked(url: &str) {
    let runtime = Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build().unwrap();
    let config = Config::from_url(url).ttl(TTL).own_runtime(true);
    let locks = runtime.block_on(config.connect()).unwrap();
    let guard = runtime.block_on(locks.lock("job").acquire()).unwrap();
    let blocked = Arc::new(Barrier::new(WORKERS + 1));
    for _ in 0..WORKERS {
        let blocked = Arc::clone(&blocked);
        runtime.spawn(async move {
            blocked.wait();
            thread::sleep(3 * TTL);
        });
    }
    blocked.wait();
    run(async {
        let others = LockManager::connect(url).await.unwrap();
        let until = Clock::system().now() + 3 * TTL;
        while Clock::system().now() < until {
            assert!(others.lock("job").try_acquire().await.unwrap().is_none(), "the lease was not renewed");
            sleep(TTL / 10).await;
        }
    });
    guard.check().unwrap();
    runtime.block_on(guard.release()).unwrap();
    drop(runtime.block_on(locks.lock("job").try_acquire()).unwrap().unwrap());
}

/// The server says at once that the lease is gone, and it is heard although nobody else runs.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_loss_is_noticed_while_every_worker_is_blocked() {
    let site = Site::redis();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let config = Config::from_url(&site.url()).ttl(20 * TTL).own_runtime(true);
    let locks = runtime.block_on(config.connect()).unwrap();
    let guard = runtime.block_on(locks.lock("job").acquire()).unwrap();
    let (blocked, (end, ends)) = (Arc::new(Barrier::new(2)), channel::<()>());
    let both = Arc::clone(&blocked);
    runtime.spawn(async move {
        both.wait();
        ends.recv().ok();
    });
    blocked.wait();
    redis::cmd("DEL").arg("leasehold:job").exec(&mut site.client()).unwrap();
    let until = Clock::system().now() + SOON;
    while guard.check().is_ok() {
        assert!(Clock::system().now() < until, "nobody heard of it");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(guard.check().unwrap_err().lost_reason(), Some(LostReason::NotHeld));
    drop(end);
}
