//! `elect`: one leader, another one after it, and what load balancers are told.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::process::Signal;

use crate::support::{Place, Running, address_of_nobody, is_running, wait_until};

const TTL: &str = "15s";

/// A replica whose job writes its pid to a file of this name.
fn replica(place: &Place, name: &str, http: SocketAddr) -> Running {
    let script = format!("echo $$ > {name}.new; mv {name}.new {name}; exec sleep 60");
    place.start(place.command(["elect", "leader", "--ttl", TTL, "--http", &http.to_string(), "-c", &script]))
}

/// The status that is answered; 0 = none.
fn ask(address: SocketAddr, path: &str) -> u16 {
    let ask = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        std::io::Result::Ok(answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0))
    };
    ask().unwrap_or(0)
}

#[test]
fn one_leads_and_the_other_follows_when_it_ends_or_dies() {
    for signal in [Signal::TERM, Signal::KILL] {
        let (place, one, two) = (Place::new(), address_of_nobody(), address_of_nobody());
        let first = replica(&place, "first", one);
        let job = place.pid("first");
        wait_until("it says that it leads", || ask(one, "/leader") == 200);
        let second = replica(&place, "second", two);
        wait_until("the other stands by", || ask(two, "/leader") == 503);
        wait_until("it says for whom", || second.stderr().contains("on standby for \"leader\": led by"));
        assert_eq!((ask(one, "/healthz"), ask(two, "/healthz"), ask(two, "/other")), (200, 200, 404));
        assert!(!place.path("second").exists());
        first.signal(signal);
        wait_until("the other leads", || ask(two, "/leader") == 200);
        assert!(!is_running(job), "the first job outlived its lease");
        place.pid("second");
        if signal == Signal::TERM {
            first.finish().expect(143);
        }
        second.signal(Signal::TERM);
        second.finish().expect(143);
        wait_until("nothing is left", || place.survivors().is_empty());
        assert!(place.is_free("leader"));
    }
}

#[test]
fn a_leader_that_lost_its_lease_stops_its_job_and_campaigns_again() {
    let (place, http) = (Place::new(), address_of_nobody());
    let replica = replica(&place, "job", http);
    let job = place.pid("job");
    wait_until("it leads", || ask(http, "/leader") == 200);
    std::fs::remove_file(place.path("job")).unwrap();
    place.run(["force-release", "leader", "--yes"]).expect(0);
    wait_until("the job is gone", || !is_running(job));
    place.pid("job");
    wait_until("it leads again", || ask(http, "/leader") == 200);
    assert!(replica.stderr().contains("campaigns for \"leader\" again"), "{}", replica.stderr());
    replica.signal(Signal::TERM);
    replica.finish().expect(143);
}

#[test]
fn a_leader_that_was_stopped_past_its_lease_does_not_lead_when_it_goes_on() {
    let (place, one, two) = (Place::new(), address_of_nobody(), address_of_nobody());
    let first = replica(&place, "first", one);
    let job = place.pid("first");
    wait_until("it leads", || ask(one, "/leader") == 200);
    let second = replica(&place, "second", two);
    first.signal(Signal::STOP);
    wait_until("the other leads", || ask(two, "/leader") == 200);
    assert!(!is_running(job));
    first.signal(Signal::CONT);
    assert_eq!(ask(one, "/leader"), 503);
    wait_until("it stands by, healthy", || ask(one, "/healthz") == 200);
    assert_eq!(ask(one, "/leader"), 503);
    for replica in [first, second] {
        replica.signal(Signal::TERM);
        replica.finish().expect(143);
    }
}

#[test]
fn it_ends_with_its_command_and_with_its_code() {
    let place = Place::new();
    let ended = place.run(["elect", "leader", "-c", "echo $LEASEHOLD_KEY $LEASEHOLD_FENCING_TOKEN; exit 7"]).expect(7);
    assert!(ended.stdout.starts_with("leader "), "{}", ended.stdout);
    assert!(place.is_free("leader"));
    place.run(["elect", "leader", "--", "/nonexistent"]).expect(127);
    place.run(["elect", "leader"]).expect(64);
    place.run(["elect", "leader", "-s", "memory:", "--", "true"]).expect(78);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    place.run(["elect", "leader", "--http", &taken, "--", "true"]).expect(74);
}

#[test]
fn it_can_be_told_to_end_while_it_stands_by() {
    let place = Place::new();
    let holder = place.hold("leader", &["--ttl", TTL], "while [ ! -e go ]; do sleep 0.02; done");
    let replica = replica(&place, "job", address_of_nobody());
    wait_until("it stands by", || replica.stderr().contains("on standby"));
    replica.signal(Signal::TERM);
    let ended = replica.finish().expect(143);
    assert!(ended.stderr.contains("stopped by TERM on standby for \"leader\""), "{}", ended.stderr);
    std::fs::write(place.path("go"), "").unwrap();
    holder.finish().expect(0);
}
