//! Where servers are, and who asks: from the part of a URL that names them.

use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use redis::{
    Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, RedisError, TlsCertificates,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::link::Place;
use super::sentinel::Sentinels;
use super::wire;
use crate::error::{Error, ErrorKind, Result};

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26_379;

/// Servers, a database, and who asks. Holds passwords, so it is never shown.
pub(crate) struct Address {
    servers: Servers,
    is_encrypted: bool,
    user: Option<String>,
    password: Option<String>,
    sentinel_password: Option<String>,
    database: i64,
    /// Certificates of authorities to be trusted instead of the system's.
    ca_file: Option<PathBuf>,
    /// How many replicas have to know of a grant.
    pub(super) wait_replicas: Option<u32>,
}

#[derive(Debug)]
enum Servers {
    One(Host),
    Cluster(Vec<Host>),
    Sentinels(Vec<Host>, String),
    Socket(PathBuf),
}

type Host = (String, u16);

/// How requests get to a server.
#[derive(Debug)]
pub(super) enum Route {
    One(Box<Place>),
    Cluster(Vec<ConnectionInfo>),
}

impl Address {
    /// Reads a URL without its options. No message repeats any of it.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let (scheme, place) = url.split_once(':').unwrap_or((url, ""));
        let (is_encrypted, kind) = match scheme.split_once('+').unwrap_or((scheme, "")) {
            ("redis", kind) => (false, kind),
            ("rediss", kind) => (true, kind),
            _ => return Err(invalid("the store's URL is malformed: write redis://host:6379/0")),
        };
        let rest = place.strip_prefix("//").unwrap_or(place);
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (who, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = match who.split_once(':') {
            Some((user, password)) => (user, Some(decoded(password, "password")?)),
            None => (who, None),
        };
        let mut database = 0;
        let segments: Vec<_> = path.split('/').skip(1).filter(|segment| !segment.is_empty()).collect();
        let servers = match (kind, &*segments) {
            ("unix", []) => return Err(invalid("a socket is named by its absolute path: write redis+unix:///path")),
            ("unix", _) if !hosts.is_empty() => {
                return Err(invalid("a socket is named by its absolute path: write redis+unix:///path"));
            }
            ("unix", _) => Servers::Socket(decoded(path, "path")?.into()),
            ("", [] | [_]) => {
                database = segments.first().map_or(Ok(0), |text| self::database(text))?;
                match &*self::hosts(hosts, PORT)? {
                    [host] => Servers::One(host.clone()),
                    _ => {
                        return Err(invalid(
                            "the store's URL names several hosts: write redis+cluster:// for a cluster, \
                             redis+sentinel:// for sentinels, or name one",
                        ));
                    }
                }
            }
            ("cluster", []) => Servers::Cluster(self::hosts(hosts, PORT)?),
            ("cluster", ["0"]) => Servers::Cluster(self::hosts(hosts, PORT)?),
            ("cluster", _) => return Err(invalid("a cluster has one database only: write redis+cluster://host,host")),
            ("sentinel", [name] | [name, _]) => {
                database = segments.get(1).map_or(Ok(0), |text| self::database(text))?;
                Servers::Sentinels(self::hosts(hosts, SENTINEL_PORT)?, decoded(name, "name of the primary")?)
            }
            ("sentinel", _) => {
                return Err(invalid("sentinels need the name of a primary: write redis+sentinel://host,host/name/0"));
            }
            _ => return Err(invalid("the store's URL is malformed: write redis://host:6379/0")),
        };
        Ok(Self {
            servers,
            is_encrypted,
            user: Some(decoded(user, "user name")?).filter(|user| !user.is_empty()),
            password,
            sentinel_password: None,
            database,
            ca_file: None,
            wait_replicas: None,
        })
    }

    /// Where the servers are, so that two names for one can be told from two servers.
    pub(crate) fn place(&self) -> String {
        format!("{:?}", self.servers)
    }

    pub(crate) fn wait_replicas(mut self, text: &str) -> Result<Self> {
        let count = text.parse().ok().filter(|count| (1..=100).contains(count));
        self.wait_replicas = Some(count.ok_or_else(|| {
            invalid("option \"wait_replicas\" is no number from 1 on: name how many replicas have to know of a grant")
        })?);
        Ok(self)
    }

    /// Sets a password unless the URL holds one by itself.
    pub(crate) fn or_password(mut self, password: Option<String>) -> Self {
        self.password = self.password.or(password);
        self
    }

    pub(crate) fn sentinel_password(mut self, password: String) -> Self {
        self.sentinel_password = Some(password);
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

    /// How requests get there.
    pub(super) fn route(&self) -> Result<Route> {
        let mut who = RedisConnectionInfo::default().set_db(self.database);
        if let Some(user) = &self.user {
            who = who.set_username(user);
        }
        if let Some(password) = &self.password {
            who = who.set_password(password);
        }
        let each = |hosts: &[Host], who: &RedisConnectionInfo| -> Result<Vec<_>> {
            hosts.iter().map(|host| self.info(self.tcp(host), who)).collect()
        };
        Ok(match &self.servers {
            Servers::One(host) => Route::One(Box::new(Place::Server(self.info(self.tcp(host), &who)?))),
            Servers::Socket(path) => {
                Route::One(Box::new(Place::Server(self.info(ConnectionAddr::Unix(path.clone()), &who)?)))
            }
            Servers::Cluster(hosts) => Route::Cluster(each(hosts, &who)?),
            Servers::Sentinels(hosts, name) => {
                let mut asker = RedisConnectionInfo::default();
                if let Some(password) = &self.sentinel_password {
                    asker = asker.set_password(password);
                }
                Route::One(Box::new(Place::Sentinels(Sentinels {
                    sentinels: each(hosts, &asker)?,
                    name: name.clone(),
                    primary: self.info(self.tcp(&hosts[0]), &who)?,
                })))
            }
        })
    }

    fn tcp(&self, (host, port): &Host) -> ConnectionAddr {
        if self.is_encrypted {
            ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host.clone(), *port)
        }
    }

    fn info(&self, address: ConnectionAddr, who: &RedisConnectionInfo) -> Result<ConnectionInfo> {
        let info = address.into_connection_info().map_err(malformed)?.set_redis_settings(who.clone());
        if !self.is_encrypted {
            return Ok(info);
        }
        wire::choose_encryption();
        let Some(path) = &self.ca_file else {
            return Ok(info);
        };
        let root_cert = std::fs::read(path)
            .map_err(|error| invalid(format!("cannot read {}: {error}", path.display())).with_source(error))?;
        let none = || invalid(format!("{} holds no certificates in PEM", path.display()));
        if CertificateDer::pem_slice_iter(&root_cert).next().is_none() {
            return Err(none());
        }
        let client = Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert: Some(root_cert) })
            .map_err(|error| none().with_source(error))?;
        Ok(client.get_connection_info().clone())
    }
}

