//! How the map of a cluster is learned anew.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;
use tokio::task::JoinSet;

use super::super::fault::{self, Effect};
use super::super::link::{CONNECT_LIMIT, Link};
use super::super::side::{SLOTS, slot};
use super::map::Map;
use super::{Cluster, Known};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};

/// How long the servers of the last map may take to tell the present one before those of the URL are asked.
const MAP_LIMIT: Duration = Duration::from_secs(1);

/// A server's host, and what it tells: who keeps which slots, and whether it sees the cluster well.
type Told = (String, Result<(Value, bool)>);

/// How long a server that is on no map is kept after another one has sent a request on to it: while a slot moves to one
/// that keeps nothing yet, those who wait are told by it.
const UNMAPPED: Duration = Duration::from_secs(60);

impl Cluster {
    /// Asks for a new map, soon and apart from whoever has a reason to doubt the present one.
    pub(in crate::store::redis) fn look_again(self: &Arc<Self>) {
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

    /// A new map: one that was asked for after this was called, by whomever.
    pub(super) async fn learn(self: &Arc<Self>) -> Result<Arc<Map>> {
        let before = self.asked.load(Ordering::Acquire);
        let _turn = self.learning.lock().await;
        let drawn = self.map.lock().clone().filter(|_| self.answered.load(Ordering::Acquire) > before);
        match drawn {
            Some(map) => Ok(map),
            None => self.draw().await,
        }
    }

    async fn draw(self: &Arc<Self>) -> Result<Arc<Map>> {
        let turn = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let map = self.draw_anew().await?;
        self.answered.store(turn, Ordering::Release);
        Ok(map)
    }

    async fn draw_anew(&self) -> Result<Arc<Map>> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the store is closed"));
        }
        let known: Vec<_> = self.links.lock().values().map(|known| Arc::clone(&known.link)).collect();
        let mut asked = ask(known, MAP_LIMIT);
        if let Ok(map) = self.draw_by(&mut asked).await {
            // What the others say must still be heard, or they would be taken for silent.
            asked.detach_all();
            return Ok(self.put_up(map));
        }
        let seeds = self.seeds.iter().map(|seed| self.new_link(seed.clone())).collect();
        Ok(self.put_up(self.draw_by(&mut ask(seeds, CONNECT_LIMIT)).await?))
    }

    /// By the word of the first server that tells of all slots; one that sees the cluster fail, perhaps because it is cut
    /// off, or knows of fewer, perhaps because it joined just now, is believed only if no other tells more.
    async fn draw_by(&self, asked: &mut JoinSet<Told>) -> Result<Map> {
        let (mut second_best, mut failed) = (None, None);
        while let Some(answer) = asked.join_next().await {
            let Ok((host, told)) = answer else { continue };
            match told
                .map(|(slots, is_well)| (Map::read(&slots, &host, |host, port| self.link(host, port, None)), is_well))
            {
                Ok((Some(map), true)) if map.slots() == u32::from(SLOTS) => return Ok(map),
                Ok((Some(map), is_well)) => {
                    let worth = (is_well, map.slots());
                    second_best = second_best.filter(|(other, _)| *other > worth).or(Some((worth, map)));
                }
                Ok((None, _)) => {
                    failed = Some(Error::new(ErrorKind::Unavailable, "the cluster has given out no slots yet"));
                }
                Err(error) => failed = Some(error),
            }
        }
        let none = || Error::new(ErrorKind::Unavailable, "no server of the cluster is known");
        second_best.map(|(_, map)| map).ok_or_else(|| failed.unwrap_or_else(none))
    }

    fn put_up(&self, map: Map) -> Arc<Map> {
        let map = Arc::new(map);
        let before = self.map.lock().replace(Arc::clone(&map));
        let servers = map.servers();
        let are_all_kept = {
            let mut links = self.links.lock();
            let count = links.len();
            let now = Clock::system().now();
            links.retain(|_, Known { link, named }| {
                servers.iter().any(|server| Arc::ptr_eq(server, link))
                    || named.is_some_and(|named| now.since(named) < UNMAPPED)
            });
            links.len() == count
        };
        // Closed meanwhile: who closes looks after the flag is set.
        if self.is_closed.load(Ordering::Acquire) {
            self.close();
        }
        if let Some(before) = before {
            // The new keeper of a key has not been asked to tell of it, and a server that is left tells nothing more.
            let doubts = self.watches.touched_where(|key| !are_all_kept || !map.agrees(&before, slot(key)));
            for link in servers {
                let keeps = |key: &str| map.keeper(slot(key)).is_ok_and(|keeper| Arc::ptr_eq(&keeper, &link));
                link.settle(doubts.iter().filter(|doubt| keeps(&doubt.key)).cloned().collect());
            }
        }
        map
    }
}

/// Asks all of these at once.
fn ask(links: Vec<Arc<Link>>, limit: Duration) -> JoinSet<Told> {
    let asked = links.into_iter().map(|link| async move {
        let told = tokio::time::timeout(limit, slots(&link)).await;
        (link.host().unwrap_or_default(), told.unwrap_or_else(|_| Err(silent(&link))))
    });
    asked.collect()
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

fn silent(link: &Link) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{} did not answer in time", link.name()))
}
