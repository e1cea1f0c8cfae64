//! A cluster of the test's own.

use std::time::Duration;

use leasehold::LockManager;
use leasehold::store::redis::RedisStore;
use leasehold::testkit::{Server, ServerBuilder};
use redis::{FromRedisValue, Value};
use tokio::net::TcpSocket;

use crate::{answers_ping, redis};

/// How many keys a cluster tells apart by where they are kept.
const SLOTS: usize = 16_384;

/// Servers that share out the keys among themselves: the primaries first, then their replicas in the same order.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    primaries: usize,
}

/// One of its servers.
#[derive(Debug)]
struct Node {
    server: Server,
    /// Where the servers talk to each other.
    bus: TcpSocket,
}

impl Cluster {
    /// Three primaries, which hold a server for dead after half a minute.
    pub fn start() -> Self {
        Self::with(0, Duration::from_secs(30))
    }

    /// Three primaries with so many replicas each, which hold a server for dead after a time. Those that live go on
    /// without it.
    ///
    /// # Panics
    ///
    /// It does not come into being.
    pub fn with(replicas: usize, dead_after: Duration) -> Self {
        let primaries = 3;
        let cluster =
            Self { nodes: (0..primaries * (1 + replicas)).map(|_| Node::start(dead_after)).collect(), primaries };
        let (first, others) = cluster.nodes.split_first().expect("there are primaries");
        for (at, node) in cluster.nodes[..primaries].iter().enumerate() {
            let begin = |at: usize| at * SLOTS / primaries;
            node.ask::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
            node.ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", &begin(at).to_string(), &(begin(at + 1) - 1).to_string()]);
        }
        for node in others {
            let port = node.server.port().to_string();
            first.ask::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &node.bus_port()]);
        }
        let count = format!("cluster_known_nodes:{}", cluster.nodes.len());
        cluster.until(|node| node.ask::<String>(&["CLUSTER", "INFO"]).contains(&count));
        for (at, node) in cluster.nodes[primaries..].iter().enumerate() {
            // Word of whom to follow may have to wait for word of what it keeps.
            node.ask_until_taken(&["CLUSTER", "REPLICATE", &cluster.id(at % primaries)]);
        }
        cluster.until_whole(replicas);
        cluster
    }

    /// How it is named: by one of its servers.
    pub fn url(&self) -> String {
        self.url_by(0)
    }

    /// How it is named by this server.
    pub fn url_by(&self, node: usize) -> String {
        format!("redis+cluster://{}", self.server(node).address())
    }

    /// A store with connections of its own, as another process would have it.
    pub async fn store(&self) -> RedisStore {
        RedisStore::connect(&self.url()).await.expect("the cluster lets us in")
    }

    /// A manager with connections of its own, and this ttl.
    pub async fn manager(&self, ttl: Duration) -> LockManager {
        LockManager::builder(self.store().await).ttl(ttl).build().expect("the ttl is one")
    }

    /// One of its servers.
    pub fn server(&self, node: usize) -> &Server {
        &self.nodes[node].server
    }

    /// The name by which the servers know each other.
    pub fn id(&self, node: usize) -> String {
        self.ask(node, &["CLUSTER", "MYID"])
    }

    /// Asks one of its servers.
    ///
    /// # Panics
    ///
    /// It refuses.
    pub fn ask<T: FromRedisValue>(&self, node: usize, words: &[&str]) -> T {
        self.nodes[node].ask(words)
    }

    /// The server that keeps a key by the word of one of them; none in between.
    pub fn keeper(&self, asked: usize, key: &str) -> Option<usize> {
        let slot: i64 = self.ask(asked, &["CLUSTER", "KEYSLOT", key]);
        let rows: Vec<Vec<Value>> = self.ask(asked, &["CLUSTER", "SLOTS"]);
        let port = rows.iter().find_map(|row| match &row[..] {
            [Value::Int(first), Value::Int(last), Value::Array(primary), ..] if (*first..=*last).contains(&slot) => {
                primary.get(1).cloned()
            }
            _ => None,
        })?;
        self.nodes.iter().position(|node| Value::Int(node.server.port().into()) == port)
    }

    /// Where a key is kept, by the cluster's own word.
    pub fn slot(&self, key: &str) -> u16 {
        self.nodes.iter().find(|node| node.lives()).expect("one lives").ask(&["CLUSTER", "KEYSLOT", key])
    }

    /// A name that one of the first servers keeps, in the default namespace.
    pub fn name_at(&self, node: usize, prefix: &str) -> String {
        self.names_at(node, prefix, 1).remove(0)
    }

    /// Names that one of the first servers keeps, in the default namespace.
    pub fn names_at(&self, node: usize, prefix: &str, count: usize) -> Vec<String> {
        let part = |slot: u16| (usize::from(slot) * self.primaries) / SLOTS;
        let names = (0..).map(|number| format!("{prefix}{number}"));
        names.filter(|name| part(self.slot(&format!("leasehold:{name}"))) == node).take(count).collect()
    }

    /// Makes a replica a primary that keeps nothing yet, as one is that was added just now.
    pub fn make_newcomer(&self, replica: usize) {
        let newcomer = &self.nodes[replica];
        newcomer.ask::<()>(&["CLUSTER", "RESET", "SOFT"]);
        let port = newcomer.server.port().to_string();
        self.ask::<()>(0, &["CLUSTER", "MEET", "127.0.0.1", &port, &newcomer.bus_port()]);
        let is_known = |node: &Node| {
            let (known, state): (String, String) = (node.ask(&["CLUSTER", "NODES"]), node.ask(&["CLUSTER", "INFO"]));
            let mut said = known.lines().filter(|line| line.contains(&format!(":{port}@")));
            known.lines().count() == self.nodes.len()
                && said.all(|line| line.contains("master"))
                && ["cluster_state:ok", "cluster_slots_assigned:16384"].iter().all(|whole| state.contains(whole))
        };
        self.until(is_known);
    }

    /// Begins to move a slot, without moving any key.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        self.ask::<()>(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.id(from)]);
        self.ask::<()>(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.id(to)]);
    }

    /// Moves one key.
    pub fn move_key(&self, key: &str, from: usize, to: usize) {
        let port = self.server(to).port().to_string();
        self.ask::<()>(from, &["MIGRATE", "127.0.0.1", &port, key, "0", "30000"]);
    }

    /// The new keeper, and then everybody, is told of a move that is complete.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        let (slot, id) = (slot.to_string(), self.id(to));
        let others = (0..self.primaries).filter(|node| ![from, to].contains(node));
        for node in [to, from].into_iter().chain(others) {
            self.ask::<()>(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
    }

    /// Moves a slot with all its keys.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to);
        loop {
            let keys: Vec<String> = self.ask(from, &["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "10"]);
            if keys.is_empty() {
                return self.end_move(slot, from, to);
            }
            keys.iter().for_each(|key| self.move_key(key, from, to));
        }
    }

    /// Waits until all servers see the cluster well, and replicas know what their primaries know.
    fn until_whole(&self, replicas: usize) {
        let followed = format!("connected_slaves:{replicas}");
        let whole = ["cluster_state:ok", "cluster_slots_assigned:16384"];
        self.until(|node| {
            let info: String = node.ask(&["CLUSTER", "INFO"]);
            whole.iter().all(|fact| info.contains(fact))
        });
        self.until(|node| {
            let info: String = node.ask(&["INFO", "replication"]);
            info.contains("master_link_status:up") || (info.contains("role:master") && info.contains(&followed))
        });
    }

    fn until(&self, condition: impl Fn(&Node) -> bool) {
        for node in &self.nodes {
            crate::patiently("the cluster is well", || condition(node).then_some(()));
        }
    }
}

impl Node {
    fn start(dead_after: Duration) -> Self {
        let bus = TcpSocket::new_v4().expect("there are sockets");
        bus.set_reuseaddr(true).expect("the socket is new");
        bus.bind(([127, 0, 0, 1], 0).into()).expect("there are ports");
        let (port, timeout) = (port(&bus), dead_after.as_millis().to_string());
        let arguments = [
            ("--cluster-enabled", "yes"),
            ("--cluster-config-file", "{dir}/nodes.conf"),
            ("--cluster-port", &port),
            ("--cluster-node-timeout", &timeout),
            ("--cluster-require-full-coverage", "no"),
            ("--cluster-allow-replica-migration", "no"),
            ("--repl-diskless-sync-delay", "0"),
        ];
        let server: ServerBuilder = redis().args(arguments.into_iter().flat_map(|(name, value)| [name, value]));
        Self { server: server.ready(answers_ping).start().expect("redis-server starts"), bus }
    }

    fn lives(&self) -> bool {
        self.server.pid().is_some()
    }

    fn bus_port(&self) -> String {
        port(&self.bus)
    }

    fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        crate::ask(&self.server, words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    fn ask_until_taken(&self, words: &[&str]) {
        crate::patiently("the server obeys", || crate::ask::<()>(&self.server, words).ok());
    }
}

fn port(socket: &TcpSocket) -> String {
    socket.local_addr().expect("it is bound").port().to_string()
}
