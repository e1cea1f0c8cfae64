//! A store over a client of the caller's. No address of ours is read in this process.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::fs;
use std::time::Duration;

use ::redis::{Client, IntoConnectionInfo, ProtocolVersion, TlsCertificates};
use leasehold::store::Waiting;
use leasehold::store::redis::RedisStore;
use leasehold::{Backoff, ErrorKind, LockManager};
use store_tests::{Authority, ask, redis, run};
use tokio::time::{sleep, timeout};

/// Five times and more of what anything here needs on a busy machine.
const SOON: Duration = Duration::from_secs(10);
/// Nothing that lasts so long happens within a test.
const LONG: Duration = Duration::from_secs(600);

const SECRET: &str = "hunter2";

/// A manager that asks again after a push, and otherwise never.
async fn manager(client: &Client) -> LockManager {
    let store = timeout(SOON, RedisStore::from_client(client)).await.unwrap().unwrap();
    let never = Backoff::new(LONG, LONG, 1.0).unwrap();
    LockManager::builder(store).ttl(LONG).backoff(never).build().unwrap()
}

/// One holds, another is refused, waits and is woken.
async fn works(client: &Client) {
    let (holder, locks) = (manager(client).await, manager(client).await);
    assert_eq!(locks.capabilities().waiting, Waiting::Hint);
    let guard = holder.lock("job").try_acquire().await.unwrap().unwrap();
    assert!(locks.lock("job").try_acquire().await.unwrap().is_none());
    guard.extend(LONG * 2).await.unwrap();
    let lock = locks.lock("job");
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    sleep(Duration::from_millis(200)).await;
    guard.release().await.unwrap();
    timeout(SOON, waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn its_user_and_its_database_are_kept() {
    run(async {
        let server = redis().start().unwrap();
        ask::<()>(&server, &["ACL", "SETUSER", "locks", "on", &format!(">{SECRET}"), "~*", "&*", "+@all"]).unwrap();
        let client = Client::open(format!("redis://locks:{SECRET}@{}/3", server.address())).unwrap();
        works(&client).await;
        let _held = manager(&client).await.lock("job").try_acquire().await.unwrap().unwrap();
        let list: String = ask(&server, &["CLIENT", "LIST"]).unwrap();
        assert!(list.lines().any(|line| line.contains("user=locks") && line.contains(" db=3 ")), "{list}");
        let here: bool = ask(&server, &["EXISTS", "leasehold:job"]).unwrap();
        assert!(!here, "in database 0");

        let wrong = Client::open(format!("redis://locks:not{SECRET}@{}", server.address())).unwrap();
        let error = RedisStore::from_client(&wrong).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(!format!("{error:?} {error}").contains(SECRET));
    });
}

/// The protocol is the store's choice: a client has the old one unless it asks for another.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn one_of_either_protocol_is_told_of_changes() {
    run(async {
        let server = redis().start().unwrap();
        for protocol in [ProtocolVersion::RESP2, ProtocolVersion::RESP3] {
            let info = format!("redis://{}", server.address()).into_connection_info().unwrap();
            let settings = info.redis_settings().clone().set_protocol(protocol);
            works(&Client::open(info.set_redis_settings(settings)).unwrap()).await;
        }
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn it_may_be_encrypted() {
    run(async {
        let (authority, stranger) = (Authority::new(), Authority::new());
        let server = authority.redis().args(["--requirepass", SECRET]).start().unwrap();
        let client = |authority: &Authority| {
            let root_cert = Some(fs::read(authority.path().join("ca.pem")).unwrap());
            let url = format!("rediss://:{SECRET}@localhost:{}/1", server.port());
            Client::build_with_tls(url, TlsCertificates { client_tls: None, root_cert }).unwrap()
        };
        works(&client(&authority)).await;
        let error = RedisStore::from_client(&client(&stranger)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    });
}
