//! A network that misbehaves on demand.

use std::future;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{io, thread};

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::port::{self, Port};

mod accident;
mod connection;
mod direction;

pub use self::accident::Accident;
use self::connection::End;
pub use self::direction::Direction;

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1024;

/// Stands in front of a server and does to its connections what it was told to.
///
/// It listens on a port of the loopback address and passes everything on to the server, in both directions:
/// [`requests`](Self::requests) and [`replies`](Self::replies). Faults of one direction are set there; those of
/// single requests with [`once`](Self::once). It works on a thread of its own, in real time: it also goes on while
/// the runtime of a test is blocked or paused.
///
/// It knows no protocol. A *message* is what one read from the socket gives, at most 64 KiB. On loopback that is what
/// the sender wrote at once, unless it wrote again before the proxy got to read; a pipeline is one message.
///
/// All methods take effect before they return: what is sent afterwards meets the fault. Dropping the proxy closes all
/// connections and frees its port.
///
/// A server that cannot be reached shows as a connection that is made and reset.
///
/// ```
/// # use std::net::TcpListener;
/// # use std::time::Duration;
/// # use leasehold::testkit::{Accident, Proxy};
/// # fn main() -> std::io::Result<()> {
/// # let server = TcpListener::bind("127.0.0.1:0")?;
/// let proxy = Proxy::start(server.local_addr()?)?;
/// let url = format!("redis://{}", proxy.address());
///
/// proxy.requests().delay(Duration::from_millis(50));
/// proxy.replies().hold(); // nothing comes back, and nothing says why
/// proxy.heal();
///
/// proxy.once(Accident::lose_reply().containing("EVALSHA"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Proxy {
    network: Arc<Network>,
    orders: Option<UnboundedSender<Order>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// What the connections share.
#[derive(Debug)]
struct Network {
    port: Port,
    target: SocketAddr,
    requests: Direction,
    replies: Direction,
    accidents: Mutex<Vec<Accident>>,
    /// What the present connections are told to do.
    ending: watch::Sender<End>,
    /// How many connections there are, and how many there were altogether.
    connections: Mutex<(usize, usize)>,
}

/// Whether to listen, and whom to tell when that is done.
type Order = (bool, mpsc::Sender<io::Result<()>>);

impl Proxy {
    /// Stands in front of the server at `target`, which need not be there yet.
    ///
    /// # Errors
    ///
    /// There is no port, thread or file descriptor to be had.
    pub fn start(target: SocketAddr) -> io::Result<Self> {
        let network = Arc::new(Network {
            port: Port::reserve()?,
            target,
            requests: Direction::default(),
            replies: Direction::default(),
            accidents: Mutex::default(),
            ending: watch::Sender::new(End::Reset),
            connections: Mutex::default(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (orders, queue) = unbounded_channel();
        let thread = thread::Builder::new().name("proxy".to_owned()).spawn({
            let network = Arc::clone(&network);
            move || runtime.block_on(work(&network, queue))
        })?;
        let proxy = Self { network, orders: Some(orders), thread: Some(thread) };
        proxy.order(true)?;
        Ok(proxy)
    }

    /// Where to connect to, instead of to the server.
    pub fn address(&self) -> SocketAddr {
        self.network.port.address()
    }

    /// What clients send.
    pub fn requests(&self) -> &Direction {
        &self.network.requests
    }

    /// What the server sends.
    pub fn replies(&self) -> &Direction {
        &self.network.replies
    }

    /// Holds both directions: a black hole.
    pub fn hold(&self) {
        self.requests().hold();
        self.replies().hold();
    }

    /// Lets this happen to the next message that it is for, or to the next one that no earlier accident was waiting for.
    pub fn once(&self, accident: Accident) {
        self.network.accidents.lock().push(accident);
    }

    /// How many accidents have not happened yet.
    pub fn pending(&self) -> usize {
        self.network.accidents.lock().len()
    }

    /// Resets all connections (RST, both to clients and to the server). What is under way, or held, is lost. One over
    /// which nothing has passed yet may be too new to be met.
    pub fn reset(&self) {
        self.network.ending.send_replace(End::Reset);
    }

    /// Ends all connections in order (FIN, both to clients and to the server), otherwise as [`reset`](Self::reset).
    pub fn hang_up(&self) {
        self.network.ending.send_replace(End::HangUp);
    }

    /// Refuses new connections until [`heal`](Self::heal); those that there are stay.
    ///
    /// # Panics
    ///
    /// The thread of the proxy is gone.
    pub fn refuse(&self) {
        assert!(self.order(false).is_ok(), "the proxy has ended");
    }

    /// Makes the network a good one again: nothing is held or split, what arrives from now on is not delayed, new
    /// connections are accepted, and accidents that did not happen are forgotten.
    ///
    /// A connection that lost something silently stays as it is.
    ///
    /// # Panics
    ///
    /// Elsewhere than on Linux, if the port was taken by somebody else while connections were refused.
    pub fn heal(&self) {
        self.network.accidents.lock().clear();
        self.requests().heal();
        self.replies().heal();
        let listens = self.order(true);
        assert!(listens.is_ok(), "the proxy cannot listen again: {listens:?}");
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.network.connections.lock().0
    }

    /// How many connections there were altogether.
    pub fn accepted(&self) -> usize {
        self.network.connections.lock().1
    }

    /// Has an order carried out.
    fn order(&self, listen: bool) -> io::Result<()> {
        let (done, answer) = mpsc::channel();
        let sent = self.orders.as_ref().is_some_and(|orders| orders.send((listen, done)).is_ok());
        let answer = if sent { answer.recv().ok() } else { None };
        answer.unwrap_or_else(|| Err(io::Error::other("the proxy has ended")))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Without anybody to give orders the thread ends.
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Accepts connections and carries out orders, until there is nobody left to give any.
async fn work(network: &Arc<Network>, mut orders: UnboundedReceiver<Order>) {
    let mut listener = None;
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some((listen, done)) => drop(done.send(obey(network, &mut listener, listen))),
                None => return drop(obey(network, &mut listener, false)),
            },
            client = accept(listener.as_ref()) => {
                connections.spawn(connection::serve(Arc::clone(network), client));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

fn obey(network: &Network, listener: &mut Option<TcpListener>, listen: bool) -> io::Result<()> {
    if !listen {
        if let Some(listener) = listener.take() {
            // Closing alone would not do while a child of this process that has not begun its program holds it as well.
            // Other systems than Linux may not know that of what listens.
            rustix::net::shutdown(&listener, rustix::net::Shutdown::Read).ok();
        }
    } else if listener.is_none() {
        *listener = Some(port::bind(network.port.address())?.listen(BACKLOG)?);
    }
    Ok(())
}

/// The next connection; never, while none is listened for.
async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    while let Some(listener) = listener {
        match listener.accept().await {
            Ok((client, _)) => return client,
            // Too many open files, perhaps not for long.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
    future::pending().await
}
