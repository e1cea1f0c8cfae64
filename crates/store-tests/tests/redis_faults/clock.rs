//! The server's wall clock is stepped: leases end early or late there, and nobody is told anything false or waits for ever.

use std::fs;
use std::process::Command;
use std::time::Duration;

use leasehold::LostReason;
use leasehold::testkit::Server;
use store_tests::answers_ping;
use tempfile::TempDir;

use crate::setting::{Direct, LONG, SHORT, fence, manager, soon};

const MINUTE: Duration = Duration::from_secs(60);

/// A server whose wall clock obeys.
struct Clocked {
    server: Server,
    directory: TempDir,
}

impl Clocked {
    fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let (source, library) = (directory.path().join("clock.c"), directory.path().join("clock.so"));
        fs::write(&source, include_str!("clock.c")).unwrap();
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .args([&library, &source])
            .output()
            .unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let clock = directory.path().join("clock");
        fs::write(&clock, 0_i64.to_ne_bytes()).unwrap();
        let program = Server::find("redis-server").unwrap();
        let arguments = [
            format!("LD_PRELOAD={}", library.display()),
            format!("TEST_CLOCK={}", clock.display()),
            program.display().to_string(),
        ];
        let options = ["--bind", "127.0.0.1", "--port", "{port}", "--dir", "{dir}", "--save", ""];
        let server = Server::builder("/usr/bin/env").args(arguments).args(options).ready(answers_ping).start().unwrap();
        Self { server, directory }
    }

    /// Sets the clock to so many seconds beside the true time.
    fn step(&self, direct: &mut Direct, seconds: i64) {
        use std::os::unix::fs::FileExt;
        let before = direct.seconds();
        let clock = fs::File::options().write(true).open(self.directory.path().join("clock")).unwrap();
        clock.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
        let stepped = direct.seconds() - before;
        assert!((seconds..seconds + 60).contains(&stepped), "{stepped}");
    }
}

impl Direct {
    fn seconds(&mut self) -> i64 {
        let (seconds, _): (i64, i64) = ::redis::from_redis_value(self.ask("TIME")).unwrap();
        seconds
    }
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_step_forward_ends_leases_and_their_holders_are_told() {
    let clocked = Clocked::start();
    let address = clocked.server.address();
    let (locks, others) = (manager(address, MINUTE).await, manager(address, MINUTE).await);
    let mut direct = Direct::to(address);
    let first = locks.lock("k").try_acquire().await.unwrap().unwrap();
    let longer = locks.lock("longer").ttl(LONG).try_acquire().await.unwrap().unwrap();
    let lock = others.lock("k");
    let mut waiting = Box::pin(lock.acquire_within(MINUTE / 2));
    tokio::select! {
        _ = &mut waiting => panic!("granted twice"),
        () = tokio::time::sleep(Duration::from_millis(300)) => {}
    }
    clocked.step(&mut direct, 120);
    // Not by its own deadline, which the step did not move, but by the server's word.
    assert_eq!(soon("the loss", first.lost()).await, LostReason::NotHeld);
    first.check().unwrap_err();
    let second = soon("the key", waiting).await.unwrap().unwrap();
    assert!(fence(&second) > fence(&first));
    second.check().unwrap();
    assert!(locks.lock("k").try_acquire().await.unwrap().is_none());
    // What the step did not end can be renewed to its full length.
    longer.check().unwrap();
    assert!(longer.remaining() > LONG - MINUTE);
    longer.extend(LONG).await.unwrap();
    assert!(direct.number("PTTL leasehold:longer") > 540_000);
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn after_a_step_back_nobody_waits_longer_than_asked_for() {
    let clocked = Clocked::start();
    let address = clocked.server.address();
    let (locks, others) = (manager(address, SHORT).await, manager(address, SHORT).await);
    let mut direct = Direct::to(address);
    // Its holder is gone without a word.
    std::mem::forget(locks.lock("orphan").try_acquire().await.unwrap().unwrap());
    let live = locks.lock("live").ttl(SHORT * 5).try_acquire().await.unwrap().unwrap();
    clocked.step(&mut direct, -3600);
    assert!(direct.number("PTTL leasehold:orphan") > 3_500_000);
    let orphan = others.lock("orphan");
    let waited = tokio::time::timeout(Duration::from_secs(10), orphan.acquire_within(Duration::from_secs(2)));
    assert!(waited.await.unwrap().unwrap().is_none());

    // The holder's deadline is its own; renewals neither shorten nor prolong what they should not.
    live.extend(SHORT * 5).await.unwrap();
    assert!(live.remaining() <= SHORT * 5);
    let lock = others.lock("live");
    let (next, released) = tokio::join!(soon("the key", lock.acquire()), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let token = fence(&live);
        live.release().await.map(|()| token)
    });
    assert!(fence(&next.unwrap()) > released.unwrap());
    // Whoever knows better than the clock can end it.
    assert!(others.force_release("orphan", None).await.unwrap().is_some());
    assert!(others.lock("orphan").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_lease_that_is_not_renewed_ends_for_its_holder_whatever_the_server_believes() {
    let clocked = Clocked::start();
    let locks = manager(clocked.server.address(), SHORT).await;
    let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
    clocked.step(&mut Direct::to(clocked.server.address()), -3600);
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Expired);
}
