//! Where the server is, who asks, and how the way is encrypted: from a URL, or from a configuration of the caller's.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::{Config, Notification};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::fault;
use super::layout::Names;
use super::tls::{self, Trust};
use super::wire::{self, Wire};
use crate::error::{Error, ErrorKind, Result};

const PORT: u16 = 5432;

/// After this long without traffic the operating system asks the peer for a sign of life, three times.
const IDLE: Duration = Duration::from_secs(15);

/// What a configuration says where nobody has set it.
const UNSET_IDLE: Duration = Duration::from_secs(2 * 60 * 60);

/// How long a host may take to accept a connection, so that there is time for the next one: a fifth of what connecting may
/// take, and many times what a network takes.
const HOST_LIMIT: Duration = Duration::from_secs(1);

/// Servers, a database, who asks, and the tables.
#[derive(Debug)]
pub(crate) struct Address {
    hosts: Vec<(String, u16)>,
    user: Option<String>,
    password: Option<String>,
    database: Option<String>,
    encryption: Option<Encryption>,
    /// Certificates of authorities to be trusted instead of the system's.
    ca_file: Option<PathBuf>,
    names: Names,
    mode: Mode,
}

/// What keeps the leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Table,
    Advisory,
    Xact,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encryption {
    Disable,
    Prefer,
    Require,
    VerifyFull,
}

impl Address {
    /// Reads a URL without its options. No message repeats any of it.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let malformed = || invalid("the store's URL is malformed: write postgres://user@host:5432/database");
        let (scheme, place) = url.split_once(':').ok_or_else(malformed)?;
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err(malformed());
        }
        let rest = place.strip_prefix("//").ok_or_else(malformed)?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (who, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = match who.split_once(':') {
            Some((user, password)) => (user, Some(decoded(password, "password")?)),
            None => (who, None),
        };
        let database = path.strip_prefix('/').unwrap_or_default();
        if database.contains('/') {
            return Err(malformed());
        }
        // It was rather the end of a password, and would be shown.
        if database.contains('@') {
            return Err(invalid(
                "the store's URL has an @ behind a /: write / as %2F and @ as %40 in passwords and in the name of a database",
            ));
        }
        let named = |text: String| Some(text).filter(|text| !text.is_empty());
        Ok(Self {
            hosts: hosts.split(',').map(host).collect::<Result<_>>()?,
            user: named(decoded(user, "user name")?),
            password,
            database: named(decoded(database, "name of the database")?),
            encryption: None,
            ca_file: None,
            names: Names::default(),
            mode: Mode::Table,
        })
    }

    /// Sets a password unless the URL holds one by itself.
    pub(crate) fn or_password(mut self, password: Option<String>) -> Self {
        self.password = self.password.or(password);
        self
    }

    pub(crate) fn mode(mut self, mode: &str) -> Result<Self> {
        self.mode = match mode {
            "table" => Mode::Table,
            "advisory" => Mode::Advisory,
            "xact" => Mode::Xact,
            _ => return Err(invalid("option \"mode\" is none that there is: write table, advisory or xact")),
        };
        Ok(self)
    }

    pub(super) const fn keeps(&self) -> Mode {
        self.mode
    }

    pub(crate) fn schema(mut self, name: &str) -> Result<Self> {
        self.names = self.names.schema(name)?;
        Ok(self)
    }

    pub(crate) fn table(mut self, name: &str) -> Result<Self> {
        self.names = self.names.table(name)?;
        Ok(self)
    }

    pub(crate) fn ssl_mode(mut self, mode: &str) -> Result<Self> {
        self.encryption = Some(match mode {
            "disable" => Encryption::Disable,
            "prefer" => Encryption::Prefer,
            "require" => Encryption::Require,
            "verify-full" => Encryption::VerifyFull,
            _ => {
                return Err(invalid(
                    "option \"sslmode\" is none that there is: write disable, prefer, require or verify-full",
                ));
            }
        });
        Ok(self)
    }

    pub(crate) fn ca_file(mut self, path: &Path) -> Self {
        self.ca_file = Some(path.to_owned());
        self
    }

    /// How to get there, and the tables.
    pub(super) fn place(self) -> Result<(Place, Names)> {
        // Who names an authority wants it to be asked.
        let default = if self.ca_file.is_some() { Encryption::VerifyFull } else { Encryption::Prefer };
        let encryption = self.encryption.unwrap_or(default);
        if self.ca_file.is_some() && encryption != Encryption::VerifyFull {
            return Err(invalid(
                "ca_file is only looked at with sslmode=verify-full: write that, or leave ca_file out",
            ));
        }
        let tls = match &self.ca_file {
            _ if encryption != Encryption::VerifyFull => tls::connector(Trust::Anybody)?,
            Some(path) => tls::connector(Trust::File(path))?,
            None => tls::connector(Trust::System)?,
        };
        let mut config = Config::new();
        for (host, port) in &self.hosts {
            config.host(host).port(*port);
        }
        if let Some(user) = &self.user {
            config.user(user);
        }
        if let Some(password) = &self.password {
            config.password(password);
        }
        if let Some(database) = &self.database {
            config.dbname(database);
        }
        config.application_name("leasehold").ssl_mode(match encryption {
            Encryption::Disable => SslMode::Disable,
            Encryption::Prefer => SslMode::Prefer,
            Encryption::Require | Encryption::VerifyFull => SslMode::Require,
        });
        if self.hosts.len() > 1 {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        Ok((Place::new(config, tls), self.names))
    }
}

