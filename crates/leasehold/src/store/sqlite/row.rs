//! The row that keeps a lease, and the counter that fencing tokens come from.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params};

use super::fault::Fault;
use super::host::{Host, Now, TieFacts, nanos, wall_time};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Grant, Holder, HolderInfo};
use crate::types::{FencingToken, Key, OwnerToken};

/// A row of the table, without its key; read in the order of find.sql and list.sql.
#[derive(Debug, Default)]
pub(super) struct Row {
    pub(super) owner: Vec<u8>,
    pub(super) token: i64,
    pub(super) boot: String,
    pub(super) ends: i64,
    pub(super) wall_ends: i64,
    pub(super) tie: TieFacts,
    pub(super) info: Arc<HolderInfo>,
    pub(super) since: i64,
    pub(super) renewed: i64,
}

impl Row {
    pub(super) fn read(row: &SqlRow<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            owner: row.get(1)?,
            token: row.get(2)?,
            boot: row.get(3)?,
            ends: row.get(4)?,
            wall_ends: row.get(5)?,
            tie: TieFacts { kind: row.get(6)?, id: row.get(7)?, start: row.get(8)?, pid_namespace: row.get(9)? },
            info: Arc::new(HolderInfo {
                host: row.get(10)?,
                pid: row.get(11)?,
                command: row.get(12)?,
                label: row.get(13)?,
                reason: row.get(14)?,
            }),
            since: row.get(15)?,
            renewed: row.get(16)?,
        })
    }

    pub(super) fn is_owned_by(&self, owner: &OwnerToken) -> bool {
        self.owner == owner.as_bytes()
    }

    pub(super) fn is_untied(&self) -> bool {
        self.tie.kind == TieFacts::NOTHING
    }

    /// How long the lease still stands; `None` = it is over.
    ///
    /// The wall clock counts only after a reboot, and only for a lease that is tied to nothing: no process outlives
    /// its boot.
    pub(super) fn remaining(&self, host: &Host, now: Now) -> Option<Duration> {
        let left = if self.boot == host.boot {
            self.ends.saturating_sub(now.up)
        } else if self.is_untied() {
            // Never longer than it was granted for, even if the clock went back to 1970.
            self.wall_ends.saturating_sub(now.wall.max(self.renewed))
        } else {
            0
        };
        u64::try_from(left).ok().filter(|&left| left > 0).map(Duration::from_nanos)
    }

    /// Lets the lease stand for `length` from now, by the clocks of this boot, and writes it.
    pub(super) fn renew(
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
        let Self { owner, token, boot, ends, wall_ends, tie, info, since, renewed } = self;
        db.prepare_cached(include_str!("put.sql"))?.execute(params![
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

    pub(super) fn holder(self, remaining: Duration) -> Result<Holder> {
        Ok(Holder::new(OwnerToken::from_bytes(&self.owner)?)
            .info(self.info)
            .since(wall_time(self.since))
            .renewed(wall_time(self.renewed))
            .remaining(remaining)
            .fencing(fencing(self.token)))
    }
}

pub(super) fn find(db: &Connection, key: &Key) -> rusqlite::Result<Option<Row>> {
    find_stored(db, key.as_stored())
}

pub(super) fn find_stored(db: &Connection, key: &str) -> rusqlite::Result<Option<Row>> {
    db.prepare_cached(include_str!("find.sql"))?.query_row([key], Row::read).optional()
}

/// Raises the counter of the whole file: above the last token, and above all that an earlier boot may have given and
/// a power loss may have forgotten.
pub(super) fn next_token(db: &Connection) -> Result<i64, Fault> {
    let raise = "UPDATE meta SET last_token = max(last_token + 1, epoch << 32)
        WHERE last_token < 9223372036854775807 AND epoch < 2147483648 RETURNING last_token";
    let token = db.prepare_cached(raise)?.query_row([], |row| row.get(0)).optional()?;
    token.ok_or_else(|| {
        let message = "the fencing counter of this file is used up: move the file away when no lease is held";
        Error::new(ErrorKind::Rejected, message).into()
    })
}

pub(super) fn fencing(token: i64) -> FencingToken {
    FencingToken::new(token.unsigned_abs())
}
