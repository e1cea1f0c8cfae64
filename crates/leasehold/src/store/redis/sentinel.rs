//! Sentinels: servers that know where the primary is.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, RedisError, RedisResult};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::error::{Error, ErrorKind, Result};

/// How long the others may take to agree once one sentinel has answered.
const LATE: Duration = Duration::from_millis(500);

/// Whom to ask for the primary of a name.
#[derive(Debug)]
pub(super) struct Sentinels {
    /// The sentinels, with the credentials for them.
    pub(super) sentinels: Vec<ConnectionInfo>,
    pub(super) name: String,
    /// How to connect to the primary, but for its address.
    pub(super) primary: ConnectionInfo,
}

impl Sentinels {
    /// Where the primary is by the word of most sentinels, or of those that answer. Asked before each connection: after a
    /// failover it is another one, which a sentinel that was away may not know yet.
    pub(super) async fn primary(&self) -> Result<ConnectionInfo> {
        let mut asked = JoinSet::new();
        for sentinel in &self.sentinels {
            asked.spawn(ask(sentinel.clone(), self.name.clone()));
        }
        let (mut votes, mut failed, mut knows_none) = (HashMap::new(), None, false);
        loop {
            let next = asked.join_next();
            let next = if votes.is_empty() { next.await } else { timeout(LATE, next).await.unwrap_or(None) };
            match next {
                Some(Ok(Ok(Some(place)))) => {
                    let count = votes.entry(place.clone()).or_insert(0_usize);
                    *count += 1;
                    if *count > self.sentinels.len() / 2 {
                        return Ok(self.at(place));
                    }
                }
                Some(Ok(Ok(None))) => knows_none = true,
                Some(Ok(Err(error))) => failed = Some(error),
                Some(Err(_)) => {}
                None => break,
            }
        }
        match votes.into_iter().max_by_key(|(_, count)| *count) {
            Some((place, _)) => Ok(self.at(place)),
            None => Err(self.nowhere(knows_none, failed)),
        }
    }

    /// What it comes to that no sentinel names a place.
    fn nowhere(&self, knows_none: bool, failed: Option<RedisError>) -> Error {
        let count = self.sentinels.len();
        let message = format!("none of {count} sentinels answered");
        match failed {
            _ if knows_none => Error::new(
                ErrorKind::InvalidConfig,
                format!("no sentinel knows a primary named {:?}: check the name", self.name),
            ),
            Some(error) if wants_password(&error) => Error::new(
                ErrorKind::Rejected,
                "the sentinels refuse us: name their password by sentinel_password_file, if they have one",
            )
            .with_source(error),
            Some(error) => Error::new(ErrorKind::Unavailable, message).with_source(error),
            None => Error::new(ErrorKind::Unavailable, message),
        }
    }

    fn at(&self, (host, port): (String, u16)) -> ConnectionInfo {
        let address = match self.primary.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        self.primary.clone().set_addr(address)
    }
}

async fn ask(sentinel: ConnectionInfo, name: String) -> RedisResult<Option<(String, u16)>> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let mut connection = Client::open(sentinel)?.get_multiplexed_async_connection_with_config(&config).await?;
    redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).query_async(&mut connection).await
}

fn wants_password(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"))
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the primary {:?}", self.name)
    }
}
