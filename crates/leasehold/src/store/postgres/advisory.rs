//! Advisory locks of sessions: held by a connection, free as soon as the server notices that it is gone.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use tokio_postgres::Config;

use self::session::{Answer, Ask, Session, pooled};
use self::sessions::Sessions;
use super::address::{Address, Place};
use super::backend::Backend;
use super::ear::Hearing;
use super::layout::Names;
use super::link::Link;
use super::survey;
use super::while_connecting;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{
    Attempt, BoxFuture, Capabilities, Claim, Contention, Expiry, Fencing, Grant, Holder, Inspection, Listing, Page,
    Probe, Removed, Scope, Store, TimeAuthority, Waiting, Wake,
};
use crate::types::{Key, OwnerToken};

mod carry;
mod session;
mod sessions;
mod turn;

/// A store that keeps locks as advisory locks of one session of PostgreSQL. Clones share that session.
///
/// There is no ttl at the server: a lock stands as long as its session, so a holder that hangs keeps it, and one that
/// dies gives it back at once. When the server ends the session, another may hold the lock *before* this process is told:
/// only the resource can refuse a late write, by its token. Leases cannot be handed over, listed or removed.
///
/// The lock of a key is the first 8 bytes of the SHA-256 of `namespace:name` in UTF-8, or of the bare name where the
/// namespace is empty, as a big-endian number, so that others can take it, too:
///
/// ```sql
/// SELECT pg_try_advisory_lock(
///     ('x' || left(encode(sha256(convert_to('leasehold:deploy', 'UTF8')), 'hex'), 16))::bit(64)::bigint
/// )
/// ```
#[derive(Clone)]
pub struct PostgresAdvisoryStore {
    link: Arc<Link>,
    sessions: Arc<Sessions>,
    waiting: Waiting,
}

