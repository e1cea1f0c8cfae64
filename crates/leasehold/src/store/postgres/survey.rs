//! Looks at more than one key: which are held, and what the server is like.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::answer;
use super::fault::{self, Effect};
use super::link::Link;
use super::wire::Parameter;
use crate::error::Result;
use crate::store::{Entry, Finding, Level, Listing, Page, Probe, Waiting};

/// Which keys are held.
pub(super) async fn list(link: &Arc<Link>, prefix: &str, page: &Page) -> Result<Listing> {
    // One more than is wanted tells whether there are more.
    let (after, limit) = (page.after.as_deref(), i64::try_from(page.limit).unwrap_or(i64::MAX - 1) + 1);
    let parameters: [Parameter<'_>; 3] = [(&prefix, Type::TEXT), (&after, Type::TEXT), (&limit, Type::INT8)];
    let rows = link.look(&link.statements.list, &parameters).await?;
    let entries = rows.iter().take(page.limit).map(|row| {
        let (key, holder) = answer::holder(row, Effect::Look)?;
        Ok(Entry::new(key, vec![holder]))
    });
    let mut listing = Listing::new(entries.collect::<Result<_>>()?);
    if rows.len() > page.limit {
        listing.next = listing.entries.last().map(|entry| entry.key.clone());
    }
    Ok(listing)
}

/// What the server tells of itself, as far as this user may know.
pub(super) async fn probe(link: &Arc<Link>, waiting: Waiting) -> Result<Probe> {
    let rows = link.look(include_str!("sql/probe.sql"), &[]).await?;
    let row = rows.first().ok_or_else(fault::unexpected_look)?;
    let mut probe = Probe::new();
    probe.server_time = answer::time(number(row, 0)?);
    probe.uptime = u64::try_from(number(row, 1)?).ok().map(Duration::from_micros);
    // Not every user may know it, and then it is unknown.
    let identity = link.look("SELECT system_identifier::text FROM pg_control_system()", &[]).await;
    probe.identity = identity.ok().and_then(|rows| rows.first()?.try_get(0).ok());
    let mut add = |level, what: String, fix: &str| probe.findings.push(Finding::new(level, what, fix));
    if text(row, 2)? == "off" {
        add(
            Level::Warn,
            "grants are answered before they are on disk (synchronous_commit off): a crash may forget them".to_owned(),
            "run ALTER ROLE .. SET synchronous_commit = on for this user",
        );
    }
    if text(row, 3)? == "off" {
        add(
            Level::Warn,
            "the server does not wait for its disk (fsync off): a crash of the machine may forget leases".to_owned(),
            "set fsync to on",
        );
    }
    let replicas = number(row, 4)?;
    if replicas > 0 && (text(row, 5)?.is_empty() || matches!(text(row, 2)?, "off" | "local")) {
        add(
            Level::Warn,
            format!("{replicas} replicas follow this server later; one that takes over may not know the latest leases"),
            "name synchronous_standby_names, or let the resource check fencing tokens",
        );
    }
    let idle = Duration::from_millis(number(row, 6)?.unsigned_abs());
    if !idle.is_zero() {
        let what = format!("the server ends sessions that are idle for {idle:?} (idle_session_timeout)");
        if number(row, 7)? == 0 {
            add(Level::Ok, format!("{what}, but not this one, which has switched that off"), "");
        } else {
            add(
                Level::Warn,
                format!("{what}: leases stand, but whoever comes next has to connect first"),
                "run ALTER ROLE .. SET idle_session_timeout = 0 for this user",
            );
        }
    }
    if waiting == Waiting::Poll {
        add(
            Level::Warn,
            "nothing is heard of releases, so waiters have to ask again and again".to_owned(),
            "connect past poolers that lend connections to transactions, and grant the user the table of waiters",
        );
    }
    Ok(probe)
}

fn number(row: &Row, at: usize) -> Result<i64> {
    answer::get(row, at, Effect::Look)
}

fn text(row: &Row, at: usize) -> Result<&str> {
    answer::get(row, at, Effect::Look)
}
