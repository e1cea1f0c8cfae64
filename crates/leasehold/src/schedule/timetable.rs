//! When a task is due: a cron expression in a time zone, or an interval.

use std::cmp::Ordering;
use std::time::Duration;

use croner::errors::CronError;
use croner::{CivilDate, CivilDateTime, CivilTime, Cron, CronDateTime, Resolution, Weekday};
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp, ZonedDateTime};

use super::tick::Tick;
use crate::error::{Error, ErrorKind, Result};

/// When a task is due.
///
/// Every server has to be given the same one: then all of them compute the same ticks.
#[derive(Clone, Debug)]
pub struct Timetable(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Cron(Box<Cron>, TimeZone),
    Every(i128),
}

impl Timetable {
    /// A cron expression, in UTC or in a zone of the time zone database (`Europe/Berlin`).
    ///
    /// Five fields (minute, hour, day of month, month, day of week) as in cron, six with seconds in front; also
    /// `@hourly` and its like, names of months and days, `L`, `W` and `#`. If both a day of the month and a day of the
    /// week are given, either will do.
    ///
    /// When clocks go forward, a task at a fixed time within the gap is due right after it; one with a wildcard or a
    /// step in its minute or hour has no tick there. When clocks go back, a task at a fixed time is due at the first of
    /// the two; one with a wildcard or a step at every moment that fits. Every tick is a moment of its own in UTC.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the expression cannot be read or never comes true, or the zone is not known here.
    pub fn cron(expression: &str, zone: &str) -> Result<Self> {
        let shown: String = expression.chars().filter(|c| !c.is_control()).take(60).collect();
        let cron: Cron = expression.parse().map_err(|error: CronError| {
            let message = format!("invalid cron expression \"{shown}\": {error}");
            Error::new(ErrorKind::InvalidConfig, message)
        })?;
        let timetable = Self(Kind::Cron(Box::new(cron), time_zone(zone)?));
        if timetable.next(Tick(Timestamp::UNIX_EPOCH)).is_none() {
            let message = format!("invalid cron expression \"{shown}\": it never comes true");
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        Ok(timetable)
    }

    /// Every `interval`, counted from the beginning of 1970 in UTC, so that all servers agree without having met.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for less than a millisecond.
    pub fn every(interval: Duration) -> Result<Self> {
        if interval < Duration::from_millis(1) {
            return Err(Error::new(ErrorKind::InvalidConfig, "invalid interval: it must be a millisecond or more"));
        }
        Ok(Self(Kind::Every(i128::try_from(interval.as_nanos()).unwrap_or(i128::MAX))))
    }

    /// The first tick after this one; `None` = there is none.
    pub fn next(&self, after: Tick) -> Option<Tick> {
        match &self.0 {
            Kind::Cron(cron, zone) => {
                let start = Local::whole(after, zone)?;
                Some(Tick(cron.find_next_occurrence(&start, false).ok()?.0.timestamp()))
            }
            Kind::Every(interval) => {
                let now = after.0.as_nanosecond();
                at_nanosecond((now.div_euclid(*interval).checked_add(1)?).checked_mul(*interval)?)
            }
        }
    }

    /// The last tick before this one; `None` = there is none.
    pub fn previous(&self, before: Tick) -> Option<Tick> {
        self.latest(Tick(before.0.checked_sub(SignedDuration::from_nanos(1)).ok()?))
    }

    /// The last tick at this moment or before it.
    pub(super) fn latest(&self, now: Tick) -> Option<Tick> {
        match &self.0 {
            Kind::Cron(cron, zone) => {
                let start = Local::whole(now, zone)?;
                Some(Tick(cron.find_previous_occurrence(&start, true).ok()?.0.timestamp()))
            }
            Kind::Every(interval) => at_nanosecond(now.0.as_nanosecond().div_euclid(*interval).checked_mul(*interval)?),
        }
    }
}

fn at_nanosecond(nanos: i128) -> Option<Tick> {
    Timestamp::from_nanosecond(nanos).ok().map(Tick)
}

fn time_zone(name: &str) -> Result<TimeZone> {
    if name.eq_ignore_ascii_case("UTC") || name.eq_ignore_ascii_case("Etc/UTC") {
        return Ok(TimeZone::UTC);
    }
    TimeZone::get(name).map_err(|error| {
        let shown: String = name.chars().filter(|c| !c.is_control()).take(60).collect();
        let message = format!("unknown time zone \"{shown}\": name one of the time zone database, as in Europe/Berlin");
        Error::new(ErrorKind::InvalidConfig, message).with_source(error)
    })
}

/// A moment in its zone, as the search through the calendar needs it.
#[derive(Clone)]
struct Local(ZonedDateTime);

impl Local {
    /// The second in which a moment lies: the search goes by whole seconds.
    fn whole(moment: Tick, zone: &TimeZone) -> Option<Self> {
        let second = moment.0.as_nanosecond().div_euclid(1_000_000_000);
        Some(Self(Timestamp::from_second(second.try_into().ok()?).ok()?.to_zoned_datetime(zone.clone())))
    }
}

impl CronDateTime for Local {
    fn to_civil(&self) -> CivilDateTime {
        let at = self.0.datetime();
        let part = |part: i8| u32::from(part.unsigned_abs());
        CivilDateTime::new(
            CivilDate::from_parts_unchecked(i32::from(at.year()), part(at.month()), part(at.day())),
            CivilTime::from_parts_unchecked(part(at.hour()), part(at.minute()), part(at.second())),
        )
    }

    fn civil_weekday(&self) -> Weekday {
        Weekday::from_days_from_sunday(u32::from(self.0.weekday().to_sunday_zero_offset().unsigned_abs()))
    }

    fn resolve_civil(&self, civil: CivilDateTime) -> std::result::Result<Resolution<Self>, CronError> {
        let ambiguous = self.0.time_zone().to_ambiguous_zoned_datetime(date_time(civil).ok_or(CronError::InvalidDate)?);
        let there = |found: std::result::Result<ZonedDateTime, jiff::Error>| {
            found.map(Local).map_err(|_| CronError::InvalidTime)
        };
        Ok(match ambiguous.offset() {
            AmbiguousOffset::Unambiguous { .. } => Resolution::Single(there(ambiguous.unambiguous())?),
            AmbiguousOffset::Fold { .. } => {
                Resolution::Ambiguous(there(ambiguous.clone().earlier())?, there(ambiguous.later())?)
            }
            AmbiguousOffset::Gap { .. } => Resolution::Gap,
        })
    }

    fn checked_add_seconds(&self, seconds: i64) -> Option<Self> {
        self.0.checked_add(SignedDuration::from_secs(seconds)).ok().map(Local)
    }

    fn cmp_instant(&self, other: &Self) -> Ordering {
        self.0.timestamp().cmp(&other.0.timestamp())
    }
}

fn date_time(civil: CivilDateTime) -> Option<DateTime> {
    let part = |part: u32| i8::try_from(part).ok();
    let (month, day) = (part(civil.month())?, part(civil.day())?);
    let (hour, minute, second) = (part(civil.hour())?, part(civil.minute())?, part(civil.second())?);
    DateTime::new(i16::try_from(civil.year()).ok()?, month, day, hour, minute, second, 0).ok()
}
