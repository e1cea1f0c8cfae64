//! The one contention loop: ask; if somebody else holds the lease, sleep until it is worth asking again; ask again.

use std::sync::Arc;
use std::time::Duration;

use tracing::Span;

use crate::call::{Call, End};
use crate::clock::Moment;
use crate::engine::{Engine, closed_error};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::lease::{Lease, Terms};
use crate::line::{Standing, Turn};
use crate::options::{Pauses, Wait};
use crate::store::{Attempt, Claim, Contention, Grant, HolderInfo, Wake};
use crate::types::{Key, OwnerToken};
use crate::undo::{Target, Undo};

/// One call for a lease.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    pub(crate) key: &'a Key,
    pub(crate) terms: Terms,
    pub(crate) holder: Option<&'a Arc<HolderInfo>>,
}

impl Request<'_> {
    /// Acquires the lease; `None` = still held by somebody else when the wait ended.
    pub(crate) async fn acquire(&self, wait: Wait, span: &Span) -> Result<Option<Arc<Lease>>> {
        let engine = self.engine;
        let usable = engine.check_usable();
        let mut call = Call::begin(engine.told(), self.key, span, wait);
        let called = call.called;
        let outcome = match (usable, wait) {
            (Err(error), _) => Err(error),
            (Ok(()), Wait::No | Wait::UpTo(Duration::ZERO)) => self.ask(None, Some(called), &mut call).await,
            (Ok(()), Wait::UpTo(wait)) => self.in_line(Some(called + wait), &mut call).await,
            (Ok(()), Wait::Forever) => self.in_line(None, &mut call).await,
        };
        call.end(match &outcome {
            Ok(Some(lease)) => End::Granted(Some(lease)),
            Ok(None) => End::NotGranted,
            Err(error) => End::Failed(error),
        });
        outcome.map_err(|error| engine.in_context(error, Operation::Acquire, Some(self.key)))
    }

    /// Stands in the local line until it is this call's turn to ask, or an answer to others is one for it as well.
    async fn in_line(&self, until: Option<Moment>, call: &mut Call<'_>) -> Result<Option<Arc<Lease>>> {
        let engine = self.engine;
        engine.check_open()?;
        let turn = engine.lines.join(self.key)?;
        let mut look_at = until;
        let mut followed = false;
        loop {
            let now = engine.clock.now();
            let due = until.is_some_and(|until| now >= until);
            match turn.standing() {
                Standing::Head if followed && due && turn.is_answered() => return Ok(None),
                Standing::Head => break,
                Standing::Failed(error) if error.kind() == ErrorKind::Indeterminate => {
                    // Unknown for the one who asked; our own request was never sent.
                    return Err(error.into_kind(ErrorKind::Unavailable));
                }
                Standing::Failed(error) => return Err(error),
                Standing::Answered if due => return Ok(None),
                Standing::Unanswered if due => {
                    if look_at == until {
                        look_at = Some(now + engine.limit(self.terms.ttl));
                        turn.urge();
                    } else if look_at.is_some_and(|look_at| now >= look_at) {
                        return Err(Error::new(ErrorKind::Unavailable, "no answer within the operation limit"));
                    }
                }
                Standing::Answered | Standing::Unanswered => {}
            }
            followed = true;
            call.waits();
            tokio::select! {
                () = turn.look() => {}
                () = sleep_until(engine, look_at) => {}
                () = engine.closed() => engine.check_open()?,
            }
        }
        self.ask(Some(turn), until, call).await
    }

    /// Asks the store until it grants the lease or `until` has passed; at `until` for the last time.
    async fn ask(
        &self,
        turn: Option<Turn<'_>>,
        until: Option<Moment>,
        call: &mut Call<'_>,
    ) -> Result<Option<Arc<Lease>>> {
        let engine = self.engine;
        let owner = OwnerToken::mint()?;
        let mut undo = Undo::new(Target {
            engine: Arc::clone(engine),
            key: self.key.clone(),
            owner: owner.clone(),
            ttl: self.terms.ttl,
            back_to: None,
            ticket: None,
        });
        let mut armed: Option<Armed> = None;
        let mut naps = None;
        loop {
            engine.check_open()?;
            undo.hold_up_closing();
            engine.check_open()?;
            let last = until.is_some_and(|until| engine.clock.now() >= until);
            let question = turn.as_ref().map(Turn::asking);
            call.asks();
            let (sent, answer) = self.ask_once(&owner, !last, &mut undo).await;
            let contention = match answer {
                Ok(Attempt::Contended(contention)) => contention,
                Ok(Attempt::Acquired(grant)) => {
                    undo.stands = true;
                    if self.terms.is_over(engine, sent, &grant) {
                        // No grant, so no answer for those behind either: the next of them asks.
                        drop(turn);
                        return Err(give_back(engine, undo, self.key, self.terms.ttl, &owner).await);
                    }
                    if let Some(question) = question {
                        question.answered();
                    }
                    // A place that brought us here had to live until now.
                    drop(armed);
                    return self.take(undo, sent, grant).map(Some);
                }
                Err(error) => {
                    if let Some(question) = question {
                        question.failed(error.clone());
                    }
                    let surely_nothing = undo.unsettled == 0 && !undo.stands;
                    return Err(match error.kind() {
                        // This request was not applied, but an earlier one may have been, or a place granted.
                        ErrorKind::Unavailable if !surely_nothing => error.into_kind(ErrorKind::Indeterminate),
                        _ => error,
                    });
                }
            };
            // One that was put off has no answer for those behind it: the lease may be free.
            if let Some(question) = question.filter(|_| !contention.put_off) {
                question.answered();
            }
            if last {
                return Ok(None);
            }
            call.waits();
            let naps = naps.get_or_insert_with(|| Naps::new(engine));
            self.nap(turn.as_ref(), until, contention, &mut armed, &mut undo, naps).await?;
        }
    }

    async fn ask_once(&self, owner: &OwnerToken, waits: bool, undo: &mut Undo) -> (Moment, Result<Attempt>) {
        let engine = self.engine;
        let mut claim = Claim::new(self.key, owner, self.terms.ttl).waits(waits).takes_turns(waits).tie(self.terms.tie);
        claim.holder = self.holder;
        let limit = engine.limit(self.terms.ttl);
        let unsettled = &mut undo.unsettled;
        let ask = || engine.store().acquire(&claim);
        engine.settle_while_open(Operation::Acquire, self.key, limit, unsettled, ask).await
    }

    /// Sleeps until it is worth asking again: a wake-up, a release by this manager, a follower whose time is up, the
    /// end of the present lease, the next poll, or the deadline.
    async fn nap(
        &self,
        turn: Option<&Turn<'_>>,
        until: Option<Moment>,
        contention: Contention,
        armed: &mut Option<Armed>,
        undo: &mut Undo,
        naps: &mut Naps,
    ) -> Result<()> {
        let engine = self.engine;
        match contention.wake {
            Some(wake) => *armed = Some(Armed { wake, spent: false }),
            // The old one stays armed, unless it has fired.
            None => _ = armed.take_if(|armed| armed.spent),
        }
        let in_line = matches!(armed, Some(Armed { wake: Wake::Place(_), .. }));
        undo.stands |= in_line;
        undo.let_close();
        // For some milliseconds, in which nothing but the store knows better.
        // Once: a store that never says anything else is heard no longer than others.
        let was_put_off = std::mem::replace(&mut naps.was_put_off, contention.put_off);
        let put_off = contention.put_off && !was_put_off;
        let trusted = naps.trust() || put_off;
        let rely_on_place = in_line && trusted;
        let started = engine.clock.now();
        let end = contention.retry_after.filter(|_| trusted);
        let end = end.map(|remaining| remaining.saturating_add(Duration::from_millis(1)));
        let pause = if rely_on_place { end } else { Some(end.unwrap_or(Duration::MAX).min(naps.poll())) };
        let ask_at = pause.map(|pause| started + pause).into_iter().chain(until).min();
        let hasty = tokio::select! {
            // The polls go on to become rarer: a key that changes hands, or is renewed, wakes anew each time.
            () = fired(armed), if trusted => HASTY,
            rung = called(turn, !rely_on_place && !put_off) => {
                if rung {
                    naps.polls.restart();
                }
                return Ok(());
            }
            () = sleep_until(engine, ask_at) => if pause == end { SOON } else { Duration::ZERO },
            () = engine.closed() => return engine.check_open(),
        };
        if !put_off {
            naps.slept(engine.clock.now().since(started) < hasty);
        }
        Ok(())
    }

    /// Makes a lease of a grant, unless the manager was closed meanwhile.
    fn take(&self, undo: Undo, sent: Moment, grant: Grant) -> Result<Arc<Lease>> {
        self.engine.check_open()?;
        let terms = Terms { unsettled: undo.unsettled, ..self.terms.clone() };
        hold(undo, sent, grant, &terms)
    }
}

