//! The end of a lease by its holder: it counts as lost first, then it is given back.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::error::{Error, ErrorKind, LostReason, Operation, Result};
use crate::lease::Lease;
use crate::observe::{Event, Released, outcome};
use crate::options::Close;
use crate::undo::{Target, Undo};

/// What ending a lease by its holder leaves to do in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Give it back: it was valid until now.
    InTime,
    /// Give back what may still stand: it was lost before, for this reason.
    Late(LostReason),
    /// It was given back, handed over, or is to be left standing.
    Nothing,
}

/// Ends the lease before anything is sent, and stops its renewal.
pub(crate) fn end_by_holder(lease: &Arc<Lease>) -> Ended {
    let ended = lease.end(LostReason::Released);
    lease.engine.renewals.leave(lease);
    if lease.given_back.swap(true, Ordering::AcqRel) {
        return Ended::Nothing;
    }
    match ended {
        Ok(()) => Ended::InTime,
        Err(LostReason::Released | LostReason::HandedOver) => Ended::Nothing,
        Err(LostReason::Closed) if lease.engine.closing() == Some(Close::LeaveToTtl) => Ended::Nothing,
        Err(reason) => Ended::Late(reason),
    }
}

/// Ends the lease and gives it back.
pub(crate) async fn release(lease: &Arc<Lease>) -> Result<()> {
    let engine = &lease.engine;
    let in_context = |error| lease.in_context(error, Operation::Release);
    if engine.is_forked() {
        return Err(in_context(Error::new(ErrorKind::NotHeld, "the lease belongs to the parent process")));
    }
    // Before anything is ended: a subscriber that panics here leaves the release to the guard.
    let span = span(lease);
    // Closing waits until the request is answered or repeated in the background; taken before the lease leaves the
    // registry, where closing looks for it.
    let ticket = engine.background.ticket();
    let ended = end_by_holder(lease);
    // Made before the span is entered, where a subscriber may panic.
    let send = |lost| send_release(lease, lost, undo(lease)).instrument(span.clone());
    let released = match ended {
        Ended::Nothing => Err(lease.not_held(lease.known_lost().unwrap_or(LostReason::Released))),
        // Moved once only, for it is large.
        Ended::InTime => pin!(send(None)).await,
        Ended::Late(reason) => pin!(send(Some(reason))).await,
    };
    let held = engine.clock.now().since(lease.acquired);
    let failed = released.as_ref().err().map(Error::kind);
    span.record("outcome", failed.map_or(outcome::OK, ErrorKind::as_str));
    span.record("held", held.as_secs_f64());
    if let Err(error) = &released {
        tell_failure(lease, error);
    }
    engine.teller.note(|store| Event::Released(Released { store, key: lease.key.clone(), held, failed }));
    drop(ticket);
    engine.teller.tell();
    released.map_err(in_context)
}

fn span(lease: &Lease) -> Span {
    let span = tracing::debug_span!(
        "lock.release",
        namespace = lease.key.namespace(),
        key = lease.key.name(),
        store = lease.engine.store().name(),
        owner = Empty,
        fencing = Empty,
        held = Empty,
        outcome = Empty,
    );
    if !span.is_disabled() {
        lease.record_on(&span);
    }
    span
}

fn tell_failure(lease: &Lease, error: &Error) {
    let (key, store) = (lease.key.name(), lease.engine.store().name());
    if error.kind() == ErrorKind::NotHeld {
        tracing::error!(key, store, %error, "release found the lease gone: the work may have outlived it");
    } else {
        tracing::warn!(key, store, %error, "release failed: it is repeated in the background, the ttl ends the lease");
    }
}

fn undo(lease: &Arc<Lease>) -> Undo {
    let mut undo = Undo::new(target(lease));
    undo.stands = true;
    undo.unsettled = lease.unsettled;
    undo
}

async fn send_release(lease: &Arc<Lease>, lost: Option<LostReason>, mut undo: Undo) -> Result<()> {
    let engine = &lease.engine;
    let mut sends_unanswered = 0;
    let (_, found) = engine
        .settle(Operation::Release, &lease.key, lease.limit(), &mut sends_unanswered, || {
            engine.store().release(&lease.key, &lease.owner)
        })
        .await;
    if found.is_ok() {
        engine.lines.ring(&lease.key);
        if undo.unsettled == 0 {
            undo.disarm();
        }
    }
    if let Some(reason) = lost {
        // This is what the caller has to know, whatever came of the request.
        return Err(lease.not_held(reason));
    }
    // A repeat finds nothing where the first request was applied and its answer lost.
    if found? || sends_unanswered > 0 { Ok(()) } else { Err(lease.not_held(LostReason::NotHeld)) }
}

pub(crate) fn target(lease: &Arc<Lease>) -> Target {
    Target {
        engine: Arc::clone(&lease.engine),
        key: lease.key.clone(),
        owner: lease.owner.clone(),
        ttl: lease.ttl(),
        back_to: None,
        ticket: None,
    }
}