fn hosts(text: &str, default: u16) -> Result<Vec<Host>> {
    text.split(',').map(|text| host(text, default)).collect()
}

fn host(text: &str, default: u16) -> Result<Host> {
    let malformed = || invalid("a host in the store's URL is malformed: write host, host:port or [::1]:port");
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
            (name, port.parse().map_err(|_| malformed())?)
        }
        None => (text, default),
        Some(_) if text.ends_with(']') => (text, default),
        Some(_) => return Err(malformed()),
    };
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    if name.is_empty() {
        return Err(invalid("the store's URL names no host: write redis://host:6379/0"));
    }
    Ok((decoded(name, "host")?, port))
}

fn decoded(text: &str, what: &str) -> Result<String> {
    let text = percent_decode_str(text).decode_utf8();
    text.map(|text| text.into_owned()).map_err(|_| invalid(format!("the {what} in the store's URL is not UTF-8")))
}

fn database(text: &str) -> Result<i64> {
    text.parse()
        .ok()
        .filter(|number| *number >= 0)
        .ok_or_else(|| invalid("the database in the store's URL is no number: write redis://host:6379/0"))
}

fn malformed(error: RedisError) -> Error {
    invalid(format!("cannot connect that way: {error}")).with_source(error)
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> String {
        match Address::parse(url) {
            Ok(Address { servers, is_encrypted, user, password, database, .. }) => {
                let encrypted = if is_encrypted { "s" } else { "" };
                let (user, password) = (user.unwrap_or_default(), password.unwrap_or_default());
                format!("{servers:?}{encrypted} {user} {password} {database}")
            }
            Err(error) => {
                assert!(!error.to_string().contains("hunter2"), "{error}");
                error.kind().to_string()
            }
        }
    }

    #[test]
    fn a_url_names_servers_and_who_asks() {
        for (url, expected) in [
            ("redis://h", r#"One(("h", 6379))   0"#),
            ("redis://h:7000/3", r#"One(("h", 7000))   3"#),
            ("rediss://u:p%40ss@h/", r#"One(("h", 6379))s u p@ss 0"#),
            ("redis://u:a@b@h/", r#"One(("h", 6379)) u a@b 0"#),
            ("redis://:pw@[::1]:1/0", r#"One(("::1", 1))  pw 0"#),
            ("redis://[::1]", r#"One(("::1", 6379))   0"#),
            ("redis+unix:///run/redis.sock", r#"Socket("/run/redis.sock")   0"#),
            ("redis+unix:///run/a%20b", r#"Socket("/run/a b")   0"#),
            ("redis+cluster://a,b:1", r#"Cluster([("a", 6379), ("b", 1)])   0"#),
            ("rediss+cluster://u:p@a", r#"Cluster([("a", 6379)])s u p 0"#),
            ("redis+sentinel://a,b:1/main", r#"Sentinels([("a", 26379), ("b", 1)], "main")   0"#),
            ("redis+sentinel://:p@a/main/2", r#"Sentinels([("a", 26379)], "main")  p 2"#),
            ("redis://", "invalid config"),
            ("redis:///0", "invalid config"),
            ("redis://h/x", "invalid config"),
            ("redis://h/-1", "invalid config"),
            ("redis://h/0/1", "invalid config"),
            ("redis://::1", "invalid config"),
            ("redis://a:1,b:2/0", "invalid config"),
            ("redis://u:hunter2@h:x", "invalid config"),
            ("redis+unix://run/redis.sock", "invalid config"),
            ("redis+unix:", "invalid config"),
            ("redis+cluster://a/1", "invalid config"),
            ("redis+sentinel://a", "invalid config"),
        ] {
            assert_eq!(shown(url), expected, "{url}");
        }
    }
}