/// Where a server is to be found.
pub(super) struct Place {
    config: Config,
    tls: MakeRustlsConnect,
}

impl Place {
    /// Where a configuration leads: a server whose encryption is required must be known to the system's authorities.
    pub(super) fn of(config: Config) -> Result<Self> {
        let trust = if config.get_ssl_mode() == SslMode::Require { Trust::System } else { Trust::Anybody };
        Ok(Self::new(config, tls::connector(trust)?))
    }

    fn new(mut config: Config, tls: MakeRustlsConnect) -> Self {
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(HOST_LIMIT);
        }
        if config.get_keepalives_idle() == UNSET_IDLE {
            config.keepalives_idle(IDLE);
        }
        if config.get_keepalives_interval().is_none() {
            config.keepalives_interval(IDLE / 3);
        }
        if config.get_keepalives_retries().is_none() {
            config.keepalives_retries(3);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(IDLE * 2);
        }
        Self { config, tls }
    }

    /// Whether there is one server, or pooler, to connect to.
    pub(super) fn is_one(&self) -> bool {
        self.config.get_hosts().len() == 1
    }

    /// Connects; what the server tells unasked goes to `heard`, `None` is the end.
    pub(super) async fn connect(&self, heard: impl FnMut(Option<Notification>) + Send + 'static) -> Result<Wire> {
        let wire = Wire::connect(&self.config, wire::new_id()?, self.tls.clone(), heard).await;
        wire.map_err(|error| fault::connecting(error, &self.to_string()))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports = self.config.get_ports();
        for (at, host) in self.config.get_hosts().iter().enumerate() {
            let separator = if at > 0 { "," } else { "" };
            let port = ports.get(at).or(ports.first()).copied().unwrap_or(PORT);
            match host {
                Host::Tcp(host) if host.contains(':') => write!(f, "{separator}[{host}]:{port}")?,
                Host::Tcp(host) => write!(f, "{separator}{host}:{port}")?,
                Host::Unix(path) => write!(f, "{separator}{}", path.display())?,
            }
        }
        Ok(())
    }
}

