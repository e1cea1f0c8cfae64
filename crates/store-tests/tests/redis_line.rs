//! The line of those who wait, in the companion: who comes first, who is put off, and for how long.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::time::Duration;

use leasehold::store::quorum::Quorum;
use leasehold::store::redis::RedisStore;
use leasehold::store::{Attempt, Claim, Contention, Store};
use leasehold::{ErrorKind, Key, LockManager, OwnerToken};
use redis::Connection;
use store_tests::{Monitor, Site, on_every_server, on_servers_that_push};
use tokio::time::sleep;

on_servers_that_push! {
    a_free_key_waits_for_the_first_in_line
    a_try_is_not_put_off
    who_is_gone_is_waited_for_once
    who_was_put_off_keeps_its_place
    who_comes_late_keeps_its_place
    a_repeat_finds_its_own_grant
    a_wait_that_ends_takes_the_free_lock
    a_full_line_loses_its_oldest
    a_key_that_only_strangers_used_gets_no_companion
    a_server_that_takes_no_writes_answers_as_ever
    a_quorum_is_not_put_off_by_its_nodes
}

mod everywhere {
    use super::*;
    on_every_server! { who_waits_for_nobody_has_no_line }
}

const TTL: Duration = Duration::from_secs(600);
const COMPANION: &str = "leasehold:job:fence{leasehold:job}";

/// Somebody with a store of its own.
struct Actor(RedisStore, OwnerToken);

impl Actor {
    async fn all<const N: usize>(site: &Site) -> [Self; N] {
        let mut actors = Vec::new();
        for _ in 0..N {
            actors.push(Self::of(site).await);
        }
        actors.try_into().ok().unwrap()
    }

    async fn of(site: &Site) -> Self {
        Self(site.store().await, OwnerToken::mint().unwrap())
    }

    /// As the engine asks for one that waits.
    async fn ask(&self) -> Attempt {
        self.0.acquire(&Claim::new(&key(), &self.1, TTL).waits(true).takes_turns(true)).await.unwrap()
    }

    async fn is_granted(&self) {
        assert!(matches!(self.ask().await, Attempt::Acquired(_)));
    }

    async fn is_refused(&self) -> Contention {
        let Attempt::Contended(contention) = self.ask().await else { panic!("granted") };
        assert!(contention.wake.is_some());
        contention
    }

    async fn is_put_off(&self) {
        assert!(self.is_refused().await.retry_after.unwrap() <= Duration::from_millis(10));
    }

    async fn is_contended(&self) {
        assert!(self.is_refused().await.retry_after.unwrap() > Duration::from_secs(60));
    }

    async fn releases(&self) {
        assert!(self.0.release(&key(), &self.1).await.unwrap());
    }
}

fn key() -> Key {
    Key::new("leasehold", "job").unwrap()
}

fn line(client: &mut Connection) -> Option<String> {
    redis::cmd("HGET").arg(&[COMPANION, "line"]).query(client).unwrap()
}

async fn a_free_key_waits_for_the_first_in_line(site: Site) {
    let [holder, first, second] = Actor::all(&site).await;
    holder.is_granted().await;
    first.is_contended().await;
    second.is_contended().await;
    // Asking again keeps the place.
    first.is_contended().await;
    holder.releases().await;
    holder.is_put_off().await;
    second.is_put_off().await;
    first.is_granted().await;
    holder.is_contended().await;
    first.releases().await;
    first.is_put_off().await;
    second.is_granted().await;
    second.releases().await;
    holder.is_granted().await;
}

async fn a_try_is_not_put_off(site: Site) {
    let [holder, first] = Actor::all(&site).await;
    holder.is_granted().await;
    first.is_contended().await;
    holder.releases().await;
    let mut monitor = Monitor::start(site.server().address());
    let attempt = holder.0.acquire(&Claim::new(&key(), &holder.1, TTL)).await.unwrap();
    assert!(matches!(attempt, Attempt::Acquired(_)));
    assert_eq!(monitor.requests().len(), 1);
    holder.releases().await;
    // One that waits, but takes no turns: of a quorum.
    let attempt = holder.0.acquire(&Claim::new(&key(), &holder.1, TTL).waits(true)).await.unwrap();
    assert!(matches!(attempt, Attempt::Acquired(_)));
    // The place is kept.
    holder.releases().await;
    holder.is_put_off().await;
    first.is_granted().await;
}

async fn who_is_gone_is_waited_for_once(site: Site) {
    let [holder, gone, also_gone] = Actor::all(&site).await;
    let locks = site.manager().await;
    locks.lock("warm").acquire().await.unwrap().release().await.unwrap();
    holder.is_granted().await;
    gone.is_contended().await;
    also_gone.is_contended().await;
    drop((gone, also_gone));
    holder.releases().await;
    let mut monitor = Monitor::start(site.server().address());
    for asked in [2, 1, 1] {
        let guard = locks.lock("job").acquire().await.unwrap();
        assert_eq!(monitor.requests().len(), asked);
        guard.release().await.unwrap();
        monitor.requests();
    }
    assert_eq!(line(&mut site.client()).unwrap(), "");
}

