//! What happens to the lease, told as it happens on a file descriptor that was passed in.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use serde_json::{Value, json};

use crate::exit::{self, Failure};
use crate::output;

/// How long the last line waits for a reader that does not read.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// Where to tell; nowhere unless it was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Status(Option<Arc<Pipe>>);

#[derive(Debug)]
struct Pipe {
    number: i32,
    file: File,
    broken: AtomicBool,
}

impl Status {
    /// The file descriptor with this number, which has to be open for writing.
    pub(crate) fn open(number: Option<i32>) -> Result<Self, Failure> {
        let Some(number) = number else {
            return Ok(Self(None));
        };
        let why = match duplicate(number) {
            Ok(file) => match fcntl_getfl(&file) {
                Ok(flags) if flags & OFlags::RWMODE != OFlags::RDONLY => {
                    return Ok(Self(Some(Arc::new(Pipe {
                        number,
                        file: file.into(),
                        broken: AtomicBool::new(false),
                    }))));
                }
                Ok(_) => "it is not open for writing".to_owned(),
                Err(error) => error.to_string(),
            },
            Err(error) => format!("it cannot be used: {error}"),
        };
        Err(Failure::new(exit::USAGE, format!("invalid --status-fd {number}: {why}: open it, as in {number}>status")))
    }

    /// Its number, which the command inherits.
    pub(super) fn number(&self) -> Option<i32> {
        self.0.as_ref().map(|pipe| pipe.number)
    }

    /// Tells of an event. A line for which there is no room is dropped, because waiting could cost the lease.
    pub(super) fn tell(&self, event: &str, fields: Value) {
        self.write(event, fields, Duration::ZERO);
    }

    /// Tells of the last event, with a little patience.
    pub(super) fn tell_last(&self, event: &str, fields: Value) {
        self.write(event, fields, LAST_PATIENCE);
    }

    fn write(&self, event: &str, fields: Value, patience: Duration) {
        let Some(pipe) = self.0.as_ref().filter(|pipe| !pipe.broken.load(Ordering::Relaxed)) else {
            return;
        };
        let mut object = json!({"schema": "leasehold.status/1", "event": event, "time": output::rfc3339_now()});
        if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
            object.extend(fields);
        }
        if pipe.has_room(patience) && (&pipe.file).write_all(format!("{object}\n").as_bytes()).is_err() {
            pipe.broken.store(true, Ordering::Relaxed);
        }
    }
}

impl Pipe {
    fn has_room(&self, patience: Duration) -> bool {
        let patience = Timespec::try_from(patience).unwrap_or_default();
        let mut polled = [PollFd::new(&self.file, PollFlags::OUT)];
        poll(&mut polled, Some(&patience)).is_ok_and(|ready| ready > 0)
    }
}

/// A duplicate of an inherited file descriptor, which commands do not inherit.
///
/// The kernel is asked for it as if it were another process's: a bare number is no proof that nobody else closes it.
#[cfg(target_os = "linux")]
fn duplicate(number: i32) -> io::Result<OwnedFd> {
    use std::os::fd::AsRawFd;

    use rustix::io::Errno;
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

    let duplicated = pidfd_open(getpid(), PidfdFlags::empty()).and_then(|this| {
        // Then the number was free until just now.
        if this.as_raw_fd() == number { Err(Errno::BADF) } else { pidfd_getfd(this, number, PidfdGetfdFlags::empty()) }
    });
    match duplicated {
        // Containers may forbid it.
        Err(Errno::PERM | Errno::NOSYS) => reopen(number),
        duplicated => Ok(duplicated?),
    }
}

#[cfg(not(target_os = "linux"))]
fn duplicate(number: i32) -> io::Result<OwnedFd> {
    reopen(number)
}

/// The same file, opened anew; does not work for sockets.
fn reopen(number: i32) -> io::Result<OwnedFd> {
    File::options().append(true).open(format!("/dev/fd/{number}")).map(Into::into)
}
