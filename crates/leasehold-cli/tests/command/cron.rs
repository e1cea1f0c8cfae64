//! `cron`: once per tick, however many servers have it on their timetable.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, SystemTime};

use leasehold::schedule::Tick;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Place, Running, full_pipe, handles_term, is_running, wait_until};

/// A tick of this moment, as another scheduler would name it.
fn now() -> String {
    #[expect(clippy::disallowed_methods, reason = "the present moment is what is meant")]
    let now = SystemTime::now();
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    Tick::at(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap().to_string()
}

/// A server that has the task on its timetable.
fn server(place: &Place, options: &[&str], script: &str) -> Running {
    let mut arguments = vec!["cron", "report", "--schedule", "* * * * * *"];
    arguments.extend(options);
    arguments.extend(["-c", script]);
    place.start(place.command(arguments))
}

fn end(mut servers: Vec<Running>) -> String {
    let mut said = String::new();
    servers.iter_mut().for_each(|server| server.signal(Signal::TERM));
    for server in servers {
        said += &server.finish().expect(143).stderr;
    }
    said
}

fn lines(place: &Place, name: &str) -> Vec<String> {
    place.read(name).lines().map(ToOwned::to_owned).collect()
}

#[test]
fn a_tick_that_another_scheduler_names_runs_once() {
    let (place, tick) = (Place::new(), now());
    let arguments = ["cron", "report", "--tick", &tick, "-c", "echo $LEASEHOLD_SCHEDULED_AT $LEASEHOLD_KEY; exit 3"];
    let ran = place.run(arguments).expect(3);
    assert_eq!(ran.stdout, format!("{tick} report\n"));
    let skipped = place.run(arguments).expect(75);
    let words = format!("skipped \"report\" at {tick}: another server has this tick (key \"report@{tick}\", held by ");
    assert!(skipped.stderr.contains(&words) && skipped.stdout.is_empty(), "{}", skipped.stderr);
    place.run([&arguments[..4], &["--skip-ok", "--", "touch", "ran"]].concat()).expect(0);
    place.run([&arguments[..4], &["-E", "9", "-q", "--", "touch", "ran"]].concat()).expect(9);
    assert!(!place.path("ran").exists());
    // Nothing is held but the claim.
    let held = place.run(["list"]).expect(0).stdout;
    assert!(held.contains("tick done") && held.lines().count() == 2, "{held}");
    let old = place.run(["cron", "report", "--tick", "2026-01-01T00:00:00Z", "--", "touch", "ran"]).expect(75);
    assert!(old.stderr.contains("too late"), "{}", old.stderr);
}

#[test]
fn each_tick_runs_on_one_of_three_servers() {
    let place = Place::new();
    let script = "echo $LEASEHOLD_SCHEDULED_AT >> ticks";
    place.create();
    let servers = (0..3).map(|_| server(&place, &[], script)).collect();
    wait_until("some ticks have run", || lines(&place, "ticks").len() >= 4);
    let said = end(servers);
    let ticks = lines(&place, "ticks");
    let once: BTreeSet<_> = ticks.iter().collect();
    assert_eq!(once.len(), ticks.len(), "a tick ran twice: {ticks:?}\n{said}");
    assert!(!said.contains("did not end"), "{said}");
    assert_eq!(place.survivors(), []);
}

#[test]
fn a_tick_is_skipped_while_the_last_run_lasts() {
    let place = Place::new();
    let script = "echo begin >> runs; sleep 2.2; echo end >> runs";
    place.create();
    let servers = (0..2).map(|_| server(&place, &["--ttl", "10s"], script)).collect();
    wait_until("two runs have ended", || lines(&place, "runs").iter().filter(|line| *line == "end").count() >= 2);
    let said = end(servers);
    for pair in lines(&place, "runs").chunks(2) {
        assert!(
            pair[0] == "begin" && pair.get(1).is_none_or(|line| line == "end"),
            "runs overlap: {}",
            place.read("runs")
        );
    }
    assert!(said.contains("the last run still lasts (key \"report\", held by"), "{said}");
}

#[test]
fn runs_may_overlap_if_that_is_allowed() {
    let place = Place::new();
    let script = "echo begin >> runs; while [ ! -e go ]; do sleep 0.02; done";
    let server = server(&place, &["--overlap", "allow"], script);
    wait_until("three run at a time", || lines(&place, "runs").len() >= 3);
    fs::write(place.path("go"), "").unwrap();
    end(vec![server]);
}

#[test]
fn a_server_that_is_told_to_end_waits_for_its_run() {
    let place = Place::new();
    let script = "trap 'sleep 0.5; echo cleaned > cleaned; exit 0' TERM; echo $$ > pid; while :; do sleep 0.02; done";
    let server = server(&place, &[], script);
    let job = place.pid("pid");
    end(vec![server]);
    assert_eq!(place.read("cleaned"), "cleaned\n");
    assert!(!is_running(job));
    assert_eq!(place.survivors(), []);
    assert!(place.is_free("report"));
}

#[test]
fn a_server_that_is_killed_takes_its_runs_with_it() {
    let place = Place::new();
    let server = server(&place, &[], "echo $$ > pid; exec sleep 60");
    let job = place.pid("pid");
    server.signal(Signal::KILL);
    wait_until("the job is gone", || !is_running(job));
    wait_until("nothing is left", || place.survivors().is_empty());
}

#[test]
fn a_tick_whose_server_crashed_is_told_and_runs_again_if_that_is_asked_for() {
    for (choice, expected) in [("report", 1), ("run", 2)] {
        let place = Place::new();
        // The first run says who it is and stays.
        let script = "echo $LEASEHOLD_SCHEDULED_AT >> ticks; echo $LEASEHOLD_LOST_TICKS >> lost; \
                      if mkdir first 2>/dev/null; then echo $PPID > pid; exec sleep 60; fi; \
                      grep -q . lost && mkdir second 2>/dev/null && exit 69; exit 0";
        let server = server(&place, &["--ttl", "20s", "--lost", choice], script);
        let run = place.pid("pid");
        let first = lines(&place, "ticks")[0].clone();
        kill_process(run, Signal::KILL).unwrap();
        wait_until("it is told", || server.stderr().contains(&format!("the run at {first} did not end")));
        wait_until("others have run", || {
            let ticks = lines(&place, "ticks");
            ticks.len() > 3 && ticks.iter().filter(|tick| **tick == first).count() == expected
        });
        if choice == "report" {
            // It has ended as one does that did not begin, so the run after it is told as well.
            let told = || lines(&place, "lost").iter().filter(|ticks| **ticks == first).count();
            wait_until("the next two runs know", || told() == 2);
        }
        end(vec![server]);
    }
}

#[test]
fn a_tick_that_another_scheduler_names_is_told_what_was_lost() {
    let place = Place::new();
    let options = ["--schedule", "* * * * * *", "--ttl", "20s", "--label", "team=night"];
    let first = now();
    let crash = [&["cron", "report", "--tick", &first], &options[..], &["-c", "kill -KILL $PPID; exec sleep 60"]];
    place.run(crash.concat());
    let claim = place.run(["show", &format!("report@{first}")]).expect(0).stdout;
    assert!(claim.contains("label: team=night"), "{claim}");
    wait_until("its lease is gone", || place.is_free("report"));
    let tell = "echo \"[$LEASEHOLD_LOST_TICKS]\"";
    for told in [first.as_str(), ""] {
        wait_until("another second has begun", || {
            let tick = now();
            let run = [&["cron", "report", "--tick", &tick], &options[..], &["-c", tell]].concat();
            let mut command = place.command(run);
            command.env("LEASEHOLD_LOST_TICKS", "those of another task");
            let ran = place.start(command).finish();
            assert!(ran.code() == 75 || ran.stdout == format!("[{told}]\n"), "{}{}", ran.stdout, ran.stderr);
            std::thread::sleep(Duration::from_millis(200));
            ran.code() == 0
        });
    }
}

#[test]
fn a_store_that_nobody_has_named_is_said_to_reach_as_far_as_this_host() {
    let place = Place::new();
    let said = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        command.env_remove("LEASEHOLD_STORE");
        place.start(command).finish().expect(0).stderr
    };
    let tick = now();
    let cron = ["cron", "--tick", &tick, "one", "--", "true"];
    let other = ["cron", "--tick", &tick, "two", "--require-scope", "host", "--", "true"];
    let warning = "this store reaches as far as this host: other servers run each tick as well; between servers name";
    assert!(said(&cron).contains(warning) && said(&["elect", "leader", "--", "true"]).contains("a leader of its own"));
    assert!(!said(&other).contains("this host"));
    assert_eq!(said(&["cron", "-q", "--tick", &tick, "three", "--", "true"]), "");
    let named = place.run(["cron", "--tick", &tick, "one", "--", "true"]).expect(0).stderr;
    assert_eq!(named, "");
}

