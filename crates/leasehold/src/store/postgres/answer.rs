//! Answers to statements. What does not have the agreed form is no answer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio_postgres::Row;

use super::fault::{self, Effect};
use crate::error::Result;
use crate::store::{Grant, Holder, Removed, note};
use crate::types::{FencingToken, OwnerToken};

/// A grant, or how long somebody else's lease still stands.
pub(super) fn attempt(rows: &[Row], ttl: Duration) -> Result<Result<Grant, Option<Duration>>> {
    match rows {
        // It was free when the statement began, and somebody else's when it came to it.
        [] => Ok(Err(None)),
        [row] => Ok(match get::<Option<i64>>(row, 0, Effect::Change)? {
            Some(_) => Ok(grant(row, 0, ttl)?),
            None => Err(Some(micros(get(row, 1, Effect::Change)?))),
        }),
        _ => Err(fault::unexpected(Effect::Change)),
    }
}

/// A grant whose token stands in column `at`, and how long it stands in the next one.
pub(super) fn grant(row: &Row, at: usize, ttl: Duration) -> Result<Grant> {
    let stands = micros(get(row, at + 1, Effect::Change)?);
    Ok(Grant::new(stands.max(ttl)).fencing(token(get(row, at, Effect::Change)?, Effect::Change)?))
}

/// Where in the batch the claim stands that this row answers.
pub(super) fn place(row: &Row, effect: Effect) -> Result<usize> {
    let number: i64 = get(row, 0, effect)?;
    number.checked_sub(1).and_then(|at| usize::try_from(at).ok()).ok_or_else(|| fault::unexpected(effect))
}

/// A key and who holds it.
pub(super) fn holder(row: &Row, effect: Effect) -> Result<(String, Holder)> {
    let owner = OwnerToken::from_bytes(get(row, 1, effect)?).map_err(|_| fault::unexpected(effect))?;
    let mut holder = Holder::new(owner)
        .fencing(token(get(row, 2, effect)?, effect)?)
        .remaining(micros(get(row, 3, effect)?))
        .info(note::read(get::<&str>(row, 6, effect)?.as_bytes()));
    holder.since = time(get(row, 4, effect)?);
    holder.renewed = time(get(row, 5, effect)?);
    Ok((get::<&str>(row, 0, effect)?.to_owned(), holder))
}

pub(super) fn removed(row: &Row) -> Result<Removed> {
    let floor = token(get(row, 7, Effect::Change)?, Effect::Change)?;
    Ok(Removed::new(vec![holder(row, Effect::Change)?.1]).fence_floor(floor))
}

pub(super) fn get<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, at: usize, effect: Effect) -> Result<T> {
    row.try_get(at).map_err(|error| fault::unexpected(effect).with_source(error))
}

pub(super) fn time(micros: i64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_micros(u64::try_from(micros).ok()?))
}

pub(super) fn token(number: i64, effect: Effect) -> Result<FencingToken> {
    u64::try_from(number).map(FencingToken::new).map_err(|_| fault::unexpected(effect))
}

/// One that has passed since is none.
fn micros(number: i64) -> Duration {
    Duration::from_micros(u64::try_from(number).unwrap_or(0))
}
