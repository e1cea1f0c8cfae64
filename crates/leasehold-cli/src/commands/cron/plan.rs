//! What is due when: from the command line, or from a crontab.

use std::ffi::OsString;

use leasehold::schedule::Timetable;

use super::crontab::{self, Line};
use crate::cli::Cron;
use crate::config;
use crate::exit::Failure;

/// One task with its times, and how its runs are started.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) timetable: Timetable,
    /// As it is said for one tick.
    pub(super) arguments: Cron,
    /// What is set in the environment of its command.
    pub(super) environment: Vec<(String, String)>,
}

impl Plan {
    /// All that is due.
    pub(super) fn all(arguments: &Cron) -> Result<Vec<Self>, Failure> {
        if let Some(path) = &arguments.crontab {
            let lines = crontab::read(path)?;
            return lines.into_iter().map(|line| Self::of_line(arguments, line)).collect();
        }
        let running = &arguments.running;
        if running.command.is_empty() && running.script.is_none() {
            return Err(super::nothing_to_run());
        }
        let (Some(name), Some(expression)) = (&arguments.name, &arguments.schedule) else {
            return Err(super::nothing_to_run());
        };
        Ok(vec![Self {
            name: config::key_name(name)?.to_owned(),
            timetable: super::timetable(expression, &arguments.tz)?,
            arguments: arguments.clone(),
            environment: Vec::new(),
        }])
    }

    fn of_line(arguments: &Cron, line: Line) -> Result<Self, Failure> {
        let mut own = arguments.clone();
        own.crontab = None;
        own.name = Some(OsString::from(&line.name));
        own.schedule = Some(line.expression.clone());
        own.tz = line.zone.unwrap_or_else(|| arguments.tz.clone());
        own.running.script = Some(line.command.into());
        let timetable = super::timetable(&line.expression, &own.tz)
            .map_err(|failure| Failure::new(failure.code, format!("line {}: {failure}", line.number)))?;
        Ok(Self { name: line.name, timetable, arguments: own, environment: line.environment })
    }
}
