//! Looks at more than one key: which are held, and what the server is like.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use redis::Value;

use super::answer;
use super::fault::{self, Effect};
use super::link::Link;
use super::script;
use super::servers::Servers;
use super::side::companion;
use crate::error::Result;
use crate::store::{Entry, Finding, Level, Listing, Page, Probe};

/// Keys that the server goes through in one step of a search.
const STEP: usize = 1000;

/// Which keys are held. The server knows no order, so all of them are searched for each page.
pub(super) async fn list(servers: &Servers, prefix: &str, page: &Page) -> Result<Listing> {
    let mut found = BTreeSet::new();
    for link in servers.all().await? {
        found.extend(matching(&link, prefix, page.after.as_deref()).await?);
    }
    let names: Vec<_> = found.into_iter().collect();
    let mut listing = Listing::default();
    for names in names.chunks(page.limit.saturating_add(1).min(STEP)) {
        let companions: Vec<_> = names.iter().map(|name| companion(name)).collect();
        let keys: Vec<_> = names.iter().zip(&companions).map(|(name, side)| [&**name, &**side]).collect();
        let calls: Vec<_> = keys.iter().map(|keys| script::INSPECT.on(keys, &[])).collect();
        let answers = servers.run_all(&calls, Effect::Look).await?;
        for (name, answer) in names.iter().zip(answers) {
            // Given back since it was found.
            let Some(holder) = answer::holder(&answer?)? else { continue };
            if listing.entries.len() == page.limit {
                listing.next = listing.entries.last().map(|entry: &Entry| entry.key.clone());
                return Ok(listing);
            }
            listing.entries.push(Entry::new(name.clone(), vec![holder]));
        }
    }
    Ok(listing)
}

/// Keys with this beginning that come after another one, in order.
async fn matching(link: &Arc<Link>, prefix: &str, after: Option<&str>) -> Result<BTreeSet<String>> {
    let pattern = format!("{}*", escaped(prefix));
    let mut cursor = b"0".to_vec();
    let mut found = BTreeSet::new();
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP).arg("TYPE").arg("string");
        let Value::Array(answer) = link.ask(scan).await? else {
            return Err(fault::unexpected(Effect::Look));
        };
        let [Value::BulkString(next), Value::Array(keys)] = &*answer else {
            return Err(fault::unexpected(Effect::Look));
        };
        let keys = keys.iter().filter_map(|key| match key {
            Value::BulkString(key) => String::from_utf8(key.clone()).ok(),
            _ => None,
        });
        found.extend(keys.filter(|key| after.is_none_or(|after| key.as_str() > after)));
        if next == b"0" {
            return Ok(found);
        }
        cursor.clone_from(next);
    }
}

/// Text as it stands in a pattern for nothing but itself.
fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut pattern, char| {
        if matches!(char, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
            pattern.push('\\');
        }
        pattern.push(char);
        pattern
    })
}

/// What the servers tell of themselves, as far as this user may know: time and age are those of the youngest.
pub(super) async fn probe(servers: &Servers) -> Result<Probe> {
    let mut whole: Option<Probe> = None;
    for link in servers.all().await? {
        let part = probe_one(&link).await?;
        whole = Some(match whole {
            None => part,
            Some(whole) => together(whole, part),
        });
    }
    Ok(whole.unwrap_or_default())
}

fn together(mut whole: Probe, part: Probe) -> Probe {
    if part.uptime < whole.uptime {
        (whole.uptime, whole.server_time) = (part.uptime, part.server_time);
    }
    whole.identity = whole.identity.zip(part.identity).map(|(whole, part)| format!("{whole} {part}"));
    for finding in part.findings {
        if !whole.findings.contains(&finding) {
            whole.findings.push(finding);
        }
    }
    whole
}

async fn probe_one(link: &Arc<Link>) -> Result<Probe> {
    let wire = link.wire().await?;
    let mut questions = redis::pipe();
    questions.cmd("EVAL").arg("return 1").arg(0);
    questions.cmd("TIME");
    questions.cmd("INFO");
    questions.cmd("CONFIG").arg("GET").arg("maxmemory-policy");
    let answers = wire.ask_all(&questions).await.map_err(|error| fault::of(error, Effect::Look))?;
    let [path, time, info, policy] = <[Value; 4]>::try_from(answers).map_err(|_| fault::unexpected(Effect::Look))?;
    if let Value::ServerError(error) = path {
        return Err(fault::of(error.into(), Effect::Look));
    }
    let mut probe = Probe::new();
    probe.server_time = redis::from_redis_value::<(u64, u32)>(time)
        .ok()
        .and_then(|(seconds, micros)| UNIX_EPOCH.checked_add(Duration::new(seconds, micros.saturating_mul(1000))));
    if !wire.facts.tells {
        probe = probe.finding(Finding::new(
            Level::Warn,
            "the server does not tell this connection of changes, so waiters have to ask again and again",
            "allow protocol 3 and +client|tracking, and leave out proxies that speak only protocol 2",
        ));
    }
    let policy = redis::from_redis_value::<Vec<String>>(policy).ok().and_then(|setting| setting.into_iter().nth(1));
    let info = match info {
        Value::ServerError(_) => None,
        info => redis::from_redis_value::<String>(info).ok(),
    };
    let Some(info) = info else {
        return Ok(probe.finding(Finding::new(
            Level::Warn,
            "this user may not read what the server is like: persistence, eviction and replicas are unknown",
            "add +info to its rights, or see for yourself",
        )));
    };
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(|value| value.trim().to_owned())
    };
    probe.identity = field("run_id");
    probe.uptime = field("uptime_in_seconds").and_then(|text| text.parse().ok()).map(Duration::from_secs);
    for finding in findings(field, policy) {
        probe = probe.finding(finding);
    }
    Ok(probe)
}

fn findings(field: impl Fn(&str) -> Option<String>, policy: Option<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |level, what: String, fix: &str| findings.push(Finding::new(level, what, fix));
    match policy.or_else(|| field("maxmemory_policy")).as_deref() {
        Some("noeviction") => {}
        _ if field("maxmemory").as_deref() == Some("0") => {}
        Some(policy) => add(
            Level::Warn,
            format!("a full server throws leases away (maxmemory-policy {policy})"),
            "set maxmemory-policy to noeviction, or use a server for locks alone",
        ),
        None => add(Level::Warn, "whether a full server throws leases away is unknown".to_owned(), "see its settings"),
    }
    if field("role").is_some_and(|role| role != "master") {
        add(Level::Fail, "this is a replica, which grants nothing".to_owned(), "name the primary");
    }
    if field("aof_enabled").as_deref() == Some("0") {
        add(
            Level::Warn,
            "a restart forgets leases, or brings back old ones: the append-only file is off".to_owned(),
            "set appendonly to yes, or let the resource check fencing tokens",
        );
    }
    match field("connected_slaves").as_deref() {
        None => {}
        Some("0") => add(
            Level::Ok,
            "no replica follows this server: while it is away nobody is granted anything".to_owned(),
            "where that is too long: a quorum of servers, or sentinels and the scheme redis+sentinel:",
        ),
        Some(replicas) => add(
            Level::Warn,
            format!("{replicas} replicas follow this server; one that takes over may not know the latest leases"),
            "let the resource check fencing tokens, or name wait_replicas",
        ),
    }
    findings
}