#[test]
fn a_reader_that_stands_still_holds_no_tick_up() {
    let (place, (_reader, writer)) = (Place::new(), full_pipe());
    let mut command = place.command(["cron", "report", "--schedule", "* * * * * *", "-c", "echo run >> runs; exit 1"]);
    command.stderr(writer);
    let mut server = command.spawn().unwrap();
    wait_until("it goes on", || lines(&place, "runs").len() >= 4);
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(143));
}

#[test]
fn several_tasks_of_a_crontab() {
    let place = Place::new();
    let crontab = "# minute hour day month weekday name command\nGREETING='hello there'\n\
                   * * * * * * one  echo \"$GREETING\" >> one\n* * * * * * two  echo $LEASEHOLD_KEY >> two\n";
    // With seconds in front: there are six fields.
    fs::write(place.path("six"), crontab).unwrap();
    place.run(["cron", "--crontab", "six"]).expect(78);
    let crontab = crontab.replace("* * * * * * ", "* * * * * ");
    fs::write(place.path("five"), &crontab).unwrap();
    fs::write(place.path("twice"), format!("{crontab}0 0 * * * two true\n")).unwrap();
    fs::write(place.path("wrong"), "61 * * * * one true\n").unwrap();
    for (file, code, words) in
        [("twice", 78, "\"two\""), ("wrong", 64, "line 1: invalid cron expression"), ("none", 78, "cannot read")]
    {
        let refused = place.run(["cron", "--crontab", file]).expect(code);
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
    }
    let server = place.start(place.command(["cron", "--crontab", "five"]));
    wait_until("it handles signals", || handles_term(server.pid()));
    end(vec![server]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let place = Place::new();
    for (arguments, code) in [
        (&["cron", "report", "--", "true"][..], 64),
        (&["cron", "report", "--schedule", "* * * * *"], 64),
        (&["cron", "--schedule", "* * * * *", "--", "true"], 64),
        (&["cron", "report", "--schedule", "0 0 30 2 *", "--", "true"], 64),
        (&["cron", "report", "--schedule", "* * * * *", "--tz", "Mars/Olympus", "--", "true"], 64),
        (&["cron", "report", "--tick", "yesterday", "--", "true"], 64),
        (&["cron", "report", "--tick", "2026-11-30T02:30:00Z"], 64),
        (&["cron", "report", "--tick", "2026-11-30T02:30:00Z", "--lost", "run", "--", "true"], 64),
        (&["cron", "report", "--schedule", "* * * * *", "--claim", "0", "--", "true"], 64),
        (&["cron", "report", "--schedule", "* * * * *", "-s", "memory:", "--", "true"], 78),
    ] {
        let refused = place.run(arguments).expect(code);
        assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    }
}
