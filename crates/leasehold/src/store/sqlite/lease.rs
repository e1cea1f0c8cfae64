//! Who holds a key: the decisions, each in one transaction.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

use super::fault::Fault;
use super::file::{LeaseFile, Survives};
use super::host::{Host, Now};
use super::row::{Row, fencing, find, find_stored, next_token};
use crate::error::Result;
use crate::store::{Claim, Entry, Grant, Holder, HolderInfo, Listing, Page, Removed, Tie};
use crate::types::{Key, OwnerToken};

/// How many rows one listing reads, whether they still stand or not, before it answers with what it found.
const LONGEST_LISTING: usize = 10_000;

/// A [`Claim`] that can travel to the store's thread.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) key: Key,
    pub(super) owner: OwnerToken,
    pub(super) ttl: Duration,
    pub(super) waits: bool,
    tie: Option<Tie>,
    holder: Option<Arc<HolderInfo>>,
}

impl From<&Claim<'_>> for Request {
    fn from(claim: &Claim<'_>) -> Self {
        Self {
            key: claim.key.clone(),
            owner: claim.owner.clone(),
            ttl: claim.ttl,
            waits: claim.waits,
            tie: claim.tie,
            holder: claim.holder.cloned(),
        }
    }
}

impl Request {
    /// A lease that is tied to a process ends with the machine's power, and one that is tied to nothing does not.
    pub(super) fn survives(&self) -> Survives {
        match self.tie {
            None | Some(Tie::Nothing) => Survives::PowerLoss,
            Some(_) => Survives::Crash,
        }
    }
}

/// What an acquire comes to.
#[derive(Debug)]
pub(super) enum Outcome {
    Granted(Grant),
    Held(Holder),
}

pub(super) fn acquire(file: &LeaseFile, host: &Host, request: &Request) -> Result<Outcome> {
    // Only reads: whoever is refused has not stood in the way of those who write.
    if let Some(holder) = file.read(|db| other_holder(db, host, request))? {
        return Ok(Outcome::Held(holder));
    }
    let tie = request.tie.map(|tie| host.facts(tie));
    file.write(request.survives(), |db| {
        // The clocks are read under the write lock, which may have been long in coming.
        let now = host.now();
        let held = find(db, &request.key)?.and_then(|row| Some((row.remaining(host, now)?, row)));
        Ok(match held {
            Some((remaining, mut row)) if row.is_owned_by(&request.owner) => {
                Outcome::Granted(row.renew(db, host, now, &request.key, remaining.max(request.ttl))?)
            }
            Some((remaining, row)) => Outcome::Held(row.holder(remaining)?),
            None => {
                let mut row = Row {
                    owner: request.owner.as_bytes().to_vec(),
                    token: next_token(db)?,
                    tie: tie.unwrap_or_default(),
                    info: request.holder.clone().unwrap_or_default(),
                    since: now.wall,
                    ..Row::default()
                };
                Outcome::Granted(row.renew(db, host, now, &request.key, request.ttl)?)
            }
        })
    })
}

/// One answer for each claim; all in one transaction.
pub(super) fn extend(file: &LeaseFile, host: &Host, requests: &[Request]) -> Result<Vec<Result<Option<Grant>>>> {
    let ties: Vec<_> = requests.iter().map(|request| request.tie.map(|tie| host.facts(tie))).collect();
    let survives = file.read(|db| survives(db, requests))?;
    file.write(survives, |db| {
        let now = host.now();
        requests
            .iter()
            .zip(ties)
            .map(|(request, tie)| {
                let Some((remaining, mut row)) = held_by(db, host, now, &request.key, &request.owner)? else {
                    return Ok(Ok(None));
                };
                row.tie = tie.unwrap_or(row.tie);
                row.info = request.holder.clone().unwrap_or(row.info);
                Ok(Ok(Some(row.renew(db, host, now, &request.key, remaining.max(request.ttl))?)))
            })
            .collect()
    })
}

pub(super) fn release(file: &LeaseFile, host: &Host, key: &Key, owner: &OwnerToken) -> Result<bool> {
    file.write(Survives::Crash, |db| {
        let Some(row) = find(db, key)?.filter(|row| row.is_owned_by(owner)) else {
            return Ok(false);
        };
        delete(db, key)?;
        Ok(row.remaining(host, host.now()).is_some())
    })
}