async fn who_was_put_off_keeps_its_place(site: Site) {
    let [holder, gone, second, third] = Actor::all(&site).await;
    holder.is_granted().await;
    for actor in [&gone, &second, &third] {
        actor.is_contended().await;
    }
    holder.releases().await;
    second.is_put_off().await;
    third.is_put_off().await;
    // Whoever comes back first has it, and the one who did not come is waited for no more.
    third.is_granted().await;
    third.releases().await;
    third.is_put_off().await;
    second.is_granted().await;
    second.releases().await;
    third.is_granted().await;
}

async fn who_comes_late_keeps_its_place(site: Site) {
    let [holder, late, last] = Actor::all(&site).await;
    holder.is_granted().await;
    late.is_contended().await;
    last.is_contended().await;
    for comes_late in [true, true, false] {
        holder.releases().await;
        holder.is_put_off().await;
        last.is_put_off().await;
        if comes_late {
            holder.is_granted().await;
            late.is_contended().await;
        }
    }
    late.is_granted().await;
    late.releases().await;
    late.is_put_off().await;
    last.is_granted().await;
}

async fn a_repeat_finds_its_own_grant(site: Site) {
    let [holder, first] = Actor::all(&site).await;
    holder.is_granted().await;
    first.is_contended().await;
    // The answer was lost; so may one be that puts off.
    holder.is_granted().await;
    holder.releases().await;
    holder.is_put_off().await;
    holder.is_granted().await;
    holder.is_granted().await;
    holder.releases().await;
    first.is_granted().await;
}

async fn a_wait_that_ends_takes_the_free_lock(site: Site) {
    let [holder, gone] = Actor::all(&site).await;
    holder.is_granted().await;
    gone.is_contended().await;
    holder.releases().await;
    let locks = site.manager().await;
    // Its last attempt comes before it would ask again.
    let guard = locks.lock("job").acquire_within(Duration::from_millis(1)).await.unwrap();
    guard.expect("nobody holds it").release().await.unwrap();
}

async fn a_full_line_loses_its_oldest(site: Site) {
    let [holder, last] = Actor::all(&site).await;
    holder.is_granted().await;
    let full: String = (0..256).map(|number| format!("{number:08x} ")).collect();
    let mut client = site.client();
    redis::cmd("HSET").arg(&[COMPANION, "line", &full]).exec(&mut client).unwrap();
    last.is_contended().await;
    let line = line(&mut client).unwrap();
    assert_eq!(line.len(), full.len());
    assert!(line.starts_with(&full[9..]), "{line}");
}

async fn a_key_that_only_strangers_used_gets_no_companion(site: Site) {
    let mut client = site.client();
    redis::cmd("SET").arg(&["leasehold:job", "somebody", "PX", "600000"]).exec(&mut client).unwrap();
    Actor::of(&site).await.is_contended().await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut client).unwrap();
    assert_eq!(keys, ["leasehold:job"]);
}

async fn a_server_that_takes_no_writes_answers_as_ever(site: Site) {
    let [holder, first, second] = Actor::all(&site).await;
    let mut client = site.client();
    holder.is_granted().await;
    first.is_contended().await;
    holder.releases().await;
    redis::cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).exec(&mut client).unwrap();
    let key = key();
    let claim = Claim::new(&key, &second.1, TTL).waits(true).takes_turns(true);
    assert_eq!(second.0.acquire(&claim).await.unwrap_err().kind(), ErrorKind::Unavailable);
    redis::cmd("CONFIG").arg(&["SET", "maxmemory", "0"]).exec(&mut client).unwrap();
    second.is_put_off().await;
    second.is_granted().await;
}

async fn a_quorum_is_not_put_off_by_its_nodes(site: Site) {
    // The nodes are three databases of one server, which is enough for this.
    let stores = async || {
        let mut stores = Vec::new();
        for database in 0..3 {
            stores.push(RedisStore::connect(&format!("{}/{database}", site.url())).await.unwrap());
        }
        stores
    };
    for node in stores().await {
        let [holder, gone] =
            [Actor(node.clone(), OwnerToken::mint().unwrap()), Actor(node, OwnerToken::mint().unwrap())];
        holder.is_granted().await;
        gone.is_contended().await;
        holder.releases().await;
    }
    let quorum =
        Quorum::builder(stores().await).restart_guard(false).node_timeout(Duration::from_secs(5)).build().unwrap();
    let locks = LockManager::builder(quorum).build().unwrap();
    let mut monitor = Monitor::start(site.server().address());
    let guard = locks.lock("job").acquire().await.unwrap();
    // A majority was enough; the third node may be asked later.
    let mut asked = monitor.requests();
    let claims = |asked: &[String]| asked.iter().filter(|request| request.starts_with("\"EVALSHA\"")).count();
    for _ in 0..6000 {
        if claims(&asked) >= 3 {
            break;
        }
        sleep(Duration::from_millis(5)).await;
        asked.extend(monitor.requests());
    }
    sleep(Duration::from_millis(200)).await;
    asked.extend(monitor.requests());
    // Pushes say nothing of the database, so that one may look whether it still holds.
    assert_eq!(claims(&asked), 3, "{asked:?}");
    guard.release().await.unwrap();
}

async fn who_waits_for_nobody_has_no_line(site: Site) {
    let locks = site.manager().await;
    for _ in 0..2 {
        locks.lock("job").acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(line(&mut site.client()), None);
}
