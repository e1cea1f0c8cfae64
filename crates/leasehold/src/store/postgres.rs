//! Leases in a table of PostgreSQL: between machines, by the server's clock, in one round trip, through any pooler.
//!
//! Excludes everybody who uses the same table of the same database. A lease is a row, with its owner, its end and its
//! fencing token; the table, a sequence for the tokens and a small table of waiters are made when they are first needed.
//! Every request is one statement of its own, sent unnamed, so that a pooler may lend any connection to it.
//!
//! A lease ends by the server's wall clock. Grants, renewals and transfers are answered when they are on the server's
//! disk, as far as its `synchronous_commit` asks for that. A replica that takes over before it knew of a lease grants the
//! key again while its holder still works, with tokens that may have been given: only a resource that checks tokens can
//! refuse that holder, and not in every case. Synchronous replication prevents it.
//!
//! A store has two connections of its own and never takes one from an application's pool: one for requests, and one on
//! which it is told of releases. The latter hears nothing behind a pooler that lends connections to transactions, which
//! is noticed when connecting; waiters then ask again and again. A connection that breaks is made anew by the next
//! request.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::types::Type;
use tokio_postgres::{Config, Row};

pub(crate) use self::address::Address;
use self::address::{Mode, Place};
pub use self::advisory::PostgresAdvisoryStore;
use self::ear::Hearing;
use self::fault::Effect;
use self::layout::{Facts, Names};
use self::link::Link;
pub use self::transaction::{TransactionLocks, lock_in_transaction, with_lock_in_transaction};
use self::waiters::Telling;
use self::wire::{Parameter, Secret};
pub use self::xact::PostgresTransactionStore;
use crate::error::{Error, Operation, Result};
use crate::store::watches::Ear;
use crate::store::{
    Attempt, BoxFuture, Capabilities, Claim, Contention, Fencing, Grant, Inspection, Listing, Page, Probe, Removed,
    Scope, SharedStore, Store, Waiting, Wake, note,
};
use crate::types::{Key, OwnerToken};

mod address;
mod advisory;
mod answer;
mod backend;
mod ear;
mod fault;
mod frequent;
mod layout;
mod link;
mod marks;
mod sent;
mod survey;
mod sweep;
mod tls;
mod transaction;
mod waiters;
mod wire;
mod xact;

/// Leases that are extended by one statement; more of them wait for the answers to these.
const BATCH: usize = 1000;

/// A store that keeps leases in a table of PostgreSQL. Clones share its connections.
#[derive(Clone)]
pub struct PostgresStore {
    link: Arc<Link>,
    facts: Facts,
    waiting: Waiting,
}

