//! What a script is told whose lease ends although it was not given back.

use std::fs::File;
use std::io;

use leasehold::LostReason;
use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

use super::Request;
use crate::child::OnLost;
use crate::output;
use crate::process::Watched;
use crate::signals;

/// Why the script is told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cause {
    /// The lease cannot be renewed and is about to end.
    Ending,
    /// It may not be assumed any more.
    Lost(LostReason),
}

/// Tells the process that a lease is kept for, as was asked for, and whoever reads its messages.
pub(super) fn tell(request: &Request<'_>, process: &Watched, cause: Cause) {
    // Before the signal: who ends of it has none any more.
    let attached = attach(process.id());
    let told = match request.on_lost {
        OnLost::Signal(signal) => {
            let name = signals::name(signal);
            match process.signal(signal) {
                Ok(()) => format!("{name} sent to process {}", process.id()),
                Err(error) => format!("process {} could not be sent {name}: {error}", process.id()),
            }
        }
        OnLost::Continue => "the script was not told (--on-lost continue)".to_owned(),
    };
    let (what, effect) = match cause {
        Cause::Ending => ("could not be renewed".to_owned(), "stop now: somebody else may hold the key soon"),
        Cause::Lost(reason) => (format!("is lost ({reason})"), "somebody else may hold the key"),
    };
    let name = request.name;
    if attached.is_ok() {
        output::tell_block(&format!("lost: the lease on \"{name}\" {what}; {told}\n  effect   {effect}\n"));
        detach().ok();
    }
}

/// Writes messages from now on where those of the process go; nothing waits for their reader.
fn attach(id: Pid) -> io::Result<()> {
    let place = format!("/proc/{}/fd/2", id.as_raw_nonzero());
    // A terminal must not become that of this session.
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(place, flags, Mode::empty())?;
    Ok(rustix::stdio::dup2_stderr(&file)?)
}

/// Holds nothing of the script's messages open.
pub(super) fn detach() -> io::Result<()> {
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stderr(&nothing)?)
}