/// Turns an undo into the lease it would have undone, and has it looked after.
pub(crate) fn hold(mut undo: Undo, sent: Moment, grant: Grant, terms: &Terms) -> Result<Arc<Lease>> {
    let Some(target) = undo.target() else {
        return Err(closed_error());
    };
    let (engine, key, owner) = (Arc::clone(&target.engine), target.key.clone(), target.owner.clone());
    let lease = Arc::new(Lease::new(Arc::clone(&engine), key, owner, sent, grant, terms));
    if !engine.renewals.enter(&lease) {
        // Closed between the question and the answer: the undo gives it back.
        return Err(closed_error());
    }
    undo.disarm();
    Ok(lease)
}

/// Gives back a grant that came too late to be one.
async fn give_back(engine: &Engine, mut undo: Undo, key: &Key, ttl: Duration, owner: &OwnerToken) -> Error {
    let mut asked = 0;
    let limit = engine.limit(ttl);
    let (_, given) =
        engine.settle(Operation::Release, key, limit, &mut asked, || engine.store().release(key, owner)).await;
    if given.is_ok() {
        engine.lines.ring(key);
    }
    if given.is_ok() && undo.unsettled == 0 {
        undo.disarm();
        return Error::new(ErrorKind::Unavailable, "the grant came after its own deadline and was given back");
    }
    Error::new(ErrorKind::Indeterminate, "the grant came after its own deadline and is being given back")
}

