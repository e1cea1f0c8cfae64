//! A cluster: which server keeps a key, and where to ask when that has changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{ConnectionAddr, ConnectionInfo, RedisError, ServerErrorKind};

use self::map::{Map, named};
use self::together::together;
use self::way::{Way, parts};
use super::link::{Answer, Link, Place, Request};
use super::script::Call;
use super::side::slot;
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::store::watches::Watches;

mod learn;
mod map;
mod together;
mod way;

/// How often a request is sent on, or again, while its key moves. With the pauses, about a second.
const TURNS: u32 = 40;

/// How often without a pause: from an old map to the new keeper, and on to whom the key is just moving to.
const QUICK_TURNS: u32 = 3;

/// The pause before a key is asked for again that is in the middle of a move.
const PAUSE: Duration = Duration::from_millis(25);

/// A cluster, known by some of its servers.
#[derive(Debug)]
pub(super) struct Cluster {
    /// Servers that may be asked for the others.
    seeds: Vec<ConnectionInfo>,
    watches: Arc<Watches>,
    links: Mutex<HashMap<(String, u16), Known>>,
    map: Mutex<Option<Arc<Map>>>,
    /// Held by whoever asks for a new map.
    learning: Arc<tokio::sync::Mutex<()>>,
    /// How often a new map was asked for, and which of these times brought the present one.
    asked: AtomicU64,
    answered: AtomicU64,
    is_closed: AtomicBool,
}

/// A server.
#[derive(Debug)]
struct Known {
    link: Arc<Link>,
    /// When another one last sent a request on to it, which it also does to those that are on no map yet.
    named: Option<Moment>,
}

/// A request under way; if it is given up, its server may be one that is no more.
struct Flight<'a> {
    cluster: &'a Arc<Cluster>,
    landed: bool,
}

impl Cluster {
    pub(super) async fn open(seeds: Vec<ConnectionInfo>, watches: &Arc<Watches>) -> Result<Arc<Self>> {
        let cluster = Arc::new(Self {
            seeds,
            watches: Arc::clone(watches),
            links: Mutex::default(),
            map: Mutex::default(),
            learning: Arc::default(),
            asked: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        });
        cluster.learn().await?;
        Ok(cluster)
    }

    /// Asks where the key is kept, and goes where that server says it has moved to.
    pub(super) async fn ask(self: &Arc<Self>, request: &Request<'_>) -> Answer {
        let mut flight = Flight { cluster: self, landed: false };
        let mut way = Way::to(self.keeper(request.key()).await?);
        let mut has_learned = false;
        for turn in 0..TURNS {
            pause_before(turn).await;
            let answer = way.send(request).await;
            // Perhaps another server has taken over since the map was drawn.
            if !has_learned && is_unreached(&answer) {
                has_learned = true;
                if let Some(successor) = self.learn().await.ok().and_then(|map| way.successor(&map, request.key())) {
                    way = successor;
                    continue;
                }
            }
            flight.landed = true;
            match self.onward(&way, &answer) {
                Some(next) => way = next,
                None => return answer,
            }
        }
        Err(moving())
    }

