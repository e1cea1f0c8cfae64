//! Leases in Redis, Valkey and what speaks their protocol: between machines, in one round trip.
//!
//! Excludes everybody who uses the same server and database. The value of a lock's key is the plain owner token and its
//! ttl is the server's, so a client that takes locks by `SET key token NX PX ttl` and this store exclude each other
//! (with an empty namespace, or by the full name `namespace:key`). Beside each key stands a companion, a hash whose
//! name begins with that of the key, with the counter for fencing tokens and what people may read about the holder; it
//! lasts for 30 days from its first use, or its last extension.
//!
//! A lease ends by the server's wall clock. Fencing tokens count up and are never below the server's time in
//! microseconds, so they go on to grow over a restart without data and over a failover, unless the clock goes back. A
//! server that was restarted without its data, or a replica that took over before it knew of a lease, grants the key
//! again while its holder still works: only the resource can refuse that holder, by its token.
//!
//! All requests of a store go over one connection, or one to each primary of a cluster, which the server also uses to tell of changes: a key that is given
//! back by anybody wakes those who wait for it, and a lease that is removed by somebody else is known as lost at once.
//! Those who wait stand in a line in the companion, so that processes come in turn: a free key is kept for a moment for the
//! first of them. Where the server tells nothing (protocol 2), waiters ask again and again, in no order. A connection that
//! breaks is made anew by the next request.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use redis::{Client, Value};

pub(crate) use self::address::Address;
use self::address::Route;
use self::cluster::Cluster;
use self::fault::Effect;
use self::link::{LOOK_LIMIT, Link, Place, Replicas, Request};
use self::script::Argument::{Bytes, Number};
use self::script::{Argument, Call};
use self::servers::Servers;
use self::side::companion;
use crate::clock::wall_now;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::store::watches::{Doubt, Ear, Watches};
use crate::store::{
    Attempt, BoxFuture, Capabilities, Claim, Contention, Fencing, Grant, Inspection, Listing, Page, Probe, Removed,
    Scope, Store, Waiting, Wake, note,
};
use crate::types::{Key, OwnerToken};

mod address;
mod answer;
mod cluster;
mod fault;
mod held;
mod link;
mod script;
mod sentinel;
mod servers;
mod side;
mod survey;
mod wire;

/// Requests that are sent at once; more of them wait for the answers to these.
const BATCH: usize = 512;

/// How long replicas may take to know of a grant, where the ttl asks for no less.
const REPLICATION_LIMIT: Duration = Duration::from_secs(1);

/// How much later those ask whose turn is not near, so that they are not in the way of the one whose turn it is.
const NOT_YET: Duration = Duration::from_millis(1);

/// A store that keeps leases in Redis or Valkey. Clones share one connection.
#[derive(Clone)]
pub struct RedisStore {
    servers: Arc<Servers>,
    /// Connections for grants that replicas have to know of, and how many of them: waiting blocks a connection, and
    /// renewals must not stand behind it. What the server tells them is heard by nobody, because that includes our own
    /// renewals; the other ones look at what was granted or refused, and hear of it from then on.
    grants: Option<(Arc<Servers>, u32)>,
    watches: Arc<Watches>,
    waiting: Waiting,
    /// What stands for this store in the lines of those who wait: eight characters.
    sign: Arc<str>,
}

