//! How a command is started so that it cannot run before the lease names its process group.
//!
//! This program starts itself in a new group, with one end of a pair of sockets as standard input. That process arranges
//! to die with its parent and waits. One message, with the real standard input beside it, tells until when the command may
//! be executed and what it is to find in its environment; the end of the stream makes the process go away. The socket
//! closes when the command is executed, or brings the reason why not.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use leasehold::clock::{Clock, Moment};
use nix::sys::signal::SigSet;
use rustix::io::Errno;
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

    /// Has the command executed, unless it is `lease_end` by then.
    ///
    /// A process that has died meanwhile is no error here: its answer or its status tells.
    pub(super) fn execute(self, stdin: Input, environment: &Environment, lease_end: Moment) -> io::Result<Answer> {
        let sent = match stdin {
            Input::Inherit => send(&self.socket, io::stdin(), environment, lease_end),
            Input::Null => {
                File::open("/dev/null").and_then(|nothing| send(&self.socket, nothing, environment, lease_end))
            }
        };
        match sent {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            _ => {}
        }
        self.socket.set_nonblocking(true)?;
        Ok(Answer { socket: tokio::net::UnixStream::from_std(self.socket)? })
    }
}

/// What a process that was told to become the command makes of it.
#[derive(Debug)]
pub(super) struct Answer {
    socket: tokio::net::UnixStream,
}

/// How far it is.
#[derive(Debug)]
pub(super) enum Progress {
    /// Nothing is known yet.
    Underway,
    /// The command was executed, or the process has died.
    Over,
    /// The command is not executed.
    Refused(Refusal),
}

impl Answer {
    /// Waits until there may be news. Nothing is lost if the future is dropped.
    pub(super) async fn arrives(&self) {
        // Whatever is wrong with the socket shows when it is read.
        self.socket.readable().await.ok();
    }

    /// What is known by now.
    pub(super) fn read(&self) -> Progress {
        let mut answer = [0; Refusal::LENGTH];
        // Not through the runtime: it reads only what it has heard of, which may be less than is there.
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.socket, &mut answer)) {
            Err(Errno::AGAIN) => Progress::Underway,
            Ok(Refusal::LENGTH) => Progress::Refused(Refusal::from_bytes(answer)),
            _ => Progress::Over,
        }
    }
}

/// Why a command is not executed.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The system does not execute it.
    Command(io::Error),
    /// Something that has to be done before failed.
    Setup(io::Error),
    /// The lease was over.
    TooLate,
}

impl Refusal {
    const LENGTH: usize = 5;

    fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let number = |error: &io::Error| error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error()).to_ne_bytes();
        let (kind, [a, b, c, d]) = match self {
            Self::Command(error) => (b'c', number(error)),
            Self::Setup(error) => (b's', number(error)),
            Self::TooLate => (b'l', [0; 4]),
        };
        [kind, a, b, c, d]
    }

    fn from_bytes([kind, a, b, c, d]: [u8; Self::LENGTH]) -> Self {
        let error = io::Error::from_raw_os_error(i32::from_ne_bytes([a, b, c, d]));
        match kind {
            b'c' => Self::Command(error),
            b'l' => Self::TooLate,
            _ => Self::Setup(error),
        }
    }
}

/// The process that waits: becomes the command, or ends.
pub(super) fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let parent = arguments.next().and_then(|id| id.to_str()?.parse().ok());
    let (Some(program), Ok(socket)) = (arguments.next(), rustix::stdio::stdin().try_clone_to_owned()) else {
        return ExitCode::from(exit::USAGE);
    };
    // The copy closes itself when the command is executed.
    let socket = UnixStream::from(socket);
    let told = die_with(parent.and_then(Pid::from_raw)).and_then(|()| receive(&socket));
    let refusal = match told {
        Ok(None) => return ExitCode::SUCCESS,
        Ok(Some(order)) => become_command(&program, arguments, &order),
        Err(error) => Refusal::Setup(error),
    };
    // Silence would mean that the command was executed. What is no socket is nobody's who would listen.
    match rustix::net::send(&socket, &refusal.to_bytes(), SendFlags::NOSIGNAL) {
        Ok(_) => ExitCode::from(exit::OS),
        Err(_) => ExitCode::from(exit::USAGE),
    }
}

/// Arranges to die with the parent.
fn die_with(parent: Option<Pid>) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // One that died before this was arranged.
    if rustix::process::getppid() == parent { Ok(()) } else { Err(Errno::SRCH.into()) }
}

/// Comes back only if the command is not executed.
fn become_command(program: &OsString, arguments: impl Iterator<Item = OsString>, order: &Order) -> Refusal {
    if let Err(error) = rustix::stdio::dup2_stdin(&order.stdin) {
        return Refusal::Setup(error.into());
    }
    let mut command = Command::new(program);
    order.environment.apply(&mut command);
    command.args(arguments);
    if let Err(error) = SigSet::empty().thread_set_mask() {
        return Refusal::Setup(error.into());
    }
    // This process may have stood still since it was told.
    if Clock::system().now() >= order.lease_end {
        return Refusal::TooLate;
    }
    Refusal::Command(command.exec())
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

/// What is told to a process that waits.
#[derive(Debug)]
struct Order {
    stdin: OwnedFd,
    environment: Environment,
    /// From then on the command is not executed.
    lease_end: Moment,
}

/// Two numbers, with the file beside them, and then the environment.
fn send(mut socket: &UnixStream, stdin: impl AsFd, environment: &Environment, lease_end: Moment) -> io::Result<()> {
    let length = environment.0.len().to_ne_bytes();
    let lease_end = lease_end.as_nanos().to_ne_bytes();
    let files = [stdin.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    beside.push(SendAncillaryMessage::ScmRights(&files));
    let numbers = [IoSlice::new(&length), IoSlice::new(&lease_end)];
    rustix::net::sendmsg(socket, &numbers, &mut beside, SendFlags::empty())?;
    socket.write_all(&environment.0)
}

/// `None` at the end of the stream.
fn receive(mut socket: &UnixStream) -> io::Result<Option<Order>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut length = [0; size_of::<usize>()];
    let mut lease_end = [0; size_of::<u64>()];
    let mut into = [IoSliceMut::new(&mut length), IoSliceMut::new(&mut lease_end)];
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
    let stdin = stdin.ok_or_else(|| io::Error::from_raw_os_error(Errno::MFILE.raw_os_error()))?;
    let mut environment = Environment(vec![0; usize::from_ne_bytes(length)]);
    socket.read_exact(&mut environment.0)?;
    Ok(Some(Order { stdin, environment, lease_end: Moment::from_nanos(u64::from_ne_bytes(lease_end)) }))
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
        let lease_end = Moment::from_nanos(7);
        send(&one, File::open("/proc/self/comm").unwrap(), &environment, lease_end).unwrap();
        let order = receive(&other).unwrap().unwrap();
        assert_eq!((order.environment, order.lease_end), (environment, lease_end));
        let mut text = String::new();
        File::from(order.stdin).read_to_string(&mut text).unwrap();
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

    #[test]
    fn a_command_is_not_executed_when_the_lease_is_over() {
        let outcome = |lease_end| {
            let stdin = File::open("/dev/null").unwrap().into();
            let order = Order { stdin, environment: Environment::default(), lease_end };
            let refusal = become_command(&"/no/such/program".into(), [].into_iter(), &order);
            Refusal::from_bytes(refusal.to_bytes())
        };
        assert!(matches!(outcome(Clock::system().now()), Refusal::TooLate));
        match outcome(Moment::FAR) {
            Refusal::Command(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
            other => panic!("{other:?}"),
        }
    }
}
