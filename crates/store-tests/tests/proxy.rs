//! The proxy, in front of a server that answers every message with the same one.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::Clock;
use leasehold::testkit::{Accident, Proxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Five times and more of what anything here needs on a busy machine.
const SOON: Duration = Duration::from_secs(30);
/// How long nothing is to happen.
const A_WHILE: Duration = Duration::from_millis(100);

/// What one read of the server gave: a message, or how the connection ended.
type Seen = Result<String, ErrorKind>;

/// A server that answers every `message` with `answer message`.
struct Server {
    address: SocketAddr,
    seen: watch::Sender<Vec<Seen>>,
}

impl Server {
    async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Arc::new(Self { address: listener.local_addr().unwrap(), seen: watch::Sender::default() });
        let shared = Arc::clone(&server);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(Arc::clone(&shared).serve(stream));
            }
        });
        server
    }

    async fn serve(self: Arc<Self>, mut stream: TcpStream) {
        loop {
            let seen = receive(&mut stream).await;
            self.seen.send_modify(|all| all.push(seen.clone()));
            match seen {
                Ok(message) if message.is_empty() => return,
                Ok(message) => drop(stream.write_all(format!("answer {message}").as_bytes()).await),
                Err(_) => return,
            }
        }
    }

    /// Waits until the server has seen exactly this.
    async fn saw(&self, expected: &[Seen]) {
        let mut seen = self.seen.subscribe();
        let is_there = timeout(SOON, seen.wait_for(|seen| seen == expected)).await.is_ok();
        assert!(is_there, "{:?}", self.seen.borrow());
    }
}

async fn receive(stream: &mut TcpStream) -> Seen {
    let mut buffer = [0; 4096];
    let read = timeout(SOON, stream.read(&mut buffer)).await.expect("nothing came");
    read.map(|length| String::from_utf8(buffer[..length].to_vec()).unwrap()).map_err(|error| error.kind())
}

fn message(text: &str) -> Seen {
    Ok(text.to_owned())
}

fn fin() -> Seen {
    message("")
}

const RST: Seen = Err(ErrorKind::ConnectionReset);

struct Client(TcpStream);

impl Client {
    /// A client that has been answered once.
    async fn warm(proxy: &Proxy) -> Self {
        let mut client = Self(TcpStream::connect(proxy.address()).await.unwrap());
        assert_eq!(client.ask("warm").await, message("answer warm"));
        client
    }

    async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    async fn receive(&mut self) -> Seen {
        receive(&mut self.0).await
    }

    async fn ask(&mut self, text: &str) -> Seen {
        self.send(text).await;
        self.receive().await
    }

    /// Nothing comes, neither a message nor an end.
    async fn hears_nothing(&mut self) {
        let mut byte = [0; 1];
        assert!(timeout(A_WHILE, self.0.read(&mut byte)).await.is_err(), "{byte:?}");
    }
}

async fn start() -> (Arc<Server>, Proxy) {
    let server = Server::start().await;
    let proxy = Proxy::start(server.address).unwrap();
    (server, proxy)
}

async fn until(condition: impl Fn() -> bool + Send + Sync) {
    let wait = async {
        while !condition() {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(SOON, wait).await.expect("never came true");
}

#[tokio::test]
async fn it_passes_on_and_counts() {
    let (server, proxy) = start().await;
    let mut first = Client::warm(&proxy).await;
    let second = Client::warm(&proxy).await;
    assert_eq!((proxy.connections(), proxy.accepted()), (2, 2));
    assert_eq!((proxy.requests().arrived(), proxy.requests().passed(), proxy.requests().bytes()), (2, 2, 8));
    assert_eq!((proxy.replies().arrived(), proxy.replies().bytes()), (2, 22));

    let (arrived, passed) = (proxy.requests().next_arrived(), proxy.replies().next_passed());
    assert_eq!(first.ask("more").await, message("answer more"));
    arrived.await;
    passed.await;

    drop(second);
    server.saw(&[message("warm"), message("warm"), message("more"), fin()]).await;
    until(|| proxy.connections() == 1).await;
    assert_eq!(proxy.accepted(), 2);
}

#[tokio::test]
async fn what_is_large_arrives_whole() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).unwrap();
    let sent: Vec<u8> = (0..5_000_000_u32).map(|number| number as u8).collect();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    let expected = sent.clone();
    let sending = tokio::spawn(async move {
        client.write_all(&sent).await.unwrap();
        client.shutdown().await.unwrap();
        // The other half is still open.
        receive(&mut client).await
    });
    let mut received = Vec::new();
    timeout(SOON, server.read_to_end(&mut received)).await.unwrap().unwrap();
    assert!(received == expected);
    server.write_all(b"thanks").await.unwrap();
    assert_eq!(sending.await.unwrap(), message("thanks"));
}