/// A wake-up that the store armed.
#[derive(Debug)]
struct Armed {
    wake: Wake,
    spent: bool,
}

/// A nap that a wake-up ended sooner than this was a hasty one; busy locks are rarely held for less.
const HASTY: Duration = Duration::from_millis(2);

/// A nap until the end of the present lease was a hasty one if that came sooner than this.
const SOON: Duration = Duration::from_millis(20);

/// So many hasty naps in a row are taken for a busy lock. After that the store's advice is not heard for one pause: its
/// hints may come from a connection that is gone, its places be broken, the lease always be about to end.
const MISLED: u32 = 16;

/// How long the naps of one waiter are.
#[derive(Debug)]
struct Naps {
    /// Between polls.
    polls: Pauses,
    /// While the store's advice is not heard.
    doubts: Pauses,
    /// How many hasty naps in a row led to nothing.
    misled: u32,
    /// Whether the latest refusal was of a key that nobody has.
    was_put_off: bool,
}

impl Naps {
    fn new(engine: &Engine) -> Self {
        let backoff = &engine.settings.backoff;
        Self { polls: backoff.pauses(), doubts: backoff.pauses(), misled: 0, was_put_off: false }
    }

    fn trust(&self) -> bool {
        self.misled < MISLED
    }

    /// How long to sleep if nothing better is known.
    fn poll(&mut self) -> Duration {
        if self.trust() { self.polls.next() } else { self.doubts.next() }
    }

    fn slept(&mut self, hasty: bool) {
        if self.trust() && !hasty {
            self.doubts.restart();
        }
        self.misled = if self.trust() && hasty { self.misled + 1 } else { 0 };
    }
}

async fn fired(armed: &mut Option<Armed>) {
    match armed {
        Some(Armed { wake: Wake::Hint(future) | Wake::Place(future), spent }) if !*spent => {
            future.await;
            *spent = true;
        }
        _ => std::future::pending().await,
    }
}

async fn sleep_until(engine: &Engine, moment: Option<Moment>) {
    match moment {
        Some(moment) => engine.sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

async fn called(turn: Option<&Turn<'_>>, heed_ring: bool) -> bool {
    match turn {
        Some(turn) => turn.called(heed_ring).await,
        None => std::future::pending().await,
    }
}
