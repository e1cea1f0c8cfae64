//! Sentinels and whom they look after.

use std::time::Duration;

use leasehold::LockManager;
use leasehold::store::redis::RedisStore;
use leasehold::testkit::Server;

use crate::{answers_ping, ask, patiently, redis};

/// The primary's name among the sentinels.
const NAME: &str = "main";

/// A primary with two replicas, and three sentinels, two of which have to agree.
#[derive(Debug)]
pub struct Sentinels {
    /// The primary first.
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl Sentinels {
    /// Sentinels that let everybody ask, and hold a server for dead after half a minute.
    pub fn start() -> Self {
        Self::with(Duration::from_secs(30), &[])
    }

    /// Sentinels that hold a server for dead after a time, with further lines in their configuration.
    ///
    /// # Panics
    ///
    /// It does not come into being.
    pub fn with(dead_after: Duration, lines: &[&str]) -> Self {
        let primary = redis().start().expect("redis-server starts");
        let port = primary.port().to_string();
        let replica = || {
            let replica = redis().args(["--replicaof", &format!("127.0.0.1 {port}")]);
            replica.args(["--repl-diskless-load", "swapdb"]).start().expect("redis-server starts")
        };
        let servers = vec![primary, replica(), replica()];
        let is_followed = || {
            let info: String = ask(&servers[0], &["INFO", "replication"]).expect("the primary answers");
            (info.matches("state=online").count() == 2).then_some(())
        };
        patiently("the replicas follow", is_followed);
        let dead_after = dead_after.as_millis();
        let mut config = format!(
            "port {{port}}\nbind 127.0.0.1\ndir {{dir}}\n\
             sentinel monitor {NAME} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {NAME} {dead_after}\n\
             sentinel failover-timeout {NAME} 6000\n"
        );
        lines.iter().for_each(|line| config.push_str(&format!("{line}\n")));
        let sentinel = || {
            let sentinel = Server::builder("redis-server").args(["{dir}/sentinel.conf", "--sentinel"]);
            sentinel.file("sentinel.conf", config.clone()).ready(answers_ping).start().expect("the sentinel starts")
        };
        let sentinels = Self { servers, sentinels: (0..3).map(|_| sentinel()).collect() };
        if lines.is_empty() {
            sentinels.until_agreed();
        }
        sentinels
    }

    /// How the primary is named, without user and options.
    pub fn url(&self) -> String {
        self.url_for("", NAME)
    }

    /// How a primary of this name is named, by a user or with a password: `:password@`.
    pub fn url_for(&self, who: &str, name: &str) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(|sentinel| sentinel.address().to_string()).collect();
        format!("redis+sentinel://{who}{}/{name}", hosts.join(","))
    }

    /// A store with a connection of its own, as another process would have it.
    pub async fn store(&self) -> RedisStore {
        RedisStore::connect(&self.url()).await.expect("the primary lets us in")
    }

    /// A manager with a connection of its own, and this ttl.
    pub async fn manager(&self, ttl: Duration) -> LockManager {
        LockManager::builder(self.store().await).ttl(ttl).build().expect("the ttl is one")
    }

    /// The one that was the primary at first, and the two that were replicas.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// Waits until another server than this one is the primary by the word of all sentinels that live; which one it is.
    pub fn until_replaced(&self, before: usize) -> usize {
        patiently("another primary", || {
            let mut named = self.sentinels.iter().filter(|sentinel| sentinel.pid().is_some()).map(|sentinel| {
                let (_, port): (String, u16) = ask(sentinel, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]).ok()?;
                self.servers.iter().position(|server| server.port() == port).filter(|primary| *primary != before)
            });
            let first = named.next().flatten()?;
            let info: String = ask(&self.servers[first], &["INFO", "replication"]).ok()?;
            (info.contains("role:master") && named.all(|other| other == Some(first))).then_some(first)
        })
    }

    /// Waits until each sentinel knows the others and the replicas.
    fn until_agreed(&self) {
        for sentinel in &self.sentinels {
            patiently("the sentinels know each other", || {
                let facts: Vec<String> = ask(sentinel, &["SENTINEL", "MASTER", NAME]).ok()?;
                let fact = |name: &str| facts.iter().skip_while(|known| *known != name).nth(1).cloned();
                let known = (fact("num-slaves")?, fact("num-other-sentinels")?, fact("flags")?);
                (known == ("2".to_owned(), "2".to_owned(), "master".to_owned())).then_some(())
            });
        }
    }
}
