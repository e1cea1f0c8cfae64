//! The sessions of a store: one, and those before it that are not known to have ended.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_postgres::types::Type;

use super::super::link::Link;
use super::super::wire::Parameter;
use super::session::Session;
use super::turn::Turn;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};

/// How many there are at most: where each of them fell silent, one more would, too.
const MOST: usize = 4;

/// How long the server may take to end those that ended here.
const ENDING: Duration = Duration::from_secs(1);

/// How often it is asked meanwhile whether it has.
const PAUSE: Duration = Duration::from_millis(5);

pub(super) struct Sessions {
    link: Arc<Link>,
    all: Mutex<All>,
    /// Held by whoever begins one.
    beginning: tokio::sync::Mutex<()>,
    /// Held by whoever has the server end those that ended here.
    ending: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct All {
    /// In the order of their beginnings.
    live: Vec<Arc<Session>>,
    /// Those that ended here, and may be there still at the server.
    ended: Vec<Arc<Session>>,
    is_closed: bool,
}

impl Sessions {
    pub(super) fn to(link: &Arc<Link>) -> Arc<Self> {
        Arc::new(Self {
            link: Arc::clone(link),
            all: Mutex::default(),
            beginning: tokio::sync::Mutex::default(),
            ending: tokio::sync::Mutex::default(),
        })
    }

    /// A turn at a lock, on the session that has to do with it already, or else on one that stands; a new one if there is
    /// none.
    pub(super) async fn turn(&self, id: i64) -> Result<Turn> {
        loop {
            if let Some(turn) = self.known_turn(id)? {
                self.end_at_server().await;
                return Ok(turn);
            }
            self.begin().await?;
        }
    }

    fn known_turn(&self, id: i64) -> Result<Option<Turn>> {
        let mut all = self.all.lock();
        if all.is_closed {
            return Err(Error::new(ErrorKind::Closed, "the store is closed"));
        }
        all.settle();
        // Two sessions must not ask for one owner at once: either might be granted what the other one is refused.
        let concerned = all.live.iter().find(|session| session.concerns(id));
        let standing = || all.live.iter().rev().find(|session| session.stands());
        let crowded = || all.live.last().filter(|_| all.live.len() >= MOST);
        Ok(concerned.or_else(standing).or_else(crowded).map(|session| session.turn(id)))
    }

    /// Turns at a lock on the sessions that have to do with it.
    pub(super) fn turns(&self, id: i64) -> Vec<Turn> {
        let live = self.live();
        live.iter().filter(|session| session.concerns(id)).map(|session| session.turn(id)).collect()
    }

    pub(super) fn live(&self) -> Vec<Arc<Session>> {
        let mut all = self.all.lock();
        all.settle();
        all.live.clone()
    }

    /// Makes sure that there is one that stands.
    pub(super) async fn begin(&self) -> Result<()> {
        let _turn = self.beginning.lock().await;
        if self.live().iter().any(|session| session.stands()) {
            return Ok(());
        }
        let (wire, _) = self.link.wire().await?;
        // It was silent, and is not any more.
        if self.live().iter().any(|session| session.is_on(&wire)) {
            return Ok(());
        }
        let session = Session::begin(&self.link, &wire).await?;
        let mut all = self.all.lock();
        if all.is_closed {
            session.close();
            return Err(Error::new(ErrorKind::Closed, "the store is closed"));
        }
        all.live.push(session);
        Ok(())
    }

    /// Has the server end those that ended here, and waits until it has: what they hold is nobody's, and must not be told
    /// as somebody else's.
    async fn end_at_server(&self) {
        if self.all.lock().ended.is_empty() {
            return;
        }
        let _turn = self.ending.lock().await;
        let ended = self.all.lock().ended.clone();
        for session in ended {
            let until = session.ending() + ENDING;
            let ((pid, start), id) = (session.backend(), session.id());
            let known: [Parameter<'_>; 3] = [(pid, Type::INT4), (start, Type::TEXT), (id, Type::TEXT)];
            loop {
                match self.link.look(include_str!("../sql/end.sql"), &known).await {
                    Ok(left) if left.is_empty() => {
                        self.all.lock().ended.retain(|other| !Arc::ptr_eq(other, &session));
                        break;
                    }
                    // One that was told so and stands still ends when it goes on: the next one looks again.
                    Ok(_) if Clock::system().now() > until => break,
                    Ok(_) => tokio::time::sleep(PAUSE).await,
                    // Nobody can tell: the next one tries again.
                    Err(_) => return,
                }
            }
        }
    }

    /// The server's processes of those that ended here, and not at the server as far as is known.
    pub(super) fn left(&self) -> Vec<i32> {
        self.all.lock().ended.iter().map(|session| session.backend().0).collect()
    }

    /// Lets all of them go, and begins none any more.
    pub(super) fn close(&self) {
        let mut all = self.all.lock();
        all.is_closed = true;
        for session in std::mem::take(&mut all.live) {
            session.close();
        }
    }
}

impl All {
    /// Sorts out those that ended, and ends those that are not needed.
    fn settle(&mut self) {
        let mut has_one = false;
        for session in self.live.iter().rev() {
            session.settle();
            if session.stands() {
                // There was a doubt, which has gone, and a newer one was begun meanwhile.
                if has_one && session.is_idle() {
                    session.end();
                }
                has_one = true;
            }
        }
        let (ended, live) = std::mem::take(&mut self.live).into_iter().partition(|session| session.has_ended());
        self.live = live;
        self.ended.extend::<Vec<_>>(ended);
        self.ended.drain(..self.ended.len().saturating_sub(MOST));
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.all.lock().live).finish()
    }
}
