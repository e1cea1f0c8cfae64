//! Leases in Redis, Valkey and what speaks their protocol: between machines, in one round trip.
//!
//! Excludes everybody who uses the same server and database. The value of a lock's key is the plain owner token and its
//! ttl is the server's, so a client that takes locks by `SET key token NX PX ttl` and this store exclude each other
//! (with an empty namespace, or by the full name `namespace:key`). Beside each key stands a companion, a hash whose
//! name begins with that of the key, with the counter for fencing tokens and what people may read about the holder; it
//! lasts for 30 days at least.
//!
//! A lease ends by the server's wall clock. Fencing tokens grow as long as the server keeps its data; a counter that is
//! lost starts anew above all tokens given, unless the server's clock went back. A server that was restarted without
//! its data, or a replica that took over before it knew of a lease, grants the key again while its holder still works:
//! only the resource can refuse that holder, by its token.
//!
//! All requests of a store go over one connection, which the server also uses to tell of changes: a key that is given
//! back by anybody wakes those who wait for it, and a lease that is removed by somebody else is known as lost at once.
//! Where the server tells nothing (protocol 2), waiters ask again and again. A connection that breaks is made anew by
//! the next request.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use redis::{Client, Cmd, Value};

pub(crate) use self::address::Address;
use self::fault::Effect;
use self::link::{Link, Removal, Wire};
use self::script::Argument::{Bytes, Number};
use self::script::Call;
use self::side::companion;
use self::watches::Ear;
use crate::clock::wall_now;
use crate::error::{Error, Operation, Result};
use crate::store::{
    Attempt, Capabilities, Claim, Contention, Fencing, Grant, Inspection, Listing, Page, Probe, Removed, Scope, Store,
    Waiting, Wake,
};
use crate::types::{Key, OwnerToken};

mod address;
mod answer;
mod fault;
mod link;
mod note;
mod script;
mod side;
mod survey;
mod watches;

/// Requests that are sent at once; more of them wait for the answers to these.
const BATCH: usize = 512;

/// A store that keeps leases in Redis or Valkey. Clones share one connection.
#[derive(Clone)]
pub struct RedisStore {
    link: Arc<Link>,
    waiting: Waiting,
}

impl RedisStore {
    /// Connects to the server that `url` names: `redis://user:password@host:6379/0`, `rediss://` with encryption, or
    /// `redis+unix:///path`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a URL of another form,
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the server cannot be reached or does not answer
    /// within 5 s, [`ErrorKind::Rejected`](crate::ErrorKind::Rejected) if it refuses the user or does not let it run
    /// scripts.
    ///
    /// # Cancel safety
    ///
    /// Nothing remains if the future is dropped.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_to(Address::parse(url).map_err(while_connecting)?).await
    }

    pub(crate) async fn connect_to(address: Address) -> Result<Self> {
        Self::from_client(&address.client().map_err(while_connecting)?).await
    }

    /// Connects as `client` would, on a connection of its own.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// Nothing remains if the future is dropped.
    pub async fn from_client(client: &Client) -> Result<Self> {
        let link = Link::new(client.get_connection_info()).map_err(while_connecting)?;
        let wire = link.wire().await.map_err(while_connecting)?;
        let waiting = if wire.facts.tells { Waiting::Hint } else { Waiting::Poll };
        Ok(Self { link, waiting })
    }

    /// Connects when it is needed. The server is taken for one that tells of changes.
    pub(crate) fn unconnected(address: &Address) -> Result<Self> {
        let client = address.client().map_err(while_connecting)?;
        let link = Link::new(client.get_connection_info()).map_err(while_connecting)?;
        Ok(Self { link, waiting: Waiting::Hint })
    }

    /// Runs a script that changes a key and its companion.
    async fn change(&self, wire: &Wire, call: Call<'_>) -> Result<Value> {
        self.link.run(wire, call, Effect::Change).await
    }

    /// Notes that the key is held from now on.
    fn held(&self, wire: &Wire, ear: Ear, owner: &OwnerToken, grant: Grant) -> Grant {
        let (loss, doubt) = ear.hold(owner);
        self.link.settle(doubt.into_iter().collect());
        grant.loss(loss).connection(wire.number)
    }
}

