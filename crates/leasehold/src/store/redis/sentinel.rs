//! Sentinels: servers that know where the primary is.

use std::fmt;
use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind as RedisErrorKind, RedisResult};

use crate::error::{Error, ErrorKind, Result};

/// How long one sentinel may take to answer before the next one is asked.
const SENTINEL_LIMIT: Duration = Duration::from_secs(1);

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
    /// Where the primary is by the word of the first sentinel that knows. Asked before each connection: after a
    /// failover it is another one.
    pub(super) async fn primary(&self) -> Result<ConnectionInfo> {
        let mut last = None;
        let mut knows_none = false;
        for sentinel in &self.sentinels {
            let asked = tokio::time::timeout(SENTINEL_LIMIT, self.ask(sentinel)).await;
            match asked {
                Ok(Ok(Some((host, port)))) => return Ok(self.at(host, port)),
                Ok(Ok(None)) => knows_none = true,
                Ok(Err(error)) => last = Some(error),
                Err(_) => {}
            }
        }
        let count = self.sentinels.len();
        Err(match (knows_none, last) {
            (true, _) => Error::new(
                ErrorKind::InvalidConfig,
                format!("no sentinel knows a primary named {:?}: check the name", self.name),
            ),
            (false, Some(error)) if error.kind() == RedisErrorKind::AuthenticationFailed => {
                Error::new(ErrorKind::Rejected, "the sentinels refuse the password: check it").with_source(error)
            }
            (false, last) => {
                let failed = Error::new(ErrorKind::Unavailable, format!("none of {count} sentinels answered"));
                match last {
                    Some(error) => failed.with_source(error),
                    None => failed,
                }
            }
        })
    }

    async fn ask(&self, sentinel: &ConnectionInfo) -> RedisResult<Option<(String, u16)>> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let client = Client::open(sentinel.clone())?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name).query_async(&mut connection).await
    }

    fn at(&self, host: String, port: u16) -> ConnectionInfo {
        let address = match self.primary.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        self.primary.clone().set_addr(address)
    }
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the primary {:?}", self.name)
    }
}
