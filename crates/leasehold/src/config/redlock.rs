//! A quorum of Redis servers, as a URL names it.

use std::time::Duration;

use super::environment::read;
use super::{invalid, positive};
use crate::error::Result;
use crate::store::quorum::Quorum;
use crate::store::redis::{Address, RedisStore};

pub(super) const MAX_TTL: &str = "max_ttl";
pub(super) const NODE_TIMEOUT: &str = "node_timeout";

/// Opens the quorum at `//[user[:password]@]host[:port],host[:port],..[/database]`.
pub(super) async fn open(place: &str, options: &[(&str, String)], password: Option<String>) -> Result<Quorum> {
    let named = place.strip_prefix("//").filter(|named| !named.is_empty());
    let named = named.ok_or_else(|| invalid("a quorum names its nodes: write redlock://host1,host2,host3"))?;
    let (authority, path) = named.split_at(named.find('/').unwrap_or(named.len()));
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), authority),
    };
    let hosts: Vec<_> = hosts.split(',').map(str::to_ascii_lowercase).collect();
    if hosts.iter().any(String::is_empty) {
        return Err(invalid("a node of the quorum has no name: remove a comma"));
    }
    let mut password = password;
    let mut lengths: [Option<Duration>; 2] = [None; 2];
    for (name, value) in options {
        match *name {
            MAX_TTL | NODE_TIMEOUT => {
                let length =
                    positive(value).map_err(|error| invalid(format!("option {name:?}: {}", error.message())))?;
                lengths[usize::from(*name == NODE_TIMEOUT)] = Some(length);
            }
            _ => password = Some(read(value.as_ref())?),
        }
    }
    let mut stores = Vec::new();
    let mut addresses: Vec<String> = Vec::new();
    for host in &hosts {
        let address = Address::parse(&format!("redis://{user}{host}{path}"))?.or_password(password.clone());
        let place = address.place();
        if addresses.contains(&place) {
            return Err(invalid("a node of the quorum is named twice: name servers that fail independently"));
        }
        addresses.push(place);
        stores.push(RedisStore::unconnected(&address)?);
    }
    let mut quorum = Quorum::builder(stores).names(hosts);
    if let Some(length) = lengths[0] {
        quorum = quorum.max_ttl(length);
    }
    if let Some(length) = lengths[1] {
        quorum = quorum.node_timeout(length);
    }
    let quorum = quorum.build()?;
    quorum.connect().await?;
    Ok(quorum)
}
