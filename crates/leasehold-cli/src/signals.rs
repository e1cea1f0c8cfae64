//! Signals as they reach this process, from before the store is opened to after the lease is given back.

use std::io;
use std::task::Poll;
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use nix::sys::signal::{SigSet, Signal as Number};
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Signals within this time are one request: `timeout` signals its child and then the whole group, and so do supervisors
/// and shells that end a session. A process with a limit on its processor stands still for 100 ms between two of them.
const ECHO: Duration = Duration::from_millis(500);

/// Signals that people name.
pub(crate) const NAMES: [(&str, Signal); 10] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("ABRT", Signal::ABORT),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("ALRM", Signal::ALARM),
    ("TERM", Signal::TERM),
    ("WINCH", Signal::WINCH),
];

/// The signal of this name, with or without SIG in front.
pub(crate) fn named(name: &str) -> Option<Signal> {
    let name = name.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, signal)| signal)
}

/// What people call a signal.
pub(crate) fn name(signal: Signal) -> &'static str {
    NAMES.into_iter().find(|(_, known)| *known == signal).map_or("a signal", |(name, _)| name)
}

/// Every signal that matters, as one stream: those that are passed on to the command, and those that tell that a child
/// has changed or that this process was continued.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    echoes: Echoes,
    is_at_once: bool,
    clock: Clock,
}

impl Signals {
    /// Installs the handlers.
    ///
    /// An ignored HUP that was inherited stays ignored, here and in the command: that is what `nohup` asks for. Whatever
    /// else was ignored or blocked by the caller is neither here nor in the command.
    pub(crate) fn install() -> io::Result<Self> {
        let ignored = ignored();
        let mut streams = Vec::with_capacity(9);
        for (signal, kind) in [
            (Signal::TERM, SignalKind::terminate()),
            (Signal::INT, SignalKind::interrupt()),
            (Signal::HUP, SignalKind::hangup()),
            (Signal::QUIT, SignalKind::quit()),
            (Signal::USR1, SignalKind::user_defined1()),
            (Signal::USR2, SignalKind::user_defined2()),
            (Signal::WINCH, SignalKind::window_change()),
            // While it is ignored the system collects the command by itself, and its status is lost.
            (Signal::CHILD, SignalKind::child()),
            (Signal::CONT, SignalKind::from_raw(Signal::CONT.as_raw())),
        ] {
            if signal != Signal::HUP || !is_ignored(ignored, signal) {
                streams.push((signal, unix::signal(kind)?));
            }
        }
        // A handler stays when its stream is gone. XFSZ would end this process and leave the command running; unlike
        // ignoring it, a handler leaves the command with the default. So it is with whatever else is ignored here.
        drop(unix::signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?);
        for signal in (1..32).filter_map(Signal::from_named_raw).filter(|signal| is_ignored(ignored, *signal)) {
            // PIPE is ignored by this program alone. A fault would come again and again if a handler came back from it,
            // and is never ignored; the other three of that kind cannot have one.
            if ![Signal::HUP, Signal::PIPE, Signal::BUS].contains(&signal) {
                unix::signal(SignalKind::from_raw(signal.as_raw())).ok();
            }
        }
        // Whoever changes the terminal from the background, or writes to it where that is minded (`stty tostop`), is stopped
        // unless this is blocked; with a handler it would be asked again and again.
        SigSet::from(Number::SIGTTOU).thread_block()?;
        // After the handlers: what is pending arrives now.
        let ours = [Number::SIGTERM, Number::SIGINT, Number::SIGHUP, Number::SIGQUIT, Number::SIGUSR1, Number::SIGUSR2];
        let ours = ours.into_iter().chain([Number::SIGWINCH, Number::SIGCHLD, Number::SIGCONT, Number::SIGXFSZ]);
        ours.collect::<SigSet>().thread_unblock()?;
        Ok(Self { streams, echoes: Echoes::default(), is_at_once: false, clock: Clock::system() })
    }

    /// The next signal. Nothing is lost if the future is dropped.
    pub(crate) async fn next(&mut self) -> Signal {
        let Self { streams, echoes, is_at_once, clock } = self;
        std::future::poll_fn(|context| {
            for (signal, stream) in &mut *streams {
                while let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    let now = clock.now();
                    if !echoes.has(*signal, now) {
                        *is_at_once = echoes.is_at_once(*signal, now);
                        return Poll::Ready(*signal);
                    }
                }
            }
            echoes.quiet(clock.now());
            Poll::Pending
        })
        .await
    }

    /// Whether the signal that came last is a TERM or INT that belongs to the one before it: some supervisors send both.
    pub(crate) fn is_at_once(&self) -> bool {
        self.is_at_once
    }

    /// The next signal that asks this process to end. Nothing is lost if the future is dropped.
    pub(crate) async fn next_ending(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if asks_to_end(signal) {
                return signal;
            }
        }
    }
}