#[tokio::test]
async fn a_delay_is_at_least_that_long() {
    let (_server, proxy) = start().await;
    let mut client = Client::warm(&proxy).await;
    let clock = Clock::system();
    proxy.requests().delay(A_WHILE);
    proxy.replies().delay(A_WHILE);
    let begin = clock.now();
    assert_eq!(client.ask("late").await, message("answer late"));
    assert!(clock.now().since(begin) >= 2 * A_WHILE);
}

#[tokio::test]
async fn a_held_request_arrives_when_its_sender_is_gone() {
    let (server, proxy) = start().await;
    let mut client = Client::warm(&proxy).await;
    proxy.requests().hold();
    let arrived = proxy.requests().next_arrived();
    client.send("held").await;
    drop(client);
    arrived.await;
    sleep(A_WHILE).await;
    server.saw(&[message("warm")]).await;
    proxy.heal();
    server.saw(&[message("warm"), message("held"), fin()]).await;
}

#[tokio::test]
async fn a_late_request_is_not_lost_with_the_reply_to_an_earlier_one() {
    let (server, proxy) = start().await;
    let mut client = Client::warm(&proxy).await;
    proxy.replies().hold();
    client.send("first").await;
    server.saw(&[message("warm"), message("first")]).await;
    proxy.requests().hold();
    client.send("second").await;
    until(|| proxy.requests().arrived() == 3).await;
    drop(client);
    proxy.replies().heal();
    sleep(A_WHILE).await;
    proxy.heal();
    server.saw(&[message("warm"), message("first"), message("second"), fin()]).await;
}

#[tokio::test]
async fn a_black_hole_tells_nobody_anything() {
    let (server, proxy) = start().await;
    let mut client = Client::warm(&proxy).await;
    proxy.hold();
    client.send("held").await;
    client.hears_nothing().await;
    // New connections are made, and led into it.
    let mut late = Client(TcpStream::connect(proxy.address()).await.unwrap());
    late.send("too").await;
    late.hears_nothing().await;
    server.saw(&[message("warm")]).await;
    proxy.heal();
    assert_eq!(client.receive().await, message("answer held"));
    assert_eq!(late.receive().await, message("answer too"));
}

#[tokio::test]
async fn a_reset_loses_what_is_held_and_reaches_both() {
    let (server, proxy) = start().await;
    let mut client = Client::warm(&proxy).await;
    proxy.requests().hold();
    client.send("held").await;
    proxy.reset();
    assert_eq!(client.receive().await, RST);
    server.saw(&[message("warm"), RST]).await;
    until(|| proxy.connections() == 0).await;
    proxy.heal();
    Client::warm(&proxy).await;
}

#[tokio::test]
async fn nothing_passes_after_a_reset() {
    let (server, proxy) = start().await;
    for _ in 0..100 {
        let mut client = Client::warm(&proxy).await;
        proxy.reset();
        // Whoever learns of the reset by writing reads an end afterwards.
        let expected = if client.0.write_all(b"too late").await.is_ok() { RST } else { fin() };
        assert_eq!(client.receive().await, expected);
    }
    until(|| proxy.connections() == 0).await;
    assert!(!server.seen.borrow().contains(&message("too late")));
}

#[tokio::test]
async fn hanging_up_is_an_end_in_order() {
    let (server, proxy) = start().await;
    let mut client = Client::warm(&proxy).await;
    proxy.hang_up();
    assert_eq!(client.receive().await, fin());
    server.saw(&[message("warm"), fin()]).await;
}

#[tokio::test]
async fn ends_pass_as_they_are() {
    let (server, proxy) = start().await;
    let client = Client::warm(&proxy).await;
    client.0.set_zero_linger().unwrap();
    drop(client);
    server.saw(&[message("warm"), RST]).await;

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).unwrap();
    for is_rst in [false, true] {
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        if is_rst {
            stream.set_zero_linger().unwrap();
        }
        drop(stream);
        assert_eq!(receive(&mut client).await, if is_rst { RST } else { fin() });
    }
}

#[tokio::test]
async fn refused_connections_are_refused() {
    let (_server, proxy) = start().await;
    let mut client = Client::warm(&proxy).await;
    for _ in 0..20 {
        proxy.refuse();
        proxy.refuse();
        let refused = TcpStream::connect(proxy.address()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(client.ask("still").await, message("answer still"));
        proxy.heal();
        Client::warm(&proxy).await;
    }
}

/// Children that have not begun their program hold what this process listens on.
#[tokio::test]
async fn it_refuses_and_listens_again_while_children_are_started() {
    let (_server, proxy) = start().await;
    let is_over = Arc::new(AtomicBool::new(false));
    let starters: Vec<_> = (0..4)
        .map(|_| {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    assert!(Command::new("true").status().unwrap().success());
                }
            })
        })
        .collect();
    for _ in 0..300 {
        proxy.refuse();
        assert_eq!(TcpStream::connect(proxy.address()).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        proxy.heal();
        TcpStream::connect(proxy.address()).await.unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    for starter in starters {
        starter.join().unwrap();
    }
}

#[tokio::test]
async fn without_a_server_connections_are_reset() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).unwrap();
    drop(listener);
    let seen = match TcpStream::connect(proxy.address()).await {
        Ok(mut client) => receive(&mut client).await,
        Err(error) => Err(error.kind()),
    };
    assert_eq!(seen, RST);
}

