//! The way to the server: a connection that is made when it is needed and made anew when it broke, and one that hears.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::address::Place;
use super::answer;
use super::fault::{self, Effect};
use super::layout::{self, Facts, Names, Statements};
use super::marks::{MARK, Marks};
use super::micros;
use super::sweep::Sweep;
use super::waiters::{Telling, Waiters};
use super::wire::{self, Parameter, Secret, Wire, text};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::store::watches::{Doubt, Watches};

/// How long the server may take to be reached and to let us in, where the caller sets no limit of its own.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long the connections may take to end in order.
const FAREWELL: Duration = Duration::from_millis(250);

/// Leases in doubt that are asked for at once.
const DOUBTS: usize = 256;

/// What a notification begins with.
const RELEASED: char = 'r';
pub(super) const REMOVED: char = 'x';
pub(super) const WAITED: char = 'w';

/// A connection, and what its server is like.
type Standing = (Arc<Wire>, Facts);

/// The way to a server.
pub(super) struct Link {
    pub(super) place: Place,
    pub(super) names: Names,
    pub(super) statements: Statements,
    /// What this store's own notifications are known by.
    pub(super) id: String,
    wire: Mutex<Option<Standing>>,
    /// Held by whoever connects.
    connecting: tokio::sync::Mutex<()>,
    /// Held by an attempt to connect that nobody waits for.
    late: tokio::sync::Mutex<()>,
    /// Tells those who wait for a connection that there is one.
    adopted: Notify,
    pub(super) is_closed: AtomicBool,
    /// No pooler lends our sessions to others.
    pub(super) is_pinned: AtomicBool,
    pub(super) watches: Arc<Watches>,
    pub(super) marks: Marks,
    pub(super) waiters: Waiters,
    pub(super) sweep: Sweep,
    /// What hears of releases.
    pub(super) hearing: Mutex<Option<JoinHandle<()>>>,
    /// Tells it to end.
    pub(super) silence: Arc<Notify>,
}