pub(super) fn transfer(file: &LeaseFile, host: &Host, from: &OwnerToken, request: &Request) -> Result<Option<Grant>> {
    let tie = request.tie.map(|tie| host.facts(tie));
    file.write(request.survives(), |db| {
        let now = host.now();
        if let Some((remaining, mut row)) = held_by(db, host, now, &request.key, &request.owner)? {
            return Ok(Some(row.renew(db, host, now, &request.key, remaining.max(request.ttl))?));
        }
        let Some((_, mut row)) = held_by(db, host, now, &request.key, from)? else {
            return Ok(None);
        };
        row.owner = request.owner.as_bytes().to_vec();
        row.token = next_token(db)?;
        row.tie = tie.unwrap_or(row.tie);
        row.info = request.holder.clone().unwrap_or(row.info);
        row.since = now.wall;
        Ok(Some(row.renew(db, host, now, &request.key, request.ttl)?))
    })
}

pub(super) fn force_release(
    file: &LeaseFile,
    host: &Host,
    key: &Key,
    expected: Option<&OwnerToken>,
) -> Result<Option<Removed>> {
    file.write(Survives::Crash, |db| {
        let Some(row) = find(db, key)? else {
            return Ok(None);
        };
        let Some(remaining) = row.remaining(host, host.now()) else {
            return Ok(None);
        };
        if expected.is_some_and(|owner| !row.is_owned_by(owner)) {
            return Ok(None);
        }
        delete(db, key)?;
        Ok(Some(Removed::new(vec![row.holder(remaining)?]).fence_floor(fencing(next_token(db)?))))
    })
}

pub(super) fn inspect(file: &LeaseFile, host: &Host, key: &str) -> Result<Option<Holder>> {
    file.read(|db| live(db, host, key))
}

pub(super) fn list(file: &LeaseFile, host: &Host, prefix: &str, page: &Page) -> Result<Listing> {
    file.read(|db| {
        let now = host.now();
        let mut entries: Vec<Entry> = Vec::new();
        let mut last = String::new();
        let mut statement = db.prepare_cached(include_str!("list.sql"))?;
        let mut rows = statement.query([prefix, page.after.as_deref().unwrap_or_default()])?;
        let mut read = 0;
        while let Some(sql) = rows.next()? {
            let key: String = sql.get(0)?;
            if !key.starts_with(prefix) {
                break;
            }
            let row = Row::read(sql)?;
            let remaining = row.remaining(host, now);
            if read == LONGEST_LISTING || remaining.is_some() && entries.len() == page.limit.max(1) {
                return Ok(Listing::new(entries).next(last));
            }
            read += 1;
            last.clone_from(&key);
            if let Some(remaining) = remaining {
                entries.push(Entry::new(key, vec![row.holder(remaining)?]));
            }
        }
        Ok(Listing::new(entries))
    })
}

/// What the commit of an extension has to outlive: as much as the rows that it writes.
pub(super) fn survives(db: &Connection, requests: &[Request]) -> Result<Survives, Fault> {
    for request in requests {
        let is_untied = match request.tie {
            Some(tie) => tie == Tie::Nothing,
            None => find(db, &request.key)?.is_some_and(|row| row.is_untied()),
        };
        if is_untied {
            return Ok(Survives::PowerLoss);
        }
    }
    Ok(Survives::Crash)
}

fn held_by(
    db: &Connection,
    host: &Host,
    now: Now,
    key: &Key,
    owner: &OwnerToken,
) -> rusqlite::Result<Option<(Duration, Row)>> {
    let row = find(db, key)?.filter(|row| row.is_owned_by(owner));
    Ok(row.and_then(|row| Some((row.remaining(host, now)?, row))))
}

fn live(db: &Connection, host: &Host, key: &str) -> Result<Option<Holder>, Fault> {
    let Some(row) = find_stored(db, key)? else {
        return Ok(None);
    };
    let Some(remaining) = row.remaining(host, host.now()) else {
        return Ok(None);
    };
    Ok(Some(row.holder(remaining)?))
}

fn other_holder(db: &Connection, host: &Host, request: &Request) -> Result<Option<Holder>, Fault> {
    Ok(live(db, host, request.key.as_stored())?.filter(|holder| holder.owner != request.owner))
}

fn delete(db: &Connection, key: &Key) -> rusqlite::Result<usize> {
    db.prepare_cached("DELETE FROM leases WHERE key = ?1")?.execute([key.as_stored()])
}