impl PostgresStore {
    /// Connects to the server that `url` names, `postgres://user:password@host:5432/database`, and uses the table
    /// `public.leasehold`, which is made if it is missing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a URL of another form,
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the server cannot be reached or does not answer
    /// within 5 s, [`ErrorKind::Rejected`](crate::ErrorKind::Rejected) if it refuses the user, is a standby, or has no
    /// table of ours and does not let it be made.
    ///
    /// # Cancel safety
    ///
    /// The table may have been made if the future is dropped; nothing else remains.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_to(Address::parse(url).map_err(while_connecting)?).await
    }

    /// Connects as `config` says, on connections of its own, and uses this table of this schema, which is made if it is
    /// missing. A server whose encryption the configuration requires has to be known to the system's authorities. Limits of
    /// TCP that it leaves open (keepalives, `tcp_user_timeout`, `connect_timeout`) are those of [`connect`](Self::connect),
    /// so that a server that has vanished is noticed after about half a minute.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), and [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a name that
    /// the URL's options `schema` and `table` would not take.
    ///
    /// # Cancel safety
    ///
    /// As [`connect`](Self::connect).
    pub async fn from_config(config: Config, schema: &str, table: &str) -> Result<Self> {
        let names = Names::default().schema(schema).and_then(|names| names.table(table)).map_err(while_connecting)?;
        Self::over(Place::of(config).map_err(while_connecting)?, names).await
    }

    /// The statements that make the tables, for a user who may: with the URL's options `schema` and `table`, or
    /// `public` and `leasehold`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a name that those options would not take.
    pub fn tables(schema: &str, table: &str) -> Result<String> {
        Ok(Names::default().schema(schema)?.table(table)?.create())
    }

    async fn connect_to(address: Address) -> Result<Self> {
        let (place, names) = address.place().map_err(while_connecting)?;
        Self::over(place, names).await
    }

    // Boxed: what is awaited within goes deeper than a compiler likes to look in one go.
    fn over(place: Place, names: Names) -> BoxFuture<Result<Self>> {
        Box::pin(async move {
            let link = Link::to(place, names).map_err(while_connecting)?;
            let (_, facts) = link.wire().await.map_err(while_connecting)?;
            let hears = link.hear().await.map_err(while_connecting)? == Hearing::Works && facts.may_wait;
            Ok(Self { link, facts, waiting: if hears { Waiting::Hint } else { Waiting::Poll } })
        })
    }

    /// The claim's answer, from the server.
    async fn claimed(&self, claim: &Claim<'_>) -> Result<Result<Grant, Option<Duration>>> {
        let call = Call::of(claim);
        let (wire, _) = self.link.wire().await?;
        let rows = wire.ask_often(&self.link.statements.acquire, &call.parameters(&[])).await;
        answer::attempt(&rows.map_err(|error| fault::of(error, Effect::Change))?, claim.ttl)
    }

    /// Marks the key as waited for and asks again: a release that the mark came too late for is seen by the claim.
    ///
    /// Answers with whether the mark was made, too.
    async fn marked_and_claimed(&self, claim: &Claim<'_>) -> Result<(bool, Result<Grant, Option<Duration>>)> {
        let (wire, _) = self.link.wire().await?;
        let call = Call::of(claim);
        let claiming = call.parameters(&[]);
        let (is_marked, claimed) = tokio::join!(biased;
            self.link.mark(&wire, call.key),
            wire.ask_often(&self.link.statements.acquire, &claiming),
        );
        let rows = claimed.map_err(|error| fault::of(error, Effect::Change))?;
        Ok((is_marked, answer::attempt(&rows, claim.ttl)?))
    }

    /// Notes that the key is held from now on.
    fn held(&self, ear: Ear, claim: &Claim<'_>, grant: Grant) -> Grant {
        let (loss, doubt) = ear.hold(claim.owner);
        self.link.sweep_now_and_then(claim.key.as_stored());
        self.link.settle(doubt.into_iter().collect());
        grant.loss(loss)
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn capabilities(&self) -> Capabilities {
        let micro = Duration::from_micros(1);
        let capabilities = Capabilities::new(Scope::Network)
            .waiting(self.waiting)
            .fencing(Fencing::BestEffort)
            .ttl_limits(Duration::from_millis(1), micro)
            .hand_over()
            .lists();
        if self.facts.is_durable { capabilities.survives_restart() } else { capabilities }
    }

    async fn acquire(&self, claim: &Claim<'_>) -> Result<Attempt> {
        let key = claim.key.as_stored();
        // Before the request, so that nothing which follows its answer is missed.
        let ear = self.link.watches.listen(claim.key);
        let may_mark = claim.waits && self.waiting == Waiting::Hint;
        // A mark that comes later does not count for a release that came before it.
        let mut is_marked = may_mark && self.link.marks.has(key);
        let mut answer = self.claimed(claim).await?;
        if answer.is_err() && may_mark && !is_marked {
            (is_marked, answer) = self.marked_and_claimed(claim).await?;
        }
        Ok(match answer {
            Ok(grant) => Attempt::Acquired(self.held(ear, claim, grant)),
            Err(left) => {
                let mut contention = Contention::new();
                contention.retry_after = left;
                if is_marked {
                    contention = contention.wake(Wake::Hint(Box::pin(ear.touched())));
                }
                Attempt::Contended(contention)
            }
        })
    }

    async fn extend(&self, claims: &[Claim<'_>]) -> Result<Vec<Result<Option<Grant>>>> {
        let mut answers = Vec::with_capacity(claims.len());
        for claims in claims.chunks(BATCH) {
            answers.extend(self.extend_at_once(claims).await?.into_iter().map(Ok));
        }
        Ok(answers)
    }

    async fn release(&self, key: &Key, owner: &OwnerToken) -> Result<bool> {
        let (wire, _) = self.link.wire().await?;
        let (stored, secret) = (key.as_stored(), Secret::of(owner));
        let releasing: [Parameter<'_>; 2] = [(&stored, Type::TEXT), (&secret, Type::BYTEA)];
        let telling = self.link.waiters.telling(stored);
        let (released, ()) = tokio::join!(biased;
            wire.ask_often(&self.link.statements.release, &releasing),
            self.link.tell(&wire, stored, telling),
        );
        let released = !released.map_err(|error| fault::of(error, Effect::Change))?.is_empty();
        self.link.watches.released(key, owner);
        if released && telling == Telling::Nobody {
            self.link.tell_late(&wire, stored).await;
        }
        Ok(released)
    }

    async fn transfer(&self, from: &OwnerToken, claim: &Claim<'_>) -> Result<Option<Grant>> {
        let ear = self.link.watches.listen(claim.key);
        let (call, from) = (Call::of(claim), Secret::of(from));
        let rows = self.link.change(&self.link.statements.transfer, &call.parameters(&[(&from, Type::BYTEA)])).await?;
        let grant = rows.first().map(|row| answer::grant(row, 0, claim.ttl)).transpose()?;
        Ok(grant.map(|grant| self.held(ear, claim, grant)))
    }

    async fn force_release(&self, key: &Key, expected: Option<&OwnerToken>) -> Result<Option<Removed>> {
        let (stored, expected) = (key.as_stored(), expected.map(Secret::of));
        let parameters: [Parameter<'_>; 2] = [(&stored, Type::TEXT), (&expected, Type::BYTEA)];
        let rows = self.link.change(&self.link.statements.force_release, &parameters).await?;
        let removed = rows.first().map(answer::removed).transpose()?;
        if let Some(removed) = &removed {
            for holder in &removed.holders {
                self.link.watches.gone(key, &holder.owner);
            }
            self.link.watches.touched(stored);
            self.link.tell_removed(stored).await;
        }
        Ok(removed)
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        let stored = key.as_stored();
        let rows = self.link.look(&self.link.statements.inspect, &[(&stored, Type::TEXT)]).await?;
        let holders = rows.iter().map(|row| Ok(answer::holder(row, Effect::Look)?.1));
        Ok(Inspection::new(holders.collect::<Result<_>>()?))
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<Listing> {
        survey::list(&self.link, prefix, &page).await
    }

    async fn probe(&self) -> Result<Probe> {
        survey::probe(&self.link, self.waiting).await
    }

    async fn close(&self) -> Result<()> {
        self.link.close().await;
        Ok(())
    }
}

impl PostgresStore {
    async fn extend_at_once(&self, claims: &[Claim<'_>]) -> Result<Vec<Option<Grant>>> {
        let calls: Vec<_> = claims.iter().map(Call::of).collect();
        let keys: Vec<_> = calls.iter().map(|call| call.key).collect();
        let owners: Vec<_> = calls.iter().map(|call| call.owner).collect();
        let ttls: Vec<_> = calls.iter().map(|call| call.ttl).collect();
        let notes: Vec<_> = calls.iter().map(|call| call.note()).collect();
        let parameters: [Parameter<'_>; 4] = [
            (&keys, Type::TEXT_ARRAY),
            (&owners, Type::BYTEA_ARRAY),
            (&ttls, Type::INT8_ARRAY),
            (&notes, Type::TEXT_ARRAY),
        ];
        let question = |claim: &Claim<'_>| self.link.watches.question(claim.key.as_stored(), claim.owner);
        let questions: Vec<_> = claims.iter().map(question).collect();
        let rows: Vec<Row> = self.link.change(&self.link.statements.extend, &parameters).await?;
        let mut grants = vec![None; claims.len()];
        for row in &rows {
            let at = answer::place(row, Effect::Change)?;
            let (grant, claim) =
                grants.get_mut(at).zip(claims.get(at)).ok_or_else(|| fault::unexpected(Effect::Change))?;
            *grant = Some(answer::grant(row, 1, claim.ttl)?);
        }
        let refused = questions.iter().zip(&grants).filter(|(_, grant)| grant.is_none());
        let doubts = refused.filter_map(|(question, _)| self.link.watches.lost(question.as_ref()?)).collect();
        self.link.settle(doubts);
        Ok(grants)
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// Opens what the address asks for.
pub(crate) async fn open(address: Address) -> Result<SharedStore> {
    Ok(match address.keeps() {
        Mode::Table => PostgresStore::connect_to(address).await?.into(),
        Mode::Advisory => PostgresAdvisoryStore::connect_to(address).await?.into(),
        Mode::Xact => PostgresTransactionStore::connect_to(address).await?.into(),
    })
}

/// A claim as statements take it.
struct Call<'a> {
    key: &'a str,
    owner: Secret<'a>,
    ttl: i64,
    holder: String,
}

impl<'a> Call<'a> {
    fn of(claim: &Claim<'a>) -> Self {
        Self {
            key: claim.key.as_stored(),
            owner: Secret::of(claim.owner),
            ttl: micros(claim.ttl),
            // It was text before it was bytes.
            holder: String::from_utf8_lossy(&note::of(claim)).into_owned(),
        }
    }

    /// What is noted of the holder, if the claim tells anything.
    fn note(&self) -> Option<&str> {
        Some(&*self.holder).filter(|note| !note.is_empty())
    }

    /// Key, owner, ttl and holder, and what follows.
    fn parameters<'b>(&'b self, more: &[Parameter<'b>]) -> Vec<Parameter<'b>> {
        let mut parameters: Vec<Parameter<'b>> = vec![
            (&self.key, Type::TEXT),
            (&self.owner, Type::BYTEA),
            (&self.ttl, Type::INT8),
            (&self.holder, Type::TEXT),
        ];
        parameters.extend_from_slice(more);
        parameters
    }
}

/// Whole microseconds, and no less than what was asked for.
fn micros(length: Duration) -> i64 {
    i64::try_from(length.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX)
}

fn while_connecting(error: Error) -> Error {
    error.during(Operation::Connect).on_store("postgres")
}
