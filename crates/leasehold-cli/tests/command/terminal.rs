//! `run` on a terminal.

use rustix::process::{Pid, Signal};

use crate::support::{BINARY, Place, is_running, proc_file, wait_until};
use crate::terminal_support::Terminal;

const INTERRUPT: &str = "\x03";
const END: &str = "\x04";
const STOP: &str = "\x1a";

/// A ttl that is waited for in tests, renewed so often that a slow machine does not lose it.
const SHORT: &str = "--ttl 6s --renew-every 500ms -k 500ms";

// Jobs that are to be stopped start nothing any more: a shell cannot be stopped while it waits for a child that was stopped
// before it could execute its program.

/// A job that tells its process, and then everything that is typed in.
const ECHO: &str = "echo $$ > pid; echo u''p; while read line; do echo \"got $line\"; done; exit 7";

fn is_stopped(process: Pid) -> bool {
    let stat = std::fs::read_to_string(proc_file(process, "stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T'))
}

/// Whether the group of a process is in the foreground of its terminal.
fn has_terminal(process: Pid) -> bool {
    let stat = std::fs::read_to_string(proc_file(process, "stat")).unwrap_or_default();
    let fields: Vec<_> = stat.rsplit_once(") ").map(|(_, fields)| fields.split(' ').collect()).unwrap_or_default();
    fields.len() > 5 && fields[5] == fields[2]
}

/// The parent of a process.
fn parent(process: Pid) -> Pid {
    let stat = std::fs::read_to_string(proc_file(process, "stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    Pid::from_raw(fields.split(' ').nth(1).unwrap().parse().unwrap()).unwrap()
}

#[test]
fn the_job_reads_from_the_terminal() {
    let place = Place::new();
    let terminal = Terminal::run(&place, &["k", "--", "sh", "-c", ECHO]);
    terminal.expect("up");
    terminal.type_in("hello\n");
    terminal.expect("got hello");
    terminal.type_in(END);
    assert_eq!(terminal.finish().0, Some(7));
    assert!(place.is_free("k"));
}

#[test]
fn an_interrupt_reaches_the_whole_job_and_nothing_else() {
    let place = Place::new();
    let script = "trap 'echo one > first' INT; \
        (trap 'echo two > second; exit' INT; echo u''p; while :; do sleep 0.02; done); exit 9";
    let terminal = Terminal::run(&place, &["k", "--", "sh", "-c", script]);
    terminal.expect("up");
    terminal.type_in(INTERRUPT);
    let (code, shown) = terminal.finish();
    assert_eq!((code, place.read("first") + &place.read("second")), (Some(9), "one\ntwo\n".to_owned()), "{shown}");
    assert!(!shown.contains("leasehold:"), "{shown}");
    assert!(place.is_free("k"));
    assert_eq!(place.survivors(), []);
}

#[test]
fn a_plain_job_dies_of_an_interrupt() {
    let place = Place::new();
    let terminal = Terminal::run(&place, &["k", "--", "sh", "-c", "echo u''p; exec sleep 60"]);
    terminal.expect("up");
    terminal.type_in(INTERRUPT);
    assert_eq!(terminal.finish().0, Some(130));
    assert!(place.is_free("k"));
}

#[test]
fn a_grandchild_dies_with_the_job() {
    for (signal, code) in [(Signal::TERM, Some(143)), (Signal::HUP, Some(129)), (Signal::KILL, None)] {
        let place = Place::new();
        let script = "sleep 60 & echo $! > grandchild; echo u''p; wait";
        let terminal = Terminal::run(&place, &["k", "--", "sh", "-c", script]);
        terminal.expect("up");
        let grandchild = place.pid("grandchild");
        terminal.signal(signal);
        assert_eq!(terminal.finish().0, code);
        wait_until("nothing is left", || place.survivors().is_empty());
        assert!(!is_running(grandchild));
    }
}

#[test]
fn a_terminal_that_is_hung_up_ends_the_job() {
    let place = Place::new();
    let terminal = Terminal::shell(&place);
    terminal.type_in(&format!("{BINARY} run k -- sh -c 'sleep 60 & echo u''p; wait'\n"));
    terminal.expect("up\r\n");
    drop(terminal);
    wait_until("nothing is left", || place.survivors().is_empty());
    wait_until("the key is free", || place.is_free("k"));
}

#[test]
fn a_stop_stops_both_and_both_go_on() {
    let place = Place::new();
    let terminal = Terminal::shell(&place);
    terminal.type_in(&format!("{BINARY} run k -- sh -c '{ECHO}'\n"));
    terminal.expect("up\r\n");
    let job = place.pid("pid");
    let run = parent(job);
    for times in 1..=2 {
        terminal.type_in(STOP);
        terminal.expect_times("leasehold: stopped: if this lasts for longer than", times);
        wait_until("both are stopped", || is_stopped(job) && is_stopped(run));
        terminal.type_in("echo sh''ell\n");
        terminal.expect_times("shell", times);
        terminal.type_in("fg\n");
        wait_until("both go on", || !is_stopped(job) && !is_stopped(run));
        terminal.type_in("hello\n");
        terminal.expect_times("got hello", times);
    }
    terminal.type_in(END);
    terminal.type_in("echo code=$?\n");
    terminal.expect("code=7");
    assert!(place.is_free("k"));
}

#[test]
fn a_stop_stops_the_script_that_runs_it() {
    let place = Place::new();
    let terminal = Terminal::shell(&place);
    terminal.type_in(&format!("sh -c '{BINARY} run k -- sh -c \"echo u\\\"\\\"p; exec cat\"; echo af\"\"ter'\n"));
    terminal.expect("up\r\n");
    terminal.type_in(STOP);
    terminal.expect("Stopped");
    terminal.type_in("fg\n");
    terminal.type_in("hello\n");
    terminal.expect_times("hello", 2);
    terminal.type_in(END);
    terminal.expect("after");
}

#[test]
fn a_stop_that_lasts_longer_than_the_lease_ends_the_job() {
    let place = Place::new();
    let terminal = Terminal::shell(&place);
    terminal.type_in(&format!("{BINARY} run k {SHORT} -- sh -c '{ECHO}'\n"));
    terminal.expect("up\r\n");
    let job = place.pid("pid");
    terminal.type_in(STOP);
    wait_until("the job is dead", || !is_running(job));
    place.run(["run", "k", "-w", "50", "--", "true"]).expect(0);
    terminal.type_in("fg\n");
    terminal.expect("lost: the lease on");
    terminal.type_in("echo code=$?\n");
    terminal.expect("code=79");
}

#[test]
fn without_a_shell_that_could_continue_it_the_job_goes_on() {
    let place = Place::new();
    let terminal = Terminal::run(&place, &["k", "--", "sh", "-c", ECHO]);
    terminal.expect("up");
    terminal.type_in(STOP);
    terminal.expect("leasehold: stopped");
    terminal.type_in("hello\n");
    terminal.expect("got hello");
    terminal.type_in(END);
    assert_eq!(terminal.finish().0, Some(7));
}

#[test]
fn one_in_the_background_stops_when_it_reads_and_is_continued_in_the_foreground() {
    let place = Place::new();
    let terminal = Terminal::shell(&place);
    terminal.type_in(&format!("{BINARY} run k -- sh -c '{ECHO}' &\n"));
    terminal.expect("up\r\n");
    let job = place.pid("pid");
    let run = parent(job);
    wait_until("both are stopped", || is_stopped(job) && is_stopped(run));
    terminal.type_in("fg\n");
    wait_until("both go on", || !is_stopped(job) && !is_stopped(run));
    terminal.type_in("hello\n");
    terminal.expect("got hello");
    terminal.type_in(END);
    terminal.type_in("echo code=$?\n");
    terminal.expect("code=7");
}

#[test]
fn one_that_is_continued_in_the_background_takes_the_terminal_only_in_the_foreground() {
    let place = Place::new();
    let terminal = Terminal::shell(&place);
    terminal.type_in(&format!("{BINARY} run k -- sh -c 'echo $$ > pid; echo u''p; exec sleep 60'\n"));
    terminal.expect("up\r\n");
    let job = place.pid("pid");
    terminal.type_in(STOP);
    wait_until("it is stopped", || is_stopped(job) && is_stopped(parent(job)));
    terminal.type_in("bg\n");
    wait_until("it goes on", || !is_stopped(job));
    terminal.type_in("echo sh''ell\n");
    terminal.expect("shell");
    terminal.type_in("fg\n");
    wait_until("it has the terminal", || has_terminal(parent(job)));
    terminal.type_in(INTERRUPT);
    terminal.type_in("echo code=$?\n");
    terminal.expect("code=130");
}

#[test]
fn a_job_that_reads_from_a_pipe_leaves_the_terminal_alone() {
    let place = Place::new();
    let terminal = Terminal::shell(&place);
    terminal.type_in(&format!("echo hel''lo | {BINARY} run k -- cat\n"));
    terminal.expect("hello");
    terminal.type_in(&format!("{BINARY} run k -- sh -c 'touch runs; exec sleep 60' < /dev/null\n"));
    wait_until("it runs", || place.path("runs").exists());
    terminal.type_in(INTERRUPT);
    terminal.type_in("echo code=$?\n");
    terminal.expect("code=130");
}

#[test]
fn a_job_that_is_killed_leaves_the_terminal_as_it_was() {
    let place = Place::new();
    let terminal = Terminal::shell(&place);
    let script = "trap \"\" TERM; stty raw; echo u\"\"p; while :; do sleep 0.02; done";
    terminal.type_in(&format!("{BINARY} run k --max-runtime 6s -k 100ms -- sh -c '{script}'\n"));
    terminal.expect("up");
    terminal.expect("reached");
    terminal.type_in("echo modes:$(stty -a | grep -o -- '-*icanon')\n");
    terminal.expect("modes:icanon");
    // What a job that ends by itself has set is its work.
    terminal.type_in(&format!("{BINARY} run k -- stty -icanon\n"));
    terminal.type_in("echo modes:$(stty -a | grep -o -- '-*icanon')\n");
    terminal.expect("modes:-icanon");
}

#[test]
fn the_terminal_is_taken_back_from_what_a_killed_job_had_put_in_the_foreground() {
    let place = Place::new();
    let run = format!("{BINARY} run k --ttl 8s --no-renew -- bash -m -c 'echo u\"\"p; sleep 60; true'");
    let terminal = Terminal::start(&place, &["sh", "-c", &format!("{run}; echo do''ne; read x; echo got $x")]);
    terminal.expect("lost: the lease on \"k\"");
    terminal.expect("done");
    terminal.type_in("hello\n");
    terminal.expect("got hello");
}

#[test]
fn a_job_that_is_stopped_for_a_terminal_it_cannot_have_is_no_secret() {
    let place = Place::new();
    let terminal = Terminal::shell(&place);
    terminal.type_in(&format!("{BINARY} run k -- sh -c 'exec cat /dev/tty' < /dev/null\n"));
    terminal.expect("leasehold: stopped: the command wants the terminal");
    terminal.type_in(INTERRUPT);
    terminal.type_in("echo code=$?\n");
    terminal.expect("code=130");
}
