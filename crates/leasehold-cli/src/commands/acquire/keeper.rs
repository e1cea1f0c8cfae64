//! The keeper: a process that holds a lease for another one, until that one ends.
//!
//! It stands in a session of its own, so that what a terminal sends to the script does not reach it, and holds nothing
//! of the script's input or output open once the script goes on.

use std::fs::File;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use clap::Parser;
use leasehold::{Close, LeaseHandle, LockManager, LostReason, Renew};
use rustix::process::Pid;

use super::answer::Answer;
use super::ends::{Ends, Renewals};
use super::told::{self, Cause};
use super::{Request, Taken, busy_code, install, lock, open, prepare, take};
use crate::cli::{Acquire, Cli, Command, Global, LogFormat};
use crate::commands::grace::Room;
use crate::commands::owner::{HOLD_ON, Keeper, LET_GO};
use crate::commands::{block_on, busy};
use crate::exit::{self, Failure};
use crate::output;
use crate::process::Watched;
use crate::signals::{self, Signals};

/// The hidden subcommand.
pub(super) const NAME: &str = "__keep";

/// What this process is if it was started as a keeper; answers with its exit code.
pub(crate) fn keep() -> Option<u8> {
    let mut arguments = std::env::args_os();
    let program = arguments.next()?;
    if arguments.next()? != NAME {
        return None;
    }
    close_others();
    rustix::process::setsid().ok();
    let watched = arguments.next().and_then(|id| Pid::from_raw(id.to_str()?.parse().ok()?));
    let (Some(watched), Ok(cli)) = (watched, Cli::try_parse_from([program].into_iter().chain(arguments))) else {
        return Some(exit::USAGE);
    };
    let Command::Acquire(arguments) = &cli.command else {
        return Some(exit::USAGE);
    };
    if cli.global.log_format == LogFormat::Json {
        output::tell_as_json();
    }
    Some(block_on(serve(&cli.global, arguments, watched)).unwrap_or_else(|failure| failure.code))
}

/// Closes what the script has open beside input, output and messages: whoever reads it waits for its end, and a file may be
/// locked through it. Nothing else is open yet.
fn close_others() {
    let numbers = std::fs::read_dir("/dev/fd").map(|files| {
        let number = |file: std::fs::DirEntry| file.file_name().to_str()?.parse::<i32>().ok();
        files.flatten().filter_map(number).collect::<Vec<_>>()
    });
    for number in numbers.unwrap_or_default().into_iter().filter(|number| *number > 2) {
        // The one that was read by is closed already.
        nix::unistd::close(number).ok();
    }
}

/// How far the acquisition came.
enum Step {
    Taken(Taken),
    Busy,
    /// Whoever asked is gone.
    Unwanted,
}

async fn serve(global: &Global, arguments: &Acquire, watched: Pid) -> Result<u8, Failure> {
    let front = Front::take()
        .map_err(|error| Failure::new(exit::USAGE, format!("{NAME} is started by acquire --keeper: {error}")))?;
    let served = hold(global, arguments, watched, &front).await;
    if let Err(failure) = &served {
        output::tell_failure(failure);
        front.send(&Answer::failed(arguments, failure)).await;
    }
    served
}

async fn hold(global: &Global, arguments: &Acquire, watched: Pid, front: &Front) -> Result<u8, Failure> {
    let mut signals = install()?;
    let process = Watched::open(watched).map_err(|error| {
        let id = watched.as_raw_nonzero();
        Failure::new(exit::USAGE, format!("there is no process {id} to keep the lease for: {error}: check --keeper"))
    })?;
    let (settings, request) = prepare(global, arguments)?;
    let renewals = Renewals::default();
    let manager = tokio::select! {
        biased;
        _ = front.word() => return Ok(exit::DONE),
        manager = open(&settings, arguments, Renew::Automatic, Some(watched), Some(&renewals)) => manager?,
    };
    let lock = lock(&manager, &request);
    let keeper = lock.key().ok().and_then(Keeper::this);
    let step = tokio::select! {
        biased;
        signal = signals.next_ending() => Err(busy::interrupted(signal, request.name)),
        _ = front.word() => Ok(Step::Unwanted),
        () = process.ended() => {
            Err(Failure::new(exit::LOST, "the process has ended that the lease was to be kept for; nothing is held"))
        }
        taken = take(&settings, &lock, &request, keeper.as_ref()) => {
            taken.map(|taken| taken.map_or(Step::Busy, Step::Taken))
        }
    };
    let ended = match step {
        // This process may have stood still since the grant.
        Ok(Step::Taken(taken)) => match taken.guard.check() {
            Ok(()) => {
                keep_for(&manager, &request, taken, &renewals, front, &process, &mut signals).await;
                Ok(exit::DONE)
            }
            Err(error) => Err(settings.failure(&error).note("nothing is held")),
        },
        Ok(Step::Busy) => {
            let code = busy_code(&settings, &manager, &lock, &request).await;
            front.send(&Answer::busy(&manager, request.name, code)).await;
            Ok(code)
        }
        Ok(Step::Unwanted) => Ok(exit::DONE),
        Err(failure) => Err(failure),
    };
    // What was begun in the store is undone before this process is gone.
    manager.close(Close::Release).await.ok();
    ended
}

