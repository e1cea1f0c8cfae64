//! Managers on a server of the test's own, and a second way to that server.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use leasehold::store::redis::RedisStore;
use leasehold::{FencingToken, LockGuard, LockManager, LockManagerBuilder, Renew};
use redis::Value;
use tokio::net::TcpSocket;

/// Five times and more of what anything here needs on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// A ttl with an operation limit of a second, so that what is lost is noticed soon.
pub(crate) const SHORT: Duration = Duration::from_secs(6);

/// Longer than any test takes: nothing ends or is renewed by itself.
pub(crate) const LONG: Duration = Duration::from_secs(600);

pub(crate) async fn store(address: SocketAddr) -> RedisStore {
    RedisStore::connect(&format!("redis://{address}")).await.unwrap()
}

/// A manager whose leases are not renewed unless that is asked for.
pub(crate) async fn manager(address: SocketAddr, ttl: Duration) -> LockManager {
    builder(address, ttl).await.renew(Renew::Off).build().unwrap()
}

pub(crate) async fn builder(address: SocketAddr, ttl: Duration) -> LockManagerBuilder {
    LockManager::builder(store(address).await).ttl(ttl)
}

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.unwrap_or_else(|_| panic!("never came: {what}"))
}

/// A port at which nobody listens, nor can anybody else for as long as this lives.
pub(crate) fn nobody() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, waiting).await;
}

pub(crate) fn fence(guard: &LockGuard) -> FencingToken {
    guard.fencing_token().unwrap()
}

/// A connection of the test's own to the server.
pub(crate) struct Direct(redis::Connection);

impl Direct {
    pub(crate) fn to(address: SocketAddr) -> Self {
        Self(redis::Client::open(format!("redis://{address}")).unwrap().get_connection().unwrap())
    }

    /// Sends words that are separated by spaces.
    pub(crate) fn ask(&mut self, words: &str) -> Value {
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            command.arg(word);
        });
        command.query(&mut self.0).unwrap()
    }

    pub(crate) fn number(&mut self, words: &str) -> i64 {
        redis::from_redis_value(self.ask(words)).unwrap()
    }

    pub(crate) fn text(&mut self, words: &str) -> Option<String> {
        redis::from_redis_value(self.ask(words)).unwrap()
    }
}
