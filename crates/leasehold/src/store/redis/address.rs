//! Where a server is, and who asks: from the part of a URL that names it.

use std::path::{Path, PathBuf};
use std::sync::Once;

use percent_encoding::percent_decode_str;
use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, TlsCertificates};
use url::Url;

use super::fault;
use crate::error::{Error, ErrorKind, Result};

const PORT: u16 = 6379;

/// A server, a database, and who asks.
#[derive(Debug)]
pub(crate) struct Address {
    server: Server,
    user: Option<String>,
    password: Option<String>,
    database: i64,
    /// Certificates of authorities to be trusted instead of the system's.
    ca_file: Option<PathBuf>,
}

#[derive(Debug)]
enum Server {
    Plain(String, u16),
    Encrypted(String, u16),
    Socket(PathBuf),
}

impl Address {
    /// Reads a URL without its options. No message repeats any of it.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let url = Url::parse(url).map_err(|error| invalid(format!("the store's URL is malformed: {error}")))?;
        let decoded = |text: &str, what: &str| {
            let text = percent_decode_str(text).decode_utf8();
            text.map(|text| text.into_owned())
                .map_err(|_| invalid(format!("the {what} in the store's URL is not UTF-8")))
        };
        let path = url.path();
        let (server, database) = match (url.scheme(), url.host_str().filter(|host| !host.is_empty())) {
            ("redis+unix", None) if path.len() > 1 => (Server::Socket(decoded(path, "path")?.into()), 0),
            ("redis+unix", _) => {
                return Err(invalid("a socket is named by its absolute path: write redis+unix:///path"));
            }
            (_, None) => return Err(invalid("the store's URL names no host: write redis://host:6379/0")),
            (_, Some(host)) if host.contains(',') => {
                return Err(invalid("the store's URL names several hosts: name the one that keeps the leases"));
            }
            (scheme, Some(host)) => {
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let port = url.port().unwrap_or(PORT);
                let server = if scheme == "rediss" { Server::Encrypted(host, port) } else { Server::Plain(host, port) };
                (server, database(path.trim_start_matches('/'))?)
            }
        };
        Ok(Self {
            server,
            user: Some(decoded(url.username(), "user name")?).filter(|user| !user.is_empty()),
            password: url.password().map(|password| decoded(password, "password")).transpose()?,
            database,
            ca_file: None,
        })
    }

    /// Where the server is, so that two names for one can be told apart from two servers.
    pub(crate) fn place(&self) -> String {
        format!("{:?}", self.server)
    }

    /// Sets a password unless the URL holds one by itself.
    pub(crate) fn or_password(mut self, password: Option<String>) -> Self {
        self.password = self.password.or(password);
        self
    }

    pub(crate) fn user(mut self, user: &str) -> Self {
        self.user = Some(user.to_owned());
        self
    }

    pub(crate) fn database(mut self, text: &str) -> Result<Self> {
        self.database = database(text)?;
        Ok(self)
    }

    pub(crate) fn ca_file(mut self, path: &Path) -> Self {
        self.ca_file = Some(path.to_owned());
        self
    }

    /// A client that would connect there.
    pub(super) fn client(&self) -> Result<Client> {
        let address = match &self.server {
            Server::Plain(host, port) => ConnectionAddr::Tcp(host.clone(), *port),
            Server::Encrypted(host, port) => {
                ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
            }
            Server::Socket(path) => ConnectionAddr::Unix(path.clone()),
        };
        let mut who = RedisConnectionInfo::default().set_db(self.database);
        if let Some(user) = &self.user {
            who = who.set_username(user);
        }
        if let Some(password) = &self.password {
            who = who.set_password(password);
        }
        let info = address.into_connection_info().map_err(fault::connecting)?.set_redis_settings(who);
        match self.server {
            Server::Encrypted(..) => self.encrypted(info),
            _ => Client::open(info).map_err(fault::connecting),
        }
    }

    fn encrypted(&self, info: ConnectionInfo) -> Result<Client> {
        // Whoever uses this library may have chosen another one before.
        static PROVIDER: Once = Once::new();
        PROVIDER.call_once(|| {
            rustls::crypto::ring::default_provider().install_default().ok();
        });
        let Some(path) = &self.ca_file else {
            return Client::open(info).map_err(fault::connecting);
        };
        let root_cert = std::fs::read(path)
            .map_err(|error| invalid(format!("cannot read {}: {error}", path.display())).with_source(error))?;
        Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert: Some(root_cert) })
            .map_err(|error| invalid(format!("{} holds no certificates", path.display())).with_source(error))
    }
}

fn database(text: &str) -> Result<i64> {
    match text {
        "" => Ok(0),
        text => text
            .parse()
            .ok()
            .filter(|number| *number >= 0)
            .ok_or_else(|| invalid("the database in the store's URL is no number: write redis://host:6379/0")),
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> String {
        match Address::parse(url) {
            Ok(Address { server, user, password, database, .. }) => {
                format!("{server:?} {} {} {database}", user.unwrap_or_default(), password.unwrap_or_default())
            }
            Err(error) => {
                assert!(!error.to_string().contains("hunter2"), "{error}");
                error.kind().to_string()
            }
        }
    }

    #[test]
    fn a_url_names_a_server_and_who_asks() {
        for (url, expected) in [
            ("redis://h", r#"Plain("h", 6379)   0"#),
            ("redis://h:7000/3", r#"Plain("h", 7000)   3"#),
            ("rediss://u:p%40ss@h/", r#"Encrypted("h", 6379) u p@ss 0"#),
            ("redis://:pw@[::1]:1/0", r#"Plain("::1", 1)  pw 0"#),
            ("redis+unix:///run/redis.sock", r#"Socket("/run/redis.sock")   0"#),
            ("redis+unix:///run/a%20b", r#"Socket("/run/a b")   0"#),
            ("redis://", "invalid config"),
            ("redis:///0", "invalid config"),
            ("redis://h/x", "invalid config"),
            ("redis://h/-1", "invalid config"),
            ("redis://a:1,b:2/0", "invalid config"),
            ("redis://u:hunter2@h:x", "invalid config"),
            ("redis+unix://run/redis.sock", "invalid config"),
            ("redis+unix:", "invalid config"),
        ] {
            assert_eq!(shown(url), expected, "{url}");
        }
    }
}
