//! A store behind a network: what the command makes of it, and what it never shows.

use std::fs;
use std::net::{SocketAddr, TcpStream};

use leasehold::testkit::{Proxy, Server};

use crate::support::{Place, address_of_nobody, wait_until};

const SECRET: &str = "hunter2";

/// A server that wants a password.
fn server() -> Server {
    let options = ["--bind", "127.0.0.1", "--port", "{port}", "--dir", "{dir}", "--save", "", "--requirepass", SECRET];
    let listens = |address: SocketAddr| TcpStream::connect(address).is_ok();
    Server::builder("redis-server").args(options).ready(listens).start().unwrap()
}

fn url(address: SocketAddr) -> String {
    format!("redis://:{SECRET}@{address}/0")
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_key_is_held_shown_and_given_back() {
    let (place, server) = (Place::new(), server());
    let url = url(server.address());
    let first = place.hold("k", &["-s", &url], "while [ ! -e go ]; do sleep 0.02; done");
    place.run(["run", "k", "-n", "-s", &url, "--", "true"]).expect(75);
    // A file's lock of the same name is another one.
    place.run(["run", "k", "-n", "--", "true"]).expect(0);
    assert!(place.run(["show", "k", "-s", &url]).expect(0).stdout.contains("held"));
    assert!(place.run(["list", "-s", &url]).expect(0).stdout.contains('k'));
    let mut second = place.start(place.command(["run", "k", "-v", "-s", &url, "--", "true"]));
    wait_until("the second waits", || second.stderr().contains("waiting"));
    assert!(!second.has_ended());
    fs::write(place.path("go"), "").unwrap();
    first.finish().expect(0);
    second.finish().expect(0);
    place.run(["show", "k", "-s", &url]).expect(1);
    let required =
        ["run", "k", "-s", &url, "--require-scope", "network", "--", "sh", "-c", "echo $LEASEHOLD_FENCING_TOKEN"];
    let token = place.run(required).expect(0).stdout;
    assert!(token.trim().parse::<u64>().unwrap() > 1_000_000_000_000_000, "{token}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn each_refusal_has_its_code() {
    let (place, server) = (Place::new(), server());
    let address = server.address();
    let nobody = address_of_nobody();
    for (url, code, words) in [
        (format!("redis://{address}"), 77, "name a user and a password"),
        (format!("redis://:hunter22@{address}"), 77, "check the user name"),
        (format!("redis://:{SECRET}@{address}/999"), 77, "name a database"),
        (format!("redis://:{SECRET}@{nobody}"), 69, "refused"),
        (format!("redis://:{SECRET}@{address}/x"), 78, "database"),
        (format!("redis://:{SECRET}@{address}?pasword_file=x"), 78, "did you mean \"password_file\"?"),
        (format!("redis://{address}?password_file=/etc/nonexistent"), 78, "/etc/nonexistent"),
        (format!("rediss://:{SECRET}@{address}?ca_file=/nonexistent"), 78, "/nonexistent"),
        ("redis://".to_owned(), 78, "names no host"),
    ] {
        for arguments in [
            &["run", "k", "-n", "-s", &url, "--", "touch", "ran"][..],
            &["show", "k", "-s", &url],
            &["list", "-s", &url],
        ] {
            let finished = place.run(arguments).expect(code);
            assert!(finished.stderr.contains(words), "{words:?} is not in {}", finished.stderr);
            assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
            assert!(!finished.stderr.contains(SECRET), "{}", finished.stderr);
        }
    }
    assert!(!place.path("ran").exists());
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_password_may_be_said_elsewhere_than_in_the_url() {
    let (place, server) = (Place::new(), server());
    let url = format!("redis://{}", server.address());
    let file = place.path("password");
    fs::write(&file, format!("{SECRET}\n")).unwrap();
    let arguments = ["run", "k", "-s", &url, "--", "true"];
    for (name, value) in [("LEASEHOLD_PASSWORD", SECRET.as_ref()), ("LEASEHOLD_PASSWORD_FILE", file.as_os_str())] {
        let mut command = place.command(arguments);
        command.env(name, value);
        place.start(command).finish().expect(0);
    }
    let settings = place.path("config.toml");
    fs::write(&settings, format!("store = \"{url}\"\npassword_file = \"{}\"\n", file.display())).unwrap();
    let mut command = place.command(["run", "k", "--config", settings.to_str().unwrap(), "--", "true"]);
    command.env_remove("LEASEHOLD_STORE");
    place.start(command).finish().expect(0);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn the_password_shows_nowhere() {
    let (place, server) = (Place::new(), server());
    let url = url(server.address());
    let script = "env | grep -v ^LEASEHOLD_STORE= > environment; while [ ! -e go ]; do sleep 0.02; done";
    let mut command =
        place.command(["run", "k", "-v", "--report", "report", "--status-fd", "2", "--", "sh", "-c", script]);
    command.env("LEASEHOLD_STORE", &url);
    let first = place.start(command);
    wait_until("the job runs", || !place.read("environment").is_empty());
    let mut shown = place.read("environment");
    assert!(shown.contains("LEASEHOLD_LEASE_STORE=redis://"), "{shown}");
    for (arguments, code) in [
        (&["show", "k", "-v", "-s", &url][..], 0),
        (&["show", "k", "--json", "-s", &url], 0),
        (&["list", "--json", "-v", "-s", &url], 0),
        (&["config", "show", "-s", &url], 0),
        (&["config", "show", "--json", "-s", &url], 0),
        (&["run", "k", "-n", "-v", "-s", &url, "--", "true"], 75),
        (&["run", "k", "-w", "200ms", "-v", "--log-format", "json", "-s", &url, "--", "true"], 75),
    ] {
        let finished = place.run(arguments).expect(code);
        shown += &(finished.stdout + &finished.stderr);
    }
    fs::write(place.path("go"), "").unwrap();
    let first = first.finish().expect(0);
    shown += &(first.stdout + &first.stderr + &place.read("report"));
    assert!(shown.contains("leasehold.run/1") && shown.contains("127.0.0.1"));
    assert!(!shown.contains(SECRET), "{shown}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_job_is_stopped_when_the_server_is_out_of_reach() {
    let (place, server) = (Place::new(), server());
    let proxy = Proxy::start(server.address()).unwrap();
    let first = place.hold("k", &["-s", &url(proxy.address()), "--ttl", "6s"], "exec sleep 60");
    proxy.hold();
    let finished = first.finish().expect(79);
    assert!(finished.stderr.contains("lost: the lease on \"k\" could not be renewed"), "{}", finished.stderr);
    assert!(!finished.stderr.contains(SECRET), "{}", finished.stderr);
    assert_eq!(place.survivors(), []);
    place.run(["run", "k", "-w", "50", "-s", &url(server.address()), "--", "true"]).expect(0);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_job_is_stopped_when_its_key_is_removed() {
    let (place, server) = (Place::new(), server());
    let url = url(server.address());
    // No renewal would find it out within the time that this test waits.
    let first = place.hold("k", &["-s", &url, "--ttl", "10m"], "exec sleep 60");
    let mut cli = place.program(["redis-cli", "-a", SECRET, "-p", &server.port().to_string(), "DEL", "leasehold:k"]);
    assert_eq!(
        place
            .start({
                cli.env_remove("LEASEHOLD_STORE");
                cli
            })
            .finish()
            .expect(0)
            .stdout
            .trim(),
        "1"
    );
    let finished = first.finish().expect(79);
    assert!(finished.stderr.contains("lost"), "{}", finished.stderr);
}
