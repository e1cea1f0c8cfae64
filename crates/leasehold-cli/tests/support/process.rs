//! A store in a directory of its own, the real binary on it, and processes that end with the test.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{PipeReader, PipeWriter, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::TcpSocket;

/// The binary under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_leasehold");

/// Marks every process that a test starts, so that none is forgotten.
const MARK: &str = "LEASEHOLD_TEST_MARK";

/// How long a condition may take to become true, far beyond what any takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory with a store in it. Whatever was started on it is killed with it.
#[derive(Debug)]
pub(crate) struct Place {
    directory: TempDir,
    mark: String,
    store: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let store = format!("sqlite://{}", directory.path().join("leases.db").display());
        Self::over(directory, store)
    }

    /// A directory whose commands use another store than a file in it.
    #[allow(dead_code, reason = "not every test has another one")]
    pub(crate) fn on(store: String) -> Self {
        Self::over(TempDir::new().unwrap(), store)
    }

    fn over(directory: TempDir, store: String) -> Self {
        static PLACES: AtomicU32 = AtomicU32::new(0);
        let mark = format!("{}-{}", std::process::id(), PLACES.fetch_add(1, Ordering::Relaxed));
        Self { directory, mark, store }
    }

    /// Lets the store's file be there before several open it at a time: the first to do so writes much to the disk, and the
    /// others give up if that takes too long.
    #[allow(dead_code, reason = "not every test has a file")]
    pub(crate) fn create(&self) {
        // For which a disk that is slow for seconds is no fault.
        wait_until("the file is there", || self.run(["list"]).code() == 0);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn store(&self) -> String {
        self.store.clone()
    }

    /// What a file of the place holds; empty if there is none.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Writes a file that can be executed. By another process: one that this one has open for writing may be inherited by
    /// what another test starts, and could not be executed meanwhile.
    #[allow(dead_code, reason = "not every test needs one")]
    pub(crate) fn executable(&self, name: &str, text: &str) {
        let mut writer = Command::new("sh");
        writer.args(["-c", "cat > \"$0\" && chmod 755 \"$0\""]).arg(self.path(name)).stdin(Stdio::piped());
        let mut writer = writer.spawn().unwrap();
        writer.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(writer.wait().unwrap().success());
    }

    /// Any program, with a clean environment that names the store; it ends when the test's thread does.
    pub(crate) fn program<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "TERM", "--"])
            .args(arguments)
            .current_dir(self.directory.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.directory.path())
            // That of root is not in its home.
            .env("XDG_STATE_HOME", self.path("state"))
            .env("LEASEHOLD_STORE", self.store())
            .env(MARK, &self.mark)
            .stdin(Stdio::null());
        command
    }

    /// The command under test.
    pub(crate) fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut all: Vec<OsString> = vec![BINARY.into()];
        all.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self.program(all)
    }

    /// Runs the command under test to its end.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Finished {
        self.start(self.command(arguments)).finish()
    }

    /// Starts a command.
    ///
    /// Its output goes to files, because a pipe would be held open by whatever outlives it.
    pub(crate) fn start(&self, mut command: Command) -> Running {
        static OUTPUTS: AtomicU32 = AtomicU32::new(0);
        let number = OUTPUTS.fetch_add(1, Ordering::Relaxed);
        let (stdout, stderr) = (self.path(&format!("stdout.{number}")), self.path(&format!("stderr.{number}")));
        let child =
            command.stdout(File::create(&stdout).unwrap()).stderr(File::create(&stderr).unwrap()).spawn().unwrap();
        Running { child, stdout, stderr }
    }

    /// Starts `run key options -- sh -c script`, and waits until the script has written its pid to the file `pid`.
    pub(crate) fn hold(&self, key: &str, options: &[&str], script: &str) -> Running {
        let pid = self.path("pid");
        fs::remove_file(&pid).ok();
        let script = format!("echo $$ > pid.new; mv pid.new pid; {script}");
        let mut arguments = vec!["run", key];
        arguments.extend(options);
        arguments.extend(["--", "sh", "-c", &script]);
        let mut running = self.start(self.command(arguments));
        wait_until("the job runs", || {
            assert!(running.child.try_wait().unwrap().is_none(), "ended early: {}", running.stderr());
            pid.exists()
        });
        running
    }

    /// The pid that a script has written to a file.
    pub(crate) fn pid(&self, name: &str) -> Pid {
        wait_until("the pid is written", || self.read(name).ends_with('\n'));
        Pid::from_raw(self.read(name).trim().parse().unwrap()).unwrap()
    }

    pub(crate) fn is_free(&self, key: &str) -> bool {
        // A server that writes its log to a busy disk may not answer in time.
        let look = (0..5).map(|_| self.run(["show", key])).find(|look| look.code() != 69).unwrap();
        match look.code() {
            0 => false,
            1 => true,
            code => panic!("show: {code}: {}", look.stderr),
        }
    }

    /// The owner token of whoever holds a key, as the store keeps it.
    pub(crate) fn owner(&self, key: &str) -> String {
        let connection = rusqlite::Connection::open(self.path("leases.db")).unwrap();
        let row =
            connection.query_row("SELECT owner FROM leases WHERE key = ?1", [format!("leasehold:{key}")], |row| {
                row.get::<_, Vec<u8>>(0)
            });
        String::from_utf8(row.unwrap()).unwrap()
    }

    /// Every process of this place that still runs, but the direct children of the test.
    pub(crate) fn survivors(&self) -> Vec<Pid> {
        let mark = format!("{MARK}={}", self.mark);
        let own = std::process::id();
        fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
            .filter(|pid| {
                let environment = fs::read(proc_file(*pid, "environ")).unwrap_or_default();
                is_running(*pid)
                    && pid.as_raw_nonzero().get().unsigned_abs() != own
                    && environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
            })
            .collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for pid in self.survivors() {
            kill_process(pid, Signal::KILL).ok();
        }
    }
}

