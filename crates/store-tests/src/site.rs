//! A place that keeps leases, in each form that a server of the Redis family has.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold::store::redis::RedisStore;
use leasehold::testkit::{Residue, Server, ServerBuilder};
use leasehold::{LockManager, LockManagerBuilder};

use crate::{redis, valkey};

/// A server of the test's own, and those who ask it.
#[derive(Clone, Debug)]
pub struct Site(Arc<Server>);

impl Site {
    /// Redis, with scripts and pushes.
    pub fn redis() -> Self {
        Self::start(redis())
    }

    /// Valkey, which deletes on a condition by itself.
    pub fn valkey() -> Self {
        Self::start(valkey())
    }

    /// Redis that speaks only the protocol of version 5, in which it tells nothing by itself.
    pub fn old() -> Self {
        Self::start(redis().args(["--rename-command", "HELLO", ""]))
    }

    fn start(server: ServerBuilder) -> Self {
        Self(Arc::new(server.args(["--enable-debug-command", "yes"]).start().expect("the server starts")))
    }

    /// The server.
    pub fn server(&self) -> &Server {
        &self.0
    }

    /// How it is named.
    pub fn url(&self) -> String {
        format!("redis://{}", self.0.address())
    }

    /// A store with a connection of its own, as another process would have it.
    pub async fn store(&self) -> RedisStore {
        RedisStore::connect(&self.url()).await.expect("the server lets us in")
    }

    /// For a manager with a connection of its own.
    pub async fn builder(&self) -> LockManagerBuilder {
        LockManager::builder(self.store().await)
    }

    /// A manager with a connection of its own.
    pub async fn manager(&self) -> LockManager {
        self.builder().await.build().expect("the defaults hold")
    }

    /// A client that knows nothing of leases.
    pub fn client(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("the address is one");
        client.get_connection().expect("the server lets us in")
    }

    /// Waits until these managers hold on to nothing and no key but companions is left: far less than a ttl.
    ///
    /// # Panics
    ///
    /// It takes longer.
    pub async fn at_rest(&self, managers: &[LockManager]) {
        let mut client = self.client();
        for _ in 0..1000 {
            let held = held(&mut client);
            if held.is_empty() && managers.iter().all(|manager| Residue::of(manager).is_none()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let residues: Vec<_> = managers.iter().map(Residue::of).collect();
        panic!("left: {:?}, {residues:?}", held(&mut client));
    }
}

/// The keys that are held.
fn held(client: &mut redis::Connection) -> Vec<String> {
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(client).expect("the server answers");
    keys.into_iter().filter(|key| !key.contains(":fence")).collect()
}

/// Runs a test on two workers; it fails if it has not ended after five minutes.
///
/// # Panics
///
/// As the test does.
pub fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let limited = async { tokio::time::timeout(Duration::from_secs(300), test).await };
    runtime.expect("the runtime starts").block_on(limited).expect("the test ends");
}

/// Makes tests of async functions that are given a [`Site`](crate::Site): with Redis, with Valkey, and with a server
/// that speaks only the old protocol. Attributes in front of a name are those of its tests.
#[macro_export]
macro_rules! on_every_server {
    ($($tests:tt)*) => {
        $crate::on_servers_that_push! { $($tests)* }
        $crate::__tests_on! { in_the_old_protocol old has_redis_server "redis-server is not installed" $($tests)* }
    };
}

/// As [`on_every_server!`](crate::on_every_server), without the server that tells nothing by itself.
#[macro_export]
macro_rules! on_servers_that_push {
    ($($tests:tt)*) => {
        $crate::__tests_on! { on_redis redis has_redis_server "redis-server is not installed" $($tests)* }
        $crate::__tests_on! { on_valkey valkey has_valkey_server "valkey-server is not installed" $($tests)* }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __tests_on {
    ($module:ident $site:ident $has:ident $reason:literal $($(#[$attribute:meta])* $test:ident)*) => {
        #[allow(unused_attributes, reason = "a test may be ignored for two reasons")]
        mod $module {
            $(
                #[test]
                #[cfg_attr(not($has), ignore = $reason)]
                $(#[$attribute])*
                fn $test() {
                    $crate::run(async { super::$test($crate::Site::$site()).await });
                }
            )*
        }
    };
}
