//! A real server that refuses: told as what it is, with what to do, and never as a key that somebody holds.

use std::error::Error as _;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use leasehold::store::Page;
use leasehold::store::redis::RedisStore;
use leasehold::store::retry::Retry;
use leasehold::testkit::{Server, ServerBuilder};
use leasehold::{Error, ErrorKind, LockManager, Operation};
use store_tests::redis;

use crate::setting::{Direct, LONG, SHORT, fence, manager, nobody, soon};

pub(crate) const SECRET: &str = "hunter2";

/// Everything that an error says, on any way.
pub(crate) fn all_of(error: &Error) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(" {error} {error:?} {error:#?}");
        source = error.source();
    }
    text
}

/// That this is what was meant to be told, in one line and without the secret.
#[track_caller]
pub(crate) fn is_told(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
    assert!(!text.contains('\n') && text.len() < 500, "{text}");
    assert!(!all_of(error).contains(SECRET), "{}", all_of(error));
}

/// What an acquisition on a key that nobody holds comes to, with and without waiting.
async fn refusal(locks: &LockManager, key: &str) -> Error {
    let error = soon("an answer", locks.lock(key).try_acquire()).await.unwrap_err();
    assert_eq!(error.operation(), Some(Operation::Acquire));
    let waiting = soon("an answer", locks.lock(key).acquire_within(Duration::from_secs(5))).await.unwrap_err();
    assert_eq!(waiting.kind(), error.kind());
    error
}

async fn connection_refusal(address: SocketAddr, who: &str) -> Error {
    soon("an answer", RedisStore::connect(&format!("redis://{who}{address}"))).await.unwrap_err()
}

/// Takes a key and gives it back until the server says why not. What it did not answer while it was about to says nothing.
async fn first_failure(locks: &LockManager) -> Error {
    let failure = async {
        loop {
            let cycle = async {
                // What is unknown to have been taken may be there until its ttl is over.
                match locks.lock("k").try_acquire().await? {
                    Some(guard) => guard.release().await,
                    None => Ok(()),
                }
            };
            match cycle.await {
                Err(error) if error.kind() != ErrorKind::Indeterminate => break error,
                _ => {}
            }
        }
    };
    soon("a failure", failure).await
}

