//! How a command is started so that it cannot run before the lease names its process group.
//!
//! This program starts itself in a new group, with one end of a pair of sockets as standard input. That process arranges
//! to die with its parent and waits. One message, with the real standard input beside it, tells what the command is to find
//! in its environment and has it executed; the end of the stream makes the process go away. The socket closes when the
//! command is executed, or brings the reason why not.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
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
    pub(super) fn start(command: &[OsString]) -> io::Result<(Self, Pid)> {
        let (socket, other) = UnixStream::pair()?;
        let mut start = helper(NAME);
        start.arg(std::process::id().to_string()).args(command);
        let child = start.process_group(0).stdin(OwnedFd::from(other)).spawn()?;
        Ok((Self { socket }, Pid::from_child(&child)))
    }

    /// Has the command executed; an error says why it cannot be.
    ///
    /// A process that has died meanwhile is no error here: its status tells.
    pub(super) async fn execute(self, stdin: Input, environment: &Environment) -> io::Result<()> {
        let sent = match stdin {
            Input::Inherit => send(&self.socket, io::stdin(), environment),
            Input::Null => File::open("/dev/null").and_then(|nothing| send(&self.socket, nothing, environment)),
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
    let told = receive(&socket).and_then(|told| {
        let Some((stdin, environment)) = told else { return Ok(None) };
        rustix::stdio::dup2_stdin(&stdin)?;
        Ok(Some(environment))
    });
    let error = match told {
        Ok(None) => return Ok(()),
        Ok(Some(environment)) => {
            let mut command = Command::new(program);
            environment.apply(&mut command);
            command.args(arguments).exec()
        }
        // Told as well: silence would mean that the command was executed.
        Err(error) => error,
    };
    let reason = error.raw_os_error().unwrap_or(rustix::io::Errno::INVAL.raw_os_error());
    socket.write_all(&reason.to_ne_bytes())
}

/// What a process finds in its environment beside what it inherits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment(Vec<u8>);

impl Environment {
    /// Sets a variable.
    pub(crate) fn set(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.0.extend([name.as_bytes(), b"=", value.as_ref().as_bytes(), b"\0"].concat());
    }

    /// Removes an inherited variable.
    pub(crate) fn remove(&mut self, name: &str) {
        self.0.extend([name.as_bytes(), b"\0"].concat());
    }

    /// What is set as `NAME=value`, and the names of what is removed.
    pub(super) fn changes(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == 0).filter(|change| !change.is_empty())
    }

    /// Applies it to a process that is to be started.
    pub(super) fn apply(&self, command: &mut Command) {
        for change in self.changes() {
            match change.iter().position(|byte| *byte == b'=') {
                Some(end) => command.env(OsStr::from_bytes(&change[..end]), OsStr::from_bytes(&change[end + 1..])),
                None => command.env_remove(OsStr::from_bytes(change)),
            };
        }
    }
}

/// The length of the environment, with the file beside it, and then the environment.
fn send(mut socket: &UnixStream, stdin: impl AsFd, environment: &Environment) -> io::Result<()> {
    let length = environment.0.len().to_ne_bytes();
    let files = [stdin.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    beside.push(SendAncillaryMessage::ScmRights(&files));
    rustix::net::sendmsg(socket, &[IoSlice::new(&length)], &mut beside, SendFlags::empty())?;
    socket.write_all(&environment.0)
}

/// `None` at the end of the stream.
fn receive(mut socket: &UnixStream) -> io::Result<Option<(OwnedFd, Environment)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut length = [0; size_of::<usize>()];
    let mut into = [IoSliceMut::new(&mut length)];
    #[cfg(target_os = "linux")]
    let flags = RecvFlags::CMSG_CLOEXEC;
    #[cfg(not(target_os = "linux"))]
    let flags = RecvFlags::empty();
    let received = rustix::io::retry_on_intr(|| rustix::net::recvmsg(socket, &mut into, &mut beside, flags))?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let stdin = beside.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let stdin = stdin.ok_or_else(|| io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error()))?;
    let mut environment = Environment(vec![0; usize::from_ne_bytes(length)]);
    socket.read_exact(&mut environment.0)?;
    Ok(Some((stdin, environment)))
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_message_goes_through_and_the_end_is_seen() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut environment = Environment::default();
        environment.set("A", "1=2 \n");
        environment.remove("B");
        send(&one, File::open("/proc/self/comm").unwrap(), &environment).unwrap();
        let (stdin, received) = receive(&other).unwrap().unwrap();
        assert_eq!(received, environment);
        let mut text = String::new();
        File::from(stdin).read_to_string(&mut text).unwrap();
        assert!(!text.is_empty());
        drop(one);
        assert!(receive(&other).unwrap().is_none());
    }

    #[test]
    fn an_environment_is_applied() {
        let mut environment = Environment::default();
        environment.set("A", "1=2 \n");
        environment.remove("B");
        let mut command = Command::new("true");
        environment.apply(&mut command);
        let changes: Vec<_> = command.get_envs().collect();
        assert_eq!(changes, [(OsStr::new("A"), Some(OsStr::new("1=2 \n"))), (OsStr::new("B"), None)]);
    }
}
