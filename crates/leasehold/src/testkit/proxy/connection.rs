//! One connection.

use std::convert::Infallible;
use std::future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Sleep;

use super::accident::{self, Lost};
use super::{Direction, Network};

/// The most that is read at once, and so the longest message.
const LONGEST: usize = 64 * 1024;

/// How a connection ends, if not by its client and its server.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// RST to both.
    Reset,
    /// FIN to both.
    HangUp,
    /// RST to the client, and to the server a FIN, before which it carries out what it was sent.
    Accident,
}

/// What arrived, and when to pass it on.
struct Arrival {
    what: What,
    due: Option<Pin<Box<Sleep>>>,
}

enum What {
    Message(Vec<u8>),
    Fin,
    Rst,
}

impl Arrival {
    fn new(what: What, direction: &Direction) -> Self {
        let delay = direction.faults().delay;
        // A timer of no time would still take a millisecond.
        let due = (!delay.is_zero()).then(|| Box::pin(tokio::time::sleep(delay)));
        Self { what, due }
    }
}

/// Counts a connection while it lives.
struct Counted(Arc<Network>);

impl Counted {
    fn new(network: Arc<Network>) -> Self {
        let mut connections = network.connections.lock();
        connections.0 += 1;
        connections.1 += 1;
        drop(connections);
        Self(network)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.lock().0 -= 1;
    }
}

/// Connects the client with the server, until one of them ends it, or a fault does.
pub(super) async fn serve(network: Arc<Network>, mut client: TcpStream) {
    let mut ending = network.ending.subscribe();
    let counted = Counted::new(network);
    let network = &counted.0;
    let Ok(mut server) = TcpStream::connect(network.target).await else {
        return reset(client);
    };
    let end = tokio::select! {
        // What is sent after the end was ordered must not pass any more.
        biased;
        _ = ending.changed() => *ending.borrow(),
        carried = carry(network, &mut client, &mut server) => match carried {
            Ok(()) => return,
            Err(end) => end,
        },
    };
    match end {
        End::Reset => {
            reset(client);
            reset(server);
        }
        End::HangUp => {
            hang_up(client).await;
            hang_up(server).await;
        }
        End::Accident => {
            reset(client);
            drop(server.shutdown().await);
            let mut nowhere = tokio::io::sink();
            // Until the server hangs up: what it sends must not be answered by a RST.
            tokio::select! {
                _ = ending.changed() => {}
                _ = tokio::io::copy(&mut server, &mut nowhere) => {}
            }
        }
    }
}

/// Closes a connection by a RST.
fn reset(stream: TcpStream) {
    // It fails only if the peer has reset it already.
    drop(stream.set_zero_linger());
    drop(stream);
}

/// Closes a connection by a FIN; if it had unread data, it would be a RST.
async fn hang_up(mut stream: TcpStream) {
    drop(stream.shutdown().await);
    let mut buffer = [0; 4096];
    while stream.try_read(&mut buffer).is_ok_and(|read| read > 0) {}
}

/// Passes on both directions, until both have ended by a FIN.
async fn carry(network: &Network, client: &mut TcpStream, server: &mut TcpStream) -> Result<(), End> {
    drop((client.set_nodelay(true), server.set_nodelay(true)));
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let (requests, requests_arrived) = unbounded_channel();
    let (replies, replies_arrived) = unbounded_channel();
    let lost = Mutex::default();
    let up = Lane { network, direction: &network.requests, is_request: true, lost: &lost };
    let down = Lane { network, direction: &network.replies, is_request: false, lost: &lost };
    let passing = async {
        tokio::try_join!(
            up.pass_on(requests_arrived, to_server, &replies),
            down.pass_on(replies_arrived, to_client, &requests),
        )
    };
    tokio::select! {
        passed = passing => passed.map(|_| ()),
        never = up.read(from_client, &requests) => match never {},
        never = down.read(from_server, &replies) => match never {},
    }
}

/// One direction of one connection.
struct Lane<'a> {
    network: &'a Network,
    direction: &'a Direction,
    is_request: bool,
    /// What the connection has lost, and whether silently.
    lost: &'a Mutex<Option<(Lost, bool)>>,
}

impl Lane<'_> {
    /// Takes in what arrives, without regard to what becomes of it.
    async fn read(&self, mut from: ReadHalf<'_>, queue: &UnboundedSender<Arrival>) -> Infallible {
        let mut buffer = vec![0; LONGEST];
        loop {
            let (what, is_last) = match from.read(&mut buffer).await {
                Ok(0) => (What::Fin, true),
                Ok(length) => {
                    self.direction.count_arrival();
                    (What::Message(buffer[..length].to_vec()), false)
                }
                Err(_) => (What::Rst, true),
            };
            // Who takes from the queue lives as long as this.
            drop(queue.send(Arrival::new(what, self.direction)));
            if is_last {
                future::pending::<()>().await;
            }
        }
    }

    /// Passes on what arrived, up to its FIN. `back` is the queue of the other direction.
    async fn pass_on(
        &self,
        mut arrivals: UnboundedReceiver<Arrival>,
        mut to: WriteHalf<'_>,
        back: &UnboundedSender<Arrival>,
    ) -> Result<(), End> {
        while let Some(Arrival { what, due }) = arrivals.recv().await {
            if let Some(due) = due {
                due.await;
            }
            self.direction.opened().await;
            match what {
                What::Message(message) => {
                    self.meet_accident(&message);
                    if let Some(silent) = self.is_lost() {
                        if silent { continue } else { return Err(End::Accident) }
                    }
                    // The receiver is gone, which the sender learns as any other news from there.
                    if self.write(&message, &to).await.is_err() {
                        drop(back.send(Arrival::new(What::Rst, self.opposite())));
                    }
                }
                What::Fin | What::Rst if self.is_lost().is_some() => return Ok(()),
                What::Fin => {
                    drop(to.shutdown().await);
                    return Ok(());
                }
                What::Rst => return Err(End::Reset),
            }
        }
        Ok(())
    }

    async fn write(&self, message: &[u8], to: &WriteHalf<'_>) -> io::Result<()> {
        let split = self.direction.faults().split.filter(|(at, _)| (1..message.len()).contains(at));
        let Some((at, pause)) = split else {
            return self.write_segment(message, to, true).await;
        };
        self.write_segment(&message[..at], to, false).await?;
        tokio::time::sleep(pause).await;
        self.write_segment(&message[at..], to, true).await
    }

    async fn write_segment(&self, mut rest: &[u8], to: &WriteHalf<'_>, is_last: bool) -> io::Result<()> {
        while !rest.is_empty() {
            to.writable().await?;
            match self.direction.write(rest, to, is_last) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn meet_accident(&self, message: &[u8]) {
        let accident = accident::take(&mut self.network.accidents.lock(), message, self.is_request);
        if let Some(accident) = accident {
            *self.lost.lock() = Some((accident.loss, accident.silent));
        }
    }

    /// Whether what goes this way is lost, and then whether silently.
    fn is_lost(&self) -> Option<bool> {
        self.lost.lock().filter(|(lost, _)| (*lost == Lost::Request) == self.is_request).map(|(_, silent)| silent)
    }

    fn opposite(&self) -> &Direction {
        if self.is_request { &self.network.replies } else { &self.network.requests }
    }
}
