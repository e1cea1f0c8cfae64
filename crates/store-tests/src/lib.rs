//! Servers for the tests of this crate.
//!
//! A test that needs one says so: `#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]`, and
//! likewise `has_valkey_server`, `has_redis_python`, `has_node_redlock`, `has_postgres` and `has_pgbouncer`; see
//! `build.rs`.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use leasehold::testkit::{Server, ServerBuilder};

/// Its example is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

mod authority;
mod cluster;
mod direct;
mod foreign;
mod monitor;
mod pooler;
mod postgres;
mod sentinels;
mod site;
mod suite;

pub use self::authority::Authority;
pub use self::cluster::Cluster;
pub use self::direct::{ask, patiently};
pub use self::foreign::ForeignClient;
pub use self::monitor::Monitor;
pub use self::pooler::Pooler;
pub use self::postgres::{Paused, Postgres, Table, connected};
pub use self::sentinels::Sentinels;
pub use self::site::{Site, run};
pub use self::suite::run_suite;

/// A Redis server that keeps nothing on disk. Later arguments override these.
pub fn redis() -> ServerBuilder {
    redis_like("redis-server")
}

/// A Valkey server that keeps nothing on disk. Later arguments override these.
pub fn valkey() -> ServerBuilder {
    redis_like("valkey-server")
}

fn redis_like(program: &str) -> ServerBuilder {
    let arguments = ["--bind", "127.0.0.1", "--port", "{port}", "--dir", "{dir}", "--save", "", "--appendonly", "no"];
    Server::builder(program).args(arguments).ready(answers_ping)
}

/// Whether a server answers, and has loaded its data.
///
/// A server that wants a password answers as well.
pub fn answers_ping(address: SocketAddr) -> bool {
    let ping = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer)?;
        std::io::Result::Ok(answer)
    };
    ping().is_ok_and(|answer| matches!(&answer, b"+PONG\r\n" | b"-NOAUTH"))
}