    /// Runs scripts at once, on each server those whose keys it keeps; one answer for each, in order. A server that
    /// fails, or takes far longer than the others, concerns its own keys alone.
    pub(super) async fn run_all(self: &Arc<Self>, calls: &[Call<'_>]) -> Result<Vec<Answer>> {
        let map = self.map().await?;
        let mut answers: Vec<Option<Answer>> = Vec::with_capacity(calls.len());
        let mut ways = Vec::with_capacity(calls.len());
        for (at, call) in calls.iter().enumerate() {
            let keeper = map.keeper(slot(call.key())).map(|link| ways.push((at, Way::to(link))));
            answers.push(keeper.err().map(Err));
        }
        if ways.len() < calls.len() {
            // Nobody kept a slot when the map was drawn.
            self.look_again();
        }
        let mut has_learned = false;
        for turn in 0..TURNS {
            if ways.is_empty() {
                break;
            }
            pause_before(turn).await;
            let mut flight = Flight { cluster: self, landed: false };
            let parts = together(parts(calls, &ways)).await;
            flight.landed = parts.iter().all(Option::is_some);
            let told: Vec<_> = parts.into_iter().flatten().flatten().collect();
            let successors = if !has_learned && told.iter().any(|(_, _, answer)| is_unreached(answer)) {
                has_learned = true;
                self.learn().await.ok()
            } else {
                None
            };
            let mut onward = Vec::new();
            for (at, way, answer) in told {
                let successor = successors.as_ref().filter(|_| is_unreached(&answer));
                let next = match successor.and_then(|map| way.successor(map, calls[at].key())) {
                    None => self.onward(&way, &answer),
                    successor => successor,
                };
                match next {
                    Some(way) => onward.push((at, way)),
                    None => answers[at] = Some(answer),
                }
            }
            for (at, way) in ways {
                if answers[at].is_none() && !onward.iter().any(|(moved, _)| *moved == at) {
                    let late = format!("{} did not answer in time", way.link.name());
                    answers[at] = Some(Err(Error::new(ErrorKind::Indeterminate, late)));
                }
            }
            ways = onward;
        }
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(moving()))).collect())
    }

    /// The primaries, by the newest map.
    pub(super) async fn primaries(self: &Arc<Self>) -> Result<Vec<Arc<Link>>> {
        Ok(self.learn().await?.servers())
    }

    /// Reaches every primary that can be reached, so that what this user may not do is known at once. Answers whether
    /// they tell of changes.
    pub(super) async fn greet(self: &Arc<Self>) -> Result<bool> {
        let servers = self.map().await?.servers();
        let wires = servers.iter().map(|link| async move { Ok::<_, Error>(link.wire().await?.facts.tells) });
        let (mut tells, mut failed) = (Vec::new(), None);
        for wire in together(wires.collect()).await.into_iter().flatten() {
            match wire {
                Ok(server_tells) => tells.push(server_tells),
                // Its keys have to wait for it, and no others.
                Err(error) if error.kind() == ErrorKind::Unavailable => failed = Some(error),
                Err(error) => return Err(error),
            }
        }
        match failed {
            Some(error) if tells.is_empty() => Err(error),
            _ => Ok(tells.into_iter().all(|server_tells| server_tells)),
        }
    }

    /// The way to the server that keeps a key.
    pub(super) async fn keeper(self: &Arc<Self>, key: &str) -> Result<Arc<Link>> {
        self.map().await?.keeper(slot(key))
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let links: Vec<_> = self.links.lock().values().map(|known| Arc::clone(&known.link)).collect();
        links.into_iter().for_each(|link| link.close());
        self.watches.all_touched();
    }

    /// Where to ask next after this answer; `None` = it is the last word.
    fn onward(self: &Arc<Self>, way: &Way, answer: &Answer) -> Option<Way> {
        let error = match answer {
            Ok(Ok(_)) => return None,
            Ok(Err(error)) => error,
            Err(_) => {
                self.look_again();
                return None;
            }
        };
        match error.kind() {
            // In the middle of a move, with one key here and its companion there.
            redis::ErrorKind::Server(ServerErrorKind::TryAgain) => Some(way.clone()),
            redis::ErrorKind::Server(ServerErrorKind::Ask) => self.way_told(error, way, true),
            redis::ErrorKind::Server(ServerErrorKind::Moved) => {
                self.look_again();
                self.way_told(error, way, false)
            }
            kind => {
                let is_down = [ServerErrorKind::ReadOnly, ServerErrorKind::ClusterDown, ServerErrorKind::MasterDown]
                    .iter()
                    .any(|down| kind == redis::ErrorKind::Server(*down));
                if is_down || error.code().is_none() {
                    self.look_again();
                }
                None
            }
        }
    }

    fn way_told(&self, error: &RedisError, by: &Way, is_asking: bool) -> Option<Way> {
        let (address, _) = error.redirect_node()?;
        let (host, port) = address.rsplit_once(':')?;
        let host = named(host.to_owned(), &by.link.host().unwrap_or_default());
        Some(Way { link: self.link(host, port.parse().ok()?, Some(Clock::system().now())), is_asking })
    }

    /// The way to a server by the name that the cluster gives it.
    fn link(&self, host: String, port: u16, named: Option<Moment>) -> Arc<Link> {
        let mut links = self.links.lock();
        let known = links
            .entry((host.clone(), port))
            .or_insert_with(|| Known { link: self.new_link(self.at(host, port)), named });
        known.named = named.or(known.named);
        Arc::clone(&known.link)
    }

    fn new_link(&self, info: ConnectionInfo) -> Arc<Link> {
        Link::to(Place::Member(info), &self.watches)
    }

    async fn map(self: &Arc<Self>) -> Result<Arc<Map>> {
        let map = self.map.lock().clone();
        match map {
            Some(map) => Ok(map),
            None => self.learn().await,
        }
    }

    /// As the seeds, but there.
    fn at(&self, host: String, port: u16) -> ConnectionInfo {
        let like = &self.seeds[0];
        let address = match like.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        like.clone().set_addr(address)
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if !self.landed {
            self.cluster.look_again();
        }
    }
}

/// Whether the server could not be reached, so that nothing was sent.
fn is_unreached(answer: &Answer) -> bool {
    answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable)
}

async fn pause_before(turn: u32) {
    if turn >= QUICK_TURNS {
        tokio::time::sleep(PAUSE).await;
    }
}

fn moving() -> Error {
    Error::new(ErrorKind::Unavailable, "the key is in the middle of a move between servers: try again soon")
}
