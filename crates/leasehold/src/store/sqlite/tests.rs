//! What only this store can get wrong: the file, the boot, the clocks, other processes.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::SystemTime;

use rusqlite::Connection;
use tempfile::TempDir;

use super::*;
use crate::clock::{Clock, Moment};
use crate::store::{HolderInfo, Tie, Wake};

mod actors;
mod boots;
mod losses;
mod places;
mod races;
mod rows;
mod threads;
mod upkeep;

const TTL: Duration = Duration::from_secs(30);
const DAY: Duration = Duration::from_secs(86_400);

fn scratch() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("leases.db");
    (directory, path)
}

fn key(name: &str) -> Key {
    Key::new("test", name).unwrap()
}

fn owner() -> OwnerToken {
    OwnerToken::mint().unwrap()
}

fn other_boot() -> Host {
    host_with(|host| host.boot = "another boot".to_owned())
}

fn host_with(change: impl FnOnce(&mut Host)) -> Host {
    let mut host = Host::present().unwrap();
    change(&mut host);
    host
}

async fn granted(store: &SqliteStore, claim: &Claim<'_>) -> Grant {
    match store.acquire(claim).await.unwrap() {
        Attempt::Acquired(grant) => grant,
        Attempt::Contended(contention) => panic!("held by {:?}", contention.holder),
    }
}

async fn refused(store: &SqliteStore, claim: &Claim<'_>) -> Contention {
    match store.acquire(claim).await.unwrap() {
        Attempt::Acquired(grant) => panic!("granted: {grant:?}"),
        Attempt::Contended(contention) => contention,
    }
}

fn token(grant: &Grant) -> u64 {
    grant.fencing.unwrap().get()
}

fn hint(contention: Contention) -> crate::store::BoxFuture {
    match contention.wake {
        Some(Wake::Hint(wake)) => wake,
        other => panic!("no hint: {other:?}"),
    }
}

fn files(directory: &Path) -> Vec<OsString> {
    let mut names: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

/// Whether any process has a lock on the file.
fn has_lock(path: &Path) -> bool {
    let inode = format!(":{} ", fs::metadata(path).unwrap().ino());
    // While other processes change theirs, a look may miss a line.
    (0..1000).any(|_| {
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        locks.lines().any(|line| line.contains(&inode))
    })
}

async fn poll_once<F: Future + ?Sized>(mut future: std::pin::Pin<&mut F>) {
    std::future::poll_fn(|context| {
        assert!(future.as_mut().poll(context).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
}

/// A boot-time clock that runs this much ahead.
fn ahead(by: Duration) -> Clock {
    #[derive(Debug)]
    struct Ahead(Duration);
    impl crate::clock::TimeSource for Ahead {
        fn now(&self) -> Moment {
            Clock::system().now() + self.0
        }
    }
    Clock::from_source(Ahead(by))
}

fn wall_now_plus(by: Duration) -> SystemTime {
    crate::clock::wall_now() + by
}
