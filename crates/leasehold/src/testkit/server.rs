//! A server of the test's own.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fmt, io, thread};

use rustix::process::Signal;
use tempfile::TempDir;

use super::port::Port;
use crate::clock::Clock;

mod process;

use self::process::Process;

/// Five times and more of what a server needs to start, or to end, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);
const LOG: &str = "server.log";

/// A server that a test has started for itself, on a port of the loopback address and in a temporary directory.
///
/// It is killed when it is dropped, and on Linux also when the test's process ends in any other way, even by SIGKILL;
/// that takes `setpriv`, of util-linux. Its port stays reserved while it does not run, so that
/// [`restart`](Self::restart) finds it free and nobody else is taken for it; for that a server has to set
/// `SO_REUSEADDR`, as about all do.
///
/// The methods block, for some milliseconds usually; [`start`](ServerBuilder::start), [`restart`](Self::restart) and
/// [`terminate`](Self::terminate) for a minute at most.
///
/// ```no_run
/// # use leasehold::testkit::Server;
/// # fn main() -> std::io::Result<()> {
/// let server = Server::builder("redis-server").args(["--port", "{port}", "--dir", "{dir}", "--save", ""]).start()?;
/// let url = format!("redis://{}", server.address());
/// server.stop()?; // it hangs, with its connections open
/// server.cont()?;
/// server.kill()?;
/// server.restart()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    // First, so that it is dead when its port is free and its directory removed.
    process: Process,
    port: Port,
    directory: TempDir,
    plan: ServerBuilder,
    program: PathBuf,
}

/// How to start a [`Server`].
#[must_use = "it has to be started"]
#[derive(Clone)]
pub struct ServerBuilder {
    program: String,
    arguments: Vec<String>,
    files: Vec<(String, String)>,
    ready: Arc<Ready>,
}

type Ready = dyn Fn(SocketAddr) -> bool + Send + Sync;

impl Server {
    /// A server that is started by this program, which is [found](Self::find) or a path.
    pub fn builder(program: impl Into<String>) -> ServerBuilder {
        let ready = |address| TcpStream::connect(address).is_ok();
        ServerBuilder { program: program.into(), arguments: Vec::new(), files: Vec::new(), ready: Arc::new(ready) }
    }

    /// Where a program is: for `redis-server` what `LEASEHOLD_TEST_REDIS_SERVER` says, or else the first in `PATH`.
    pub fn find(program: &str) -> Option<PathBuf> {
        let variable = format!("LEASEHOLD_TEST_{}", program.replace('-', "_").to_uppercase());
        let is_file = |path: &PathBuf| path.is_file();
        match env::var_os(variable).filter(|path| !path.is_empty()) {
            Some(path) => Some(path.into()).filter(is_file),
            None => env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(program)).find(is_file),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.address().port()
    }

    /// Its directory, in which it also runs; removed when the server is dropped.
    pub fn dir(&self) -> &Path {
        self.directory.path()
    }

    /// Its process, if it was not killed or terminated.
    pub fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// What it has said so far, over all starts.
    pub fn log(&self) -> String {
        let said = fs::read(self.dir().join(LOG)).unwrap_or_default();
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Stops it and its children (SIGSTOP), and comes back when it has stopped: connections stay open, and new ones are
    /// still accepted by the kernel.
    ///
    /// # Errors
    ///
    /// It does not run.
    pub fn stop(&self) -> io::Result<()> {
        self.process.stop()
    }

    /// Lets it go on after [`stop`](Self::stop).
    ///
    /// # Errors
    ///
    /// It does not run.
    pub fn cont(&self) -> io::Result<()> {
        self.process.cont()
    }

    /// Kills it and its children (SIGKILL), and comes back when it is dead. Does nothing if it does not run.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn kill(&self) -> io::Result<()> {
        self.process.kill()
    }

