//! `acquire --keeper`: starts the process that takes and keeps the lease, and tells what it answers.
//!
//! The two talk through a pair of sockets. The keeper sends its answer and waits: one byte says that somebody was told
//! of the lease; the end of the stream, at any time before, that nobody wants it any more.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, getppid};
use serde_json::Value;

use super::answer::Answer;
use super::{Request, busy, install, keeper, prepare};
use crate::child;
use crate::cli::{Acquire, Global};
use crate::exit::{self, Failure};
use crate::signals::Signals;

/// How often a keeper is looked at that is on its way out.
const LOOK: Duration = Duration::from_millis(5);

/// Starts a keeper, prints its answer, and leaves it behind if it holds the lease.
pub(super) async fn have_kept(global: &Global, arguments: &Acquire, id: Option<i32>) -> Result<u8, Failure> {
    let (settings, Request { name, .. }) = prepare(global, arguments)?;
    let mut signals = install()?;
    let parent = getppid();
    let watched = id.and_then(Pid::from_raw).or(parent);
    let watched = watched.ok_or_else(|| Failure::new(exit::USAGE, "there is no parent process: say --keeper=PID"))?;
    let (mut child, socket) =
        start(watched).map_err(|error| Failure::new(exit::OS, format!("cannot start the keeper: {error}")))?;
    let answer = tokio::select! {
        biased;
        signal = signals.next_ending() => {
            drop(socket);
            return Err(stopped(signal, name, &mut child, &mut signals).await);
        }
        answer = receive(&socket) => answer,
    };
    let Some(answer) = answer else {
        child.wait().ok();
        return Err(Failure::new(
            exit::BUG,
            "the keeper ended without an answer; if it held the key, that ends by itself after its ttl",
        ));
    };
    if !answer.is_acquired() {
        // The keeper has said why.
        child.wait().ok();
        return answer.print(arguments.format).map(|()| answer.code());
    }
    // A process that was given the parent's number since would be watched in its place.
    let orphaned = id.is_none() && getppid() != parent;
    let told = if orphaned {
        Err(Failure::new(exit::LOST, "the parent process has ended: nobody is left to hold the lease for"))
    } else {
        match answer.print(arguments.format) {
            Ok(()) => confirm(&socket).await,
            Err(failure) => Err(failure),
        }
    };
    if told.is_err() {
        drop(socket);
        child.wait().ok();
    }
    told.map(|()| {
        answer.explain(&settings, arguments.format);
        exit::DONE
    })
}

fn start(watched: Pid) -> io::Result<(Child, tokio::net::UnixStream)> {
    let (socket, other) = UnixStream::pair()?;
    let mut command = child::helper(keeper::NAME);
    // The same words again: none of them is a secret that was not there before.
    command.arg(watched.as_raw_nonzero().to_string()).args(std::env::args_os().skip(1));
    let child = command.stdin(OwnedFd::from(other)).stdout(Stdio::null()).spawn()?;
    socket.set_nonblocking(true)?;
    Ok((child, tokio::net::UnixStream::from_std(socket)?))
}

/// The keeper's answer, a line; `None` = it ended without one.
async fn receive(socket: &tokio::net::UnixStream) -> Option<Answer> {
    let mut line = Vec::new();
    let mut part = [0; 1024];
    while !line.ends_with(b"\n") {
        socket.readable().await.ok()?;
        match socket.try_read(&mut part) {
            Ok(0) => return None,
            Ok(length) => line.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
    serde_json::from_slice::<Value>(&line).ok().map(Answer)
}

async fn confirm(socket: &tokio::net::UnixStream) -> Result<(), Failure> {
    socket.writable().await.ok();
    match socket.try_write(&[1]) {
        Ok(1) => Ok(()),
        _ => Err(Failure::new(
            exit::LOST,
            "the keeper has ended, or has lost the lease; what it still holds ends by itself after its ttl",
        )),
    }
}

/// Waits until the keeper has undone what it had begun; whoever is in a hurry leaves it to that.
async fn stopped(signal: Signal, name: &str, child: &mut Child, signals: &mut Signals) -> Failure {
    let gone = async {
        while matches!(child.try_wait(), Ok(None)) {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        biased;
        _ = signals.next_ending() => {}
        () = gone => {}
    }
    busy::interrupted(signal, name)
}
