//! Another process, known by its number: waited for, signalled, told from a later one of the same number.

use std::fs;
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::path::Path;
#[cfg(target_os = "linux")]
use std::sync::Arc;
use std::thread;
use std::time::Duration;

#[cfg(target_os = "linux")]
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use tokio::sync::watch;

/// How often a process is looked for where the system does not tell of its end.
const LOOK: Duration = Duration::from_millis(200);

/// A process that is watched: if its number is given to another one, it is not mistaken for that.
#[derive(Debug)]
pub(crate) struct Watched {
    id: Pid,
    #[cfg(target_os = "linux")]
    descriptor: Option<Arc<OwnedFd>>,
    ended: watch::Receiver<bool>,
}

impl Watched {
    /// Watches the process of this number.
    pub(crate) fn open(id: Pid) -> io::Result<Self> {
        match rustix::process::test_kill_process(id) {
            // Somebody else's lives as well.
            Ok(()) | Err(Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        let (sender, ended) = watch::channel(false);
        // Kernels before 5.3 have no descriptors of processes, and some sandboxes refuse them.
        #[cfg(target_os = "linux")]
        let descriptor = rustix::process::pidfd_open(id, rustix::process::PidfdFlags::empty()).ok().map(Arc::new);
        #[cfg(target_os = "linux")]
        let end = {
            let descriptor = descriptor.clone();
            move || descriptor.map_or_else(|| look_for_end(id), |descriptor| await_end(&descriptor))
        };
        #[cfg(not(target_os = "linux"))]
        let end = move || look_for_end(id);
        thread::Builder::new().spawn(move || {
            end();
            sender.send_replace(true);
        })?;
        Ok(Self {
            id,
            #[cfg(target_os = "linux")]
            descriptor,
            ended,
        })
    }

    /// Its number.
    pub(crate) fn id(&self) -> Pid {
        self.id
    }

    /// Resolves when the process has ended. Nothing is lost if the future is dropped.
    pub(crate) async fn ended(&self) {
        // The sender is gone only after it has told, or with a thread that failed.
        self.ended.clone().wait_for(|ended| *ended).await.ok();
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if let Some(descriptor) = &self.descriptor {
            return Ok(rustix::process::pidfd_send_signal(descriptor, signal)?);
        }
        Ok(rustix::process::kill_process(self.id, signal)?)
    }
}

#[cfg(target_os = "linux")]
fn await_end(descriptor: &OwnedFd) {
    let mut files = [PollFd::new(descriptor, PollFlags::IN)];
    while matches!(poll(&mut files, None), Err(Errno::INTR)) {}
}

fn look_for_end(id: Pid) {
    while rustix::process::test_kill_process(id) != Err(Errno::SRCH) {
        thread::sleep(LOOK);
    }
}

/// When a process was started, in ticks since boot; `None` if that cannot be seen.
pub(crate) fn start_of(id: Pid) -> Option<u64> {
    field_of(id, 19)?.parse().ok()
}

/// Whether a process is stopped, as far as can be seen.
pub(crate) fn is_stopped(id: Pid) -> bool {
    field_of(id, 0).is_some_and(|state| state == "T" || state == "t")
}

/// What the system tells of a process after the program's name, which may hold anything, also parentheses.
fn field_of(id: Pid, at: usize) -> Option<String> {
    let stat = fs::read(format!("/proc/{}/stat", id.as_raw_nonzero())).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(at).map(str::to_owned)
}

/// The base name of a process's program as it was called; `None` if that cannot be seen.
pub(crate) fn program_of(id: Pid) -> Option<String> {
    let line = fs::read(format!("/proc/{}/cmdline", id.as_raw_nonzero())).ok()?;
    let program = String::from_utf8_lossy(line.split(|byte| *byte == 0).next()?).into_owned();
    let name = Path::new(&program).file_name()?.to_str()?;
    // A login shell.
    Some(name.strip_prefix('-').unwrap_or(name).to_owned())
}

/// Whether a process is one of those that started this one, directly or not.
pub(crate) fn is_ancestor(id: u32) -> bool {
    let parent = |of: u32| -> Option<u32> {
        let stat = fs::read(format!("/proc/{of}/stat")).ok()?;
        String::from_utf8_lossy(&stat).rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    let mut next = parent(std::process::id());
    // Bounded, since they can change while they are read.
    for _ in 0..1000 {
        match next {
            Some(found) if found == id => return true,
            None | Some(0 | 1) => return false,
            Some(found) => next = parent(found),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_seen_of_this_process() {
        let own = rustix::process::getpid();
        assert!(start_of(own).unwrap() > 0);
        assert!(program_of(own).unwrap().starts_with("leasehold"));
        assert!(is_ancestor(rustix::process::getppid().unwrap().as_raw_nonzero().get().unsigned_abs()));
        assert!(!is_ancestor(std::process::id()));
    }
}
