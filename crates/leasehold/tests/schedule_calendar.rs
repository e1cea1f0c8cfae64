//! When tasks are due on the days on which clocks change, on a leap day, and on clocks that step.

#![cfg(feature = "schedule")]
#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use leasehold::ErrorKind;
use leasehold::clock::{Clock, Moment};
use leasehold::schedule::{Due, Tick, Ticks, Timetable, WallClock};

fn tick(text: &str) -> Tick {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// All ticks from `from` up to but without `to`.
fn between(expression: &str, zone: &str, from: &str, to: &str) -> Vec<String> {
    let timetable = Timetable::cron(expression, zone).unwrap();
    let (start, end) = (tick(from), tick(to));
    let mut ticks = Vec::new();
    let mut at = start;
    while let Some(next) = timetable.next(at).filter(|next| *next < end) {
        if ticks.last().is_some() {
            assert_eq!(timetable.previous(next), Some(at), "before {next}");
        }
        ticks.push(next.to_string());
        at = next;
    }
    ticks
}

#[test]
fn a_task_at_a_fixed_time_is_due_once_when_clocks_change() {
    for (what, expression, zone, from, to, expected) in [
        (
            "forward, in the gap",
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-28T12:00:00Z",
            "2026-03-30T12:00:00Z",
            &["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"][..],
        ),
        (
            "back, in what repeats",
            "30 2 * * *",
            "Europe/Berlin",
            "2026-10-24T12:00:00Z",
            "2026-10-26T12:00:00Z",
            &["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"],
        ),
        (
            "forward, in the gap",
            "30 2 * * *",
            "America/New_York",
            "2026-03-07T12:00:00Z",
            "2026-03-09T12:00:00Z",
            &["2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"],
        ),
        (
            "back, in what repeats",
            "30 1 * * *",
            "America/New_York",
            "2026-10-31T12:00:00Z",
            "2026-11-02T12:00:00Z",
            &["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"],
        ),
        (
            "forward by half an hour",
            "15 2 * * *",
            "Australia/Lord_Howe",
            "2026-10-03T00:00:00Z",
            "2026-10-05T00:00:00Z",
            &["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"],
        ),
        (
            "back by half an hour",
            "45 1 * * *",
            "Australia/Lord_Howe",
            "2026-04-04T00:00:00Z",
            "2026-04-06T00:00:00Z",
            &["2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"],
        ),
    ] {
        assert_eq!(between(expression, zone, from, to), expected, "{what}: {expression} in {zone}");
    }
}

#[test]
fn a_task_at_every_moment_has_each_of_them_once_when_clocks_change() {
    for (zone, from, to, count) in [
        // 23, 25 and 24 hours of local time.
        ("Europe/Berlin", "2026-03-28T22:59:30Z", "2026-03-29T21:59:30Z", 23 * 60),
        ("Europe/Berlin", "2026-10-24T21:59:30Z", "2026-10-25T22:59:30Z", 25 * 60),
        ("America/New_York", "2026-11-01T03:59:30Z", "2026-11-02T04:59:30Z", 25 * 60),
        ("America/New_York", "2026-03-08T04:59:30Z", "2026-03-09T03:59:30Z", 23 * 60),
        ("Australia/Lord_Howe", "2026-04-04T12:59:30Z", "2026-04-05T13:29:30Z", 24 * 60 + 30),
        ("UTC", "2026-10-24T23:59:30Z", "2026-10-25T23:59:30Z", 24 * 60),
    ] {
        let mut ticks = between("* * * * *", zone, from, to);
        assert_eq!(ticks.len(), count, "{zone} from {from}");
        ticks.dedup();
        assert_eq!(ticks.len(), count, "{zone}: the same tick twice");
    }
    // Every fifteen seconds, through the hour that repeats.
    let fine = between("*/15 * * * * *", "Europe/Berlin", "2026-10-24T23:59:59Z", "2026-10-25T02:00:00Z");
    assert_eq!(fine.len(), 2 * 60 * 4);
    let hourly = between("0 * * * *", "Europe/Berlin", "2026-10-24T22:30:00Z", "2026-10-25T03:30:00Z");
    assert_eq!(hourly.len(), 5, "{hourly:?}");
}

#[test]
fn leap_days_ends_of_months_and_days_of_the_week() {
    for (expression, from, to, expected) in [
        (
            "0 0 29 2 *",
            "2026-01-01T00:00:00Z",
            "2033-01-01T00:00:00Z",
            &["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"][..],
        ),
        (
            "0 0 L 2 *",
            "2027-01-01T00:00:00Z",
            "2029-01-01T00:00:00Z",
            &["2027-02-28T00:00:00Z", "2028-02-29T00:00:00Z"],
        ),
        (
            "0 12 28-31 2 *",
            "2028-02-01T00:00:00Z",
            "2028-03-02T00:00:00Z",
            &["2028-02-28T12:00:00Z", "2028-02-29T12:00:00Z"],
        ),
        // 2000 had one, 2100 has none.
        ("0 0 29 2 *", "2096-03-01T00:00:00Z", "2105-01-01T00:00:00Z", &["2104-02-29T00:00:00Z"]),
        // A day of the month or of the week, as cron has it.
        (
            "0 0 13 11 FRI",
            "2026-11-01T00:00:00Z",
            "2026-11-15T00:00:00Z",
            &["2026-11-06T00:00:00Z", "2026-11-13T00:00:00Z"],
        ),
        ("@daily", "2026-12-30T12:00:00Z", "2027-01-02T00:00:00Z", &["2026-12-31T00:00:00Z", "2027-01-01T00:00:00Z"]),
    ] {
        assert_eq!(between(expression, "UTC", from, to), expected, "{expression}");
    }
}

#[test]
fn what_cannot_be_read_or_never_comes_is_refused() {
    for (expression, zone, words) in [
        ("", "UTC", "cron expression"),
        ("61 * * * *", "UTC", "61 * * * *"),
        ("* * * *", "UTC", "cron expression"),
        ("0 0 30 2 *", "UTC", "never"),
        ("0 0 * * *", "Europe/Berlim", "Europe/Berlim"),
        ("0 0 * * *", "", "time zone"),
    ] {
        let error = Timetable::cron(expression, zone).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{expression}");
        assert!(error.to_string().contains(words), "{error}");
    }
    assert_eq!(Timetable::every(Duration::ZERO).unwrap_err().kind(), ErrorKind::InvalidConfig);
}

#[test]
fn an_interval_has_the_same_ticks_wherever_it_is_counted() {
    let timetable = Timetable::every(Duration::from_millis(200)).unwrap();
    let next = timetable.next(tick("2026-11-30T02:00:00.05Z")).unwrap();
    assert_eq!(next, tick("2026-11-30T02:00:00.2Z"));
    assert_eq!(timetable.next(next).unwrap(), tick("2026-11-30T02:00:00.4Z"));
    assert_eq!(timetable.previous(next).unwrap(), tick("2026-11-30T02:00:00Z"));
}

/// A wall clock that goes with tokio's and can be set.
#[derive(Clone)]
struct Wall {
    clock: Clock,
    start: Moment,
    origin: SystemTime,
    off: Arc<AtomicI64>,
}

impl Wall {
    fn at(origin: &str) -> Self {
        let clock = Clock::tokio();
        Self { start: clock.now(), clock, origin: tick(origin).time(), off: Arc::default() }
    }

    fn clock(&self) -> WallClock {
        let wall = self.clone();
        WallClock::from_fn(move || {
            let off = wall.off.load(Ordering::Relaxed);
            let now = wall.origin + wall.clock.now().since(wall.start);
            if off < 0 {
                now - Duration::from_secs(off.unsigned_abs())
            } else {
                now + Duration::from_secs(off.unsigned_abs())
            }
        })
    }

    fn step(&self, seconds: i64) {
        self.off.fetch_add(seconds, Ordering::Relaxed);
    }
}

async fn next(ticks: &mut Ticks) -> (String, u32) {
    let Due { tick, missed, .. } = ticks.next().await.unwrap();
    (tick.to_string(), missed)
}

fn due(tick: &str, missed: u32) -> (String, u32) {
    (tick.to_owned(), missed)
}

#[tokio::test(start_paused = true)]
async fn after_a_step_back_no_tick_comes_again() {
    let wall = Wall::at("2026-11-30T11:58:30Z");
    let mut ticks = Ticks::new(Timetable::cron("* * * * *", "UTC").unwrap(), wall.clock());
    assert_eq!(next(&mut ticks).await, due("2026-11-30T11:59:00Z", 0));
    assert_eq!(next(&mut ticks).await, due("2026-11-30T12:00:00Z", 0));
    wall.step(-3600);
    let before = wall.clock.now();
    assert_eq!(next(&mut ticks).await, due("2026-11-30T12:01:00Z", 0));
    assert!(wall.clock.now().since(before) > Duration::from_secs(3600), "the hour came again, its ticks did not");
}

#[tokio::test(start_paused = true)]
async fn what_a_host_slept_through_comes_as_one_tick() {
    let wall = Wall::at("2026-11-30T11:58:30Z");
    let mut ticks = Ticks::new(Timetable::cron("* * * * *", "UTC").unwrap(), wall.clock());
    assert_eq!(next(&mut ticks).await, due("2026-11-30T11:59:00Z", 0));
    // Timers stood still meanwhile.
    wall.step(3 * 3600);
    let woken = wall.clock.now();
    assert_eq!(next(&mut ticks).await, due("2026-11-30T14:59:00Z", 179));
    assert!(wall.clock.now().since(woken) <= Duration::from_secs(2));
    assert_eq!(next(&mut ticks).await, due("2026-11-30T15:00:00Z", 0));
}

#[tokio::test(start_paused = true)]
async fn no_tick_is_lost_with_a_future_that_is_dropped() {
    let wall = Wall::at("2026-11-30T11:58:30Z");
    let mut ticks = Ticks::new(Timetable::cron("* * * * *", "UTC").unwrap(), wall.clock());
    assert!(tokio::time::timeout(Duration::from_secs(29), ticks.next()).await.is_err());
    assert_eq!(next(&mut ticks).await, due("2026-11-30T11:59:00Z", 0));
    let mut late =
        Ticks::new(Timetable::cron("* * * * *", "UTC").unwrap(), wall.clock()).after(tick("2026-11-30T11:57:00Z"));
    assert_eq!(next(&mut late).await, due("2026-11-30T11:59:00Z", 1));
}