fn host(text: &str) -> Result<(String, u16)> {
    let malformed = || invalid("a host in the store's URL is malformed: write host, host:port or [::1]:port");
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
            (name, port.parse().map_err(|_| malformed())?)
        }
        None => (text, PORT),
        Some(_) if text.ends_with(']') => (text, PORT),
        Some(_) => return Err(malformed()),
    };
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    if name.is_empty() {
        return Err(invalid("the store's URL names no host: write postgres://user@host:5432/database"));
    }
    Ok((decoded(name, "host")?, port))
}

fn decoded(text: &str, what: &str) -> Result<String> {
    let text = percent_decode_str(text).decode_utf8().map(|text| text.into_owned());
    // The protocol ends each text by a zero byte.
    text.ok()
        .filter(|text| !text.contains('\0'))
        .ok_or_else(|| invalid(format!("the {what} in the store's URL is no text in UTF-8")))
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> String {
        match Address::parse(url) {
            Ok(Address { hosts, user, password, database, .. }) => {
                let text = |text: Option<String>| text.unwrap_or_default();
                format!("{hosts:?} {} {} {}", text(user), text(password), text(database))
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
            ("postgres://h", r#"[("h", 5432)]   "#),
            ("postgresql://u@h:7000/app", r#"[("h", 7000)] u  app"#),
            ("postgres://u:p%40ss@h/", r#"[("h", 5432)] u p@ss "#),
            ("postgres://u:a@b@[::1]:1/a%20b", r#"[("::1", 1)] u a@b a b"#),
            ("postgres://a,b:1/x", r#"[("a", 5432), ("b", 1)]   x"#),
            ("postgres://u@%2Frun%2Fpostgresql/x", r#"[("/run/postgresql", 5432)] u  x"#),
            ("postgres://", "invalid config"),
            ("postgres:///x", "invalid config"),
            ("postgres:h", "invalid config"),
            ("postgres://h/a/b", "invalid config"),
            ("postgres://u:hunter2@h:x", "invalid config"),
            ("postgres://u:hunter2%00@h", "invalid config"),
            ("postgres://u:12/hunter2@h", "invalid config"),
            ("postgres://u@h/hunter2@x", "invalid config"),
            ("postgres://u@h/a%40b", r#"[("h", 5432)] u  a@b"#),
        ] {
            assert_eq!(shown(url), expected, "{url}");
        }
    }

    #[test]
    fn no_way_is_weaker_than_asked_for() {
        let mode = |mode: &str| {
            let (place, _) = Address::parse("postgres://h").unwrap().ssl_mode(mode).unwrap().place().unwrap();
            place.config.get_ssl_mode()
        };
        assert_eq!(mode("disable"), SslMode::Disable);
        assert_eq!(mode("prefer"), SslMode::Prefer);
        assert_eq!(mode("require"), SslMode::Require);
        assert_eq!(mode("verify-full"), SslMode::Require);
        for mode in ["", "allow", "verify-ca", "Require"] {
            Address::parse("postgres://h").unwrap().ssl_mode(mode).unwrap_err();
        }
        let address = Address::parse("postgres://h").unwrap().ca_file("/none".as_ref());
        address.ssl_mode("require").unwrap().place().err().unwrap();
    }

    #[test]
    fn a_peer_that_has_vanished_is_noticed_by_every_configuration() {
        let limits = |config: &Config| {
            let interval = config.get_keepalives_interval().zip(config.get_keepalives_retries());
            (config.get_keepalives_idle(), interval, config.get_tcp_user_timeout().copied())
        };
        let unless_set = (IDLE, Some((IDLE / 3, 3)), Some(IDLE * 2));
        let (place, _) = Address::parse("postgres://h").unwrap().place().unwrap();
        assert_eq!(limits(&place.config), unless_set);
        assert_eq!(limits(&Place::of(Config::new()).unwrap().config), unless_set);
        let mut config = Config::new();
        config.keepalives_idle(IDLE * 4).keepalives_interval(IDLE).keepalives_retries(5).tcp_user_timeout(IDLE * 8);
        let set = limits(&config);
        assert_eq!(limits(&Place::of(config).unwrap().config), set);
    }
}
