//! Settings from variables of the environment.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use super::source::{Said, Source};
use super::words::{is_surely_a_path, length_or_off, switch};
use super::{Config, invalid, parse_wait, positive};
use crate::error::{Error, ErrorKind, Result};

impl Config {
    /// Settings from the variables whose names begin with `prefix`: `PREFIX_STORE`, `PREFIX_NAMESPACE`, `PREFIX_TTL`,
    /// `PREFIX_WAIT`, `PREFIX_OP_TIMEOUT`, `PREFIX_CONNECT_TIMEOUT`, `PREFIX_RETRY`, `PREFIX_BREAKER`, `PREFIX_OWN_RUNTIME`,
    /// `PREFIX_PASSWORD`.
    ///
    /// `PREFIX_STORE_FILE` and `PREFIX_PASSWORD_FILE` name files that hold the value, as secrets are passed to
    /// containers. An empty variable counts as absent, but for `PREFIX_NAMESPACE`, which may be empty. A malformed
    /// value is an error of [`resolve`](Self::resolve), and only if nothing above overrides it.
    ///
    /// ```
    /// # use leasehold::config::Config;
    /// let config = Config::from_env("MY_APP").or(Config::from_url("memory:"));
    /// assert_eq!(config.resolve()?.namespace, "leasehold");
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn from_env(prefix: &str) -> Self {
        Self::from_variables(prefix, |name| env::var_os(name))
    }

    pub(super) fn from_variables(prefix: &str, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let said = |suffix: &str| {
            let name = format!("{prefix}_{suffix}");
            let value = variable(&name)?;
            let text = value.into_string().map_err(|_| invalid("it is not UTF-8"));
            Some((text, Source::Environment(name.into())))
        };
        let said_something =
            |suffix: &str| said(suffix).filter(|(text, _)| text.as_ref().ok().is_none_or(|text| !text.is_empty()));
        let length = |suffix: &str| {
            said_something(suffix).map(|(text, source)| Said::of(text.and_then(|text| positive(&text)), source))
        };
        let length_or_off = |suffix: &str| {
            said_something(suffix).map(|(text, source)| Said::of(text.and_then(|text| length_or_off(&text)), source))
        };
        let store = match (said_something("STORE"), said_something("STORE_FILE")) {
            (Some(_), Some((_, source))) => {
                Some(Said::of(Err(invalid(format!("{prefix}_STORE is set as well: keep one"))), source))
            }
            (Some((url, source)), None) => Some(Said::of(url, source)),
            (None, Some((path, source))) => Some(Said::of(path.and_then(|path| read(Path::new(&path))), source)),
            (None, None) => None,
        };
        Self {
            store,
            namespace: said("NAMESPACE").map(|(text, source)| Said::of(text, source)),
            ttl: length("TTL"),
            wait: said_something("WAIT")
                .map(|(text, source)| Said::of(text.and_then(|text| parse_wait(&text)), source)),
            op_timeout: length("OP_TIMEOUT"),
            connect_timeout: length("CONNECT_TIMEOUT"),
            retry: length_or_off("RETRY"),
            breaker: length_or_off("BREAKER"),
            own_runtime: said_something("OWN_RUNTIME")
                .map(|(text, source)| Said::of(text.and_then(|text| switch(&text)), source)),
            password: said_something("PASSWORD").map(|(text, source)| Said::of(text, source)),
            password_file: said_something("PASSWORD_FILE").map(|(text, source)| Said::of(text.map(Into::into), source)),
        }
    }
}

/// The first line of a file that holds a secret.
pub(super) fn read(path: &Path) -> Result<String> {
    let file = if is_surely_a_path(path) { path.display().to_string() } else { "the file that it names".to_owned() };
    let text = fs::read_to_string(path).map_err(|error| {
        Error::new(ErrorKind::InvalidConfig, format!("cannot read {file}: {error}")).with_source(error)
    })?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(invalid(format!("{file} is empty"))),
    }
}
