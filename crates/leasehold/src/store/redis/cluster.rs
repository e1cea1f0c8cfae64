//! A cluster: which server keeps a key, and where to ask when that has changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{ConnectionAddr, ConnectionInfo, RedisError, ServerErrorKind, Value};

use super::fault;
use super::link::{Answer, Link, Place, Request};
use super::script::Call;
use super::side::{SLOTS, slot};
use crate::error::{Error, ErrorKind, Result};
use crate::store::watches::Watches;

/// How often a request follows a key that moves before it gives up.
const HOPS: usize = 10;

/// The pause before a key is asked for again that is in the middle of a move.
const MOVING: Duration = Duration::from_millis(20);

/// A cluster, known by some of its servers.
#[derive(Debug)]
pub(super) struct Cluster {
    /// Servers that may be asked for the others.
    seeds: Vec<ConnectionInfo>,
    watches: Arc<Watches>,
    map: Mutex<Arc<Map>>,
    /// Held by whoever asks for a new map.
    asking: tokio::sync::Mutex<()>,
    is_stale: AtomicBool,
    is_closed: AtomicBool,
}

/// Which server keeps which slots.
#[derive(Debug, Default)]
struct Map {
    links: HashMap<(String, u16), Arc<Link>>,
    /// Where the primaries' parts begin and end, and who keeps them.
    parts: Vec<(u16, u16, Arc<Link>)>,
}

impl Cluster {
    pub(super) async fn open(seeds: Vec<ConnectionInfo>, watches: &Arc<Watches>) -> Result<Self> {
        let cluster = Self {
            seeds,
            watches: Arc::clone(watches),
            map: Mutex::default(),
            asking: tokio::sync::Mutex::new(()),
            is_stale: AtomicBool::new(true),
            is_closed: AtomicBool::new(false),
        };
        // Every server is reached once, so that what a user may not do is known at once.
        for link in cluster.primaries().await? {
            link.wire().await?;
        }
        Ok(cluster)
    }