impl RedisStore {
    /// Connects to the server that `url` names: `redis://user:password@host:6379/0`, `rediss://` with encryption,
    /// `redis+unix:///path`, `redis+cluster://host,host`, or `redis+sentinel://host,host/name`. A cluster is let be one
    /// of whose servers cannot be reached.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a URL of another form,
    /// [`ErrorKind::Unavailable`] if the server cannot be reached or does not answer
    /// within 5 s, [`ErrorKind::Rejected`] if it refuses the user or does not let it run
    /// scripts.
    ///
    /// # Cancel safety
    ///
    /// Nothing remains if the future is dropped.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_to(Address::parse(url).map_err(while_connecting)?).await
    }

    // Boxed, here and below: what is awaited within goes deeper than a compiler likes to look in one go.
    pub(crate) fn connect_to(address: Address) -> BoxFuture<Result<Self>> {
        Box::pin(async move {
            let watches = Arc::default();
            let servers = Self::servers(&address, &watches).await.map_err(while_connecting)?;
            let mut store = Self::over(servers, watches).await?;
            if let Some(count) = address.wait_replicas {
                let grants = Self::servers(&address, &Arc::default()).await.map_err(while_connecting)?;
                store.grants = Some((Arc::new(grants), count));
            }
            Ok(store)
        })
    }

    /// How many keys somebody in this process is thought to watch: for tests that nothing is left behind.
    #[cfg(feature = "testkit")]
    #[doc(hidden)]
    pub fn watched(&self) -> usize {
        self.watches.len()
    }

    async fn servers(address: &Address, watches: &Arc<Watches>) -> Result<Servers> {
        Ok(match address.route()? {
            Route::One(place) => Servers::One(Link::to(*place, watches)),
            Route::Cluster(seeds) => Servers::Cluster(Cluster::open(seeds, watches).await?),
        })
    }

    /// Connects when it is needed. The server is taken for one that tells of changes.
    pub(crate) fn unconnected(address: &Address) -> Result<Self> {
        let Route::One(place) = address.route().map_err(while_connecting)? else {
            return Err(while_connecting(Error::new(ErrorKind::InvalidConfig, "a cluster is no single server")));
        };
        let watches = Arc::default();
        let servers = Arc::new(Servers::One(Link::to(*place, &watches)));
        Ok(Self { servers, grants: None, watches, waiting: Waiting::Hint, sign: sign()? })
    }

    /// Connects as `client` would, on a connection of its own: to its server and database, with its user and
    /// certificates. The protocol is the newest that the server knows, and there are no limits but the callers' own.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// Nothing remains if the future is dropped.
    pub async fn from_client(client: &Client) -> Result<Self> {
        let watches = Arc::default();
        let place = Place::Server(client.get_connection_info().clone());
        let servers = Servers::One(Link::to(place, &watches));
        Self::over(servers, watches).await
    }

    fn over(servers: Servers, watches: Arc<Watches>) -> BoxFuture<Result<Self>> {
        Box::pin(async move {
            let tells = servers.greet().await.map_err(while_connecting)?;
            let waiting = if tells { Waiting::Hint } else { Waiting::Poll };
            Ok(Self { servers: Arc::new(servers), grants: None, watches, waiting, sign: sign()? })
        })
    }

    /// Runs a script that may grant the claim. The error is for a grant that too few replicas know of, which has to be
    /// given back.
    async fn grant(&self, call: Call<'_>, claim: &Claim<'_>) -> Result<(Value, Option<Error>)> {
        let Some((servers, count)) = &self.grants else {
            return Ok((self.servers.ask(Request::Run(call), Effect::Change).await?, None));
        };
        // Half of what the engine allows a call.
        let replicas = Replicas { count: *count, limit: (claim.ttl / 12).min(REPLICATION_LIMIT) };
        let answer = servers.ask(Request::RunAndWait(call, replicas), Effect::Change).await?;
        let (answer, known) = answer::with_replicas(answer)?;
        let shortfall = match known {
            _ if !answer::is_grant(&answer) => None,
            Ok(known) if known >= u64::from(*count) => None,
            Ok(known) => {
                let message = format!("{known} of {count} replicas knew of the grant in time, so it was given back");
                Some(Error::new(ErrorKind::Unavailable, message))
            }
            Err(error) => Some(fault::of(error, Effect::Change)),
        };
        Ok((answer, shortfall))
    }

    /// Notes that the key is held from now on.
    async fn held(&self, ear: Ear, claim: &Claim<'_>, grant: Grant) -> Grant {
        let (loss, mut doubts) = ear.hold(claim.owner);
        if self.grants.is_some() && self.waiting == Waiting::Hint && doubts.is_empty() {
            doubts.push(Doubt { key: claim.key.as_stored().into(), owner: claim.owner.clone() });
        }
        for doubt in doubts {
            self.servers.settle(doubt).await;
        }
        let mut grant = grant.loss(loss);
        // At least the number of the connection that the grant came over.
        grant.connection = self.connections();
        grant
    }

    /// Resolves once somebody changed a key that was refused.
    fn touched(&self, key: &Key, ear: Ear) -> BoxFuture<()> {
        if self.grants.is_none() {
            return Box::pin(ear.touched());
        }
        let (servers, key) = (Arc::clone(&self.servers), key.as_stored().to_owned());
        // Not given up with the wake-up: a question without an answer makes a connection look broken.
        let looked = tokio::spawn(async move { tokio::time::timeout(LOOK_LIMIT, servers.is_free(&key)).await });
        Box::pin(async move {
            tokio::select! {
                // Given back before anybody listened. Any other answer says nothing.
                Ok(Ok(Ok(true))) = looked => {}
                () = ear.touched() => {}
            }
        })
    }

    fn connections(&self) -> Option<u64> {
        let of_grants = self.grants.as_ref().map_or(Some(0), |(servers, _)| servers.connections());
        Some(self.servers.connections()? + of_grants?)
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
        let (key, companion) = (claim.key.as_stored(), companion(claim.key.as_stored()));
        // Before the request, so that nothing which follows its answer is missed.
        let mut ear = self.watches.listen(claim.key);
        let (held, holder) = (held::held(now(), claim.owner), note::of(claim));
        // Who is not told of a release as it happens cannot come in turn.
        let is_told = self.waiting == Waiting::Hint && self.grants.is_none();
        let sign = if claim.takes_turns && is_told { self.sign.as_bytes() } else { b"" };
        let (owner, ttl) = (Bytes(claim.owner.as_bytes()), Number(millis(claim.ttl)));
        let call = &[owner, ttl, Bytes(&held), Bytes(&holder), Bytes(sign)];
        let (answer, shortfall) = self.grant(script::ACQUIRE.on(&[key, &companion], call), claim).await?;
        if let Some(error) = shortfall {
            let back = self.release(claim.key, claim.owner).await;
            return Err(back.map_or_else(standing, |_| error));
        }
        Ok(match answer::attempt(&answer, claim.ttl)? {
            Ok(grant) => Attempt::Acquired(self.held(ear, claim, grant).await),
            Err(refusal) => {
                let mut contention = Contention::new();
                contention.retry_after = refusal.left;
                contention.put_off = refusal.put_off;
                if refusal.put_off {
                    // Our own release may have been heard of only after it.
                    ear.listen_anew();
                }
                if claim.waits && self.waiting == Waiting::Hint {
                    let touched = self.touched(claim.key, ear);
                    contention = contention.wake(Wake::Hint(Box::pin(async move {
                        touched.await;
                        // The first comes now, and the next has to know at once whether it did.
                        if refusal.before > 1 {
                            tokio::time::sleep(NOT_YET).await;
                        }
                    })));
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
        let released =
            answer::is_one(&self.servers.ask(Request::Delete(key.as_stored(), owner), Effect::Change).await?)?;
        self.watches.released(key, owner);
        Ok(released)
    }

    async fn transfer(&self, from: &OwnerToken, claim: &Claim<'_>) -> Result<Option<Grant>> {
        let (key, companion) = (claim.key.as_stored(), companion(claim.key.as_stored()));
        let ear = self.watches.listen(claim.key);
        let (held, holder) = (held::held(now(), claim.owner), note::of(claim));
        let (keys, call) = ([key, &*companion], transfer(from, claim, &held, &holder));
        let (answer, shortfall) = self.grant(script::TRANSFER.on(&keys, &call), claim).await?;
        if let Some(error) = shortfall {
            let back = Claim { owner: from, ..*claim };
            let held = held::held(now(), from);
            let call = transfer(claim.owner, &back, &held, b"");
            let back = self.servers.ask(Request::Run(script::TRANSFER.on(&keys, &call)), Effect::Change).await;
            return Err(back.map_or_else(standing, |_| error));
        }
        Ok(match answer::grant(&answer, claim.ttl)? {
            Some(grant) => Some(self.held(ear, claim, grant).await),
            None => None,
        })
    }

    async fn force_release(&self, key: &Key, expected: Option<&OwnerToken>) -> Result<Option<Removed>> {
        let companion = companion(key.as_stored());
        let call: &[_] = match expected {
            Some(owner) => &[Bytes(owner.as_bytes())],
            None => &[],
        };
        let keys = [key.as_stored(), &*companion];
        // The server tells this connection nothing of it, so whoever is here has to be told, also without an answer.
        let _touched = Touched { store: self, key };
        let answer = self.servers.ask(Request::Run(script::FORCE_RELEASE.on(&keys, call)), Effect::Change).await?;
        let removed = answer::removed(&answer)?;
        for holder in removed.iter().flat_map(|removed| &removed.holders) {
            self.watches.gone(key, &holder.owner);
        }
        Ok(removed)
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        let companion = companion(key.as_stored());
        let keys = [key.as_stored(), &*companion];
        let answer = self.servers.ask(Request::Run(script::INSPECT.on(&keys, &[])), Effect::Look).await?;
        Ok(Inspection::new(answer::holder(&answer)?.into_iter().collect()))
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<Listing> {
        survey::list(&self.servers, prefix, &page).await
    }

    async fn probe(&self) -> Result<Probe> {
        for link in self.servers.all().await? {
            link.wire().await?;
        }
        // At most the number of the connection that answers.
        let connection = self.connections();
        let mut probe = survey::probe(&self.servers).await?;
        probe.connection = connection;
        Ok(probe)
    }

    async fn close(&self) -> Result<()> {
        self.servers.close();
        if let Some((servers, _)) = &self.grants {
            servers.close();
        }
        Ok(())
    }
}

impl RedisStore {
    async fn extend_at_once(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        let companions: Vec<_> = claims.iter().map(|claim| companion(claim.key.as_stored())).collect();
        let notes: Vec<_> = claims.iter().map(note::of).collect();
        let keys: Vec<_> = claims.iter().zip(&companions).map(|(claim, side)| [claim.key.as_stored(), side]).collect();
        let arguments: Vec<_> = claims
            .iter()
            .zip(&notes)
            .map(|(claim, note)| {
                let (owner, ttl) = (Bytes(claim.owner.as_bytes()), Number(millis(claim.ttl)));
                [owner, ttl, Number(now()), Bytes(note)]
            })
            .collect();
        let calls: Vec<_> = keys.iter().zip(&arguments).map(|(keys, call)| script::EXTEND.on(keys, call)).collect();
        let question = |claim: &Claim<'_>| self.watches.question(claim.key.as_stored(), claim.owner);
        let questions: Vec<_> = claims.iter().map(question).collect();
        let answers = self.servers.run_all(&calls, Effect::Change).await?;
        let (mut grants, mut doubts) = (Vec::with_capacity(claims.len()), Vec::new());
        for ((claim, question), answer) in claims.iter().zip(questions).zip(answers) {
            let grant = answer.and_then(|answer| answer::grant(&answer, claim.ttl));
            if matches!(grant, Ok(None)) {
                doubts.extend(question.and_then(|question| self.watches.lost(&question)));
            }
            grants.push(grant);
        }
        if !doubts.is_empty() {
            // No answer waits for that.
            let servers = Arc::clone(&self.servers);
            tokio::spawn(async move {
                for doubt in doubts {
                    servers.settle(doubt).await;
                }
            });
        }
        Ok(grants)
    }
}

/// A key that this store may have changed, to the surprise of its own waiters and holder: they are told at the end.
struct Touched<'a> {
    store: &'a RedisStore,
    key: &'a Key,
}

impl Drop for Touched<'_> {
    fn drop(&mut self) {
        let doubts = self.store.watches.touched(self.key.as_stored());
        if doubts.is_empty() {
            return;
        }
        let servers = Arc::clone(&self.store.servers);
        // Where there is no runtime any more, nobody listens either.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                for doubt in doubts {
                    servers.settle(doubt).await;
                }
            });
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// What the script of a transfer gets beside its keys.
fn transfer<'a>(from: &'a OwnerToken, to: &Claim<'a>, held: &'a [u8], holder: &'a [u8]) -> [Argument<'a>; 5] {
    let (owner, ttl) = (Bytes(to.owner.as_bytes()), Number(millis(to.ttl)));
    [owner, ttl, Bytes(held), Bytes(holder), Bytes(from.as_bytes())]
}

/// A new sign: of a new owner, so that a forked process has another one.
fn sign() -> Result<Arc<str>> {
    Ok(OwnerToken::mint()?.fingerprint().into())
}

/// A grant that too few replicas know of, and that could not be given back.
fn standing(error: Error) -> Error {
    let message = "too few replicas knew of the grant in time, and it could not be given back";
    Error::new(ErrorKind::Indeterminate, message).with_source(error)
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
