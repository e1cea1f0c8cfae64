//! Advisory locks of transactions: each held, or waited for within the server, by a connection of its own.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::JoinSet;
use tokio_postgres::Config;

use self::connections::Connections;
use self::seat::{Answer, Seat, Seats};
use self::transaction::Transaction;
use super::address::{Address, Place};
use super::advisory::id;
use super::backend::Backend;
use super::layout::Names;
use super::link::Link;
use super::survey;
use super::{while_connecting, wire};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{
    Attempt, BoxFuture, Capabilities, Claim, Contention, Expiry, Fencing, Grant, Holder, Inspection, Listing, Page,
    Probe, Removed, Scope, Store, TimeAuthority, Waiting, Wake,
};
use crate::types::{Key, OwnerToken};

mod connections;
mod seat;
mod transaction;

/// How many locks are held or waited for at a time, if nothing else was said. A server lets in 100 connections unless that
/// was changed.
const LIMIT: usize = 16;

/// For how long a lock is asked for that is given back at once; it limits what each step of that may take.
const TTL: Duration = Duration::from_secs(30);

/// How long transactions may take to end when the store does.
const FAREWELL: Duration = Duration::from_millis(250);

/// A store that keeps each lock as an advisory lock of a transaction of PostgreSQL. Clones share their connections.
///
/// Who waits stands in the server's own line, in the order in which claims came to the server. Each lock that is held or
/// waited for has a connection, so there are at most 16 of them, or what [`limited_to`](Self::limited_to) says; beyond
/// that a claim is [`ErrorKind::Unavailable`]. Works through a pooler that lends connections to transactions.
///
/// The locks are those of [`PostgresAdvisoryStore`](super::PostgresAdvisoryStore), by the same rule, and exclude each
/// other; what is said there of the ttl and of sessions that the server ends holds here, too. Leases cannot be handed over,
/// listed or removed.
#[derive(Clone)]
pub struct PostgresTransactionStore {
    connections: Arc<Connections>,
    seats: Arc<Seats>,
}

