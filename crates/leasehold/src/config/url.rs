//! What a store's URL says: which store, where, and with which options.

use std::time::Duration;

use url::form_urlencoded;

#[cfg(any(feature = "postgres", feature = "redis"))]
use super::environment::read;
use super::redact::{is_scheme, split_at_mark};
#[cfg(feature = "redis")]
use super::redlock;
use super::words::{length_or_off, switch};
use super::{Options, invalid, named, near, positive};
use crate::error::{Error, Result};
use crate::store::SharedStore;
use crate::store::memory::MemoryStore;
use crate::store::noop::NoopStore;
#[cfg(feature = "postgres")]
use crate::store::postgres;
#[cfg(feature = "redis")]
use crate::store::redis::{Address, RedisStore};
#[cfg(feature = "sqlite")]
use crate::store::sqlite::SqliteStore;
use crate::types::check_namespace;

/// A kind of URL.
#[derive(Debug)]
pub(super) struct Scheme {
    pub(super) name: &'static str,
    /// The feature that it needs; a scheme without its feature is known but refused.
    feature: &'static str,
    pub(super) is_compiled: bool,
    /// The options that it takes beside those that every one takes.
    options: &'static [&'static str],
}

pub(super) static SCHEMES: [Scheme; 13] = {
    const fn scheme(name: &'static str, options: &'static [&'static str]) -> Scheme {
        Scheme { name, feature: "", is_compiled: true, options }
    }
    const fn redis(name: &'static str, options: &'static [&'static str]) -> Scheme {
        Scheme { name, feature: "redis", is_compiled: cfg!(feature = "redis"), options }
    }
    const fn postgres(name: &'static str) -> Scheme {
        let options = &["ca_file", "mode", PASSWORD_FILE, "schema", "sslmode", "table"];
        Scheme { name, feature: "postgres", is_compiled: cfg!(feature = "postgres"), options }
    }
    [
        scheme("memory", &[]),
        scheme("noop", &[]),
        Scheme { name: "sqlite", feature: "sqlite", is_compiled: cfg!(feature = "sqlite"), options: &[] },
        postgres("postgres"),
        postgres("postgresql"),
        redis("redis", &[PASSWORD_FILE, WAIT_REPLICAS]),
        redis("rediss", &["ca_file", PASSWORD_FILE, WAIT_REPLICAS]),
        redis("redis+unix", &["db", PASSWORD_FILE, "user", WAIT_REPLICAS]),
        redis("redis+cluster", &[PASSWORD_FILE, WAIT_REPLICAS]),
        redis("rediss+cluster", &["ca_file", PASSWORD_FILE, WAIT_REPLICAS]),
        redis("redis+sentinel", &[PASSWORD_FILE, SENTINEL_PASSWORD_FILE, WAIT_REPLICAS]),
        redis("rediss+sentinel", &["ca_file", PASSWORD_FILE, SENTINEL_PASSWORD_FILE, WAIT_REPLICAS]),
        redis("redlock", &["max_ttl", "node_timeout", PASSWORD_FILE]),
    ]
};

/// The options of every scheme.
const OPTIONS: [&str; 7] = ["breaker", "connect_timeout", "namespace", "op_timeout", "own_runtime", "retry", "ttl"];

/// Those that take a password take this option.
const PASSWORD_FILE: &str = "password_file";
const SENTINEL_PASSWORD_FILE: &str = "sentinel_password_file";
const WAIT_REPLICAS: &str = "wait_replicas";

/// A URL in its parts, checked as far as it can be without the store.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    scheme: &'static Scheme,
    place: &'a str,
    pub(super) options: Options,
}

impl<'a> Parts<'a> {
    pub(super) fn parse(url: &'a str) -> Result<Self> {
        let url = url.trim();
        if url.is_empty() {
            return Err(no_store());
        }
        if url.contains('#') {
            return Err(invalid("a store's URL has no part after '#': write %23 where the character is meant"));
        }
        let (base, query) = split_at_mark(url, '?');
        let (scheme, place) = base.split_once(':').unwrap_or((base, ""));
        let is_url = base.contains(':') && is_scheme(scheme);
        let scheme = scheme.trim().to_ascii_lowercase();
        let scheme = match SCHEMES.iter().find(|known| known.name == scheme) {
            // The bare name of a store is enough; anything else without a colon may be a secret and is not repeated.
            None if !is_url => {
                let path = if base.starts_with(['/', '.', '~']) { "; a file is sqlite:///path" } else { "" };
                return Err(invalid(format!("the store has no scheme: {}{path}", choices())));
            }
            None => {
                let near = near(&scheme, &SCHEMES.each_ref().map(|known| known.name));
                let meant = near.map_or(": ".to_owned(), |near| format!("; did you mean {near}:? "));
                return Err(invalid(format!("unknown store{}{meant}{}", named(&scheme, near), choices())));
            }
            Some(Scheme { is_compiled: false, feature, .. }) => {
                return Err(invalid(format!(
                    "store {scheme:?} is not compiled in: build with the feature {feature:?}, or {}",
                    choices()
                )));
            }
            Some(known) => known,
        };
        let options = parse_options(scheme, query.trim_start_matches('?'))?;
        Ok(Self { scheme, place, options })
    }

    /// Whether somebody may have to say a password: the URL's own, or that of its file, comes before any other.
    pub(super) fn wants_password(&self) -> bool {
        let takes_one = self.scheme.options.contains(&PASSWORD_FILE);
        let names_file = self.options.own.iter().any(|(name, _)| *name == PASSWORD_FILE);
        takes_one && !names_file && !holds_password(self.place)
    }

    /// Opens the store; the password is for a URL that holds none.
    pub(super) async fn open(&self, password: Option<String>) -> Result<SharedStore> {
        let (scheme, place) = (self.scheme.name, self.place);
        #[cfg(not(any(feature = "postgres", feature = "redis")))]
        drop(password);
        match scheme {
            "memory" => no_place(scheme, place).map(|()| MemoryStore::new().into()),
            "noop" => no_place(scheme, place).map(|()| NoopStore::new().into()),
            #[cfg(feature = "sqlite")]
            "sqlite" => Ok(match sqlite_path(place)? {
                None => SqliteStore::open_default().await?.into(),
                Some(path) => SqliteStore::open(path).await?.into(),
            }),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                let mut address = postgres::Address::parse(&format!("{scheme}:{place}"))?;
                for (name, value) in &self.options.own {
                    address = match *name {
                        "ca_file" => address.ca_file(value.as_ref()),
                        "mode" => address.mode(value)?,
                        "schema" => address.schema(value)?,
                        "sslmode" => address.ssl_mode(value)?,
                        "table" => address.table(value)?,
                        _ => address.or_password(Some(read(value.as_ref())?)),
                    };
                }
                postgres::open(address.or_password(password)).await
            }
            #[cfg(feature = "redis")]
            "redlock" => Ok(redlock::open(place, &self.options.own, password).await?.into()),
            #[cfg(feature = "redis")]
            _ if self.scheme.feature == "redis" => {
                let mut address = Address::parse(&format!("{scheme}:{place}"))?;
                for (name, value) in &self.options.own {
                    address = match *name {
                        "ca_file" => address.ca_file(value.as_ref()),
                        "db" => address.database(value)?,
                        "user" => address.user(value),
                        WAIT_REPLICAS => address.wait_replicas(value)?,
                        SENTINEL_PASSWORD_FILE => address.sentinel_password(read(value.as_ref())?),
                        _ => address.or_password(Some(read(value.as_ref())?)),
                    };
                }
                Ok(RedisStore::connect_to(address.or_password(password)).await?.into())
            }
            _ => Err(invalid(format!("unknown store {scheme:?}: {}", choices()))),
        }
    }
}