fn started(builder: ServerBuilder) -> (Server, Direct) {
    let server = builder.start().unwrap();
    let direct = Direct::to(server.address());
    (server, direct)
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_password_that_is_missing_or_wrong() {
    let server = redis().args(["--requirepass", "right"]).start().unwrap();
    let address = server.address();
    let error = connection_refusal(address, "").await;
    is_told(&error, ErrorKind::Rejected, &["failed to connect", "NOAUTH", "name a user and a password"]);
    for who in [":hunter2@", "nobody:hunter2@"] {
        let error = connection_refusal(address, who).await;
        is_told(&error, ErrorKind::Rejected, &["failed to connect", "check the user name and the password"]);
    }
    let store = RedisStore::connect(&format!("redis://:right@{address}")).await.unwrap();
    assert!(!format!("{store:?}").contains("right"));
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_server_without_the_greeting_never_repeats_the_password() {
    // It answers with the words that it does not know.
    let server = redis().args(["--rename-command", "HELLO", "", "--requirepass", SECRET]).start().unwrap();
    let address = server.address();
    let store = RedisStore::connect(&format!("redis://:{SECRET}@{address}")).await.unwrap();
    let locks = LockManager::builder(store).ttl(LONG).build().unwrap();
    locks.lock("k").try_acquire().await.unwrap().unwrap().release().await.unwrap();

    let hidden = ["--rename-command", "HELLO", "", "--rename-command", "AUTH", ""];
    let server = redis().args(hidden).start().unwrap();
    let error = connection_refusal(server.address(), ":hunter2@").await;
    is_told(&error, ErrorKind::Rejected, &["failed to connect"]);
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn rights_that_are_missing() {
    let (server, mut direct) = started(redis());
    let address = server.address();
    direct.ask("ACL SETUSER scriptless on >pw ~* &* +@all -eval -evalsha");
    let error = connection_refusal(address, "scriptless:pw@").await;
    is_told(&error, ErrorKind::Rejected, &["may not run scripts", "+eval +evalsha"]);
    direct.ask("ACL SETUSER elsewhere on >pw ~app:* &* +@all");
    direct.ask("ACL SETUSER reader on >pw ~* &* +@all -set");
    for user in ["elsewhere", "reader"] {
        let store = RedisStore::connect(&format!("redis://{user}:pw@{address}")).await.unwrap();
        let locks = LockManager::builder(store).ttl(LONG).build().unwrap();
        is_told(&refusal(&locks, "k").await, ErrorKind::Rejected, &["give the user the rights"]);
    }
    direct.ask("ACL SETUSER off off >pw ~* &* +@all");
    is_told(&connection_refusal(address, "off:pw@").await, ErrorKind::Rejected, &["check the user name"]);
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_server_that_is_loading() {
    let slow = ["--enable-debug-command", "yes", "--rdbcompression", "no"];
    let (server, mut direct) = started(redis().args(slow).args(["--loading-process-events-interval-bytes", "1024"]));
    let locks = manager(server.address(), SHORT).await;
    let value = "x".repeat(2000);
    for number in 0..200 {
        direct.ask(&format!("SET k{number} {value}"));
    }
    direct.ask("CONFIG SET key-load-delay 50000");
    let reload = std::thread::spawn(move || direct.ask("DEBUG RELOAD"));
    let error = first_failure(&locks).await;
    is_told(&error, ErrorKind::Unavailable, &["LOADING", "try again soon"]);
    is_told(&connection_refusal(server.address(), "").await, ErrorKind::Unavailable, &["LOADING"]);
    drop(server);
    drop(reload.join());
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_full_server_refuses_new_leases_and_renews_old_ones() {
    let (server, mut direct) = started(redis());
    let locks = manager(server.address(), LONG).await;
    let held = locks.lock("held").try_acquire().await.unwrap().unwrap();
    direct.ask("CONFIG SET maxmemory 1");
    is_told(&refusal(&locks, "k").await, ErrorKind::Unavailable, &["OOM", "raise maxmemory"]);
    assert_eq!(direct.number("EXISTS leasehold:k"), 0);
    // Who works under a lease must not lose it because of others' data.
    held.extend(2 * LONG).await.unwrap();
    assert!(direct.number("PTTL leasehold:held") > 1_000_000);
    held.release().await.unwrap();
    assert_eq!(direct.number("EXISTS leasehold:held"), 0);
}

/// What is said in the documentation of a server that is full.
#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_full_server_lets_leases_be_removed_and_passes_none_on() {
    let (server, mut direct) = started(redis());
    let locks = manager(server.address(), LONG).await;
    let held = locks.lock("k").try_acquire().await.unwrap().unwrap();
    // One whose companion is lost, and one that somebody holds who knows of none.
    let _bare = locks.lock("bare").try_acquire().await.unwrap().unwrap();
    direct.ask("DEL leasehold:bare:fence{leasehold:bare}");
    direct.ask("SET leasehold:foreign token");
    let owner = held.hand_over().await.unwrap();
    direct.ask("CONFIG SET maxmemory 1");

    let error = locks.lock("k").resume(&owner).await.unwrap_err();
    is_told(&error, ErrorKind::Unavailable, &["OOM", "raise maxmemory"]);
    let holder = locks.holder("k").await.unwrap().unwrap();
    assert_eq!((holder.owner, holder.fencing), (owner, held.fencing_token()));
    assert_eq!(locks.list("", Page::first(9)).await.unwrap().entries.len(), 3);
    let mut floors = Vec::new();
    for name in ["k", "bare", "foreign"] {
        let removed = locks.force_release(name, None).await.unwrap().unwrap();
        assert_eq!(direct.number(&format!("EXISTS leasehold:{name}")), 0);
        floors.push((name, removed.fence_floor.unwrap()));
    }
    assert!(floors[0].1 >= fence(&held));
    direct.ask("CONFIG SET maxmemory 0");
    for (name, floor) in floors {
        let next = locks.lock(name).try_acquire().await.unwrap().unwrap();
        assert!(fence(&next) > floor, "{name}: {next:?} after {floor:?}");
    }
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_replica_is_not_the_primary() {
    let (primary, (server, mut direct)) = (redis().start().unwrap(), started(redis()));
    let locks = manager(server.address(), LONG).await;
    let _held = locks.lock("held").try_acquire().await.unwrap().unwrap();
    // Demoted while it is in use.
    direct.ask(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    let error = locks.lock("k").try_acquire().await.unwrap_err();
    is_told(&error, ErrorKind::Unavailable, &["READONLY", "become a replica"]);
    let error = locks.lock("k").try_acquire().await.unwrap_err();
    is_told(&error, ErrorKind::Rejected, &["is a replica: name the primary"]);
    is_told(&connection_refusal(server.address(), "").await, ErrorKind::Rejected, &["is a replica: name the primary"]);
    direct.ask("REPLICAOF NO ONE");
    locks.lock("k").try_acquire().await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_server_that_may_be_stale() {
    let (server, mut direct) = started(redis());
    let locks = manager(server.address(), LONG).await;
    direct.ask("CONFIG SET replica-serve-stale-data no");
    let (_port, nobody) = nobody();
    direct.ask(&format!("REPLICAOF 127.0.0.1 {}", nobody.port()));
    is_told(&refusal(&locks, "k").await, ErrorKind::Unavailable, &["MASTERDOWN", "try again soon"]);
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_server_that_cannot_save() {
    let (server, mut direct) = started(redis().args(["--save", "3600 1000"]));
    let locks = manager(server.address(), LONG).await;
    // A directory stands where the file would go.
    fs::create_dir(server.dir().join("dump.rdb")).unwrap();
    direct.ask("BGSAVE");
    let failed = async {
        while !direct.text("INFO persistence").unwrap().contains("rdb_last_bgsave_status:err") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("the save fails", failed).await;
    is_told(&refusal(&locks, "k").await, ErrorKind::Unavailable, &["MISCONF", "cannot save", "see its log"]);
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_server_that_misses_its_replicas() {
    let (server, mut direct) = started(redis());
    let locks = manager(server.address(), LONG).await;
    direct.ask("CONFIG SET min-replicas-to-write 1");
    is_told(&refusal(&locks, "k").await, ErrorKind::Unavailable, &["NOREPLICAS", "too few replicas"]);
    assert_eq!(direct.number("EXISTS leasehold:k"), 0);
}

/// The server answers each claim of an extend by itself; as in a failover, it soon takes them again.
#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn retries_bridge_that_for_an_extend_too() {
    let (server, mut direct) = started(redis());
    let store = RedisStore::connect(&format!("redis://{}", server.address())).await.unwrap();
    let locks = LockManager::new(Retry::new(store).within(Duration::from_millis(4800)));
    let guard = locks.lock("k").acquire().await.unwrap();
    direct.ask("CONFIG SET min-replicas-to-write 1");
    let healed = tokio::task::spawn_blocking(move || {
        std::thread::sleep(Duration::from_millis(200));
        direct.ask("CONFIG SET min-replicas-to-write 0");
    });
    guard.extend(2 * LONG).await.unwrap();
    healed.await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_server_that_is_busy_with_a_script() {
    let (server, mut direct) = started(redis().args(["--busy-reply-threshold", "50"]));
    let address = server.address();
    // A release that is refused leaves the key to its ttl, which is waited for.
    let locks = manager(address, Duration::from_secs(15)).await;
    let script = std::thread::spawn(move || {
        let mut connection = ::redis::Client::open(format!("redis://{address}")).unwrap().get_connection().unwrap();
        ::redis::cmd("EVAL").arg("while true do end").arg(0).exec(&mut connection).unwrap_err()
    });
    let error = first_failure(&locks).await;
    is_told(&error, ErrorKind::Unavailable, &["BUSY", "busy with a script"]);
    is_told(&connection_refusal(address, "").await, ErrorKind::Unavailable, &["BUSY"]);
    direct.ask("SCRIPT KILL");
    script.join().unwrap();
    drop(soon("the key", locks.lock("k").acquire()).await.unwrap());
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_key_that_holds_something_else() {
    let (server, mut direct) = started(redis());
    let locks = manager(server.address(), LONG).await;
    direct.ask("RPUSH leasehold:k element");
    is_told(&refusal(&locks, "k").await, ErrorKind::Rejected, &["WRONGTYPE", "choose another key"]);
    assert_eq!(direct.number("LLEN leasehold:k"), 1);
    is_told(&locks.holder("k").await.unwrap_err(), ErrorKind::Rejected, &["WRONGTYPE"]);
    direct.ask("SET leasehold:c:fence{leasehold:c} text");
    is_told(&refusal(&locks, "c").await, ErrorKind::Rejected, &["WRONGTYPE"]);
    assert_eq!(direct.number("EXISTS leasehold:c"), 0);
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_node_of_a_cluster_that_is_down() {
    let (server, _direct) = started(redis().args(["--cluster-enabled", "yes"]));
    let locks = manager(server.address(), LONG).await;
    is_told(&refusal(&locks, "k").await, ErrorKind::Unavailable, &["CLUSTERDOWN", "try again soon"]);
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_database_that_is_not_there() {
    let server = redis().args(["--databases", "4"]).start().unwrap();
    let error = RedisStore::connect(&format!("redis://{}/4", server.address())).await.unwrap_err();
    is_told(&error, ErrorKind::Rejected, &["failed to connect", "name a database"]);
}
