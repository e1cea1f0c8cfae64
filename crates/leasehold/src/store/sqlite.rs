//! Leases in a local SQLite file: one machine, nothing to install.
//!
//! Excludes the processes of one host that use the *same file*; two users with two default files do not exclude each
//! other. A lease ends by the machine's boot-time clock, which counts suspend and which no step of the wall clock
//! moves; after a reboot every lease that is tied to a process is free, and one that is tied to nothing stands until
//! the wall-clock end that it carries. Fencing tokens come from one counter in the file and survive crash, reboot and
//! power loss; a file that is deleted or replaced starts a new one, and [`Probe::identity`] tells.
//!
//! A thread of its own does the work, in short transactions of a write-ahead file. A file that stays busy, for example
//! because a process was stopped in the middle of a write, is answered with `Unavailable`, never with contention.
//! Needs Linux and a local file system.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::file::Survives;
use self::host::{Host, wall_time};
use self::lease::{Outcome, Request};
use self::queue::Urgency;
use self::thread::{StoreThread, Worker};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::store::{
    Attempt, Capabilities, Claim, Contention, Fencing, Finding, Grant, Inspection, Level, Listing, Page, Probe,
    Removed, Scope, Store, Waiting,
};
use crate::types::{Key, OwnerToken};

mod fault;
mod file;
mod host;
mod layout;
mod lease;
mod limit;
mod place;
mod queue;
mod row;
mod thread;
mod upkeep;
mod watch;

/// The longest wait for a busy file, where no ttl asks for less. Shorter than the engine's own limit, so that the
/// answer is a certain one.
const PATIENCE: Duration = Duration::from_secs(4);

/// Beyond this many bytes something keeps the log from being written into the file: it should have stayed at a quarter.
const LONG_LOG: u64 = 64 << 20;

/// A store that keeps leases in a local SQLite file. Clones share one connection and its thread.
#[derive(Clone)]
pub struct SqliteStore {
    thread: Arc<StoreThread>,
    path: Arc<Path>,
}

impl SqliteStore {
    /// Opens the file at `path`; creates it if there is none. Its directory must exist.
    ///
    /// A new file can be used by its owner only, or by a group if the directory is shared by that group
    /// (`chmod 2770`).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Rejected`] if the file cannot be created or written or belongs to another program or version,
    /// [`ErrorKind::Unavailable`] if it stays busy or the disk fails, [`ErrorKind::Unsupported`] outside Linux, in a
    /// container that hides the kernel's boot id or time, and in a process that was forked from one that used a store.
    ///
    /// # Cancel safety
    ///
    /// The file may have been created if the future is dropped; nothing else remains.
    pub async fn open(path: impl AsRef<Path> + Send) -> Result<Self> {
        let host = Host::present().map_err(while_opening)?;
        Self::open_on(path.as_ref(), host).await
    }

    /// Opens the file at [`default_path`](Self::default_path); creates it, and its directory for this user only.
    /// A directory that others can write is refused.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open) and [`default_path`](Self::default_path).
    ///
    /// # Cancel safety
    ///
    /// File and directory may have been created if the future is dropped; nothing else remains.
    pub async fn open_default() -> Result<Self> {
        let path = Self::default_path()?;
        place::make_private_directory(&path).map_err(while_opening)?;
        Self::open(&path).await
    }

    /// Where the file is unless another one is named: `$XDG_STATE_HOME/leasehold/leases.db`; without that variable
    /// `/var/lib/leasehold/leases.db` for root and `$HOME/.local/state/leasehold/leases.db` for everybody else.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if neither variable names an absolute path.
    pub fn default_path() -> Result<PathBuf> {
        default_path(rustix::process::geteuid().is_root(), env::var_os("XDG_STATE_HOME"), env::var_os("HOME"))
            .map_err(while_opening)
    }