/// Tells of the lease, and holds it until the process ends, somebody ends this one, or the lease is lost.
async fn keep_for(
    manager: &LockManager,
    request: &Request<'_>,
    taken: Taken,
    renewals: &Renewals,
    front: &Front,
    process: &Watched,
    signals: &mut Signals,
) {
    let answer = Answer::acquired(manager, &taken, Some(std::process::id()));
    front.send(&answer).await;
    let Taken { guard, secret, .. } = taken;
    let lease = guard.handle();
    let mut is_expected = false;
    let told = loop {
        tokio::select! {
            biased;
            told = front.word() => break told,
            // The script may be further than this process.
            signal = signals.next() => match signal {
                LET_GO | HOLD_ON => is_expected = signal == LET_GO,
                signal if signals::asks_to_end(signal) => {
                    front.refuse();
                    break false;
                }
                _ => {}
            },
            () = process.ended() => {
                front.refuse();
                break false;
            }
            _ = lease.lost() => break front.refuse(),
        }
    };
    if told {
        // The script's output would stay open, and whoever reads it wait for its end.
        told::detach().ok();
        rustix::process::chdir("/").ok();
        stand(request, &lease, renewals, process, signals, is_expected).await;
    }
    guard.release().await.ok();
    drop(secret);
}

/// Waits for whatever ends the lease. The process is told of an end that it did not ask for.
async fn stand(
    request: &Request<'_>,
    lease: &LeaseHandle,
    renewals: &Renewals,
    process: &Watched,
    signals: &mut Signals,
    mut is_expected: bool,
) {
    let grace = Room::new(lease.ttl(), Renew::Automatic).grace(None).unwrap_or_default();
    let mut ends = Ends::new(lease, grace, renewals);
    loop {
        tokio::select! {
            biased;
            signal = signals.next() => match signal {
                LET_GO | HOLD_ON => is_expected = signal == LET_GO,
                signal if signals::asks_to_end(signal) => return,
                _ => {}
            },
            () = process.ended() => return,
            end = ends.next() => match end {
                Some(Cause::Ending) => told::tell(request, process, Cause::Ending),
                // It was taken on.
                Some(Cause::Lost(LostReason::NotHeld)) if is_expected => return,
                Some(lost) => return told::tell(request, process, lost),
                None => return,
            },
        }
    }
}

/// The process that has started this one.
#[derive(Debug)]
struct Front(tokio::net::UnixStream);

impl Front {
    fn take() -> io::Result<Self> {
        let socket = UnixStream::from(rustix::stdio::stdin().try_clone_to_owned()?);
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        socket.set_nonblocking(true)?;
        Ok(Self(tokio::net::UnixStream::from_std(socket)?))
    }

    /// Sends an answer, a line that fits into the socket as a whole. That nobody reads it is noticed by what comes back.
    async fn send(&self, answer: &Answer) {
        // A socket is not known to be writable before that is asked.
        self.0.writable().await.ok();
        self.0.try_write(format!("{}\n", answer.0).as_bytes()).ok();
    }

    /// What it says next: whether somebody was told of the lease, or the front is gone. Nothing is lost if the future is
    /// dropped.
    async fn word(&self) -> bool {
        let mut word = [0];
        loop {
            self.0.readable().await.ok();
            match self.0.try_read(&mut word) {
                Ok(length) => return length > 0,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return false,
            }
        }
    }

    /// Takes no word from now on: who has not said it yet finds that it cannot be said, and tells nobody of the lease.
    /// Whether it had been said.
    fn refuse(&self) -> bool {
        let Ok(socket) = self.0.as_fd().try_clone_to_owned().map(UnixStream::from) else { return false };
        let is_said = || matches!((&socket).read(&mut [0]), Ok(length) if length > 0);
        // Some systems throw away what was not read before.
        let said = is_said();
        socket.shutdown(Shutdown::Read).ok();
        said || is_said()
    }
}
