//! Which server of a cluster keeps which slots.

use std::sync::Arc;

use redis::Value;

use super::super::link::Link;
use super::super::side::SLOTS;
use crate::error::{Error, ErrorKind, Result};

/// Where the primaries' parts begin and end, and who keeps them.
#[derive(Debug)]
pub(super) struct Map(Vec<(u16, u16, Arc<Link>)>);

impl Map {
    /// Reads what a server at `host` tells; the ways to the servers come from `way`. `None` = no slot is given out.
    pub(super) fn read(answer: &Value, host: &str, way: impl Fn(String, u16) -> Arc<Link>) -> Option<Self> {
        let Value::Array(rows) = answer else { return None };
        let parts: Vec<_> = rows
            .iter()
            .filter_map(|row| {
                let Value::Array(row) = row else { return None };
                let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &**row else { return None };
                let [name, Value::Int(port), ..] = &**primary else { return None };
                let name = redis::from_redis_value::<String>(name.clone()).unwrap_or_default();
                let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
                Some((first, last, way(named(name, host), u16::try_from(*port).ok()?)))
            })
            .collect();
        (!parts.is_empty()).then_some(Self(parts))
    }

    pub(super) fn keeper(&self, slot: u16) -> Result<Arc<Link>> {
        let missing = || Error::new(ErrorKind::Unavailable, format!("no server keeps slot {slot} of {SLOTS}"));
        self.find(slot).map(Arc::clone).ok_or_else(missing)
    }

    /// How many slots are kept by anybody.
    pub(super) fn slots(&self) -> u32 {
        self.0.iter().map(|(first, last, _)| u32::from(last.saturating_sub(*first)) + 1).sum()
    }

    /// Whether a slot is kept by the same server in both.
    pub(super) fn agrees(&self, other: &Self, slot: u16) -> bool {
        match (self.find(slot), other.find(slot)) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }

    /// Each server once.
    pub(super) fn servers(&self) -> Vec<Arc<Link>> {
        let mut servers: Vec<Arc<Link>> = Vec::new();
        for (_, _, link) in &self.0 {
            if !servers.iter().any(|known| Arc::ptr_eq(known, link)) {
                servers.push(Arc::clone(link));
            }
        }
        servers
    }

    fn find(&self, slot: u16) -> Option<&Arc<Link>> {
        self.0.iter().find(|(first, last, _)| (*first..=*last).contains(&slot)).map(|(_, _, link)| link)
    }
}

/// The name of a server as another at `host` tells it; one that does not know its own name is the one that was asked.
pub(super) fn named(name: String, host: &str) -> String {
    if name.is_empty() || name == "?" { host.to_owned() } else { name }
}