    /// Asks it to end (SIGTERM), and comes back with its status when it has.
    ///
    /// # Errors
    ///
    /// It does not run, or does not end.
    pub fn terminate(&self) -> io::Result<ExitStatus> {
        self.process.signal(Signal::TERM)?;
        self.process.wait(PATIENCE)?.ok_or_else(|| self.failure(io::ErrorKind::TimedOut, "does not end"))
    }

    /// Starts it again with the same port and the same directory, and waits until it is ready; kills it before if it
    /// runs.
    ///
    /// # Errors
    ///
    /// It ends, or does not become ready; with its log.
    pub fn restart(&self) -> io::Result<()> {
        self.kill()?;
        let log = File::options().create(true).append(true).open(self.dir().join(LOG))?;
        let mut command = process::command(&self.program);
        command
            .args(self.plan.arguments.iter().map(|argument| self.fill_in(argument)))
            .current_dir(self.dir())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0);
        self.process.start(command)?;
        self.wait_until_ready(PATIENCE)
    }

    fn wait_until_ready(&self, patience: Duration) -> io::Result<()> {
        let started = Clock::system().now();
        while !(self.plan.ready)(self.address()) {
            if self.process.wait(Duration::ZERO)?.is_some() {
                return Err(self.failure(io::ErrorKind::Other, "has ended"));
            }
            // The check may take long, too.
            if Clock::system().now().since(started) > patience {
                return Err(self.failure(io::ErrorKind::TimedOut, "does not become ready"));
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn fill_in(&self, text: &str) -> String {
        text.replace("{port}", &self.port().to_string()).replace("{dir}", &self.dir().to_string_lossy())
    }

    fn failure(&self, kind: io::ErrorKind, what: &str) -> io::Error {
        io::Error::new(kind, format!("{} {what}; its log:\n{}", self.plan.program, self.log()))
    }
}

impl ServerBuilder {
    /// Passes these arguments, too, in which `{port}` and `{dir}` stand for the port and the directory.
    pub fn args<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Writes a file of this name into the directory before the first start, with `{port}` and `{dir}` filled in.
    pub fn file(mut self, name: impl Into<String>, content: impl Into<String>) -> Self {
        self.files.push((name.into(), content.into()));
        self
    }

    /// How to know that it is ready, asked again and again while it starts; without, that it accepts a connection.
    pub fn ready(mut self, check: impl Fn(SocketAddr) -> bool + Send + Sync + 'static) -> Self {
        self.ready = Arc::new(check);
        self
    }

    /// Starts the server, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// `NotFound` if the program is not there, or what else goes wrong; with the server's log if there is one.
    pub fn start(self) -> io::Result<Server> {
        let not_found = || io::Error::new(io::ErrorKind::NotFound, format!("{} is not installed", self.program));
        let program = if self.program.contains('/') {
            Some(PathBuf::from(&self.program)).filter(|path| path.is_file())
        } else {
            Server::find(&self.program)
        };
        let server = Server {
            program: program.ok_or_else(not_found)?,
            port: Port::reserve()?,
            process: Process::default(),
            directory: tempfile::Builder::new().prefix("server-").tempdir()?,
            plan: self,
        };
        for (name, content) in &server.plan.files {
            fs::write(server.dir().join(name), server.fill_in(content))?;
        }
        server.restart()?;
        Ok(server)
    }
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerBuilder")
            .field("program", &self.program)
            .field("arguments", &self.arguments)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A check that takes long itself, as one does that asks a server which accepts and says nothing.
    #[test]
    fn a_slow_check_does_not_make_it_wait_for_longer() {
        let mut server = Server::builder("sleep").args(["600"]).ready(|_| true).start().unwrap();
        server.plan.ready = Arc::new(|_| {
            thread::sleep(Duration::from_millis(300));
            false
        });
        let started = Clock::system().now();
        let error = server.wait_until_ready(Duration::from_millis(500)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(Clock::system().now().since(started) < Duration::from_secs(15));
    }
}
