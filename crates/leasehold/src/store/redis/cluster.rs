//! A cluster: which server keeps a key, and where to ask when that has changed.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{ConnectionAddr, ConnectionInfo, RedisError, ServerErrorKind, Value};
use tokio::task::JoinSet;

use self::map::{Map, named};
use self::together::together;
use super::fault::{self, Effect};
use super::link::{Answer, CONNECT_LIMIT, Link, Place, Request};
use super::script::Call;
use super::side::slot;
use super::watches::Watches;
use crate::error::{Error, ErrorKind, Result};

mod map;
mod together;

/// How often a request is sent on, or again, while its key moves. With the pauses, about a second.
const TURNS: u32 = 40;

/// How often without a pause: from an old map to the new keeper, and on to whom the key is just moving to.
const QUICK_TURNS: u32 = 3;

/// The pause before a key is asked for again that is in the middle of a move.
const PAUSE: Duration = Duration::from_millis(25);

/// How long the servers of the last map may take to tell the present one before those of the URL are asked.
const MAP_LIMIT: Duration = Duration::from_secs(1);

/// A cluster, known by some of its servers.
#[derive(Debug)]
pub(super) struct Cluster {
    /// Servers that may be asked for the others.
    seeds: Vec<ConnectionInfo>,
    watches: Arc<Watches>,
    links: Mutex<HashMap<(String, u16), Arc<Link>>>,
    map: Mutex<Option<Arc<Map>>>,
    /// Held by whoever asks for a new map.
    learning: Arc<tokio::sync::Mutex<()>>,
    is_closed: AtomicBool,
}

/// Where a request goes.
#[derive(Clone, Debug)]
struct Way {
    link: Arc<Link>,
    /// The key is on its way there.
    is_asking: bool,
}

/// A request under way; if it is given up, its server may be one that is no more.
struct Flight<'a> {
    cluster: &'a Arc<Cluster>,
    landed: bool,
}

type Part<'a> = Pin<Box<dyn Future<Output = Vec<(usize, Way, Answer)>> + Send + 'a>>;

impl Cluster {
    pub(super) async fn open(seeds: Vec<ConnectionInfo>, watches: &Arc<Watches>) -> Result<Arc<Self>> {
        let cluster = Arc::new(Self {
            seeds,
            watches: Arc::clone(watches),
            links: Mutex::default(),
            map: Mutex::default(),
            learning: Arc::default(),
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
        let links: Vec<_> = self.links.lock().values().cloned().collect();
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
        Some(Way { link: self.link(host, port.parse().ok()?), is_asking })
    }

    /// The way to a server by the name that the cluster gives it.
    fn link(&self, host: String, port: u16) -> Arc<Link> {
        let mut links = self.links.lock();
        let link = links.entry((host.clone(), port)).or_insert_with(|| self.new_link(self.at(host, port)));
        Arc::clone(link)
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

    /// Asks for a new map, soon and apart from whoever has a reason to doubt the present one.
    fn look_again(self: &Arc<Self>) {
        let Ok(turn) = Arc::clone(&self.learning).try_lock_owned() else { return };
        let cluster = Arc::clone(self);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _turn = turn;
                // The next request that fails asks again.
                cluster.draw().await.ok();
            });
        }
    }

    /// A new map.
    async fn learn(self: &Arc<Self>) -> Result<Arc<Map>> {
        let _turn = self.learning.lock().await;
        self.draw().await
    }