    /// Runs scripts at once, on each server those whose keys it keeps; one answer for each, in order.
    pub(super) async fn run_all(&self, calls: &[Call<'_>]) -> Result<Vec<Answer>> {
        let map = self.map().await?;
        let mut parts: Vec<(Arc<Link>, Vec<usize>)> = Vec::new();
        for (at, call) in calls.iter().enumerate() {
            let link = map.keeper(slot(call.key()))?;
            match parts.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &link)) {
                Some((_, which)) => which.push(at),
                None => parts.push((link, vec![at])),
            }
        }
        let mut answers: Vec<Option<Answer>> = calls.iter().map(|_| None).collect();
        let asked = parts.into_iter().map(|(link, which)| async move {
            let calls: Vec<_> = which.iter().map(|at| calls[*at]).collect();
            (which, link.run_all(&calls).await)
        });
        for (which, part) in all(asked).await {
            match part {
                Ok(Ok(part)) if part.len() == which.len() => {
                    for (at, answer) in which.into_iter().zip(part) {
                        answers[at] = Some(Ok(match answer {
                            Value::ServerError(error) => Err(error.into()),
                            answer => Ok(answer),
                        }));
                    }
                }
                Ok(Ok(_)) => return Err(fault::unexpected(fault::Effect::Change)),
                // Known about none of these, and it concerns no other server's.
                Ok(Err(error)) => {
                    self.is_stale.store(true, Ordering::Release);
                    which.into_iter().for_each(|at| answers[at] = Some(Ok(Err(error.clone()))));
                }
                Err(error) => {
                    self.is_stale.store(true, Ordering::Release);
                    which.into_iter().for_each(|at| answers[at] = Some(Err(error.clone())));
                }
            }
        }
        let mut certain = Vec::with_capacity(calls.len());
        for (call, answer) in calls.iter().zip(answers) {
            certain.push(match answer {
                // Whose key has moved goes after it alone.
                Some(Ok(Err(error))) if moves(&error) => self.ask(&Request::Run(*call)).await,
                Some(answer) => answer,
                None => Err(fault::unexpected(fault::Effect::Change)),
            });
        }
        Ok(certain)
    }

    /// The primaries.
    pub(super) async fn primaries(&self) -> Result<Vec<Arc<Link>>> {
        let map = self.map().await?;
        let mut primaries: Vec<Arc<Link>> = Vec::new();
        for (_, _, link) in &map.parts {
            if !primaries.iter().any(|known| Arc::ptr_eq(known, link)) {
                primaries.push(Arc::clone(link));
            }
        }
        Ok(primaries)
    }

    /// The way to the server that keeps a key.
    pub(super) async fn keeper(&self, key: &str) -> Result<Arc<Link>> {
        self.map().await?.keeper(slot(key))
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let map = Arc::clone(&self.map.lock());
        map.links.values().for_each(|link| link.close());
        self.watches.all_touched();
    }

    /// Asks where the key is kept, and goes where that server says it has moved to.
    pub(super) async fn ask(&self, request: &Request<'_>) -> Answer {
        let mut link = self.keeper(request.key()).await?;
        let mut is_asking = false;
        let mut last = None;
        for _ in 0..HOPS {
            let answer = if is_asking { link.send_asking(request).await } else { link.send(request).await };
            let error = match answer {
                Ok(Err(error)) => error,
                Err(error) => {
                    self.is_stale.store(true, Ordering::Release);
                    return Err(error);
                }
                answer => return answer,
            };
            match moved(&error) {
                // In the middle of a move, with one key here and its companion there.
                None if error.kind() == redis::ErrorKind::Server(ServerErrorKind::TryAgain) => {
                    tokio::time::sleep(MOVING).await;
                }
                Some((host, port, for_good)) => {
                    if for_good {
                        self.is_stale.store(true, Ordering::Release);
                    }
                    is_asking = !for_good;
                    link = self.link(host, port).await?;
                }
                None => {
                    let is_refusal = error.code().is_some();
                    let is_demoted = error.kind() == redis::ErrorKind::Server(ServerErrorKind::ReadOnly);
                    if !is_refusal || is_demoted {
                        self.is_stale.store(true, Ordering::Release);
                    }
                    return Ok(Err(error));
                }
            }
            last = Some(error);
        }
        Ok(last.map_or_else(|| Ok(Value::Nil), Err))
    }

    /// The way to a server by the name that the cluster gives it.
    async fn link(&self, host: String, port: u16) -> Result<Arc<Link>> {
        let map = self.map().await?;
        if let Some(link) = map.links.get(&(host.clone(), port)) {
            return Ok(Arc::clone(link));
        }
        // New, and not yet in the map, which is asked for by the next request.
        self.is_stale.store(true, Ordering::Release);
        Ok(Link::to(Place::Server(self.at(host, port)), &self.watches))
    }

    /// The present map; a new one if there is a reason to doubt it.
    async fn map(&self) -> Result<Arc<Map>> {
        if !self.is_stale.load(Ordering::Acquire) {
            return Ok(Arc::clone(&self.map.lock()));
        }
        let _turn = self.asking.lock().await;
        if !self.is_stale.load(Ordering::Acquire) {
            return Ok(Arc::clone(&self.map.lock()));
        }
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the store is closed"));
        }
        let before = Arc::clone(&self.map.lock());
        let mut last = None;
        let known = before.links.values().cloned();
        let seeds = self.seeds.iter().map(|seed| Link::to(Place::Server(seed.clone()), &self.watches));
        for link in known.chain(seeds) {
            match link.ask(redis::cmd("CLUSTER").arg("SLOTS")).await {
                Ok(answer) => match self.read(&answer, &link, &before) {
                    Some(map) => {
                        let map = Arc::new(map);
                        *self.map.lock() = Arc::clone(&map);
                        self.is_stale.store(false, Ordering::Release);
                        if self.is_closed.load(Ordering::Acquire) {
                            self.close();
                        }
                        return Ok(map);
                    }
                    None => last = Some(Error::new(ErrorKind::Unavailable, "the cluster has given out no slots yet")),
                },
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::new(ErrorKind::InvalidConfig, "no server of the cluster is named")))
    }

    /// Reads a map; ways that are known are kept. `None` = it has no parts.
    fn read(&self, answer: &Value, told_by: &Link, before: &Map) -> Option<Map> {
        let Value::Array(rows) = answer else { return None };
        let mut map = Map::default();
        for row in rows {
            let Value::Array(row) = row else { continue };
            let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &**row else { continue };
            let [host, Value::Int(port), ..] = &**primary else { continue };
            let (Ok(first), Ok(last), Ok(port)) = (u16::try_from(*first), u16::try_from(*last), u16::try_from(*port))
            else {
                continue;
            };
            let host = redis::from_redis_value::<String>(host.clone()).unwrap_or_default();
            // A server that does not know its own name is the one that was asked.
            let host = if host.is_empty() || host == "?" { told_by.host().unwrap_or_default() } else { host };
            let known = map.links.get(&(host.clone(), port)).or_else(|| before.links.get(&(host.clone(), port)));
            let link =
                known.cloned().unwrap_or_else(|| Link::to(Place::Server(self.at(host.clone(), port)), &self.watches));
            map.links.insert((host, port), Arc::clone(&link));
            map.parts.push((first, last, link));
        }
        (!map.parts.is_empty()).then_some(map)
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

impl Map {
    fn keeper(&self, slot: u16) -> Result<Arc<Link>> {
        let part = self.parts.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        let missing = || Error::new(ErrorKind::Unavailable, format!("no server keeps slot {slot} of {SLOTS}"));
        part.map(|(_, _, link)| Arc::clone(link)).ok_or_else(missing)
    }
}

/// Where a key has moved to, and whether for good.
fn moved(error: &RedisError) -> Option<(String, u16, bool)> {
    let for_good = match error.kind() {
        redis::ErrorKind::Server(ServerErrorKind::Moved) => true,
        redis::ErrorKind::Server(ServerErrorKind::Ask) => false,
        _ => return None,
    };
    let (address, _) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?, for_good))
}

/// Whether the same request is worth sending to another server, or again.
fn moves(error: &RedisError) -> bool {
    moved(error).is_some() || error.kind() == redis::ErrorKind::Server(ServerErrorKind::TryAgain)
}

/// All of them at once.
async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut is_ready = true;
        for (future, output) in &mut futures {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(value) => *output = Some(value),
                    std::task::Poll::Pending => is_ready = false,
                }
            }
        }
        if is_ready { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    futures.into_iter().filter_map(|(_, output)| output).collect()
}
