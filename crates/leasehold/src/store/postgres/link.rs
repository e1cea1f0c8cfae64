//! The way to the server: a connection that is made when it is needed and made anew when it broke, and one that hears.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::address::Place;
use super::answer;
use super::fault::{self, Effect};
use super::layout::{self, Facts, Names, Statements};
use super::marks::Marks;
use super::wire::{self, Parameter, Wire, text};
use crate::error::{Error, ErrorKind, Result};
use crate::store::BoxFuture;
use crate::store::watches::{Doubt, Watches};

/// How long the server may take to be reached and to let us in, where the caller sets no limit of its own.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A notification that has not come after this long does not come: a hundred times of what one takes.
const HEARING: Duration = Duration::from_millis(500);

/// How long after the loss of the connection that hears another one is tried, and again after each failure.
const PAUSE: Duration = Duration::from_secs(1);

/// How long the connections may take to end in order.
const FAREWELL: Duration = Duration::from_millis(250);

/// Leases in doubt that are asked for at once.
const DOUBTS: usize = 256;

/// What a notification begins with.
const RELEASED: char = 'r';
const REMOVED: char = 'x';
const PROBE: char = 'p';

/// A connection, and what its server is like.
type Standing = (Arc<Wire>, Facts);

/// A connection that hears, and what it heard.
type Ear = (Wire, mpsc::UnboundedReceiver<String>);