impl Link {
    /// A way that nobody has gone yet.
    pub(super) fn to(place: Place, names: Names) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            statements: Statements::on(&names),
            place,
            names,
            id: wire::new_id()?[..16].to_owned(),
            wire: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            late: tokio::sync::Mutex::new(()),
            adopted: Notify::new(),
            is_closed: AtomicBool::new(false),
            is_pinned: AtomicBool::new(false),
            watches: Arc::default(),
            marks: Marks::default(),
            waiters: Waiters::default(),
            sweep: Sweep::default(),
            hearing: Mutex::new(None),
            silence: Arc::default(),
        }))
    }

    /// The connection; a new one if there is none that is known to stand.
    pub(super) async fn wire(self: &Arc<Self>) -> Result<Standing> {
        if let Some(wire) = self.standing() {
            return Ok(wire);
        }
        let _turn = self.connecting.lock().await;
        if let Some(wire) = self.standing() {
            return Ok(wire);
        }
        if self.is_closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        let (tell, mut told) = oneshot::channel();
        tokio::spawn(Arc::clone(self).make(tell));
        loop {
            let adopted = self.adopted.notified();
            // Somebody whom nobody waits for any more may be done first.
            if let Some(wire) = self.standing() {
                return Ok(wire);
            }
            tokio::select! {
                made = &mut told => {
                    let made = made.unwrap_or_else(|_| Err(runtime_ends()));
                    // The one that was silent may have answered meanwhile.
                    return made.or_else(|error| self.standing().ok_or(error));
                }
                () = adopted => {}
            }
        }
    }

    /// Makes a connection, also when nobody waits for it any more: that may take longer than a request has time for,
    /// and the next one is glad of it.
    async fn make(self: Arc<Self>, mut tell: oneshot::Sender<Result<Standing>>) {
        let limited = self.limited(self.connect());
        tokio::pin!(limited);
        let made = tokio::select! {
            made = &mut limited => made,
            () = tell.closed() => {
                // One at most, and only for a store that is still there and has none.
                let Ok(_only) = self.late.try_lock() else { return };
                if Arc::strong_count(&self) == 1 || self.standing().is_some() {
                    return;
                }
                limited.await
            }
        };
        tell.send(made.and_then(|made| self.adopt(made))).ok();
    }

    /// Uses this connection from now on, unless another was quicker.
    fn adopt(self: &Arc<Self>, made: Standing) -> Result<Standing> {
        let before = {
            let mut present = self.wire.lock();
            if let Some(standing) = present.as_ref().filter(|(wire, _)| wire.stands()) {
                return Ok(standing.clone());
            }
            present.replace(made.clone())
        };
        // Closed meanwhile: who closes looks after the flag is set.
        if self.is_closed.load(Ordering::Acquire) {
            drop(self.shut());
            return Err(closed());
        }
        self.adopted.notify_waiters();
        if self.is_pinned.load(Ordering::Acquire) {
            made.0.is_ours_alone();
        }
        if before.is_some() {
            // The server may have been restarted, or be another one.
            self.marks.forget();
            // The task of another runtime may have ended with it.
            if self.hearing.lock().as_ref().is_some_and(JoinHandle::is_finished) {
                self.keep_hearing(None);
            }
            self.settle(self.watches.all_touched());
        }
        Ok(made)
    }

    /// Ends the connections for good, in order if that does not take long.
    pub(super) async fn close(&self) {
        let (wire, hearing) = self.shut();
        let over = wire.map(|(wire, _)| wire.over());
        let farewell = async {
            if let Some(over) = over {
                over.await;
            }
            if let Some(hearing) = hearing {
                hearing.await.ok();
            }
        };
        // The system ends them with the process if need be.
        tokio::time::timeout(FAREWELL, farewell).await.ok();
    }

    pub(super) fn shut(&self) -> (Option<Standing>, Option<JoinHandle<()>>) {
        self.is_closed.store(true, Ordering::Release);
        let ended = (self.wire.lock().take(), self.hearing.lock().take());
        self.silence.notify_one();
        self.watches.all_touched();
        ended
    }

    /// One more connection, for a purpose of its own; `ended` is called when the other end is gone.
    pub(super) async fn another(&self, ended: impl Fn() + Send + 'static) -> Result<Wire> {
        if self.is_closed() {
            return Err(closed());
        }
        let told = move |notification: Option<_>| {
            if notification.is_none() {
                ended();
            }
        };
        self.limited(self.place.connect(told)).await
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Runs a statement that changes something.
    pub(super) async fn change(self: &Arc<Self>, statement: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>> {
        let (wire, _) = self.wire().await?;
        wire.ask(statement, parameters).await.map_err(|error| fault::of(error, Effect::Change))
    }

    /// Runs a statement that may be carried out twice, and is if need be: the connection may have ended before, and nobody has read so.
    pub(super) async fn look(self: &Arc<Self>, statement: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>> {
        let (wire, _) = self.wire().await?;
        let answer = match wire.ask(statement, parameters).await {
            Err(error) if !fault::is_answer(&error) => {
                let (wire, _) = self.wire().await?;
                wire.ask(statement, parameters).await
            }
            answer => answer,
        };
        answer.map_err(fault::of_look)
    }

    /// Marks a key as waited for and says so to all; to be sent before a claim. Answers with whether that was done.
    pub(super) async fn mark(&self, wire: &Wire, key: &str) -> bool {
        let (length, sent) = (micros(MARK), Clock::system().now());
        let marking: [Parameter<'_>; 2] = [(&key, Type::TEXT), (&length, Type::INT8)];
        let (marked, told) = tokio::join!(biased;
            wire.ask_aside(&self.statements.mark, &marking),
            self.notify(wire, WAITED, key),
        );
        let is_marked = marked.is_ok() && told.is_ok();
        if is_marked {
            self.marks.add(key, sent);
        }
        is_marked
    }

    /// Tells of a release to whom it may concern; to be sent right behind it.
    pub(super) async fn tell(&self, wire: &Wire, key: &str, telling: Telling) {
        match telling {
            Telling::Nobody => {}
            Telling::All => {
                self.notify(wire, RELEASED, key).await.ok();
            }
            Telling::Unknown => {
                let told = format!("{RELEASED}{}{key}", self.id);
                wire.ask_aside(&self.statements.tell, &[(&key, Type::TEXT), text(&told)]).await.ok();
            }
        }
    }

    /// Tells of a release of which nobody was told, if somebody waits after all.
    pub(super) async fn tell_late(&self, wire: &Wire, key: &str) {
        if self.waiters.released(key) {
            self.notify(wire, RELEASED, key).await.ok();
        }
    }

    /// Tells of a release, and nobody waits for that.
    pub(super) fn tell_soon(self: &Arc<Self>, key: &str) {
        let (link, key) = (Arc::clone(self), key.to_owned());
        tokio::spawn(async move {
            if let Ok((wire, _)) = link.wire().await {
                link.notify(&wire, RELEASED, &key).await.ok();
            }
        });
    }

    /// Tells all others that a lease was removed, whoever waits or holds; if that fails they learn by asking.
    pub(super) async fn tell_removed(self: &Arc<Self>, key: &str) {
        if let Ok((wire, _)) = self.wire().await {
            self.notify(&wire, REMOVED, key).await.ok();
        }
    }

    /// By itself: a notification within the transaction of a change would let only one commit at a time.
    async fn notify(&self, wire: &Wire, kind: char, key: &str) -> std::result::Result<(), tokio_postgres::Error> {
        let (channel, payload) = (self.names.channel(), format!("{kind}{}{key}", self.id));
        wire.ask("SELECT pg_notify($1, $2)", &[text(&channel), text(&payload)]).await.map(drop)
    }

    /// Looks once at leases that may be gone.
    pub(super) fn settle(self: &Arc<Self>, doubts: Vec<Doubt>) {
        if doubts.is_empty() {
            return;
        }
        let link = Arc::clone(self);
        // Where there is no runtime any more, nobody listens either.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                for doubts in doubts.chunks(DOUBTS) {
                    // What cannot be asked now is learned by the next renewal.
                    if link.look_at(doubts).await.is_err() {
                        return;
                    }
                }
            });
        }
    }

    async fn look_at(self: &Arc<Self>, doubts: &[Doubt]) -> Result<()> {
        let mut open = doubts.to_vec();
        while !open.is_empty() {
            let questions = self.watches.questions(&open);
            open.clear();
            if questions.is_empty() {
                break;
            }
            let keys: Vec<_> = questions.iter().map(|question| &*question.doubt.key).collect();
            let owners: Vec<_> = questions.iter().map(|question| Secret::of(&question.doubt.owner)).collect();
            let parameters: [Parameter<'_>; 2] = [(&keys, Type::TEXT_ARRAY), (&owners, Type::BYTEA_ARRAY)];
            for row in self.look(&self.statements.look, &parameters).await? {
                let question = questions.get(answer::place(&row, Effect::Look)?).ok_or_else(fault::unexpected_look)?;
                open.extend(self.watches.lost(question));
            }
        }
        Ok(())
    }

    /// Asks nothing any more on the connection that there is.
    pub(super) fn start_anew(&self) {
        if let Some((wire, _)) = &*self.wire.lock() {
            wire.end();
        }
    }

    fn standing(&self) -> Option<Standing> {
        self.wire.lock().clone().filter(|(wire, _)| wire.stands())
    }

    // Boxed: what is awaited within goes deeper than a compiler likes to look in one go.
    fn connect<'a>(self: &'a Arc<Self>) -> Pin<Box<dyn Future<Output = Result<Standing>> + Send + 'a>> {
        let link = Arc::downgrade(self);
        Box::pin(async move {
            let wire = self.place.connect(move |notification| {
                if let (None, Some(link)) = (notification, link.upgrade()) {
                    // Whoever waits asks again, and so connects.
                    link.watches.all_touched();
                }
            });
            let wire = wire.await?;
            let facts = layout::prepare(&wire, &self.names).await?;
            Ok((Arc::new(wire), facts))
        })
    }

    /// What has to do with connecting, within the time for it.
    pub(super) async fn limited<T>(&self, connecting: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::time::timeout(CONNECT_LIMIT, connecting).await.unwrap_or_else(|_| {
            let message = format!("{} did not answer within {CONNECT_LIMIT:?}", self.place);
            Err(Error::new(ErrorKind::Unavailable, message))
        })
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store is closed")
}

fn runtime_ends() -> Error {
    Error::new(ErrorKind::Unavailable, "the runtime ends")
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(hearing) = self.hearing.get_mut().take() {
            hearing.abort();
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("place", &self.place.to_string()).finish_non_exhaustive()
    }
}