#[tokio::test]
async fn a_split_message_arrives_in_two() {
    let (server, proxy) = start().await;
    let mut client = Client::warm(&proxy).await;
    proxy.requests().split(3, 50 * A_WHILE);
    client.send("onetwo").await;
    assert_eq!(client.receive().await, message("answer one"));
    assert_eq!(client.receive().await, message("answer two"));
    server.saw(&[message("warm"), message("one"), message("two")]).await;
    // Too short to be split.
    assert_eq!(client.ask("one").await, message("answer one"));
    assert_eq!((proxy.requests().passed(), proxy.requests().bytes()), (3, 13));
}

#[tokio::test]
async fn a_lost_request_does_not_arrive() {
    let (server, proxy) = start().await;
    let mut client = Client::warm(&proxy).await;
    proxy.once(Accident::lose_request());
    assert_eq!(client.ask("lost").await, RST);
    assert_eq!(proxy.pending(), 0);
    server.saw(&[message("warm"), fin()]).await;
    Client::warm(&proxy).await;
}

#[tokio::test]
async fn a_lost_reply_means_that_the_request_arrived() {
    let (server, proxy) = start().await;
    let mut client = Client::warm(&proxy).await;
    proxy.once(Accident::lose_reply());
    assert_eq!(client.ask("once").await, RST);
    assert_eq!(server.seen.borrow()[..2], [message("warm"), message("once")]);
    server.saw(&[message("warm"), message("once"), fin()]).await;
    assert_eq!((proxy.requests().passed(), proxy.replies().passed()), (2, 1));
    until(|| proxy.connections() == 0).await;
    Client::warm(&proxy).await;
}

#[tokio::test]
async fn what_is_lost_silently_leaves_the_connection_open() {
    let (server, proxy) = start().await;
    let mut client = Client::warm(&proxy).await;
    let mut other = Client::warm(&proxy).await;
    proxy.once(Accident::lose_reply().silently());
    client.send("once").await;
    client.hears_nothing().await;
    client.send("again").await;
    client.hears_nothing().await;
    let (warm, once, again) = (message("warm"), message("once"), message("again"));
    server.saw(&[warm.clone(), warm.clone(), once.clone(), again.clone()]).await;
    assert_eq!(other.ask("other").await, message("answer other"));
    proxy.heal();
    client.hears_nothing().await;
    drop(client);
    server.saw(&[warm.clone(), warm, once, again, message("other"), fin()]).await;
    until(|| proxy.connections() == 1).await;
}

#[tokio::test]
async fn accidents_wait_for_their_message() {
    let (server, proxy) = start().await;
    let mut client = Client::warm(&proxy).await;
    proxy.once(Accident::lose_request().containing("SET").after(2).silently());
    proxy.once(Accident::lose_push().containing("GET b"));
    for text in ["GET a", "SET a", "GET c", "SET b"] {
        assert_eq!(client.ask(text).await, Ok(format!("answer {text}")));
    }
    assert_eq!(proxy.pending(), 2);
    client.send("SET c").await;
    client.hears_nothing().await;
    assert_eq!(proxy.pending(), 1);
    assert_eq!(Client::warm(&proxy).await.ask("GET b").await, RST);
    assert_eq!(proxy.pending(), 0);
    assert!(!server.seen.borrow().contains(&message("SET c")));
    assert!(server.seen.borrow().contains(&message("GET b")));

    proxy.once(Accident::lose_request());
    proxy.heal();
    Client::warm(&proxy).await;
}

#[tokio::test]
async fn dropped_it_is_gone() {
    let (server, proxy) = start().await;
    let mut client = Client::warm(&proxy).await;
    let address = proxy.address();
    proxy.hold();
    client.send("held").await;
    drop(proxy);
    assert!(matches!(client.receive().await.as_deref(), Ok("") | Err(ErrorKind::ConnectionReset)));
    assert_eq!(TcpStream::connect(address).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert!(!server.seen.borrow().contains(&message("held")));
}

#[tokio::test(start_paused = true)]
async fn it_goes_on_while_the_runtime_of_the_test_is_blocked() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).unwrap();
    proxy.requests().delay(Duration::from_millis(20));
    let mut client = std::net::TcpStream::connect(proxy.address()).unwrap();
    client.write_all(b"ping").unwrap();
    let mut buffer = [0; 4];
    listener.accept().unwrap().0.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"ping");
}
