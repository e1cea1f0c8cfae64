//! Processes that the tests start, and what they say.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use leasehold::LockManagerBuilder;
use leasehold::store::postgres::PostgresStore;
use leasehold::store::redis::RedisStore;
use leasehold::store::sqlite::SqliteStore;
use leasehold::{ErrorKind, LockManager, Result};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

/// Whole lines that were said; what a kill cut off is none.
pub(crate) type Said = Arc<Mutex<Vec<String>>>;

/// Begins and ends each line that is meant for the test.
const MARK: (&str, &str) = ("fleet: ", " .");

/// A process of the test; it is killed with it.
pub(crate) struct Member {
    child: Child,
    reader: Option<JoinHandle<()>>,
}

impl Member {
    /// Starts one that runs this ignored test, with these variables.
    pub(crate) fn start(test: &str, variables: &[(&str, String)], said: &Said) -> Self {
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = Arc::clone(said);
        let reader = thread::spawn(move || {
            for line in lines.map_while(std::io::Result::ok) {
                // The harness may have begun the line.
                let line = line.split_once(MARK.0).and_then(|(_, line)| line.strip_suffix(MARK.1));
                said.lock().extend(line.map(ToOwned::to_owned));
            }
        });
        Self { child, reader: Some(reader) }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn kill(mut self) {
        self.signal(Signal::KILL);
        self.child.wait().unwrap();
    }

    /// Closes its input, at which it comes to its end.
    pub(crate) fn dismiss(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Lets it come to its end; it must have found nothing wrong.
    pub(crate) fn end(mut self) {
        self.dismiss();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if let Some(reader) = self.reader.take() {
            reader.join().ok();
        }
    }
}

/// Says something to the test, at once.
pub(crate) fn say(line: &str) {
    let line = format!("\n{}{line}{}\n", MARK.0, MARK.1);
    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
}

/// Resolves when the test has closed the input.
pub(crate) async fn dismissed() {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    thread::spawn(move || {
        std::io::stdin().lines().for_each(drop);
        sender.send(()).ok();
    });
    receiver.await.ok();
}

/// For a manager on the store of this URL.
pub(crate) async fn connect(url: &str) -> Result<LockManagerBuilder> {
    Ok(match url.split(':').next() {
        Some("redis") => LockManager::builder(RedisStore::connect(url).await?),
        Some("postgres") => LockManager::builder(PostgresStore::connect(url).await?),
        _ => LockManager::builder(SqliteStore::open(url.strip_prefix("sqlite://").unwrap()).await?),
    })
}

/// As [`connect`], while the network is out or the file is busy.
pub(crate) async fn connect_patiently(url: &str) -> LockManagerBuilder {
    loop {
        match connect(url).await {
            Ok(builder) => return builder,
            Err(error) => assert!(is_weather(&error), "{error}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// Runs a test on two workers, or one of its processes, for as long as it is watched and five minutes more.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let limit = crate::election::length() + std::time::Duration::from_secs(300);
    runtime.block_on(async { tokio::time::timeout(limit, test).await }).expect("the test ends");
}

/// Whether an error is of the kind that a broken network makes.
pub(crate) fn is_weather(error: &leasehold::Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate)
}
