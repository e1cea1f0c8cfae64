//! Other programs that take locks in Redis: redis-py and node-redlock, whose locks are in wide use.

use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A process with a client of another make. It ends with this.
#[derive(Debug)]
pub struct ForeignClient {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl ForeignClient {
    /// Starts a Python with the client redis-py, and waits until it is connected.
    ///
    /// # Panics
    ///
    /// The variable `LEASEHOLD_TEST_PYTHON` does not name a Python that has the package `redis`.
    pub fn redis_py(server: SocketAddr) -> Self {
        let mut python = Command::new(named("LEASEHOLD_TEST_PYTHON"));
        python.args(["-c", include_str!("foreign/redis_py.py")]);
        Self::start(python, &[server])
    }

    /// Starts a Node.js with node-redlock over these servers, and waits until it is connected to all of them.
    ///
    /// # Panics
    ///
    /// There is no `node`, or the variable `LEASEHOLD_TEST_NODE_MODULES` does not name a folder that has the packages
    /// `redlock` and `ioredis`.
    pub fn node_redlock(servers: &[SocketAddr]) -> Self {
        let mut node = Command::new("node");
        node.env("NODE_PATH", named("LEASEHOLD_TEST_NODE_MODULES"));
        node.args(["-e", include_str!("foreign/node_redlock.js")]);
        Self::start(node, servers)
    }

    fn start(mut command: Command, servers: &[SocketAddr]) -> Self {
        command.args(servers.iter().map(|server| server.port().to_string()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        let (orders, answers) = (orders.expect("it is piped"), BufReader::new(answers.expect("it is piped")));
        let mut client = Self { child, orders, answers };
        assert_eq!(client.answer(), "ready");
        client
    }

    /// Asks once for the lock of this name; whether it was granted.
    pub fn try_acquire(&mut self, name: &str, ttl: Duration) -> bool {
        self.order("try", name, ttl);
        self.granted()
    }

    /// Waits for the lock of this name; to be followed by [`granted`](Self::granted).
    pub fn start_acquire(&mut self, name: &str, ttl: Duration) {
        self.order("wait", name, ttl);
    }

    /// Waits until a wait has ended; whether it was granted.
    ///
    /// # Panics
    ///
    /// The process is gone, or says anything but yes and no.
    pub fn granted(&mut self) -> bool {
        match self.answer().as_str() {
            "yes" => true,
            "no" => false,
            other => panic!("it says {other:?}"),
        }
    }

    /// Pushes the end of the lock out; whether it was held.
    pub fn extend(&mut self, name: &str, ttl: Duration) -> bool {
        self.order("extend", name, ttl);
        self.granted()
    }

    /// Gives the lock back; whether it was held.
    pub fn release(&mut self, name: &str) -> bool {
        self.order("release", name, Duration::ZERO);
        self.granted()
    }

    fn order(&mut self, order: &str, name: &str, ttl: Duration) {
        writeln!(self.orders, "{order} {name} {}", ttl.as_millis()).expect("it listens");
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it speaks");
        assert!(line.ends_with('\n'), "it has ended");
        line.trim_end().to_owned()
    }
}

impl Drop for ForeignClient {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn named(variable: &str) -> OsString {
    env::var_os(variable).unwrap_or_else(|| panic!("{variable} is not set; scripts/test installs what it names"))
}