    /// The file, as an absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    async fn open_on(path: &Path, host: Host) -> Result<Self> {
        let open = async {
            // Fixed now: the working directory may change later.
            let path = std::path::absolute(path)
                .map_err(|error| fault::rejected(path, "name an absolute path").with_source(error))?;
            let thread = StoreThread::start(path.clone(), host, PATIENCE).await?;
            Ok(Self { thread: Arc::new(thread), path: path.into() })
        };
        open.await.map_err(while_opening)
    }

    async fn ask<T: Send + 'static>(
        &self,
        urgency: Urgency,
        patience: Duration,
        work: impl FnOnce(&mut Worker) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.thread.ask(urgency, patience, work).await
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(Scope::Host)
            .waiting(Waiting::Hint)
            .fencing(Fencing::Monotonic)
            .hand_over()
            .lists()
            .survives_restart()
    }

    async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt> {
        let request = Request::from(claim);
        self.ask(Urgency::Normal, patience(claim.ttl), move |worker| {
            let (file, host) = worker.file()?;
            let holder = match lease::acquire(file, host, &request)? {
                Outcome::Granted(grant) => return Ok(Attempt::Acquired(grant)),
                Outcome::Held(holder) => holder,
            };
            let mut contention = Contention::new();
            contention.retry_after = holder.remaining;
            if request.waits {
                // Nothing is missed in between: whatever is committed from now on is seen by the next look.
                contention = contention.wake(worker.watches.add(&request.key, &holder));
            }
            Ok(Attempt::Contended(contention.holder(holder)))
        })
        .await
    }

    async fn extend(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        let Some(shortest) = claims.iter().map(|claim| claim.ttl).min() else {
            return Ok(Vec::new());
        };
        let requests: Vec<_> = claims.iter().map(Request::from).collect();
        self.ask(Urgency::Soon, patience(shortest), move |worker| {
            let (file, host) = worker.file()?;
            lease::extend(file, host, &requests)
        })
        .await
    }

    async fn release(&self, key: &Key, owner: &OwnerToken) -> Result<bool> {
        let (key, owner) = (key.clone(), owner.clone());
        self.ask(Urgency::Must, PATIENCE, move |worker| {
            let (file, host) = worker.file()?;
            let released = lease::release(file, host, &key, &owner)?;
            worker.watches.wake(&key);
            Ok(released)
        })
        .await
    }

    async fn transfer(&self, from: &OwnerToken, claim: &Claim<'_>) -> Result<Option<Grant>> {
        let (from, request) = (from.clone(), Request::from(claim));
        self.ask(Urgency::Soon, patience(claim.ttl), move |worker| {
            let (file, host) = worker.file()?;
            lease::transfer(file, host, &from, &request)
        })
        .await
    }

    async fn force_release(&self, key: &Key, expected: Option<&OwnerToken>) -> Result<Option<Removed>> {
        let (key, expected) = (key.clone(), expected.cloned());
        self.ask(Urgency::Must, PATIENCE, move |worker| {
            let (file, host) = worker.file()?;
            let removed = lease::force_release(file, host, &key, expected.as_ref())?;
            worker.watches.wake(&key);
            Ok(removed)
        })
        .await
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        let key = key.clone();
        self.ask(Urgency::Normal, PATIENCE, move |worker| {
            let (file, host) = worker.file()?;
            Ok(Inspection::new(lease::inspect(file, host, key.as_stored())?.into_iter().collect()))
        })
        .await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<Listing> {
        let prefix = prefix.to_owned();
        self.ask(Urgency::Normal, PATIENCE, move |worker| {
            let (file, host) = worker.file()?;
            lease::list(file, host, &prefix, &page)
        })
        .await
    }

    async fn probe(&self) -> Result<Probe> {
        let path = Arc::clone(&self.path);
        self.ask(Urgency::Normal, PATIENCE, move |worker| {
            let (file, host) = worker.file()?;
            // The way that grants go: to the write lock.
            file.write(Survives::Crash, |_| Ok(()))?;
            let mut probe =
                Probe::new().server_time(wall_time(host.now().wall)).identity(file.identity()?).finding(Finding::new(
                    Level::Ok,
                    format!("leases are kept in {}", path.display()),
                    "only processes of this host that use the same file exclude each other",
                ));
            if fs::metadata(&path).is_ok_and(|found| found.permissions().mode() & 0o007 != 0) {
                probe = probe.finding(Finding::new(
                    Level::Warn,
                    format!("every user of this host can reach {}, which holds owner tokens", path.display()),
                    format!("chmod o= {}", path.display()),
                ));
            }
            let log = place::beside(&path, place::LOG);
            if fs::metadata(&log).is_ok_and(|found| found.len() > LONG_LOG) {
                probe = probe.finding(Finding::new(
                    Level::Warn,
                    format!("{} is larger than {} MiB and slows everything down", log.display(), LONG_LOG >> 20),
                    "end the program that has been reading the file all the time, such as a forgotten sqlite3",
                ));
            }
            Ok(probe)
        })
        .await
    }

    async fn close(&self) -> Result<()> {
        self.thread.close().await;
        Ok(())
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}

/// How long a lease of `ttl` may wait for a busy file: two attempts fit between a renewal and the deadline, and the
/// answer comes before the engine stops to listen, after a sixth of the ttl.
fn patience(ttl: Duration) -> Duration {
    (ttl / 8).min(PATIENCE)
}

fn while_opening(error: Error) -> Error {
    error.during(Operation::Connect).on_store("sqlite")
}

fn default_path(is_root: bool, state_home: Option<OsString>, home: Option<OsString>) -> Result<PathBuf> {
    let absolute = |variable: Option<OsString>| variable.map(PathBuf::from).filter(|path| path.is_absolute());
    let state = match (absolute(state_home), absolute(home)) {
        (Some(state), _) => state,
        (None, _) if is_root => PathBuf::from("/var/lib"),
        (None, Some(home)) => home.join(".local/state"),
        (None, None) => {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "there is no place for the default file, because neither XDG_STATE_HOME nor HOME names an absolute \
                 path: set one of them, or name a file with --store sqlite:///path",
            ));
        }
    };
    Ok(state.join("leasehold/leases.db"))
}

#[cfg(test)]
mod tests;
