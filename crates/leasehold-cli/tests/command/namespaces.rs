//! Where `/proc` or the clock is not what it is elsewhere.

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::death::{FAMILY, family};
use crate::support::{BINARY, Place, is_running, proc_file, wait_until};

/// Whether programs may be started in this way; says why if not.
fn can_start(way: &[&str]) -> bool {
    let output = Command::new(way[0]).args(&way[1..]).arg("true").output().unwrap();
    if !output.status.success() {
        eprintln!("skipped: cannot run {way:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    output.status.success()
}

/// Numbers of their own for processes, and a `/proc` with those of the namespace outside.
const FOREIGN_PROC: [&str; 4] = ["unshare", "--pid", "--fork", "--kill-child"];

/// A process of the place by its number in its own pid namespace.
fn by_inner_number(place: &Place, name: &str) -> Pid {
    let inner = place.pid(name).as_raw_nonzero().to_string();
    let is_it = |pid: &Pid| {
        let status = fs::read_to_string(proc_file(*pid, "status")).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        numbers.is_some_and(|numbers| numbers.split_ascii_whitespace().nth(1) == Some(&inner))
    };
    let mut found = None;
    // While it becomes another program, it is not known to be of this place.
    wait_until("it is found", || {
        found = place.survivors().into_iter().find(is_it);
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn a_foreign_proc_makes_nobody_a_descendant() {
    if !can_start(&FOREIGN_PROC) {
        return;
    }
    let place = Place::new();
    // Outside, this process has a child. Inside, a stranger has that child's number, and the run has that of this process.
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let (own, other) = (std::process::id(), child.id());
    let script = format!(
        "echo {} > /proc/sys/kernel/ns_last_pid; sleep 60 & [ $! = {other} ] || exit 1; \
         echo {} > /proc/sys/kernel/ns_last_pid; {BINARY} run k --ttl 6s --no-renew -k 500ms -- sh -c 'echo $PPID > run; sleep 60'; \
         [ $? = 79 ] || exit 2; [ $(cat run) = {own} ] || exit 3; \
         kill -USR1 {other}; wait {other}; [ $? = 138 ] || exit 4",
        other - 1,
        own - 1
    );
    place.start(place.program(FOREIGN_PROC.into_iter().chain(["sh", "-c", &script]))).finish().expect(0);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_foreign_proc_does_not_keep_the_guardian_from_the_group() {
    if !can_start(&FOREIGN_PROC) {
        return;
    }
    let place = Place::new();
    let job = "echo $PPID > run; sleep 60 & echo $! > grandchild; echo up > up; wait";
    let script = format!("{BINARY} run k -- sh -c '{job}' & while :; do sleep 0.1; done");
    let outer = place.start(place.program(FOREIGN_PROC.into_iter().chain(["sh", "-c", &script])));
    wait_until("the job runs", || place.path("up").exists());
    let [run, grandchild] = ["run", "grandchild"].map(|name| by_inner_number(&place, name));
    kill_process(run, Signal::KILL).unwrap();
    wait_until("the grandchild is dead", || !is_running(grandchild));
    assert_eq!(outer.stderr(), "");
}

#[test]
fn another_time_changes_nothing() {
    let way = ["unshare", "--time", "--boottime", "86400", "--fork", "--kill-child"];
    if !can_start(&way) {
        return;
    }
    let place = Place::new();
    let script = format!("echo $$ > pid; echo $PPID > run; {FAMILY}");
    let run = place.start(place.program(way.into_iter().chain([BINARY, "run", "k", "--", "sh", "-c", &script])));
    family(&place);
    kill_process(place.pid("run"), Signal::KILL).unwrap();
    wait_until("nothing is left", || place.survivors().is_empty());
    assert!(!run.stderr().contains("warning"), "{}", run.stderr());
}

#[test]
fn children_are_found_where_the_kernel_does_not_list_them() {
    if !can_start(&["unshare", "--mount"]) {
        return;
    }
    let place = Place::new();
    let script = format!(
        "sleep 60 & echo $! > other; mount --bind /proc/$$/clear_refs /proc/$$/task/$$/children || exit 1; \
         exec {BINARY} run k --ttl 8s --no-renew -- sleep 60"
    );
    place.start(place.program(["unshare", "--mount", "sh", "-c", &script])).finish().expect(79);
    assert!(is_running(place.pid("other")));
}

#[test]
fn a_program_that_was_started_by_a_loader_starts_its_helpers() {
    let libraries = Command::new("ldd").arg(BINARY).output().unwrap();
    let libraries = String::from_utf8(libraries.stdout).unwrap();
    let Some(loader) = libraries.split_ascii_whitespace().find(|word| word.starts_with('/') && word.contains("/ld-"))
    else {
        eprintln!("skipped: the program needs no loader: {libraries}");
        return;
    };
    let place = Place::new();
    // By another process: see `as_nobody`.
    let linked = fs::hard_link(BINARY, place.path("program")).is_ok();
    let copied = || Command::new("cp").args([BINARY.as_ref(), place.path("program").as_os_str()]).status().unwrap();
    assert!(linked || copied().success());
    let script = format!("echo $$ > pid; echo $PPID > run; {FAMILY}");
    for program in [&[loader, "./program"][..], &[loader, "--library-path", "/nowhere", BINARY]] {
        let words = program.iter().chain(&["run", "k", "--", "echo", "a b"]);
        let finished = place.start(place.program(words)).finish().expect(0);
        assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("a b\n", ""));
        for name in ["pid", "run", "grandchild", "daemon", "up"] {
            fs::remove_file(place.path(name)).ok();
        }
        let job = ["run", "k", "--", "sh", "-c", &script];
        let run = place.start(place.program(program.iter().chain(&job)));
        family(&place);
        run.signal(Signal::KILL);
        wait_until("nothing is left", || place.survivors().is_empty());
        assert_eq!(run.stderr(), "");
    }
}