impl PostgresAdvisoryStore {
    /// Connects to the server that `url` names, as [`PostgresStore::connect`](super::PostgresStore::connect), whose
    /// tables this store uses for fencing tokens and to tell of releases.
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::Rejected`] behind a pooler that lends a connection to each
    /// transaction: a lock would be left behind on it, and be everybody's.
    ///
    /// # Cancel safety
    ///
    /// The tables may have been made if the future is dropped; nothing else remains.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_to(Address::parse(url).map_err(while_connecting)?).await
    }

    /// Connects as `config` says, as [`PostgresStore::from_config`](super::PostgresStore::from_config).
    ///
    /// # Errors
    ///
    /// As there and as [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// As [`connect`](Self::connect).
    pub async fn from_config(config: Config, schema: &str, table: &str) -> Result<Self> {
        let names = Names::default().schema(schema).and_then(|names| names.table(table)).map_err(while_connecting)?;
        Self::over(Place::of(config).map_err(while_connecting)?, names).await
    }

    pub(super) async fn connect_to(address: Address) -> Result<Self> {
        let (place, names) = address.place().map_err(while_connecting)?;
        Self::over(place, names).await
    }

    /// What the server says to a claim. A lock that a session of ours has still which broke is nobody's.
    async fn claimed(&self, claim: &Claim<'_>) -> Result<Answer> {
        let (lock, waits) = (id(claim.key), claim.waits && self.waiting == Waiting::Hint);
        for _ in 0..ATTEMPTS {
            let turn = self.sessions.turn(lock).await?;
            let ask = Ask { key: claim.key.clone(), owner: claim.owner.clone(), ttl: claim.ttl, waits };
            let session = Arc::clone(turn.session());
            // Before the claim: they may end at the server behind it.
            let left = self.sessions.left();
            let answer = session.run(Session::claim(turn, ask)).await?;
            if left.is_empty() || !matches!(answer, Answer::HeldElsewhere(_)) {
                return Ok(answer);
            }
            match Backend::holding(&self.link, lock).await? {
                Some(holder) if left.contains(&holder.pid()) => break,
                Some(_) => return Ok(answer),
                // Whoever had it has given it up since.
                None => {}
            }
        }
        let message = "a session of this store that broke may have it still: the server has not ended that yet";
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    // Boxed: what is awaited within goes deeper than a compiler likes to look in one go.
    fn over(place: Place, names: Names) -> BoxFuture<Result<Self>> {
        Box::pin(async move {
            let link = Link::to(place, names).map_err(while_connecting)?;
            let (_, facts) = link.wire().await.map_err(while_connecting)?;
            let hearing = link.hear().await.map_err(while_connecting)?;
            // Where nothing is known each statement looks whether it came to its session.
            if hearing == Hearing::Pooled {
                return Err(while_connecting(pooled()));
            }
            let may_hear = facts.may_wait && hearing == Hearing::Works;
            let waiting = if may_hear { Waiting::Hint } else { Waiting::Poll };
            let sessions = Sessions::to(&link);
            link.limited(sessions.begin()).await.map_err(while_connecting)?;
            Ok(Self { link, sessions, waiting })
        })
    }
}

/// How often a claim is repeated that met a lock of which nobody knows whose it was.
const ATTEMPTS: u32 = 4;

/// The number of the lock of a key.
pub(super) fn id(key: &Key) -> i64 {
    let digest = Sha256::digest(key.as_stored().as_bytes());
    digest[..8].iter().fold(0, |id, byte| id << 8 | i64::from(*byte))
}

#[async_trait]
impl Store for PostgresAdvisoryStore {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(Scope::Network)
            .expiry(Expiry::Session)
            .time(TimeAuthority::None)
            .waiting(self.waiting)
            .fencing(Fencing::BestEffort)
    }

    async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt> {
        let ear = self.link.watches.listen(claim.key);
        Ok(match self.claimed(claim).await? {
            Answer::Granted(held) => {
                Attempt::Acquired(Grant::new(claim.ttl).fencing(held.fence).loss(held.loss.clone()))
            }
            Answer::HeldHere | Answer::HeldElsewhere(true) if claim.waits => {
                Attempt::Contended(Contention::new().wake(Wake::Hint(Box::pin(ear.touched()))))
            }
            _ => Attempt::Contended(Contention::new()),
        })
    }

    async fn extend(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        let mut grants: Vec<_> = claims.iter().map(|_| Ok(None)).collect();
        for session in self.sessions.live() {
            let holds = |claim: &Claim<'_>| {
                session.held(id(claim.key)).is_some_and(|held| held.key == *claim.key && held.owner == *claim.owner)
            };
            let ours: Vec<_> = (0..claims.len()).filter(|at| holds(&claims[*at])).collect();
            if ours.is_empty() {
                continue;
            }
            let sent = Clock::system().now();
            let checked = session.check().await;
            for at in ours {
                let claim = &claims[at];
                grants[at] = checked.clone().map(|()| {
                    let held = session.prolong(id(claim.key), claim.owner, sent + claim.ttl)?;
                    Some(Grant::new(claim.ttl).fencing(held.fence).loss(held.loss))
                });
            }
        }
        Ok(grants)
    }

    async fn release(&self, key: &Key, owner: &OwnerToken) -> Result<bool> {
        // What others held is free.
        for turn in self.sessions.turns(id(key)) {
            let session = Arc::clone(turn.session());
            if session.run(Session::release(turn, key.clone(), owner.clone())).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn transfer(&self, _: &OwnerToken, _: &Claim<'_>) -> Result<Option<Grant>> {
        Err(Error::new(ErrorKind::Unsupported, "a lock of a session cannot pass to another one: write mode=table"))
    }

    async fn force_release(&self, key: &Key, _: Option<&OwnerToken>) -> Result<Option<Removed>> {
        Backend::holding(&self.link, id(key)).await?.map_or(Ok(None), |backend| Err(backend.keeps_it()))
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        let id = id(key);
        let own = self.sessions.live().iter().find_map(|session| session.held(id).filter(|held| held.key == *key));
        if let Some(held) = own {
            return Ok(Inspection::new(vec![Holder::new(held.owner).fencing(held.fence)]));
        }
        let holder = Backend::holding(&self.link, id).await?.map(Backend::into_holder).transpose()?;
        Ok(Inspection::new(holder.into_iter().collect()))
    }

    async fn list(&self, _: &str, _: Page) -> Result<Listing> {
        Err(Error::new(ErrorKind::Unsupported, "the server knows the numbers of its locks, not their names"))
    }

    async fn probe(&self) -> Result<Probe> {
        survey::probe(&self.link, self.waiting).await
    }

    async fn close(&self) -> Result<()> {
        self.sessions.close();
        self.link.close().await;
        Ok(())
    }
}

impl fmt::Debug for PostgresAdvisoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresAdvisoryStore").field("sessions", &self.sessions).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of the rule would let two versions of a program run at the same time.
    #[test]
    fn the_lock_of_a_key_has_this_number() {
        for (namespace, name, number) in [
            ("leasehold", "deploy", -6_455_676_693_442_334_435),
            ("", "deploy", -5_206_911_306_292_520_180),
            ("leasehold", "ä:\"'", -532_699_325_439_122_325),
        ] {
            assert_eq!(id(&Key::new(namespace, name).unwrap()), number, "{namespace}:{name}");
        }
    }
}
