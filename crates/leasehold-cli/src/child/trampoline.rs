//! How a command is started so that it cannot run before the lease names its process group.
//!
//! This program starts itself in a new group, with one end of a pair of sockets as standard input. That process arranges
//! to die with its parent and waits. One byte, with the real standard input beside it, makes it execute the command; the
//! end of the stream makes it go away. The socket closes when the command is executed, or brings the reason why not.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use rustix::process::Pid;

use super::helper;
use crate::cli::Input;
use crate::exit;

/// The hidden subcommand.
pub(super) const NAME: &str = "__exec";

/// A process that waits to become the command; it goes away if this is dropped.
#[derive(Debug)]
pub(super) struct Trampoline {
    socket: UnixStream,
}

impl Trampoline {
    /// Starts the process, in a group that has its id.
    pub(super) fn start(command: &Command) -> io::Result<(Self, Pid)> {
        let (socket, other) = UnixStream::pair()?;
        let mut start = helper(NAME);
        start.arg(std::process::id().to_string()).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => start.env(name, value),
                None => start.env_remove(name),
            };
        }
        let child = start.process_group(0).stdin(OwnedFd::from(other)).spawn()?;
        Ok((Self { socket }, Pid::from_child(&child)))
    }

    /// Has the command executed; an error says why it cannot be.
    ///
    /// A process that has died meanwhile is no error here: its status tells.
    pub(super) async fn execute(self, stdin: Input) -> io::Result<()> {
        let sent = match stdin {
            Input::Inherit => send(&self.socket, io::stdin()),
            Input::Null => File::open("/dev/null").and_then(|nothing| send(&self.socket, nothing)),
        };
        if let Err(error) = sent {
            return if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) };
        }
        self.socket.set_nonblocking(true)?;
        let socket = tokio::net::UnixStream::from_std(self.socket)?;
        let mut answer = [0; 4];
        loop {
            socket.readable().await?;
            return match socket.try_read(&mut answer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Ok(4) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(answer))),
                _ => Ok(()),
            };
        }
    }
}

/// The process that waits: becomes the command, or ends.
pub(super) fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let parent = arguments.next().and_then(|id| id.to_str()?.parse().ok());
    let Some(program) = arguments.next() else {
        return ExitCode::from(exit::USAGE);
    };
    #[cfg(target_os = "linux")]
    if rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).is_err() {
        return ExitCode::from(exit::OS);
    }
    // A parent that died before it could be arranged to die with it.
    if rustix::process::getppid() != parent.and_then(Pid::from_raw) {
        return ExitCode::from(exit::USAGE);
    }
    match become_command(&program, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(exit::OS),
    }
}

/// Answers only if the command is not to be executed, or cannot be.
fn become_command(program: &OsString, arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    // The copy closes itself when the command is executed.
    let mut socket = UnixStream::from(rustix::stdio::stdin().try_clone_to_owned()?);
    let Some(stdin) = receive(&socket)? else {
        return Ok(());
    };
    rustix::stdio::dup2_stdin(&stdin)?;
    drop(stdin);
    let error = Command::new(program).args(arguments).exec();
    let reason = error.raw_os_error().unwrap_or(rustix::io::Errno::INVAL.raw_os_error());
    socket.write_all(&reason.to_ne_bytes())
}

fn send(socket: &UnixStream, stdin: impl AsFd) -> io::Result<()> {
    let files = [stdin.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    beside.push(SendAncillaryMessage::ScmRights(&files));
    rustix::net::sendmsg(socket, &[IoSlice::new(&[1])], &mut beside, SendFlags::empty())?;
    Ok(())
}

/// The file that came with the byte; `None` at the end of the stream.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::io::retry_on_intr(|| rustix::net::recvmsg(socket, &mut into, &mut beside, flags))?;
    Ok(beside.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_file_goes_through_and_the_end_is_seen() {
        let (one, other) = UnixStream::pair().unwrap();
        send(&one, File::open("/proc/self/comm").unwrap()).unwrap();
        let mut text = String::new();
        File::from(receive(&other).unwrap().unwrap()).read_to_string(&mut text).unwrap();
        assert!(!text.is_empty());
        drop(one);
        assert!(receive(&other).unwrap().is_none());
    }
}
