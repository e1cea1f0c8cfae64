//! Sentinels: servers that know where the primary is.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, RedisError, RedisResult, Value};
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
    /// Where the primary is by the word of most sentinels; without a majority, by that of whoever knows of the latest
    /// failover. Asked before each connection: after a failover it is another one, which a sentinel that was away may not
    /// know yet.
    pub(super) async fn primary(&self) -> Result<ConnectionInfo> {
        let mut asked = JoinSet::new();
        for sentinel in &self.sentinels {
            asked.spawn(ask(sentinel.clone(), self.name.clone()));
        }
        let (mut votes, mut failed, mut unknown) = (HashMap::<_, Vote>::new(), None, 0);
        loop {
            let next = asked.join_next();
            let next = if votes.is_empty() { next.await } else { timeout(LATE, next).await.unwrap_or(None) };
            match next {
                Some(Ok(Ok(Some((place, epoch))))) => {
                    let vote = votes.entry(place.clone()).or_default();
                    *vote = Vote { epoch: vote.epoch.max(epoch), count: vote.count + 1 };
                    if vote.count > self.sentinels.len() / 2 {
                        return Ok(self.at(place));
                    }
                }
                Some(Ok(Ok(None))) => unknown += 1,
                Some(Ok(Err(error))) => failed = Some(error),
                Some(Err(_)) => {}
                None => break,
            }
        }
        match votes.into_iter().max_by_key(|(_, vote)| *vote) {
            Some((place, _)) => Ok(self.at(place)),
            None => Err(self.nowhere(unknown, failed)),
        }
    }

    /// What it comes to that no sentinel names a place, and so many know no such name.
    fn nowhere(&self, unknown: usize, failed: Option<RedisError>) -> Error {
        let (count, name) = (self.sentinels.len(), &self.name);
        let unavailable = |message: String| Error::new(ErrorKind::Unavailable, message);
        match failed {
            _ if unknown > count / 2 => Error::new(
                ErrorKind::InvalidConfig,
                format!("no sentinel knows a primary named {name:?}: check the name"),
            ),
            Some(error) if wants_password(&error) => Error::new(
                ErrorKind::Rejected,
                "the sentinels refuse us: name their password by sentinel_password_file, if they have one",
            )
            .with_source(error),
            // Those who do not answer may know it.
            _ if unknown > 0 => unavailable(format!(
                "{unknown} of {count} sentinels answered, and know no primary named {name:?}: check the name, if that stays"
            )),
            Some(error) => unavailable(format!("none of {count} sentinels answered")).with_source(error),
            None => unavailable(format!("none of {count} sentinels answered")),
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

type Place = (String, u16);

/// How many sentinels name a place, and by which failover it came to be the primary. The later one counts for more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Vote {
    epoch: Option<u64>,
    count: usize,
}

/// Where the primary is, and the number of the failover that made it so, where we may ask.
async fn ask(sentinel: ConnectionInfo, name: String) -> RedisResult<Option<(Place, Option<u64>)>> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let mut connection = Client::open(sentinel)?.get_multiplexed_async_connection_with_config(&config).await?;
    let mut questions = redis::pipe();
    questions.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&name);
    questions.cmd("SENTINEL").arg("MASTER").arg(&name);
    let mut answers = connection.send_packed_commands(&questions, 0, 2).await?.into_iter();
    let place: Option<Place> = match answers.next() {
        Some(Value::ServerError(error)) => return Err(error.into()),
        place => redis::from_redis_value(place.unwrap_or(Value::Nil))?,
    };
    let facts: HashMap<String, String> =
        answers.next().and_then(|facts| redis::from_redis_value(facts).ok()).unwrap_or_default();
    Ok(place.map(|place| (place, facts.get("config-epoch").and_then(|epoch| epoch.parse().ok()))))
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
