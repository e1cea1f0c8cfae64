//! Messages that nobody reads hold nothing up.

use std::io::{PipeReader, Read};

use crate::support::{BINARY, Place, Running, full_pipe, wait_until};
use crate::terminal_support::Terminal;

/// Starts `run k` with these options and a script, and a stderr that nobody reads.
fn unread(place: &Place, options: &str, script: &str) -> (Running, PipeReader) {
    let (reader, writer) = full_pipe();
    let mut command = place.program(["sh", "-c", &format!("exec {BINARY} run k {options} -c '{script}' 2>&0 <&-")]);
    command.stdin(writer);
    (place.start(command), reader)
}

#[test]
fn the_key_is_given_back_and_the_end_waits_for_no_reader_for_ever() {
    let place = Place::new();
    let (first, reader) = unread(&place, "--ttl 10m --max-runtime 5s", "touch held; exec sleep 60");
    wait_until("the key was held", || place.path("held").exists());
    wait_until("the key is free", || place.is_free("k"));
    first.finish().expect(124);
    drop(reader);
}

#[test]
fn a_reader_that_is_slow_gets_everything() {
    let place = Place::new();
    let (first, mut reader) = unread(&place, "--max-runtime 100ms", "exec sleep 60");
    wait_until("the key is free", || place.is_free("k"));
    let mut read = Vec::new();
    reader.read_to_end(&mut read).unwrap();
    let read = String::from_utf8(read).unwrap();
    assert!(read.trim_start_matches('x').starts_with("leasehold: \"k\": --max-runtime 100ms reached"), "{read}");
    first.finish().expect(124);
}

#[test]
fn the_lease_is_renewed_meanwhile() {
    let place = Place::new();
    // Longer than the lease stands without renewal.
    let (first, reader) = unread(&place, "-v --ttl 6s --renew-every 500ms", "sleep 8; touch done");
    first.finish().expect(0);
    assert!(place.path("done").exists());
    drop(reader);
}

#[test]
fn the_job_is_killed_in_time_meanwhile() {
    let place = Place::new();
    let (first, reader) =
        unread(&place, "-v --ttl 6s --no-renew -k 200ms", "trap \"\" TERM; touch held; while :; do sleep 0.02; done");
    wait_until("the key was held", || place.path("held").exists());
    place.run(["run", "k", "-w", "50", "--", "true"]).expect(0);
    first.finish().expect(79);
    assert_eq!(place.survivors(), []);
    drop(reader);
}

#[test]
fn a_terminal_that_minds_writers_in_the_background_holds_nothing_up() {
    for trap in ["", "trap \"\" TTOU; "] {
        let place = Place::new();
        let terminal = Terminal::shell(&place);
        terminal.type_in("stty tostop\n");
        let run = format!("{BINARY} run k --status-fd 1 --report /dev/stdout -- true");
        terminal.type_in(&format!("({trap}{run}; touch ended) & wait\n"));
        terminal.expect("leasehold.run/1");
        wait_until("it has ended", || place.path("ended").exists());
    }
}

#[test]
fn a_terminal_that_stops_writers_in_the_background_does_not_stop_it() {
    let place = Place::new();
    let terminal = Terminal::shell(&place);
    terminal.type_in("stty tostop\n");
    let options = "--ttl 8s --no-renew --on-lost continue";
    terminal.type_in(&format!("{BINARY} run k {options} -- sh -c 'while [ ! -e go ]; do sleep 0.02; done; exit 7'\n"));
    terminal.expect("exclusion is given up");
    std::fs::write(place.path("go"), "").unwrap();
    terminal.type_in("echo code=$?\n");
    terminal.expect("code=7");
}
