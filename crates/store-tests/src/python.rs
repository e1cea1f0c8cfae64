//! Another program that takes locks in Redis: redis-py, whose locks are in wide use.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A Python process with the client redis-py. It ends with this.
#[derive(Debug)]
pub struct RedisPy {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl RedisPy {
    /// Starts it, and waits until it is connected.
    ///
    /// # Panics
    ///
    /// The variable `LEASEHOLD_TEST_PYTHON` does not name a Python that has the package `redis`.
    pub fn start(server: SocketAddr) -> Self {
        let python = std::env::var_os("LEASEHOLD_TEST_PYTHON").expect("LEASEHOLD_TEST_PYTHON names a Python");
        let mut child = Command::new(python)
            .args(["-c", include_str!("python/redis_py.py"), &server.port().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python starts");
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        let (orders, answers) = (orders.expect("it is piped"), BufReader::new(answers.expect("it is piped")));
        let mut python = Self { child, orders, answers };
        assert_eq!(python.answer(), "ready");
        python
    }

    /// Asks once for the lock of this name; whether it was granted.
    pub fn try_acquire(&mut self, name: &str) -> bool {
        self.ask(&format!("try {name}")) == "True"
    }

    /// Waits for the lock of this name; to be followed by [`granted`](Self::granted).
    ///
    /// # Panics
    ///
    /// The process is gone.
    pub fn start_acquire(&mut self, name: &str) {
        writeln!(self.orders, "wait {name}").expect("it listens");
    }

    /// Waits until a wait has ended; whether it was granted.
    pub fn granted(&mut self) -> bool {
        self.answer() == "True"
    }

    /// Pushes the end of the lock out; whether it was held.
    pub fn extend(&mut self, name: &str) -> bool {
        self.ask(&format!("extend {name}")) == "True"
    }

    /// Gives the lock back; whether it was held.
    pub fn release(&mut self, name: &str) -> bool {
        self.ask(&format!("release {name}")) == "released"
    }

    fn ask(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").expect("it listens");
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it speaks");
        assert!(line.ends_with('\n'), "it has ended");
        line.trim_end().to_owned()
    }
}

impl Drop for RedisPy {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
