//! What starts servers, with Redis.

#![allow(clippy::print_stdout, reason = "a child of the test speaks to it")]
#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use leasehold::testkit::{Proxy, Server};
use store_tests::{answers_ping, redis, valkey};

/// Five times and more of what anything here needs on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// A connection that waits for its answers.
struct Client(TcpStream);

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        Self(stream)
    }

    fn send(&mut self, command: &str) {
        self.0.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    }

    fn receive(&mut self, expected: &str) {
        let mut buffer = vec![0; expected.len()];
        self.0.read_exact(&mut buffer).unwrap();
        assert_eq!(String::from_utf8(buffer).unwrap(), expected);
    }

    fn ask(&mut self, command: &str, expected: &str) {
        self.send(command);
        self.receive(expected);
    }

    /// Whether the server has ended the connection.
    fn has_ended(&mut self) -> bool {
        matches!(self.0.read(&mut [0]).map_err(|error| error.kind()), Ok(0) | Err(ErrorKind::ConnectionReset))
    }
}

fn refuses(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let pause = Duration::from_millis(5);
    let mut waited = Duration::ZERO;
    while !condition() {
        assert!(waited < SOON, "never came true: {what}");
        thread::sleep(pause);
        waited += pause;
    }
}

fn it_answers_and_goes(server: Server) {
    let mut client = Client::connect(server.address());
    client.ask("PING", "+PONG\r\n");
    assert!(server.log().contains("Ready to accept connections"), "{}", server.log());
    let (address, dir) = (server.address(), server.dir().to_owned());
    drop(server);
    assert!(client.has_ended());
    assert!(refuses(address));
    assert!(!dir.exists());
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn redis_answers_and_goes() {
    it_answers_and_goes(redis().start().unwrap());
}

#[test]
#[cfg_attr(not(has_valkey_server), ignore = "valkey-server is not installed")]
fn valkey_answers_and_goes() {
    it_answers_and_goes(valkey().start().unwrap());
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn stopped_it_answers_when_it_goes_on() {
    let server = redis().start().unwrap();
    let mut client = Client::connect(server.address());
    client.ask("PING", "+PONG\r\n");
    for _ in 0..2 {
        server.stop().unwrap();
        server.stop().unwrap();
        client.send("PING");
        client.0.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert_eq!(client.0.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        client.0.set_read_timeout(Some(SOON)).unwrap();
        server.cont().unwrap();
        client.receive("+PONG\r\n");
    }
    server.stop().unwrap();
    server.kill().unwrap();
    assert!(client.has_ended());
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn killed_it_comes_back_in_its_place() {
    let server = redis().args(["--appendonly", "yes", "--appendfsync", "always"]).start().unwrap();
    let (address, first) = (server.address(), server.pid());
    let mut client = Client::connect(address);
    client.ask("SET key value", "+OK\r\n");
    server.kill().unwrap();
    assert!(client.has_ended());
    assert!(refuses(address));
    assert_eq!(server.pid(), None);
    assert!(server.stop().is_err());
    server.kill().unwrap();

    server.restart().unwrap();
    assert_eq!(server.address(), address);
    Client::connect(address).ask("GET key", "$5\r\nvalue\r\n");
    // A running one is killed before.
    server.restart().unwrap();
    assert_ne!(server.pid(), first);
    assert_eq!(server.log().matches("Ready to accept connections").count(), 3);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn asked_to_end_it_says_how_it_did() {
    let server = redis().start().unwrap();
    assert!(server.terminate().unwrap().success());
    assert!(refuses(server.address()));
    assert!(server.log().contains("Received SIGTERM"), "{}", server.log());
    assert!(server.terminate().is_err());
    server.restart().unwrap();
    Client::connect(server.address()).ask("PING", "+PONG\r\n");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_file_may_say_how_to_start() {
    let file = "port {port}\nbind 127.0.0.1\ndir {dir}\nsave \"\"\nrequirepass secret\n";
    let server = Server::builder("redis-server").args(["{dir}/it.conf"]).file("it.conf", file).ready(answers_ping);
    let server = server.start().unwrap();
    Client::connect(server.address()).ask("AUTH secret", "+OK\r\n");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn one_that_does_not_start_tells_why() {
    let error = redis().args(["--no-such-option", "1"]).start().unwrap_err().to_string();
    assert!(error.contains("redis-server has ended") && error.contains("no-such-option"), "{error}");
}

#[test]
fn one_that_is_not_installed_is_not_found() {
    assert_eq!(Server::find("no-such-server"), None);
    for program in ["no-such-server", "/no/such-server"] {
        let error = Server::builder(program).start().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains(program), "{error}");
    }
}

#[test]
fn what_a_server_has_started_ends_with_it() {
    // The server is a shell with a child; it is dropped, or ends by itself before it is ready.
    for end in ["wait", "exit 3"] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("child");
        let script = format!("sleep 600 & echo $! > {}; {end}", file.display());
        let has_child = {
            let file = file.clone();
            move |_| end == "wait" && std::fs::read_to_string(&file).is_ok_and(|pid| pid.ends_with('\n'))
        };
        let server = Server::builder("sh").args(["-c", &script]).ready(has_child).start();
        assert_eq!(server.is_ok(), end == "wait", "{server:?}");
        let child = std::fs::read_to_string(&file).unwrap();
        assert!(server.is_err() || is_running(child.trim()));
        drop(server);
        wait_until("the child is gone", || !is_running(child.trim()));
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn behind_a_proxy_it_is_the_same() {
    let server = redis().start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let mut client = Client::connect(proxy.address());
    client.ask("PING", "+PONG\r\n");
    server.kill().unwrap();
    assert!(client.has_ended());
    server.restart().unwrap();
    Client::connect(proxy.address()).ask("PING", "+PONG\r\n");
}

const CHILD: &str = "LEASEHOLD_TEST_CHILD";

/// Not a test of its own: what the next one starts and kills.
#[test]
#[ignore = "started by another test"]
fn start_and_wait() {
    if std::env::var_os(CHILD).is_some() {
        // On a thread that ends at once, which must not matter.
        let server = thread::spawn(|| redis().start().unwrap()).join().unwrap();
        Client::connect(server.address()).ask("PING", "+PONG\r\n");
        println!("\nstarted: {} {} {}", server.address(), server.pid().unwrap(), server.dir().display());
        thread::sleep(20 * SOON);
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn it_dies_with_the_process_that_started_it() {
    use std::io::{BufRead, BufReader};
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "start_and_wait", "--ignored", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let started = lines.find_map(|line| line.unwrap().strip_prefix("started: ").map(str::to_owned)).unwrap();
    let words: Vec<_> = started.split(' ').collect();
    let address: SocketAddr = words[0].parse().unwrap();
    Client::connect(address).ask("PING", "+PONG\r\n");
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the server is gone", || refuses(address) && !is_running(words[1]));
    // Nobody is left to remove it.
    std::fs::remove_dir_all(words[2]).unwrap();
}

/// Whether a process runs; one that is dead and not collected does not.
fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with(['Z', 'X']))
}
