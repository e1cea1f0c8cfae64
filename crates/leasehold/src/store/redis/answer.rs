//! Answers of the scripts. What does not have the agreed form is no answer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{RedisResult, Value};

use super::fault::{self, Effect};
use super::held;
use crate::error::Result;
use crate::store::{Grant, Holder, Removed, note};
use crate::types::{FencingToken, MAX_OWNER_LEN, OwnerToken};

/// Why somebody was refused.
#[derive(Debug)]
pub(super) struct Refusal {
    /// How long somebody else's lease still stands; `None` = without end.
    pub(super) left: Option<Duration>,
    /// How many have waited for longer.
    pub(super) before: u64,
    /// Nobody holds it: it is kept for one of these.
    pub(super) put_off: bool,
}

/// A grant, or a refusal.
pub(super) fn attempt(answer: &Value, ttl: Duration) -> Result<Result<Grant, Refusal>> {
    match items(answer) {
        Some([Value::Int(0), left, Value::Int(before), put_off @ ..]) if matches!(put_off, [] | [Value::Int(1)]) => {
            let unexpected = || fault::unexpected(Effect::Change);
            let before = u64::try_from(*before).map_err(|_| unexpected())?;
            let left = length(left).ok_or_else(unexpected)?;
            Ok(Err(Refusal { left, before, put_off: !put_off.is_empty() }))
        }
        _ => Ok(Ok(grant(answer, ttl)?.ok_or_else(|| fault::unexpected(Effect::Change))?)),
    }
}

/// The answer of a script, and the number of replicas that know what it did, or the server's refusal to wait for them.
pub(super) fn with_replicas(answer: Value) -> Result<(Value, RedisResult<u64>)> {
    let unexpected = || fault::unexpected(Effect::Change);
    let Value::Array(mut answers) = answer else { return Err(unexpected()) };
    let known = match answers.pop() {
        Some(Value::ServerError(error)) => Err(error.into()),
        Some(known) => Ok(number(&known).and_then(|known| u64::try_from(known).ok()).ok_or_else(unexpected)?),
        None => return Err(unexpected()),
    };
    Ok((answers.pop().ok_or_else(unexpected)?, known))
}

/// Whether the answer to a claim says that it holds.
pub(super) fn is_grant(answer: &Value) -> bool {
    !matches!(items(answer), Some([Value::Int(0), ..]))
}

/// A grant, or the word that this owner does not hold the key.
pub(super) fn grant(answer: &Value, ttl: Duration) -> Result<Option<Grant>> {
    let unexpected = || fault::unexpected(Effect::Change);
    let fence = |fence| number(fence).and_then(|fence| u64::try_from(fence).ok()).map(FencingToken::new);
    match answer {
        Value::Int(1..) => Ok(Some(Grant::new(ttl).fencing(fence(answer).ok_or_else(unexpected)?))),
        _ => match items(answer) {
            Some([Value::Int(0)]) => Ok(None),
            Some([Value::Int(1), stands, token]) => {
                // A lease without an end is one that nobody shortened.
                let stands = length(stands).ok_or_else(unexpected)?.unwrap_or(MAX_VALIDITY);
                let mut grant = Grant::new(stands.clamp(ttl, MAX_VALIDITY));
                // 0: a server out of memory could not start a counter that was lost.
                grant.fencing = Some(fence(token).ok_or_else(unexpected)?).filter(|token| token.get() > 0);
                Ok(Some(grant))
            }
            _ => Err(unexpected()),
        },
    }
}

/// What no lease outlasts.
const MAX_VALIDITY: Duration = Duration::from_secs(86_400 * 366);

pub(super) fn is_one(answer: &Value) -> Result<bool> {
    match answer {
        Value::Int(number @ (0 | 1)) => Ok(*number == 1),
        _ => Err(fault::unexpected(Effect::Change)),
    }
}

/// Who holds the key; `None` = nobody.
pub(super) fn holder(answer: &Value) -> Result<Option<Holder>> {
    let unexpected = || fault::unexpected(Effect::Look);
    match items(answer) {
        Some([]) => Ok(None),
        Some([held, left, companion]) => described(held, left, companion).map(Some).ok_or_else(unexpected),
        _ => Err(unexpected()),
    }
}

/// What was removed; `None` = nothing.
pub(super) fn removed(answer: &Value) -> Result<Option<Removed>> {
    let unexpected = || fault::unexpected(Effect::Change);
    match items(answer) {
        Some([]) => Ok(None),
        Some([held, left, companion, fence]) => {
            let holder = described(held, left, companion).ok_or_else(unexpected)?;
            let fence = number(fence).and_then(|fence| u64::try_from(fence).ok()).ok_or_else(unexpected)?;
            Ok(Some(Removed::new(vec![holder]).fence_floor(FencingToken::new(fence))))
        }
        _ => Err(unexpected()),
    }
}

/// The companion counts only if it tells of the present holder: clients that know none leave it as it was.
fn described(held: &Value, left: &Value, companion: &Value) -> Option<Holder> {
    let token = bytes(held)?;
    // A value that is too long for a token is none of ours; its beginning is enough to tell holders apart.
    let owner = OwnerToken::from_bytes(&token[..token.len().min(MAX_OWNER_LEN)])
        .or_else(|_| OwnerToken::from_bytes(b"(empty)"))
        .ok()?;
    let mut holder = Holder::new(owner);
    holder.remaining = length(left)?;
    let [known, renewed, note, fence] = items(companion)? else { return None };
    let since = bytes(known).and_then(|known| held::since(known, token));
    if let Some(since) = since {
        holder.since = time(since);
        // Not that of an earlier holder.
        holder.renewed = number(renewed).and_then(|millis| time(since.max(u64::try_from(millis).ok()?)));
        holder.info = note::read(bytes(note).unwrap_or_default());
        holder.fencing = number(fence).and_then(|fence| u64::try_from(fence).ok()).map(FencingToken::new);
    }
    Some(holder)
}

fn items(answer: &Value) -> Option<&[Value]> {
    match answer {
        Value::Array(items) => Some(items),
        _ => None,
    }
}

/// A string of the server, which says numbers in either form.
fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        value => std::str::from_utf8(bytes(value)?).ok()?.parse().ok(),
    }
}

/// A length in milliseconds; `Some(None)` = without end.
fn length(value: &Value) -> Option<Option<Duration>> {
    match number(value)? {
        -1 => Some(None),
        millis => u64::try_from(millis).ok().map(|millis| Some(Duration::from_millis(millis))),
    }
}

fn time(millis: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(millis))
}
