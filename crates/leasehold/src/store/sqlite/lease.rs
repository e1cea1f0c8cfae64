//! Who holds a key: the decisions, each in one transaction, and the row that keeps their outcome.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params};

use super::file::{Fault, LeaseFile};
use super::host::{Host, Now, TieFacts, nanos, wall_time};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Claim, Entry, Grant, Holder, HolderInfo, Listing, Page, Removed, Tie};
use crate::types::{FencingToken, Key, OwnerToken};

/// A [`Claim`] that can travel to the store's thread.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) key: Key,
    pub(super) owner: OwnerToken,
    pub(super) ttl: Duration,
    pub(super) waits: bool,
    tie: Option<Tie>,
    holder: Option<HolderInfo>,
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
    file.write(|db| {
        // The clocks are read under the write lock, which may have been long in coming.
        let now = host.now();
        let held = find(db, &request.key)?.and_then(|row| Some((row.remaining(host, now)?, row)));
        Ok(match held {
            Some((remaining, mut row)) if row.is_owned_by(&request.owner) => Outcome::Granted(
                row.renew(db, host, now, &request.key, remaining.max(request.ttl))?,
            ),
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
pub(super) fn extend(
    file: &LeaseFile,
    host: &Host,
    requests: &[Request],
) -> Result<Vec<Result<Option<Grant>>>> {
    let ties: Vec<_> = requests
        .iter()
        .map(|request| request.tie.map(|tie| host.facts(tie)))
        .collect();
    file.write(|db| {
        let now = host.now();
        requests
            .iter()
            .zip(ties)
            .map(|(request, tie)| {
                let Some((remaining, mut row)) =
                    held_by(db, host, now, &request.key, &request.owner)?
                else {
                    return Ok(Ok(None));
                };
                row.tie = tie.unwrap_or(row.tie);
                row.info = request.holder.clone().unwrap_or(row.info);
                Ok(Ok(Some(row.renew(
                    db,
                    host,
                    now,
                    &request.key,
                    remaining.max(request.ttl),
                )?)))
            })
            .collect()
    })
}

pub(super) fn release(
    file: &LeaseFile,
    host: &Host,
    key: &Key,
    owner: &OwnerToken,
) -> Result<bool> {
    file.write(|db| {
        let Some(row) = find(db, key)?.filter(|row| row.is_owned_by(owner)) else {
            return Ok(false);
        };
        delete(db, key)?;
        Ok(row.remaining(host, host.now()).is_some())
    })
}

pub(super) fn transfer(
    file: &LeaseFile,
    host: &Host,
    from: &OwnerToken,
    request: &Request,
) -> Result<Option<Grant>> {
    let tie = request.tie.map(|tie| host.facts(tie));
    file.write(|db| {
        let now = host.now();
        if let Some((remaining, mut row)) = held_by(db, host, now, &request.key, &request.owner)? {
            return Ok(Some(row.renew(
                db,
                host,
                now,
                &request.key,
                remaining.max(request.ttl),
            )?));
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
    file.write(|db| {
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
        Ok(Some(
            Removed::new(vec![row.holder(remaining)?]).fence_floor(fencing(next_token(db)?)),
        ))
    })
}

pub(super) fn inspect(file: &LeaseFile, host: &Host, key: &str) -> Result<Option<Holder>> {
    file.read(|db| live(db, host, key))
}

pub(super) fn list(file: &LeaseFile, host: &Host, prefix: &str, page: &Page) -> Result<Listing> {
    file.read(|db| {
        let now = host.now();
        let mut entries: Vec<Entry> = Vec::new();
        let mut statement =
            db.prepare_cached("SELECT * FROM leases WHERE key >= ?1 AND key > ?2 ORDER BY key")?;
        let mut rows = statement.query([prefix, page.after.as_deref().unwrap_or_default()])?;
        while let Some(sql) = rows.next()? {
            let key: String = sql.get(0)?;
            if !key.starts_with(prefix) {
                break;
            }
            let row = Row::read(sql)?;
            let Some(remaining) = row.remaining(host, now) else {
                continue;
            };
            if entries.len() >= page.limit {
                let last = entries
                    .last()
                    .map(|entry| entry.key.clone())
                    .unwrap_or_default();
                return Ok(Listing::new(entries).next(last));
            }
            entries.push(Entry::new(key, vec![row.holder(remaining)?]));
        }
        Ok(Listing::new(entries))
    })
}

/// Removes what has been over for a day, and nothing that might still stand.
pub(super) fn sweep(file: &LeaseFile, host: &Host) -> Result<()> {
    const DAY: i64 = 86_400_000_000_000;
    let now = host.now();
    let idle = "(boot = ?1 AND ends < ?2) OR (boot <> ?1 AND wall_ends < ?3)";
    let bounds = params![host.boot, now.up - DAY, now.wall - DAY];
    let any = file.read(|db| {
        Ok(db.query_row(
            &format!("SELECT EXISTS (SELECT 1 FROM leases WHERE {idle})"),
            bounds,
            |row| row.get(0),
        )?)
    })?;
    if any {
        file.write(|db| Ok(db.execute(&format!("DELETE FROM leases WHERE {idle}"), bounds)?))?;
    }
    Ok(())
}

/// A row of the table, without its key.
#[derive(Debug, Default)]
struct Row {
    owner: Vec<u8>,
    token: i64,
    boot: String,
    ends: i64,
    wall_ends: i64,
    tie: TieFacts,
    info: HolderInfo,
    since: i64,
    renewed: i64,
}

impl Row {
    fn read(row: &SqlRow<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            owner: row.get(1)?,
            token: row.get(2)?,
            boot: row.get(3)?,
            ends: row.get(4)?,
            wall_ends: row.get(5)?,
            tie: TieFacts {
                kind: row.get(6)?,
                id: row.get(7)?,
                start: row.get(8)?,
                pid_namespace: row.get(9)?,
            },
            info: HolderInfo {
                host: row.get(10)?,
                pid: row.get(11)?,
                command: row.get(12)?,
                label: row.get(13)?,
                reason: row.get(14)?,
            },
            since: row.get(15)?,
            renewed: row.get(16)?,
        })
    }

    fn is_owned_by(&self, owner: &OwnerToken) -> bool {
        self.owner == owner.as_bytes()
    }

    /// How long the lease still stands; `None` = it is over.
    ///
    /// The wall clock counts only after a reboot, and only for a lease that is tied to nothing: no process outlives
    /// its boot.
    fn remaining(&self, host: &Host, now: Now) -> Option<Duration> {
        let left = if self.boot == host.boot {
            self.ends.saturating_sub(now.up)
        } else if self.tie.kind == TieFacts::NOTHING {
            self.wall_ends.saturating_sub(now.wall)
        } else {
            0
        };
        u64::try_from(left)
            .ok()
            .filter(|&left| left > 0)
            .map(Duration::from_nanos)
    }

    /// Lets the lease stand for `length` from now, by the clocks of this boot, and writes it.
    fn renew(
        &mut self,
        db: &Connection,
        host: &Host,
        now: Now,
        key: &Key,
        length: Duration,
    ) -> Result<Grant, Fault> {
        self.boot.clone_from(&host.boot);
        self.ends = now.up.saturating_add(nanos(length));
        self.wall_ends = now.wall.saturating_add(nanos(length));
        self.renewed = now.wall;
        self.put(db, key)?;
        Ok(Grant::new(length).fencing(fencing(self.token)))
    }

    fn put(&self, db: &Connection, key: &Key) -> rusqlite::Result<()> {
        let Self {
            owner,
            token,
            boot,
            ends,
            wall_ends,
            tie,
            info,
            since,
            renewed,
        } = self;
        db.prepare_cached(include_str!("put.sql"))?
            .execute(params![
                key.as_stored(),
                owner,
                token,
                boot,
                ends,
                wall_ends,
                tie.kind,
                tie.id,
                tie.start,
                tie.pid_namespace,
                info.host,
                info.pid,
                info.command,
                info.label,
                info.reason,
                since,
                renewed,
            ])?;
        Ok(())
    }

    fn holder(self, remaining: Duration) -> Result<Holder> {
        Ok(Holder::new(OwnerToken::from_bytes(&self.owner)?)
            .info(self.info)
            .since(wall_time(self.since))
            .renewed(wall_time(self.renewed))
            .remaining(remaining)
            .fencing(fencing(self.token)))
    }
}

fn find(db: &Connection, key: &Key) -> rusqlite::Result<Option<Row>> {
    find_stored(db, key.as_stored())
}

fn find_stored(db: &Connection, key: &str) -> rusqlite::Result<Option<Row>> {
    db.prepare_cached("SELECT * FROM leases WHERE key = ?1")?
        .query_row([key], Row::read)
        .optional()
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
    db.prepare_cached("DELETE FROM leases WHERE key = ?1")?
        .execute([key.as_stored()])
}

/// Raises the counter of the whole file: above the last token, and above all that an earlier boot may have given and
/// a power loss may have forgotten.
fn next_token(db: &Connection) -> Result<i64, Fault> {
    let raise = "UPDATE meta SET last_token = max(last_token + 1, epoch << 32)
        WHERE last_token < 9223372036854775807 AND epoch < 2147483648 RETURNING last_token";
    let token = db
        .prepare_cached(raise)?
        .query_row([], |row| row.get(0))
        .optional()?;
    token.ok_or_else(|| {
        let message =
            "the fencing counter of this file is used up: move the file away when no lease is held";
        Error::new(ErrorKind::Rejected, message).into()
    })
}

fn fencing(token: i64) -> FencingToken {
    FencingToken::new(token.unsigned_abs())
}
