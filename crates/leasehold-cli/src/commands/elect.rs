//! `elect`: stand by, run the command while this is the leader, campaign again after a loss.

use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::{Error, ErrorKind, Lock};

use self::board::Board;
use super::run::{self, Context, Held, Outcome, Record, Renewals, Request, Status};
use crate::cli::{Elect, Global};
use crate::config::{self, Settings};
use crate::exit::{self, Failure};
use crate::output;
use crate::signals::Signals;

mod board;
mod http;

/// How long one attempt waits, so that a campaign that is stuck can be told from one that waits.
const ROUND: Duration = Duration::from_secs(5);

/// The pause after an attempt that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Stands by until the command has ended by itself, or this is told to end.
pub(crate) async fn elect(global: &Global, arguments: &Elect) -> Result<u8, Failure> {
    output::tell_aside();
    let mut signals = Signals::install()
        .map_err(|error| Failure::new(exit::OS, format!("cannot install signal handlers: {error}")))?;
    let run = arguments.as_run();
    let settings = Settings::new(global, config::flags(false, None, run.ttl.as_deref())?)?;
    let request = Request::new(&settings, &run)?;
    let board = Board::new(request.name);
    if let Some(address) = arguments.http {
        http::serve(address, board.clone()).await?;
    }
    let renewals = Renewals::new(&Status::open(None)?);
    let manager = tokio::select! {
        biased;
        signal = signals.next_ending() => return Err(run::interrupted(signal, "while the store was opened")),
        manager = run::open(&settings, &request, renewals.clone()) => manager?,
    };
    let status = Status::open(None)?;
    let context = Context {
        settings: &settings,
        request: &request,
        manager: &manager,
        renewals: &renewals,
        status: &status,
        from: None,
        tick: None,
        lost: None,
    };
    settings.warn_of_this_host(run.require_scope, "each server has a leader of its own");
    // The sign of life comes from the task that campaigns and leads: it is not given while that one is stuck.
    let outcome = tokio::select! {
        outcome = stand(&context, &board, &mut signals) => outcome,
        () = board.live() => Err(Failure::new(exit::BUG, "the campaign was lost")),
    };
    run::close(&settings, &manager, &mut signals).await;
    outcome
}

async fn stand(context: &Context<'_>, board: &Board, signals: &mut Signals) -> Result<u8, Failure> {
    let Context { settings, request, manager, .. } = *context;
    let limits = request.limits(manager.ttl())?;
    let lock = run::described(request, manager.lock(request.name));
    let mut failing = false;
    loop {
        let asked = Clock::system().now();
        let attempt = tokio::select! {
            biased;
            signal = signals.next_ending() => {
                return Err(run::interrupted(signal, &format!("on standby for \"{}\"", request.name)));
            }
            attempt = lock.acquire_within(ROUND) => attempt,
        };
        let guard = match attempt {
            Ok(Some(guard)) => guard,
            Ok(None) => {
                if std::mem::replace(&mut failing, false) || board.is_first_round() {
                    announce(&lock, request.name, settings.quiet).await;
                }
                continue;
            }
            Err(error) => {
                give_up_or_wait(settings, &error, &mut failing, signals, request.name).await?;
                continue;
            }
        };
        failing = false;
        let waited = Clock::system().now().since(asked);
        if !settings.quiet {
            output::tell(&format!("leads \"{}\" from now on", request.name));
        }
        board.leads(guard.handle());
        let mut record = Record::new(request.arguments)?;
        let held = Held { guard, waited, claim: None, prepared: None };
        let end = run::carry(context, &mut record, held, limits, signals).await;
        board.stands_by();
        match end {
            Ok(end) if end.outcome == Outcome::Lost => {
                if !settings.quiet {
                    output::tell(&format!("campaigns for \"{}\" again", request.name));
                }
            }
            // The lease was gone before the command was executed.
            Err(failure) if [exit::LOST, exit::UNAVAILABLE].contains(&failure.code) => output::tell(&failure.message),
            Ok(end) => return Ok(end.code),
            Err(failure) => return Err(failure),
        }
    }
}

/// Says once what keeps this from being heard, and waits a little; what cannot mend ends the campaign.
async fn give_up_or_wait(
    settings: &Settings,
    error: &Error,
    failing: &mut bool,
    signals: &mut Signals,
    name: &str,
) -> Result<(), Failure> {
    let failure = settings.failure(error);
    if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate | ErrorKind::Rejected) {
        return Err(run::not_started(failure));
    }
    if !std::mem::replace(failing, true) {
        output::tell(&format!("warning: {failure}; still on standby for \"{name}\""));
    }
    tokio::select! {
        biased;
        signal = signals.next_ending() => Err(run::interrupted(signal, &format!("on standby for \"{name}\""))),
        () = tokio::time::sleep(PAUSE) => Ok(()),
    }
}

/// Says for whom this stands by.
async fn announce(lock: &Lock, name: &str, quiet: bool) {
    if !quiet && let Ok(Some(holder)) = lock.holder().await {
        output::tell(&format!("on standby for \"{name}\": led by {}", output::holder_in_a_line(&holder)));
    }
}
