//! Every error names what to do next.

use std::fs;

use rusqlite::Connection;

use crate::support::{BINARY, Place};

#[test]
fn every_error_names_what_to_do_next() {
    let place = Place::new();
    let long = "k".repeat(513);
    fs::write(place.path("plain"), "text").unwrap();
    fs::write(place.path("foreign.db"), vec![0xff; 8192]).unwrap();
    fs::write(place.path("bad.toml"), "tll = 1").unwrap();
    fs::write(place.path("broken.toml"), "ttl = ").unwrap();
    let foreign = format!("sqlite://{}", place.path("foreign.db").display());
    let below_a_file = format!("sqlite://{}", place.path("plain/x.db").display());
    let _holder = place.hold("held", &[], "sleep 60");
    for (arguments, code, advice) in [
        // The command line.
        (&["run", "k"][..], 64, "usage: leasehold run"),
        (&["run", "k", "--no-such", "--", "true"], 64, "usage: leasehold run"),
        (&["nosuch"], 64, "usage: leasehold"),
        (&["run", "k", "-E", "600", "--", "true"], 64, "a number from 0 to 255"),
        (&["run", "k", "-w", "soon", "--", "true"], 64, "write it like 30s"),
        (&["run", "k", "--renew-every", "0", "--", "true"], 64, "say --no-renew"),
        (&["run", "k", "--max-runtime", "0", "--", "true"], 64, "leave it out"),
        (&["run", "k", "--label", "x", "--", "true"], 64, "write it as name=value"),
        (&["run", "k", "--on-lost", "x", "--", "true"], 64, "say term, continue, or signal:NAME"),
        (&["run", "k", "--status-fd", "99", "--", "true"], 64, "open it, as in 99>status"),
        // Keys and lengths of time.
        (&["run", "", "--", "true"], 65, "give the lock a name"),
        (&["run", &long, "--", "true"], 65, "shorten or hash it"),
        (&["run", "a\nb", "--", "true"], 65, "remove or encode it"),
        (&["run", "k", "--ttl", "ten", "--", "true"], 65, "write it like 30s"),
        (&["run", "k", "--ttl", "0", "--", "true"], 65, "between 10ms and 24h"),
        (&["run", "k", "--renew-every", "20s", "--", "true"], 65, "at most half of the ttl"),
        // Files.
        (&["run", "k", "-s", &foreign, "--", "true"], 73, "foreign.db"),
        (&["run", "k", "-s", &below_a_file, "--", "true"], 73, "plain/x.db"),
        (&["run", "k", "--report", "no/such/x", "--", "true"], 73, "name a file in a directory of yours"),
        (&["run", "k", "--owner-file", "no/such/x", "--", "true"], 73, "name a file in a directory of yours"),
        // Busy.
        (&["run", "held", "-n", "--", "true"], 75, "leasehold show held"),
        (&["run", "held", "-w", "100ms", "--", "true"], 75, "wait longer: -w"),
        (&["run", "held", "-n", "--", "true"], 75, "when that holder dies the key is free at once"),
        // Configuration.
        (&["run", "k", "-s", "nosuch:", "--", "true"], 78, "choose one of"),
        (&["run", "k", "-s", "", "--", "true"], 78, "choose one of"),
        (&["run", "k", "-s", "/tmp/x.db", "--", "true"], 78, "a file is sqlite:///path"),
        (&["run", "k", "-s", "sqlite:x.db", "--", "true"], 78, "write sqlite:///path"),
        (&["run", "k", "-s", "sqlite:///x?tttl=1", "--", "true"], 78, "did you mean \"ttl\""),
        (&["run", "k", "-s", "memory:", "--", "true"], 78, "name a shared one with --store"),
        (&["run", "k", "--require-scope", "network", "--", "true"], 78, "name another store with --store"),
        (&["run", "k", "--namespace", "a b", "--", "true"], 78, "use at most 64 of"),
        (&["run", "k", "-k", "1h", "--", "true"], 78, "shorten it, or raise --ttl"),
        (&["run", "k", "--config", "nosuch.toml", "--", "true"], 78, "check --config"),
        (&["run", "k", "--config", "bad.toml", "--", "true"], 78, "did you mean \"ttl\""),
        (&["run", "k", "--config", "broken.toml", "--", "true"], 78, "line 1"),
        // The command itself.
        (&["run", "k", "--", "no-such-program"], 127, "check the name and PATH"),
        (&["run", "k", "--", "./nosuch"], 127, "check the path"),
        (&["run", "k", "--", "./plain"], 126, "make it executable"),
        // Lost.
        (&["run", "k", "--ttl", "8s", "--no-renew", "--", "sleep", "60"], 79, "raise --ttl, or let it be renewed"),
    ] {
        let finished = place.run(arguments).expect(code);
        assert!(finished.stderr.contains(advice), "{advice:?} is not in what {arguments:?} says: {}", finished.stderr);
        assert!(finished.stderr.contains(&format!("(exit {code})")) || code == 64, "{}", finished.stderr);
    }
    let nested = format!("{BINARY} run k -- true");
    assert!(place.run(["run", "k", "-c", &nested]).expect(64).stderr.contains("use another key"));
    let mut homeless = place.command(["run", "k", "--", "true"]);
    homeless.env_remove("LEASEHOLD_STORE").env_remove("HOME").env_remove("XDG_STATE_HOME");
    if !rustix::process::geteuid().is_root() {
        assert!(place.start(homeless).finish().expect(78).stderr.contains("name a file with --store"));
    }
}

#[test]
fn a_store_that_does_not_answer_is_named() {
    let place = Place::new();
    place.run(["run", "k", "--", "true"]).expect(0);
    let occupied = Connection::open(place.path("leases.db")).unwrap();
    occupied.execute_batch("BEGIN IMMEDIATE").unwrap();
    let finished = place.run(["run", "k", "-n", "--ttl", "2s", "--", "true"]).expect(69);
    assert!(finished.stderr.contains(&format!("store: {}", place.store())), "{}", finished.stderr);
}
