//! Three servers with one timetable of two tasks, whose clocks are off by up to three minutes and which are killed at
//! random: no tick runs twice, and every one that did not run is told.
//!
//! The clocks go eight times as fast as time does, so that 500 ticks, one every 200 ms, and the three minutes after which
//! the last server has come to them take 35 s. The leases are judged by true time.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use leasehold::observe::{Event, Observer};
use leasehold::schedule::{Scheduler, SkipReason, Task, Tick, Ticks, Timetable, WallClock};
use leasehold::{ErrorKind, LockManager};
use store_tests::{Site, Table};
use tokio::time::sleep;

use crate::crew::{Member, Said, connect, connect_patiently, dismissed, is_weather, run, say};

/// How fast the clocks of the test go.
const SPEED: u32 = 8;
const EVERY: Duration = Duration::from_millis(200);
const TICKS: u32 = 500;
/// By how many seconds the clock of each server is off.
const SKEWS: [i64; 3] = [90, 0, -90];
/// Of the leases under which tasks run, in true time.
const TTL: Duration = Duration::from_millis(1500);
const TASKS: [&str; 2] = ["fast", "slow"];
/// How many runs of a task a server has under way at a time.
const WIDTH: usize = 4;
/// When the test begins by its own clock.
const BEGIN: &str = "2026-11-30T02:00:00Z";

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn no_tick_runs_twice_over_redis() {
    run(async {
        let site = Site::redis();
        no_tick_runs_twice(&site.url()).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn no_tick_runs_twice_over_postgres() {
    run(async {
        let table = Table::new();
        no_tick_runs_twice(&table.url()).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn ticks_and_jobs_are_refused_on_leases_that_end_with_their_session() {
    run(async {
        let table = Table::new();
        let locks = LockManager::connect(&format!("{}?mode=advisory", table.url())).await.unwrap();
        let error = Scheduler::builder(&locks).task(task("fast")).build().unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("\"fast\""), "{error}");
        let error = locks.on_one_server("fast", BEGIN.parse().unwrap()).run(async |_| ()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(locks.unique("mail", "1").dispatch().await.unwrap_err().kind(), ErrorKind::Unsupported);
        // Which ends with its session, too, and may.
        let alone = locks.without_overlapping("slow", TTL).run(async |_| ()).await.unwrap();
        assert!(alone.skipped().is_none());
    });
}

/// The clock of one server.
fn wall(origin: Moment, skew: i64) -> WallClock {
    let clock = Clock::system();
    let begin = BEGIN.parse::<Tick>().unwrap().time();
    WallClock::from_fn(move || {
        let now = begin + clock.now().since(origin) * SPEED;
        let off = Duration::from_secs(skew.unsigned_abs());
        if skew < 0 { now - off } else { now + off }
    })
}

fn task(name: &str) -> Task {
    let task = Task::new(name).timetable(Timetable::every(EVERY).unwrap()).on_one_server();
    if name == "slow" { task.without_overlapping(TTL) } else { task }
}

/// The ticks that count: those to which every server comes.
fn counted() -> Vec<Tick> {
    let begin = BEGIN.parse::<Tick>().unwrap().time() + Duration::from_secs(90);
    (1..=TICKS).map(|number| Tick::at(begin + EVERY * number).unwrap()).collect()
}

async fn no_tick_runs_twice(url: &str) {
    let origin = Clock::system().now();
    let said = Said::default();
    let start = |index: usize| {
        // A server that is started anew names what it was not there for, and what the one before it may not have come to.
        let after = Tick::at(wall(origin, SKEWS[index]).now() - Duration::from_secs(30)).unwrap();
        let variables = [
            ("LEASEHOLD_TEST_AFTER", after.to_string()),
            ("LEASEHOLD_TEST_URL", url.to_owned()),
            ("LEASEHOLD_TEST_SKEW", SKEWS[index].to_string()),
            ("LEASEHOLD_TEST_ORIGIN", origin.as_nanos().to_string()),
        ];
        Member::start("schedule::server", &variables, &said)
    };
    let mut crew: Vec<_> = (0..SKEWS.len()).map(start).collect();
    let last = *counted().last().unwrap();
    let behind = wall(origin, -90);
    let mut kills = 0;
    while behind.now() < last.time() {
        sleep(Duration::from_millis(fastrand::u64(300..1500))).await;
        let index = fastrand::usize(..crew.len());
        let fresh = start(index);
        std::mem::replace(&mut crew[index], fresh).kill();
        kills += 1;
    }
    crew.into_iter().for_each(Member::end);
    // What the last of those who were killed have left.
    sleep(2 * TTL).await;
    let locks = connect(url).await.unwrap().ttl(TTL).build().unwrap();
    let mut left = Vec::new();
    for name in TASKS {
        let at_end = behind.now();
        let scheduler = Scheduler::builder(&locks).wall_clock(WallClock::from_fn(move || at_end)).task(task(name));
        let scheduler = scheduler.build().unwrap();
        // One look asks for some, the next for those before.
        for _ in 0..60 {
            left.extend(
                scheduler.look(name).await.unwrap().into_iter().map(|lost| format!("lost {name} {}", lost.tick)),
            );
        }
    }
    let mut lines = said.lock().clone();
    lines.extend(left);
    judge(&locks, &lines, kills).await;
}

/// What was said of one tick of one task.
#[derive(Debug, Default)]
struct Told {
    begun: u32,
    ran: u32,
    lost: u32,
    skipped: BTreeSet<String>,
}

async fn judge(locks: &LockManager, lines: &[String], kills: u32) {
    let mut told: BTreeMap<(String, Tick), Told> = BTreeMap::new();
    for line in lines {
        let [what, name, tick] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let told = told.entry((name.to_owned(), tick.parse().unwrap())).or_default();
        match what {
            "begun" => told.begun += 1,
            "ran" => told.ran += 1,
            "lost" => told.lost += 1,
            what => _ = told.skipped.insert(what.to_owned()),
        }
    }
    for (tick, told) in &told {
        assert!(told.begun <= 1 && told.lost <= 1, "{tick:?} ran or was told twice: {told:?}");
    }
    let (mut ran, mut lost, mut skipped, mut unsaid) = (0, 0, 0, 0);
    for name in TASKS {
        for tick in counted() {
            let told = told.remove(&(name.to_owned(), tick)).unwrap_or_default();
            let holder = locks.holder(&format!("{name}@{tick}")).await.unwrap();
            let stage = holder.as_ref().and_then(|holder| holder.info.reason.clone());
            match stage.as_deref() {
                Some("tick done") => ran += 1,
                Some("tick lost") => {
                    lost += 1;
                    // Whoever found it may have been killed before it could say so.
                    unsaid += u32::from(told.lost == 0);
                }
                Some("tick skipped") => {
                    skipped += 1;
                    unsaid += u32::from(!told.skipped.contains("still_running") && !told.skipped.contains("given_up"));
                }
                None => {
                    assert!(told.begun == 0 && told.ran == 0, "{name} {tick} ran without a claim: {told:?}");
                    assert!(!told.skipped.is_empty(), "{name} {tick}: nobody said anything");
                    skipped += 1;
                }
                other => panic!("{name} {tick} is left at {other:?}: {told:?}"),
            }
        }
    }
    let report = format!("{kills} kills: {ran} ran, {lost} lost, {skipped} skipped, {unsaid} unsaid");
    eprintln!("schedule: {report}");
    assert!(unsaid <= kills, "{report}");
    // A busy machine comes to fewer of them in time, and the others are told as missed.
    assert!(ran > TICKS / 10, "hardly anything ran: {report}");
    assert!(kills >= 10 && lines.iter().any(|line| line.starts_with("lost")), "nothing was lost: {report}");
}

/// Not a test of its own: a server with the two tasks, until its input ends.
#[test]
#[ignore = "started by another test"]
fn server() {
    let (Ok(url), Ok(skew)) = (env::var("LEASEHOLD_TEST_URL"), env::var("LEASEHOLD_TEST_SKEW")) else { return };
    let origin = env::var("LEASEHOLD_TEST_ORIGIN").unwrap().parse().unwrap();
    let after = env::var("LEASEHOLD_TEST_AFTER").unwrap().parse().unwrap();
    run(async move {
        let wall = wall(Moment::from_nanos(origin), skew.parse().unwrap());
        let locks = connect_patiently(&url).await.ttl(TTL).observer(Losses).build().unwrap();
        let builder = Scheduler::builder(&locks).wall_clock(wall.clone());
        let scheduler = TASKS.iter().fold(builder, |builder, name| builder.task(task(name))).build().unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for name in TASKS {
            let ticks = Ticks::new(Timetable::every(EVERY).unwrap(), wall.clone()).after(after);
            tasks.spawn(serve(scheduler.clone(), name, ticks.look_every(Duration::from_millis(2))));
        }
        tokio::select! {
            () = dismissed() => {}
            Some(failed) = tasks.join_next() => failed.unwrap(),
        }
        tasks.shutdown().await;
        locks.close(leasehold::Close::Release).await.ok();
    });
}

/// Tells of each lost tick when it is found.
#[derive(Debug)]
struct Losses;

impl Observer for Losses {
    fn observe(&self, event: &Event) {
        if let Event::TickLost(lost) = event {
            say(&format!("lost {} {}", lost.task, lost.tick));
        }
    }
}

async fn serve(scheduler: Scheduler, name: &'static str, mut ticks: Ticks) {
    let timetable = Timetable::every(EVERY).unwrap();
    // Those that last must not keep the next tick from being looked at.
    let mut runs = tokio::task::JoinSet::new();
    while let Some(due) = ticks.next().await {
        let mut missed = due.tick;
        for _ in 0..due.missed {
            missed = timetable.previous(missed).unwrap();
            say(&format!("missed {name} {missed}"));
        }
        if runs.len() >= WIDTH {
            runs.join_next().await.unwrap().unwrap();
        }
        let scheduler = scheduler.clone();
        runs.spawn(async move { once(&scheduler, name, due.tick).await });
        while let Some(ended) = runs.try_join_next() {
            ended.unwrap();
        }
    }
}

async fn once(scheduler: &Scheduler, name: &'static str, tick: Tick) {
    let occurrence = scheduler.occurrence(name, tick).unwrap();
    let work = move |run: leasehold::schedule::Run| async move {
        drop(run);
        say(&format!("begun {name} {tick}"));
        if name == "slow" {
            sleep(Duration::from_millis(fastrand::u64(5..60))).await;
        }
    };
    match occurrence.run_future(work).await {
        Ok(outcome) => match outcome.skipped() {
            None => say(&format!("ran {name} {tick}")),
            Some(skipped) => {
                assert!(!matches!(skipped.reason, SkipReason::Condition(_)), "{skipped}");
                say(&format!("{} {name} {tick}", skipped.reason.word()));
            }
        },
        Err(error) => {
            assert!(is_weather(&error) || error.kind() == ErrorKind::Lost, "{error}");
            say(&format!("failed {name} {tick}"));
        }
    }
}
