//! What is between the lease and the command: a program whose execution hangs, or is refused.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};

use crate::support::{BINARY, Place, Running, is_running, wait_until};

/// A program that cannot be executed before whoever has a lease on its file gives that up: the system waits for it, as
/// it does for a server of files that does not answer.
struct Hanging(Child);

impl Hanging {
    fn new(place: &Place) -> Self {
        // By another process: see `as_nobody`.
        let copied = Command::new("cp").arg("/bin/true").arg(place.path("hangs")).status().unwrap();
        assert!(copied.success());
        let script = "use Fcntl; $SIG{IO} = 'IGNORE'; open(F, '+<', $ARGV[0]) or die; \
            fcntl(F, 1024, F_WRLCK) or die $!; print \"ready\\n\"; close STDOUT; sleep 100";
        let path = place.path("hangs");
        let mut command = Command::new("perl");
        command.args(["-e", script]).arg(path).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Starts `run k options -- ./hangs`, and waits until the command is about to be executed.
fn hang(place: &Place, options: &[&str]) -> (Running, Pid) {
    let running = place.start(place.command([&["run", "k"][..], options, &["--", "./hangs"]].concat()));
    let mut waiting = None;
    wait_until("the command is about to be executed", || {
        // It has the real standard input by then.
        waiting = place.survivors().into_iter().find(|pid| {
            let file = |name: &str| crate::support::proc_file(*pid, name);
            let is_waiting = std::fs::read(file("cmdline")).unwrap_or_default().starts_with(b"leasehold\0__exec\0");
            is_waiting && std::fs::read_link(file("fd/0")).is_ok_and(|target| target.as_os_str() == "/dev/null")
        });
        waiting.is_some()
    });
    (running, waiting.unwrap())
}

#[test]
fn signals_are_passed_on_while_the_execution_hangs() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let place = Place::new();
        let _hanging = Hanging::new(&place);
        let (running, waiting) = hang(&place, &[]);
        running.signal(signal);
        running.finish().expect(code);
        assert!(!is_running(waiting) && place.is_free("k"));
    }
}

#[test]
fn an_execution_that_hangs_is_limited() {
    let place = Place::new();
    let _hanging = Hanging::new(&place);
    let (running, waiting) = hang(&place, &["--max-runtime", "6s"]);
    running.finish().expect(124);
    assert!(!is_running(waiting) && place.is_free("k"));
    let (running, waiting) = hang(&place, &["--ttl", "8s", "--no-renew", "-k", "500ms"]);
    running.finish().expect(79);
    assert!(!is_running(waiting));
}

#[test]
fn an_execution_that_hangs_ends_with_a_run_that_is_killed_or_stopped() {
    for signal in [Signal::KILL, Signal::STOP] {
        let place = Place::new();
        let _hanging = Hanging::new(&place);
        let (running, waiting) = hang(&place, &["--ttl", "6s"]);
        running.signal(signal);
        wait_until("the waiting process is gone", || !is_running(waiting));
    }
}

#[test]
fn a_process_that_cannot_be_bound_to_its_parent_says_so() {
    let place = Place::new();
    let (mut socket, other) = UnixStream::pair().unwrap();
    // Process 1 is not its parent.
    let mut command = place.program([BINARY, "__exec", "1", "touch", "ran"]);
    command.stdin(OwnedFd::from(other));
    place.start(command).finish().expect(71);
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, [&b"s"[..], &rustix::io::Errno::SRCH.raw_os_error().to_ne_bytes()].concat());
    assert!(!place.path("ran").exists());
}