#[async_trait]
impl Store for RedisStore {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(Scope::Network).waiting(self.waiting).fencing(Fencing::BestEffort).hand_over().lists()
    }

    async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt> {
        let wire = self.link.wire().await?;
        let (key, companion) = (claim.key.as_stored(), companion(claim.key.as_stored()));
        // Before the request, so that nothing which follows its answer is missed.
        let ear = self.link.watches.listen(claim.key);
        let (held, holder) = (note::held(now(), claim.owner), note::of(claim));
        let call = &[
            Bytes(claim.owner.as_bytes()),
            Number(millis(claim.ttl)),
            Bytes(&held),
            Bytes(&holder),
            Number(wire.facts.dates.into()),
        ];
        let answer = self.change(&wire, script::ACQUIRE.on(&[key, &companion], call)).await?;
        Ok(match answer::attempt(&answer, claim.ttl)? {
            Ok(grant) => Attempt::Acquired(self.held(&wire, ear, claim.owner, grant)),
            Err(left) => {
                let mut contention = Contention::new();
                contention.retry_after = left;
                if claim.waits && wire.facts.tells {
                    contention = contention.wake(Wake::Hint(Box::pin(ear.touched())));
                }
                Attempt::Contended(contention)
            }
        })
    }

    async fn extend(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        let mut answers = Vec::with_capacity(claims.len());
        for claims in claims.chunks(BATCH) {
            answers.extend(self.extend_at_once(claims).await?);
        }
        Ok(answers)
    }

    async fn release(&self, key: &Key, owner: &OwnerToken) -> Result<bool> {
        let wire = self.link.wire().await?;
        let call = [Bytes(owner.as_bytes())];
        let keys = [key.as_stored()];
        let by_script = script::RELEASE.on(&keys, &call);
        let answer = match wire.facts.removal {
            Removal::Script => self.change(&wire, by_script).await?,
            removal => match wire.ask(&conditional_delete(removal, key, owner)).await {
                Ok(answer) => answer,
                // Not among this user's rights: what the script needs is.
                Err(error) if error.code() == Some("NOPERM") => self.change(&wire, by_script).await?,
                Err(error) => return Err(fault::of(error, Effect::Change)),
            },
        };
        let released = answer::is_one(&answer)?;
        self.link.watches.released(key, owner);
        Ok(released)
    }

    async fn transfer(&self, from: &OwnerToken, claim: &Claim<'_>) -> Result<Option<Grant>> {
        let wire = self.link.wire().await?;
        let (key, companion) = (claim.key.as_stored(), companion(claim.key.as_stored()));
        let ear = self.link.watches.listen(claim.key);
        let (held, holder) = (note::held(now(), claim.owner), note::of(claim));
        let call = &[
            Bytes(claim.owner.as_bytes()),
            Number(millis(claim.ttl)),
            Bytes(&held),
            Bytes(&holder),
            Number(wire.facts.dates.into()),
            Bytes(from.as_bytes()),
        ];
        let answer = self.change(&wire, script::TRANSFER.on(&[key, &companion], call)).await?;
        Ok(answer::grant(&answer, claim.ttl)?.map(|grant| self.held(&wire, ear, claim.owner, grant)))
    }

    async fn force_release(&self, key: &Key, expected: Option<&OwnerToken>) -> Result<Option<Removed>> {
        let wire = self.link.wire().await?;
        let (key, companion) = (key, companion(key.as_stored()));
        let dates = Number(wire.facts.dates.into());
        let call: &[_] = match expected {
            Some(owner) => &[dates, Bytes(owner.as_bytes())],
            None => &[dates],
        };
        let answer = self.change(&wire, script::FORCE_RELEASE.on(&[key.as_stored(), &companion], call)).await?;
        let removed = answer::removed(&answer)?;
        if removed.is_some() {
            self.link.watches.removed(key);
        }
        Ok(removed)
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        let wire = self.link.wire().await?;
        let companion = companion(key.as_stored());
        let keys = [key.as_stored(), &*companion];
        let answer = self.link.run(&wire, script::INSPECT.on(&keys, &[]), Effect::Look).await?;
        Ok(Inspection::new(answer::holder(&answer)?.into_iter().collect()))
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<Listing> {
        survey::list(&self.link, prefix, &page).await
    }

    async fn probe(&self) -> Result<Probe> {
        survey::probe(&self.link).await
    }

    async fn close(&self) -> Result<()> {
        self.link.close();
        Ok(())
    }
}

impl RedisStore {
    async fn extend_at_once(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        let wire = self.link.wire().await?;
        let companions: Vec<_> = claims.iter().map(|claim| companion(claim.key.as_stored())).collect();
        let notes: Vec<_> = claims.iter().map(note::of).collect();
        let keys: Vec<_> = claims.iter().zip(&companions).map(|(claim, side)| [claim.key.as_stored(), side]).collect();
        let arguments: Vec<_> = claims
            .iter()
            .zip(&notes)
            .map(|(claim, note)| {
                let (owner, ttl) = (Bytes(claim.owner.as_bytes()), Number(millis(claim.ttl)));
                [owner, ttl, Number(now()), Bytes(note), Number(wire.facts.dates.into())]
            })
            .collect();
        let calls: Vec<_> = keys.iter().zip(&arguments).map(|(keys, call)| script::EXTEND.on(keys, call)).collect();
        let answers = self.link.run_all(&wire, &calls, Effect::Change).await?;
        let grants = claims.iter().zip(answers).map(|(claim, answer)| {
            let grant = answer::grant(&answer?, claim.ttl)?;
            if grant.is_none() {
                self.link.watches.gone(claim.key, claim.owner);
            }
            Ok(grant)
        });
        Ok(grants.collect())
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

fn conditional_delete(removal: Removal, key: &Key, owner: &OwnerToken) -> Cmd {
    let mut command = redis::cmd(if removal == Removal::Delifeq { "DELIFEQ" } else { "DELEX" });
    command.arg(key.as_stored());
    if removal == Removal::Delex {
        command.arg("IFEQ");
    }
    command.arg(owner.as_bytes());
    command
}

/// Whole milliseconds, and no less than what was asked for.
fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Milliseconds of the wall clock, for people to read.
fn now() -> u64 {
    millis(wall_now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn while_connecting(error: Error) -> Error {
    error.during(Operation::Connect).on_store("redis")
}
