//! Word from the kernel that somebody wrote to the file, or did away with a part of it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What a thread listens to instead of a condition variable, because word of the file comes by a descriptor.
#[derive(Debug)]
pub(super) struct Notices {
    changes: OwnedFd,
    bell: Bell,
}

/// Ends the listening from another thread.
#[derive(Clone, Debug)]
pub(super) struct Bell(Arc<OwnedFd>);

/// What ended the listening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Bell,
    Change,
    Nothing,
}

impl Notices {
    /// Starts to take note of changes. Whatever happened before is not told.
    ///
    /// An error is nothing unusual: the kernel has a limit on how many may listen, and some file systems tell nothing.
    #[cfg(target_os = "linux")]
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};

        use super::place::{LOG, SHARED_MEMORY, beside};

        let gone = WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        let changes = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // Every commit is written to the log. Watched by themselves and not by their directory, which others may use:
        // while this process has them open they come back under their names only as other files, which is told, too.
        add_watch(&changes, beside(path, LOG), gone | WatchFlags::MODIFY)?;
        add_watch(&changes, beside(path, SHARED_MEMORY), gone)?;
        add_watch(&changes, path, gone)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { changes, bell: Bell(Arc::new(bell)) })
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn of(_path: &Path) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn bell(&self) -> Bell {
        self.bell.clone()
    }

    /// Waits for the bell or a change, but only so long if that is limited.
    pub(super) fn listen(&self, limit: Option<Duration>) -> Heard {
        // One that is too long for the kernel is as good as none.
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut sources = [&*self.bell.0, &self.changes].map(|source| PollFd::new(source, PollFlags::IN));
        if poll(&mut sources, limit.as_ref()).is_err() {
            return Heard::Nothing;
        }
        let [is_bell, is_change] = sources.map(|source| !source.revents().is_empty());
        if is_change {
            drain(&self.changes);
        }
        if is_bell {
            drain(&self.bell.0);
        }
        match (is_change, is_bell) {
            (true, _) => Heard::Change,
            (false, true) => Heard::Bell,
            (false, false) => Heard::Nothing,
        }
    }
}

impl Bell {
    pub(super) fn ring(&self) {
        // Fails only where it has been rung more often than can be counted.
        rustix::io::write(&*self.0, &1_u64.to_ne_bytes()).ok();
    }
}

/// What it says does not matter, only that it says something.
fn drain(source: impl AsFd) {
    let mut buffer = [0_u8; 4096];
    while rustix::io::read(&source, &mut buffer).is_ok_and(|read| read == buffer.len()) {}
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::store::sqlite::place::{LOG, SHARED_MEMORY, beside};

    const SOON: Option<Duration> = Some(Duration::from_secs(60));

    #[test]
    fn writes_to_the_log_and_losses_are_told_and_other_files_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("leases.db");
        assert!(Notices::of(&path).is_err());
        for suffix in ["", LOG, SHARED_MEMORY] {
            fs::write(beside(&path, suffix), "x").unwrap();
        }
        for change in [
            &(|| fs::write(beside(&path, LOG), "more").unwrap()) as &dyn Fn(),
            &|| fs::remove_file(beside(&path, SHARED_MEMORY)).unwrap(),
            &|| fs::rename(&path, directory.path().join("away")).unwrap(),
        ] {
            for suffix in ["", LOG, SHARED_MEMORY] {
                fs::OpenOptions::new().create(true).append(true).open(beside(&path, suffix)).unwrap();
            }
            let notices = Notices::of(&path).unwrap();
            fs::write(directory.path().join("another"), "x").unwrap();
            fs::write(&path, "moved here from the log").unwrap();
            assert_eq!(notices.listen(Some(Duration::ZERO)), Heard::Nothing);
            change();
            assert_eq!(notices.listen(SOON), Heard::Change);
        }
    }

    #[test]
    fn the_bell_is_heard_once_also_if_it_was_rung_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("leases.db");
        for suffix in ["", LOG, SHARED_MEMORY] {
            fs::write(beside(&path, suffix), "").unwrap();
        }
        let notices = Notices::of(&path).unwrap();
        notices.bell().ring();
        notices.bell().ring();
        assert_eq!(notices.listen(None), Heard::Bell);
        assert_eq!(notices.listen(Some(Duration::ZERO)), Heard::Nothing);
        let bell = notices.bell();
        let ringing = std::thread::spawn(move || bell.ring());
        assert_eq!(notices.listen(SOON), Heard::Bell);
        ringing.join().unwrap();
    }
}