/// Whether a signal asks this process to end.
pub(crate) fn asks_to_end(signal: Signal) -> bool {
    ENDING.contains(&signal)
}

/// The signals that ask a process to end.
const ENDING: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// The latest of each signal that asks for the end, and of TERM and INT together, that was a request of its own.
#[derive(Debug, Default)]
struct Echoes {
    each: [Option<Request>; ENDING.len()],
    stop: Option<Request>,
}

impl Echoes {
    /// Whether this signal only repeats the one before it.
    fn has(&mut self, signal: Signal, now: Moment) -> bool {
        let latest = ENDING.iter().position(|ending| *ending == signal).and_then(|at| self.each.get_mut(at));
        latest.is_some_and(|latest| Request::is_repeated(latest, now))
    }

    /// Whether this TERM or INT belongs to the one before it.
    fn is_at_once(&mut self, signal: Signal, now: Moment) -> bool {
        [Signal::TERM, Signal::INT].contains(&signal) && Request::is_repeated(&mut self.stop, now)
    }

    /// Notes that nothing waits to be heard.
    fn quiet(&mut self, now: Moment) {
        for request in self.each.iter_mut().chain([&mut self.stop]).flatten() {
            request.quiet.get_or_insert(now);
        }
    }
}

/// A signal that was taken for a request.
#[derive(Debug, Default)]
struct Request {
    /// When nothing more was waiting: what was found before that may have come at any time since the signal.
    quiet: Option<Moment>,
}

impl Request {
    /// Whether a signal still belongs to the latest request; else it is the latest.
    fn is_repeated(latest: &mut Option<Self>, now: Moment) -> bool {
        let repeats = latest.as_ref().is_some_and(|latest| latest.quiet.is_none_or(|quiet| now.since(quiet) < ECHO));
        if !repeats {
            *latest = Some(Self::default());
        }
        repeats
    }
}

/// Linux tells the mask of ignored signals in `/proc`; elsewhere none counts as ignored.
fn ignored() -> u64 {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        })
        .unwrap_or(0)
}

/// Signal N is bit N - 1.
fn is_ignored(mask: u64, signal: Signal) -> bool {
    mask & (1 << (signal.as_raw() - 1)) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(0) + Duration::from_millis(1_000 + ms)
    }

    #[test]
    fn a_signal_that_comes_twice_at_once_is_one() {
        let mut echoes = Echoes::default();
        for (signal, ms, is_echo) in [
            (Signal::TERM, 0, false),
            (Signal::TERM, 5, true),
            (Signal::INT, 6, false),
            (Signal::HUP, 7, false),
            (Signal::USR1, 8, false),
            (Signal::USR1, 8, false),
            (Signal::TERM, 499, true),
            // Counted from the one that was taken, so that no stream of them is deaf for ever.
            (Signal::TERM, 500, false),
            (Signal::INT, 1000, false),
        ] {
            assert_eq!(echoes.has(signal, at(ms)), is_echo, "{signal:?} after {ms} ms");
            echoes.quiet(at(ms));
        }
    }

    #[test]
    fn what_waited_while_this_process_stood_still_came_at_once() {
        let mut echoes = Echoes::default();
        assert!(!echoes.has(Signal::TERM, at(0)) && !echoes.is_at_once(Signal::TERM, at(0)));
        // Nothing has been looked for since.
        assert!(echoes.has(Signal::TERM, at(3_000)));
        assert!(!echoes.has(Signal::INT, at(3_001)) && echoes.is_at_once(Signal::INT, at(3_001)));
        echoes.quiet(at(3_002));
        assert!(echoes.has(Signal::TERM, at(3_501)));
        assert!(!echoes.has(Signal::TERM, at(3_502)) && !echoes.is_at_once(Signal::TERM, at(3_502)));
    }

    #[test]
    fn term_and_int_at_once_are_one_request() {
        let mut echoes = Echoes::default();
        for (signal, ms, is_at_once) in [
            (Signal::TERM, 0, false),
            (Signal::QUIT, 10, false),
            (Signal::INT, 100, true),
            // Counted from the first one.
            (Signal::TERM, 500, false),
            (Signal::INT, 700, true),
            (Signal::INT, 1000, false),
        ] {
            assert_eq!(echoes.is_at_once(signal, at(ms)), is_at_once, "{signal:?} after {ms} ms");
            echoes.quiet(at(ms));
        }
    }
}
