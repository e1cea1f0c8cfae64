//! The state of one direction, for all connections.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::net::tcp::WriteHalf;
use tokio::sync::watch;

/// One direction through a [`Proxy`](super::Proxy): what clients send, or what the server sends.
#[derive(Debug, Default)]
pub struct Direction {
    faults: watch::Sender<Faults>,
    traffic: watch::Sender<Traffic>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) delay: Duration,
    pub(super) held: bool,
    pub(super) split: Option<(usize, Duration)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    arrived: u64,
    passed: u64,
    bytes: u64,
}

impl Direction {
    /// Whatever arrives from now on, also the end of a connection, is passed on this much later.
    pub fn delay(&self, duration: Duration) {
        self.faults.send_modify(|faults| faults.delay = duration);
    }

    /// Passes nothing on, also no end of a connection, until [`heal`](Self::heal). What arrives meanwhile is kept,
    /// however much it is, and follows then, also if its sender is gone.
    pub fn hold(&self) {
        self.faults.send_modify(|faults| faults.held = true);
    }

    /// Passes each message that has more than `at` bytes on in two segments, the second after this pause. Who gets to
    /// read within the pause sees two.
    pub fn split(&self, at: usize, pause: Duration) {
        self.faults.send_modify(|faults| faults.split = Some((at, pause)));
    }

    /// Ends all that. What is delayed already stays so.
    pub fn heal(&self) {
        self.faults.send_replace(Faults::default());
    }

    /// How many messages have arrived at the proxy so far.
    pub fn arrived(&self) -> u64 {
        self.traffic.borrow().arrived
    }

    /// How many messages were passed on so far, at the latest when their receiver sees them. What an accident lost is not among them.
    pub fn passed(&self) -> u64 {
        self.traffic.borrow().passed
    }

    /// How many bytes were passed on so far.
    pub fn bytes(&self) -> u64 {
        self.traffic.borrow().bytes
    }

    /// Waits until a message has arrived after this call, which is before the future is first awaited; or until the
    /// proxy is gone.
    pub fn next_arrived(&self) -> impl Future<Output = ()> + Send + use<> {
        self.next(|traffic| traffic.arrived)
    }

    /// Waits until a message was passed on after this call, which is before the future is first awaited; or until the
    /// proxy is gone.
    pub fn next_passed(&self) -> impl Future<Output = ()> + Send + use<> {
        self.next(|traffic| traffic.passed)
    }

    fn next(&self, count: fn(&Traffic) -> u64) -> impl Future<Output = ()> + Send + use<> {
        let mut traffic = self.traffic.subscribe();
        let before = count(&traffic.borrow());
        async move { drop(traffic.wait_for(|now| count(now) > before).await) }
    }

    pub(super) fn faults(&self) -> Faults {
        *self.faults.borrow()
    }

    /// Waits until nothing is held.
    pub(super) async fn opened(&self) {
        drop(self.faults.subscribe().wait_for(|faults| !faults.held).await);
    }

    pub(super) fn count_arrival(&self) {
        self.traffic.send_modify(|traffic| traffic.arrived += 1);
    }

    /// Writes what can be written at once, and counts it before anybody who has received it can ask.
    pub(super) fn write(&self, bytes: &[u8], to: &WriteHalf<'_>, is_last: bool) -> io::Result<usize> {
        let mut result = Ok(0);
        // Whoever reads the counters waits for the end of this.
        self.traffic.send_modify(|traffic| {
            result = to.try_write(bytes);
            if let Ok(written) = result {
                traffic.bytes += written as u64;
                traffic.passed += u64::from(is_last && written == bytes.len());
            }
        });
        result
    }
}
