//! Hearing what others tell: on a connection of its own, which is made anew when it broke.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::answer;
use super::fault::{self, Effect};
use super::link::{Link, REMOVED, WAITED};
use super::waiters;
use super::wire::{Parameter, Wire, text};
use crate::clock::Clock;
use crate::error::Result;

/// A notification that has not come after this long is not waited for any more.
const HEARING: Duration = Duration::from_secs(2);

/// Most notifications are there sooner; later it is worth a look whether there is a pooler.
const AT_ONCE: Duration = Duration::from_millis(20);

/// How often it is looked whether there is a pooler: one that lends the session that was given back last shows at once.
const LOOKS: u32 = 3;

/// How long after the loss of a connection that was there for less another one is tried, and again after each failure.
const PAUSE: Duration = Duration::from_secs(1);

/// What a notification begins with by which a connection is tried.
const PROBE: char = 'p';

/// Where the server knows a limit for idle sessions, it is none, or again what it was.
const STAY: &str = "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'";
const UNDO_STAY: &str =
    "SELECT set_config(name, reset_val, false) FROM pg_settings WHERE name = 'idle_session_timeout'";

/// A connection that hears, and what it heard.
type Ear = (Wire, mpsc::UnboundedReceiver<String>);

/// Whether notifications reach us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hearing {
    /// They do, so each of our connections has a session of its own.
    Works,
    /// They do not, since a pooler lends sessions to single statements or transactions.
    Pooled,
    /// None came, for whatever reason.
    Silent,
}

impl Link {
    /// Begins to hear what others tell, if anything is to be heard.
    pub(super) async fn hear(self: &Arc<Self>) -> Result<Hearing> {
        let (ear, mut heard) = self.limited(self.open_ear()).await?;
        let (channel, payload) = (self.names.channel(), format!("{PROBE}{}", self.id));
        self.limited(self.look("SELECT pg_notify($1, $2)", &[text(&channel), text(&payload)])).await?;
        let (wire, _) = self.wire().await?;
        let mut hears = async |limit| {
            let probe = async {
                while let Some(told) = heard.recv().await {
                    if told == payload {
                        return true;
                    }
                }
                false
            };
            tokio::time::timeout(limit, probe).await.unwrap_or(false)
        };
        let hearing = if hears(AT_ONCE).await {
            Hearing::Works
        } else if matches!(self.limited(is_lent(&wire, &ear)).await, Ok(true)) {
            Hearing::Pooled
        } else if hears(HEARING).await {
            Hearing::Works
        } else {
            Hearing::Silent
        };
        if hearing != Hearing::Works {
            self.waiters.end();
            // What was set there is still set for whoever is lent the session next. It may be another one by now: then
            // that one has lost nothing.
            let undo = format!("UNLISTEN \"{channel}\"; {UNDO_STAY}");
            self.limited(async { ear.run(&undo).await.map_err(fault::of_look) }).await.ok();
        } else {
            // So would the next connections, unless they lead elsewhere.
            if self.place.is_one() {
                self.is_pinned.store(true, Ordering::Release);
                wire.is_ours_alone();
            }
            self.keep_hearing(Some((ear, heard)));
        }
        Ok(hearing)
    }

    pub(super) fn keep_hearing(self: &Arc<Self>, ear: Option<Ear>) {
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
        let listen = format!("LISTEN \"{channel}\"");
        let most = i64::try_from(waiters::MOST).unwrap_or(i64::MAX);
        // Nothing is ever asked here, so that a limit for idle sessions would end it again and again. Where the server
        // knows none, or will not be told, it is opened anew.
        let most: [Parameter<'_>; 1] = [(&most, Type::INT8)];
        let (listens, _, marks) = tokio::join!(biased;
            wire.run(&listen),
            wire.ask(STAY, &[]),
            wire.ask_aside(&self.statements.waiting, &most),
        );
        listens.map_err(fault::of_look)?;
        // From here on each further mark is heard.
        self.waiters.begin(marks.ok().and_then(|rows| waiting(&rows)));
        Ok((wire, heard))
    }

    /// What comes without having been asked for.
    fn heard(self: &Arc<Self>, told: &str) {
        let (Some(kind), Some(from), Some(key)) = (told.get(..1), told.get(1..17), told.get(17..)) else { return };
        // Those of this store know already.
        if from == self.id {
            return;
        }
        if kind.starts_with(WAITED) {
            if self.waiters.marked(key) {
                self.tell_soon(key);
            }
            return;
        }
        let doubt = self.watches.touched(key);
        if kind.starts_with(REMOVED) {
            self.settle(doubt.into_iter().collect());
        }
    }
}

/// The keys that are waited for, and how long that counts; `None` = too many.
fn waiting(rows: &[Row]) -> Option<Vec<(String, Duration)>> {
    let known = rows.len() < waiters::MOST;
    let read = |row: &Row| {
        let left: i64 = row.try_get(1).ok()?;
        Some((row.try_get(0).ok()?, Duration::from_micros(u64::try_from(left).unwrap_or(0))))
    };
    known.then(|| rows.iter().map(read).collect())?
}

/// Whether one session served both connections, or several served one: then they are lent.
async fn is_lent(one: &Wire, other: &Wire) -> Result<bool> {
    let first = session(one).await?;
    for _ in 0..LOOKS {
        if session(other).await? == first || session(one).await? != first {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The server's process, and since when it is there: what two servers have not in common either.
async fn session(wire: &Wire) -> Result<(i32, String)> {
    let statement = "SELECT pg_backend_pid(), \
        coalesce((SELECT backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()), '')";
    let rows = wire.ask(statement, &[]).await.map_err(fault::of_look)?;
    let row = rows.first().ok_or_else(fault::unexpected_look)?;
    Ok((answer::get(row, 0, Effect::Look)?, answer::get(row, 1, Effect::Look)?))
}

/// Hears as long as there is somebody to tell, on a new connection where there is none.
async fn hear_on(link: Weak<Link>, silence: Arc<Notify>, mut ear: Option<Ear>) {
    loop {
        if let Some((wire, mut heard)) = ear.take() {
            let opened = Clock::system().now();
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
            if let Some(link) = link.upgrade() {
                link.waiters.end();
            }
            // One that ends at once would do so again.
            if Clock::system().now().since(opened) < PAUSE && pauses(&silence).await {
                return;
            }
        }
        let Some(strong) = link.upgrade().filter(|link| !link.is_closed.load(Ordering::Acquire)) else { return };
        let opened = strong.limited(strong.open_ear()).await;
        // Anything may have been told meanwhile.
        strong.settle(strong.watches.all_touched());
        drop(strong);
        ear = opened.ok();
        if ear.is_none() && pauses(&silence).await {
            return;
        }
    }
}

/// Waits a little; `true` = there is no use in going on.
async fn pauses(silence: &Notify) -> bool {
    tokio::time::timeout(PAUSE, silence.notified()).await.is_ok()
}