/// A command that was started.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn stdout(&self) -> String {
        fs::read_to_string(&self.stdout).unwrap()
    }

    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for the end.
    pub(crate) fn finish(self) -> Finished {
        self.finish_within(PATIENCE)
    }

    /// Waits for an end that has to come within some time, which is to be far beyond what it takes.
    pub(crate) fn finish_within(mut self, patience: Duration) -> Finished {
        let mut status = None;
        wait_within(patience, "the command ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let finished = Finished { status: status.unwrap(), stdout: self.stdout(), stderr: self.stderr() };
        assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
        finished
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A command that ended.
#[derive(Debug)]
pub(crate) struct Finished {
    status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// The exit code; the command itself never dies of a signal.
    pub(crate) fn code(&self) -> i32 {
        assert_eq!(self.status.signal(), None, "{}", self.stderr);
        self.status.code().unwrap()
    }

    /// The exit code, or everything that was said if it is another one.
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code(), code, "{self:?}");
        self
    }
}

/// A pipe that is full and that nobody reads; what is written to it waits for as long as the reader stands.
pub(crate) fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    for size in [4096, 1] {
        while rustix::io::write(&writer, &vec![b'x'; size]).is_ok() {}
    }
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    (reader, writer)
}

/// Waits until a condition holds.
pub(crate) fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    wait_within(PATIENCE, what, condition);
}

fn wait_within(patience: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let pause = Duration::from_millis(5);
    let mut waited = Duration::ZERO;
    while !condition() {
        assert!(waited < patience, "never came true: {what}");
        thread::sleep(pause);
        waited += pause;
    }
}

/// Whether a process runs; one that is dead and not collected does not.
pub(crate) fn is_running(pid: Pid) -> bool {
    let stat = fs::read_to_string(proc_file(pid, "stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with(['Z', 'X']))
}

/// Whether a process has a handler for TERM: until then it would die of one.
#[allow(dead_code, reason = "not every test signals what has just been started")]
pub(crate) fn handles_term(pid: Pid) -> bool {
    let status = fs::read_to_string(proc_file(pid, "status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default().trim();
    u64::from_str_radix(caught, 16).is_ok_and(|caught| caught & (1 << 14) != 0)
}

/// An address of nobody, whose port no other process is given either: a socket that does not listen is bound to it for
/// as long as the tests run. Who is told of it can listen there.
pub(crate) fn address_of_nobody() -> SocketAddr {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = socket.local_addr().unwrap();
    std::mem::forget(socket);
    address
}

/// A file of a process under `/proc`.
pub(crate) fn proc_file(pid: Pid, name: &str) -> PathBuf {
    Path::new("/proc").join(pid.as_raw_nonzero().to_string()).join(name)
}