/// Nobody said which store; none is chosen in silence.
pub(super) fn no_store() -> crate::Error {
    invalid(format!("no store is named: {}", choices()))
}

fn holds_password(place: &str) -> bool {
    let authority = place.strip_prefix("//").and_then(|named| named.split('/').next());
    authority.and_then(|authority| authority.rsplit_once('@')).is_some_and(|(who, _)| who.contains(':'))
}

fn no_place(scheme: &str, place: &str) -> Result<()> {
    if matches!(place, "" | "//") {
        return Ok(());
    }
    Err(invalid(format!("{scheme:?} takes nothing but options: write {scheme}: or {scheme}:?ttl=30s")))
}

/// The file that is named; `None` = the default one.
#[cfg(feature = "sqlite")]
pub(super) fn sqlite_path(place: &str) -> Result<Option<std::path::PathBuf>> {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    if place.is_empty() {
        return Ok(None);
    }
    let path = match place.strip_prefix("//") {
        Some(after_host) if after_host.starts_with('/') => after_host,
        None if place.starts_with('/') => place,
        _ if place.eq_ignore_ascii_case(":memory:") => {
            return Err(invalid("a lease in memory excludes nobody else: write memory: if that is meant"));
        }
        _ => {
            return Err(invalid(
                "a file is named by its absolute path: write sqlite:///path with three slashes, or sqlite: for the \
                 default file",
            ));
        }
    };
    let path = format!("/{}", path.trim_start_matches('/'));
    let is_escape = |after: &str| after.get(..2).is_some_and(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if !path.split('%').skip(1).all(is_escape) {
        return Err(invalid("a file's path holds a '%' without two digits: write %25 where the character is meant"));
    }
    let path: Vec<u8> = percent_encoding::percent_decode_str(&path).collect();
    if path.contains(&0) {
        return Err(invalid("a file's path holds a zero byte: remove %00"));
    }
    Ok(Some(OsString::from_vec(path).into()))
}

fn parse_options(scheme: &'static Scheme, query: &str) -> Result<Options> {
    let read = read_options(scheme, query);
    // A bare '?' in a password ends it: what follows may be the rest of the secret.
    if query.contains('@') {
        return read.map_err(|_| {
            invalid(
                "an option is unknown or malformed, and not repeated since it may be part of a password: write '?' as %3F \
                 there, and '@' as %40",
            )
        });
    }
    read
}

fn read_options(scheme: &'static Scheme, query: &str) -> Result<Options> {
    let mut options = Options::default();
    let in_option = |name: &str, error: &Error| invalid(format!("option {name:?}: {}", error.message()));
    let length =
        |name: &str, value: &str| -> Result<Duration> { positive(value).map_err(|error| in_option(name, &error)) };
    let length_or_off = |name: &str, value: &str| length_or_off(value).map_err(|error| in_option(name, &error));
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let is_repeated = match &*name {
            "namespace" => {
                check_namespace(&value)?;
                options.namespace.replace(value.into_owned()).is_some()
            }
            "ttl" => options.ttl.replace(length(&name, &value)?).is_some(),
            "op_timeout" => options.op_timeout.replace(length(&name, &value)?).is_some(),
            "connect_timeout" => options.connect_timeout.replace(length(&name, &value)?).is_some(),
            "retry" => options.retry.replace(length_or_off(&name, &value)?).is_some(),
            "breaker" => options.breaker.replace(length_or_off(&name, &value)?).is_some(),
            "own_runtime" => {
                let is_on = switch(&value).map_err(|error| in_option(&name, &error))?;
                options.own_runtime.replace(is_on).is_some()
            }
            _ => match scheme.options.iter().find(|own| **own == name) {
                Some(own) => {
                    let is_repeated = options.own.iter().any(|(known, _)| known == own);
                    options.own.push((own, value.into_owned()));
                    is_repeated
                }
                None => {
                    let mut known = [&OPTIONS, scheme.options].concat();
                    known.sort_unstable();
                    let near = near(&name, &known);
                    let meant = near.map_or(": ".to_owned(), |near| format!("; did you mean {near:?}? "));
                    let known = known.join(", ");
                    return Err(invalid(format!("unknown option{}{meant}there are {known}", named(&name, near))));
                }
            },
        };
        if is_repeated {
            return Err(invalid(format!("option {name:?} is given twice: keep one")));
        }
    }
    Ok(options)
}

fn choices() -> String {
    let compiled = SCHEMES.iter().filter(|scheme| scheme.is_compiled);
    let schemes: Vec<_> = compiled.map(|scheme| format!("{}:", scheme.name)).collect();
    format!("choose one of {}", schemes.join(" "))
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_sqlite_url_names_a_file() {
        for (place, path) in [
            ("", None),
            ("///var/lib/a.db", Some("/var/lib/a.db")),
            ("/var/lib/a.db", Some("/var/lib/a.db")),
            ("////var//a.db", Some("/var//a.db")),
            ("///with%20space%3f/%25", Some("/with space?/%")),
        ] {
            assert_eq!(sqlite_path(place).unwrap(), path.map(Into::into), "{place}");
        }
        for place in ["a.db", "//a.db", "//host/a.db", ":memory:", "///a%00b", "//", "///%zz", "///a%2", "///%"] {
            assert_eq!(sqlite_path(place).unwrap_err().kind(), ErrorKind::InvalidConfig, "{place}");
        }
    }
}
