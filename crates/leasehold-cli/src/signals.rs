//! Signals as they reach this process, from before the store is opened to after the lease is given back.

use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

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
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Installs the handlers.
    ///
    /// An ignored HUP that was inherited stays ignored, here and in the command: that is what `nohup` asks for.
    pub(crate) fn install() -> io::Result<Self> {
        let mut streams = Vec::with_capacity(9);
        for (signal, kind) in [
            (Signal::TERM, SignalKind::terminate()),
            (Signal::INT, SignalKind::interrupt()),
            (Signal::HUP, SignalKind::hangup()),
            (Signal::QUIT, SignalKind::quit()),
            (Signal::USR1, SignalKind::user_defined1()),
            (Signal::USR2, SignalKind::user_defined2()),
            (Signal::WINCH, SignalKind::window_change()),
            (Signal::CHILD, SignalKind::child()),
            (Signal::CONT, SignalKind::from_raw(Signal::CONT.as_raw())),
        ] {
            if signal != Signal::HUP || !hangup_is_ignored() {
                streams.push((signal, unix::signal(kind)?));
            }
        }
        Ok(Self(streams))
    }

    /// The next signal. Nothing is lost if the future is dropped.
    pub(crate) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next signal that asks this process to end. Nothing is lost if the future is dropped.
    pub(crate) async fn next_ending(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].contains(&signal) {
                return signal;
            }
        }
    }
}

/// Linux tells the mask of ignored signals in `/proc`; elsewhere HUP counts as not ignored.
fn hangup_is_ignored() -> bool {
    let ignored = std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        })
        .unwrap_or(0);
    // Signal N is bit N - 1, and HUP is 1.
    ignored & 1 != 0
}