    async fn draw(self: &Arc<Self>) -> Result<Arc<Map>> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the store is closed"));
        }
        let known: Vec<_> = self.links.lock().values().cloned().collect();
        if let Ok(map) = self.draw_by(known, MAP_LIMIT).await {
            return Ok(self.put_up(map));
        }
        let seeds = self.seeds.iter().map(|seed| self.new_link(seed.clone())).collect();
        Ok(self.put_up(self.draw_by(seeds, CONNECT_LIMIT).await?))
    }

    /// By the word of the first server that tells; one that sees the cluster fail, perhaps because it is cut off, is
    /// believed only if no other tells.
    async fn draw_by(&self, links: Vec<Arc<Link>>, limit: Duration) -> Result<Map> {
        let mut asked = JoinSet::new();
        for link in links {
            asked.spawn(async move {
                let told = tokio::time::timeout(limit, slots(&link)).await;
                (link.host().unwrap_or_default(), told.unwrap_or_else(|_| Err(silent(&link))))
            });
        }
        let (mut second_best, mut failed) = (None, None);
        while let Some(answer) = asked.join_next().await {
            let Ok((host, told)) = answer else { continue };
            match told.map(|(slots, is_well)| (Map::read(&slots, &host, |host, port| self.link(host, port)), is_well)) {
                Ok((Some(map), true)) => return Ok(map),
                Ok((Some(map), false)) => second_best = Some(map),
                Ok((None, _)) => {
                    failed = Some(Error::new(ErrorKind::Unavailable, "the cluster has given out no slots yet"));
                }
                Err(error) => failed = Some(error),
            }
        }
        let none = || Error::new(ErrorKind::Unavailable, "no server of the cluster is known");
        second_best.ok_or_else(|| failed.unwrap_or_else(none))
    }

    fn put_up(&self, map: Map) -> Arc<Map> {
        let map = Arc::new(map);
        let before = self.map.lock().replace(Arc::clone(&map));
        let servers = map.servers();
        self.links.lock().retain(|_, link| servers.iter().any(|server| Arc::ptr_eq(server, link)));
        // Closed meanwhile: who closes looks after the flag is set.
        if self.is_closed.load(Ordering::Acquire) {
            self.close();
        }
        if let Some(before) = before {
            // The new keeper of a key has not been asked to tell of it.
            let doubts = self.watches.touched_where(|key| !map.agrees(&before, slot(key)));
            for link in servers {
                let keeps = |key: &str| map.keeper(slot(key)).is_ok_and(|keeper| Arc::ptr_eq(&keeper, &link));
                link.settle(doubts.iter().filter(|doubt| keeps(&doubt.key)).cloned().collect());
            }
        }
        map
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

impl Way {
    const fn to(link: Arc<Link>) -> Self {
        Self { link, is_asking: false }
    }

    /// The way to whoever keeps the key now, if that is another server.
    fn successor(&self, map: &Map, key: &str) -> Option<Self> {
        map.keeper(slot(key)).ok().filter(|keeper| !Arc::ptr_eq(keeper, &self.link)).map(Self::to)
    }

    async fn send(&self, request: &Request<'_>) -> Answer {
        if self.is_asking { self.link.send_asking(request).await } else { self.link.send(request).await }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if !self.landed {
            self.cluster.look_again();
        }
    }
}

/// One part for each server, and one for each key that is on its way.
fn parts<'a>(calls: &'a [Call<'a>], ways: &[(usize, Way)]) -> Vec<Part<'a>> {
    let mut parts: Vec<Part<'a>> = Vec::new();
    let mut grouped: Vec<(Way, Vec<usize>)> = Vec::new();
    for (at, way) in ways {
        let group = grouped.iter_mut().find(|(known, _)| Arc::ptr_eq(&known.link, &way.link));
        match group.filter(|_| !way.is_asking) {
            Some((_, which)) => which.push(*at),
            None if way.is_asking => {
                let (at, way) = (*at, way.clone());
                parts.push(Box::pin(async move {
                    let answer = way.send(&Request::Run(calls[at])).await;
                    vec![(at, way, answer)]
                }));
            }
            None => grouped.push((way.clone(), vec![*at])),
        }
    }
    parts.extend(grouped.into_iter().map(|(way, which)| -> Part<'a> {
        Box::pin(async move {
            let calls: Vec<_> = which.iter().map(|at| calls[*at]).collect();
            let answers: Vec<Answer> = match way.link.run_all(&calls).await {
                Ok(Ok(answers)) if answers.len() == calls.len() => answers
                    .into_iter()
                    .map(|answer| match answer {
                        Value::ServerError(error) => Ok(Err(error.into())),
                        answer => Ok(Ok(answer)),
                    })
                    .collect(),
                Ok(Ok(_)) => calls.iter().map(|_| Err(fault::unexpected(Effect::Change))).collect(),
                Ok(Err(error)) => calls.iter().map(|_| Ok(Err(error.clone()))).collect(),
                Err(error) => calls.iter().map(|_| Err(error.clone())).collect(),
            };
            which.into_iter().zip(answers).map(|(at, answer)| (at, way.clone(), answer)).collect()
        })
    }));
    parts
}

/// Who keeps which slots by the word of one server, and whether it sees the cluster well.
async fn slots(link: &Arc<Link>) -> Result<(Value, bool)> {
    let mut questions = redis::pipe();
    questions.cmd("CLUSTER").arg("SLOTS");
    questions.cmd("CLUSTER").arg("INFO");
    let answers = link.wire().await?.ask_all(&questions).await.map_err(|error| fault::of(error, Effect::Look))?;
    let [slots, info] = <[Value; 2]>::try_from(answers).map_err(|_| fault::unexpected(Effect::Look))?;
    if let Value::ServerError(error) = slots {
        return Err(fault::of(error.into(), Effect::Look));
    }
    // Where this user may not ask, there is no reason to doubt it.
    let sees_failure = redis::from_redis_value::<String>(info).is_ok_and(|info| info.contains("cluster_state:fail"));
    Ok((slots, !sees_failure))
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

fn silent(link: &Link) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{} did not answer in time", link.name()))
}
