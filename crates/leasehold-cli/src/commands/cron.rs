//! `cron`: run commands at their times, once per tick in the fleet.

use leasehold::config::parse_duration;
use leasehold::schedule::{DEFAULT_CLAIM, Task, Tick, Timetable};

use self::plan::Plan;
use crate::cli::{Cron, Global, LostTicks, Overlap};
use crate::exit::{self, Failure};
use crate::output;

mod crontab;
mod plan;
mod stand;
mod tick;

/// What becomes of a tick beyond the reach of a store of this host.
const ELSEWHERE: &str = "other servers run each tick as well";

/// Runs one tick, or every tick until this is told to end.
pub(crate) async fn cron(global: &Global, arguments: &Cron) -> Result<u8, Failure> {
    if let (Some(name), Some(text)) = (&arguments.name, &arguments.tick) {
        if arguments.running.command.is_empty() && arguments.running.script.is_none() {
            return Err(nothing_to_run());
        }
        if arguments.lost == LostTicks::Run && arguments.parent.is_none() {
            let message = "--lost run is for a cron that stays: with --tick, lost ticks stand in LEASEHOLD_LOST_TICKS";
            return Err(Failure::new(exit::USAGE, message));
        }
        return tick::run(global, arguments, name, tick(text)?).await;
    }
    stand::stand(global, Plan::all(arguments)?).await
}

fn nothing_to_run() -> Failure {
    Failure::new(exit::USAGE, "nothing to run: name a command after --, or say it with -c")
}

fn tick(text: &str) -> Result<Tick, Failure> {
    text.parse().map_err(|error: leasehold::Error| {
        let shown = output::clean(&text.chars().take(40).collect::<String>());
        Failure::new(exit::USAGE, format!("invalid --tick \"{shown}\": {}", error.message()))
    })
}

/// The task that these arguments describe.
fn task(
    arguments: &Cron,
    name: &str,
    ttl: std::time::Duration,
    timetable: Option<&Timetable>,
) -> Result<Task, Failure> {
    let claim = parse_duration(&arguments.claim)
        .map_err(|error| Failure::new(exit::USAGE, format!("invalid --claim: {}", error.message())))?;
    if claim.is_zero() {
        let usual = output::words(DEFAULT_CLAIM);
        return Err(Failure::new(exit::USAGE, format!("invalid --claim: it is zero: {usual} is usual")));
    }
    let mut task = Task::new(name).on_one_server().claim_for(claim);
    if arguments.overlap == Overlap::Forbid {
        task = task.without_overlapping(ttl);
    }
    Ok(match timetable {
        Some(timetable) => task.timetable(timetable.clone()),
        None => task,
    })
}

fn timetable(expression: &str, zone: &str) -> Result<Timetable, Failure> {
    Timetable::cron(expression, zone).map_err(|error| Failure::new(exit::USAGE, error.message()))
}