impl PostgresTransactionStore {
    /// Connects to the server that `url` names, as [`PostgresStore::connect`](super::PostgresStore::connect), whose
    /// sequence this store uses for fencing tokens.
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::Rejected`] behind a pooler that lends a connection to each statement.
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

    /// Sets how many locks may be held or waited for at a time, each on a connection of its own: 16 unless set. For a store
    /// that was not used yet.
    #[must_use]
    pub fn limited_to(self, locks: usize) -> Self {
        Self { connections: self.connections.limited_to(locks.max(1)), seats: Arc::default() }
    }

    pub(super) async fn connect_to(address: Address) -> Result<Self> {
        let (place, names) = address.place().map_err(while_connecting)?;
        Self::over(place, names).await
    }

    // Boxed: what is awaited within goes deeper than a compiler likes to look in one go.
    fn over(place: Place, names: Names) -> BoxFuture<Result<Self>> {
        Box::pin(async move {
            let link = Link::to(place, names).map_err(while_connecting)?;
            link.wire().await.map_err(while_connecting)?;
            let begin = link.limited(begin(&link)).await.map_err(while_connecting)?;
            let connections = Connections::to(link, begin, LIMIT);
            // Whether there are transactions: the lock itself does not matter, and is nobody else's.
            let lock = any_lock().map_err(while_connecting)?;
            let (transaction, _) = Transaction::begin(&connections, lock, TTL).await.map_err(while_connecting)?;
            transaction.end().await.map_err(while_connecting)?;
            Ok(Self { connections, seats: Arc::default() })
        })
    }

    /// Runs to its end what must not be left half done, also if it is given up.
    async fn run<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        tokio::spawn(work).await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Indeterminate, "the runtime ended before the answer").with_source(error))
        })
    }

    async fn backend(&self, key: &Key) -> Result<Option<Backend>> {
        Backend::holding(&self.connections.link, id(key)).await
    }
}

/// The number of a lock that nobody takes.
fn any_lock() -> Result<i64> {
    let id = wire::new_id()?;
    let digits = id.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    Ok(digits.unwrap_or_default().cast_signed())
}

/// What begins a transaction, but for its names. A server that can look whether those who wait are still there is told to.
async fn begin(link: &Arc<Link>) -> Result<String> {
    let lines = include_str!("sql/xact_begin.sql").lines().map(str::trim).filter(|line| !line.starts_with("--"));
    let begin = lines.collect::<Vec<_>>().join(" ");
    let watch = include_str!("sql/xact_watch_client.sql");
    match link.look(watch, &[]).await {
        Ok(_) => Ok(format!("{begin}; {watch}")),
        Err(error) if error.kind() == ErrorKind::Rejected => Ok(begin),
        Err(error) => Err(error),
    }
}

#[async_trait]
impl Store for PostgresTransactionStore {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(Scope::Network)
            .expiry(Expiry::Session)
            .time(TimeAuthority::None)
            .waiting(Waiting::Place)
            .fencing(Fencing::BestEffort)
    }

    async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt> {
        loop {
            let seat = self.seats.take(claim.key, claim.owner, id(claim.key));
            let mut given_up = GivenUp(Some((Arc::clone(&self.connections), Arc::clone(&seat))));
            let answer = Self::run(seat.claim(Arc::clone(&self.connections), claim.ttl, claim.waits)).await;
            given_up.0 = None;
            return Ok(match answer? {
                Answer::Granted(held) => Attempt::Acquired(held.grant(claim.ttl)),
                Answer::InLine(Some(place)) => Attempt::Contended(Contention::new().wake(Wake::Place(place))),
                Answer::InLine(None) | Answer::Contended => Attempt::Contended(Contention::new()),
                Answer::Gone => continue,
            });
        }
    }

    async fn extend(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        let mut grants: Vec<_> = claims.iter().map(|_| Ok(None)).collect();
        // Each on its own connection, and none behind another.
        let mut asked = JoinSet::new();
        for (at, claim) in claims.iter().enumerate() {
            if let Some(seat) = self.seats.find(claim.key, claim.owner) {
                asked.spawn(async move { (at, seat.check().await) });
            }
        }
        while let Some(answer) = asked.join_next().await {
            let (at, held) = answer.map_err(|error| {
                Error::new(ErrorKind::Indeterminate, "the runtime ended before the answer").with_source(error)
            })?;
            if let Some((grant, claim)) = grants.get_mut(at).zip(claims.get(at)) {
                *grant = held.map(|held| held.map(|held| held.grant(claim.ttl)));
            }
        }
        Ok(grants)
    }

    async fn release(&self, key: &Key, owner: &OwnerToken) -> Result<bool> {
        match self.seats.find(key, owner) {
            Some(seat) => Self::run(seat.release()).await,
            None => Ok(false),
        }
    }

    async fn transfer(&self, _: &OwnerToken, _: &Claim<'_>) -> Result<Option<Grant>> {
        Err(Error::new(ErrorKind::Unsupported, "a lock of a transaction cannot pass to another one: write mode=table"))
    }

    async fn force_release(&self, key: &Key, _: Option<&OwnerToken>) -> Result<Option<Removed>> {
        self.backend(key).await?.map_or(Ok(None), |backend| Err(backend.keeps_it()))
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        if let Some((owner, fence)) = self.seats.holder(key.as_stored()) {
            return Ok(Inspection::new(vec![Holder::new(owner).fencing(fence)]));
        }
        let holder = self.backend(key).await?.map(Backend::into_holder).transpose()?;
        Ok(Inspection::new(holder.into_iter().collect()))
    }

    async fn list(&self, _: &str, _: Page) -> Result<Listing> {
        Err(Error::new(ErrorKind::Unsupported, "the server knows the numbers of its locks, not their names"))
    }

    async fn probe(&self) -> Result<Probe> {
        survey::probe(&self.connections.link, Waiting::Place).await
    }

    async fn close(&self) -> Result<()> {
        let mut ending: JoinSet<_> = self.seats.clear().into_iter().map(Seat::close).collect();
        // The server ends what is left when the connections are gone.
        tokio::time::timeout(FAREWELL, async { while ending.join_next().await.is_some() {} }).await.ok();
        self.connections.close().await;
        Ok(())
    }
}

/// A claim under way, which may be given up.
struct GivenUp(Option<(Arc<Connections>, Arc<Seat>)>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        if let Some((connections, seat)) = self.0.take() {
            seat.give_up(connections.leaving());
        }
    }
}

impl fmt::Debug for PostgresTransactionStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTransactionStore").field("connections", &self.connections).finish_non_exhaustive()
    }
}