/// The way to a server.
pub(super) struct Link {
    place: Place,
    pub(super) names: Names,
    pub(super) statements: Statements,
    /// What this store's own notifications are known by.
    id: String,
    wire: Mutex<Option<Standing>>,
    /// Held by whoever connects.
    connecting: tokio::sync::Mutex<()>,
    is_closed: AtomicBool,
    pub(super) watches: Arc<Watches>,
    pub(super) marks: Marks,
    /// What hears of releases.
    hearing: Mutex<Option<JoinHandle<()>>>,
    /// Tells it to end.
    silence: Arc<Notify>,
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
            is_closed: AtomicBool::new(false),
            watches: Arc::default(),
            marks: Marks::default(),
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
            return Err(Error::new(ErrorKind::Closed, "the store is closed"));
        }
        let wire = self.limited(self.connect()).await?;
        let before = self.wire.lock().replace(wire.clone());
        // Closed meanwhile: who closes looks after the flag is set.
        if self.is_closed.load(Ordering::Acquire) {
            drop(self.shut());
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
        Ok(wire)
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

    fn shut(&self) -> (Option<Standing>, Option<JoinHandle<()>>) {
        self.is_closed.store(true, Ordering::Release);
        let ended = (self.wire.lock().take(), self.hearing.lock().take());
        self.silence.notify_one();
        self.watches.all_touched();
        ended
    }

    /// One more connection, for a purpose of its own; `ended` is called when the other end is gone.
    pub(super) async fn another(&self, ended: impl Fn() + Send + 'static) -> Result<Wire> {
        if self.is_closed() {
            return Err(Error::new(ErrorKind::Closed, "the store is closed"));
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

    /// Runs a statement that changes nothing.
    pub(super) async fn look(self: &Arc<Self>, statement: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>> {
        let (wire, _) = self.wire().await?;
        wire.ask(statement, parameters).await.map_err(fault::of_look)
    }

    /// What others are told of a key that was released.
    pub(super) fn released(&self, key: &str) -> String {
        format!("{RELEASED}{}{key}", self.id)
    }

    /// Tells all others that a lease was removed, whoever waits or holds; if that fails they learn by asking.
    pub(super) async fn tell_removed(self: &Arc<Self>, key: &str) {
        let (channel, payload) = (self.names.channel(), format!("{REMOVED}{}{key}", self.id));
        self.change("SELECT pg_notify($1, $2)", &[text(&channel), text(&payload)]).await.ok();
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
        let keys: Vec<_> = doubts.iter().map(|doubt| &*doubt.key).collect();
        let owners: Vec<_> = doubts.iter().map(|doubt| doubt.owner.as_bytes()).collect();
        let parameters: [Parameter<'_>; 2] = [(&keys, Type::TEXT_ARRAY), (&owners, Type::BYTEA_ARRAY)];
        for row in self.look(&self.statements.look, &parameters).await? {
            let doubt = doubts.get(answer::place(&row, Effect::Look)?).ok_or_else(fault::unexpected_look)?;
            self.watches.lost(doubt);
        }
        Ok(())
    }

    /// Begins to hear what others tell. `false` = nothing would ever be heard, as behind a pooler that lends a connection
    /// to each transaction.
    pub(super) async fn hear(self: &Arc<Self>) -> Result<bool> {
        let (wire, _) = self.wire().await?;
        let (ear, mut heard) = self.limited(self.open_ear()).await?;
        let (channel, payload) = (self.names.channel(), format!("{PROBE}{}", self.id));
        wire.ask("SELECT pg_notify($1, $2)", &[text(&channel), text(&payload)]).await.map_err(fault::of_look)?;
        let probe = async {
            while let Some(told) = heard.recv().await {
                if told == payload {
                    return true;
                }
            }
            false
        };
        if !tokio::time::timeout(HEARING, probe).await.unwrap_or(false) {
            return Ok(false);
        }
        stay_open(&ear).await;
        self.keep_hearing(Some((ear, heard)));
        Ok(true)
    }

    fn keep_hearing(self: &Arc<Self>, ear: Option<Ear>) {
        let task = tokio::spawn(hear_on(Arc::downgrade(self), Arc::clone(&self.silence), ear));
        *self.hearing.lock() = Some(task);
        if self.is_closed.load(Ordering::Acquire) {
            drop(self.shut());
        }
    }

    async fn open_ear(&self) -> Result<Ear> {
        let (tell, heard) = mpsc::unbounded_channel();
        let channel = self.names.channel();
        let mut tell = Some(tell);
        let wire = self.place.connect(move |notification| match (notification, &tell) {
            (Some(notification), Some(sender)) => {
                sender.send(notification.payload().to_owned()).ok();
            }
            _ => tell = None,
        });
        let wire = wire.await?;
        wire.run(&format!("LISTEN \"{channel}\"")).await.map_err(fault::of_look)?;
        Ok((wire, heard))
    }

    /// What comes without having been asked for.
    fn heard(self: &Arc<Self>, told: &str) {
        let (Some(kind), Some(from), Some(key)) = (told.get(..1), told.get(1..17), told.get(17..)) else { return };
        // Those of this store know already.
        if from == self.id {
            return;
        }
        let doubt = self.watches.touched(key);
        if kind.starts_with(REMOVED) {
            self.settle(doubt.into_iter().collect());
        }
    }

    fn standing(&self) -> Option<Standing> {
        self.wire.lock().clone().filter(|(wire, _)| wire.stands())
    }

    // Boxed: what is awaited within goes deeper than a compiler likes to look in one go.
    fn connect(self: &Arc<Self>) -> BoxFuture<Result<Standing>> {
        let link = Arc::downgrade(self);
        let connecting = Arc::clone(self);
        Box::pin(async move {
            let wire = connecting.place.connect(move |notification| {
                if let (None, Some(link)) = (notification, link.upgrade()) {
                    // Whoever waits asks again, and so connects.
                    link.watches.all_touched();
                }
            });
            let wire = wire.await?;
            let facts = layout::prepare(&wire, &connecting.names).await?;
            Ok((Arc::new(wire), facts))
        })
    }

    async fn limited<T>(&self, connecting: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::time::timeout(CONNECT_LIMIT, connecting).await.unwrap_or_else(|_| {
            let message = format!("{} did not answer within {CONNECT_LIMIT:?}", self.place);
            Err(Error::new(ErrorKind::Unavailable, message))
        })
    }
}

/// Hears as long as there is somebody to tell, on a new connection where there is none.
async fn hear_on(link: Weak<Link>, silence: Arc<Notify>, mut ear: Option<Ear>) {
    loop {
        if let Some((wire, mut heard)) = ear.take() {
            loop {
                let told = tokio::select! {
                    told = heard.recv() => told,
                    () = silence.notified() => {
                        let over = wire.over();
                        drop(wire);
                        return over.await;
                    }
                };
                let (Some(told), Some(link)) = (told, link.upgrade()) else { break };
                link.heard(&told);
            }
        }
        ear = loop {
            let Some(strong) = link.upgrade().filter(|link| !link.is_closed.load(Ordering::Acquire)) else { return };
            let opened = strong.limited(strong.open_ear()).await;
            // Anything may have been told meanwhile.
            strong.settle(strong.watches.all_touched());
            drop(strong);
            match opened {
                Ok(opened) => {
                    stay_open(&opened.0).await;
                    break Some(opened);
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        };
    }
}

/// Nothing is ever asked here, so that a limit for idle sessions would end it again and again. Where the server knows none,
/// or will not be told, it is opened anew.
async fn stay_open(ear: &Wire) {
    let statement = "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'";
    ear.ask(statement, &[]).await.ok();
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
