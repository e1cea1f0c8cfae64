//! Settings: flag over environment over default, and the store that they name.

use std::env;
use std::ffi::OsStr;
use std::time::Duration;

use leasehold::config::{parse_duration, redacted};
use leasehold::store::Scope;
use leasehold::store::sqlite::SqliteStore;
use leasehold::{ErrorKind, Key, LockManager, LockManagerBuilder, MAX_TTL, MIN_TTL, Wait};

use crate::cli::Global;
use crate::exit::{self, Failure};
use crate::output;

/// Where a setting was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Flag,
    Environment,
    Default,
}

/// What every subcommand needs to know.
#[derive(Debug)]
pub(crate) struct Settings {
    url: String,
    source: Source,
    namespace: Option<String>,
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
}

impl Settings {
    /// Settings from the command line and the environment; the store is not touched yet.
    pub(crate) fn new(global: &Global) -> Result<Self, Failure> {
        let (url, source) = match (&global.store, variable("LEASEHOLD_STORE")?) {
            (Some(url), _) => (url.clone(), Source::Flag),
            (None, Some(url)) => (url, Source::Environment),
            (None, None) => (DEFAULT_STORE.to_owned(), Source::Default),
        };
        // An option inside of a URL that was given as a flag stands above the environment.
        let namespace = match &global.namespace {
            Some(namespace) => Some(namespace.clone()),
            None if source == Source::Flag && has_option(&url, "namespace") => None,
            // Unlike the other variables this one may be empty: that is the namespace of exact keys.
            None => raw_variable("LEASEHOLD_NAMESPACE")?,
        };
        Ok(Self { url, source, namespace, quiet: global.quiet, verbose: global.verbose })
    }

    /// The ttl that was asked for by flag or environment; `None` leaves it to the URL and the library.
    pub(crate) fn ttl(&self, flag: Option<&str>) -> Result<Option<Duration>, Failure> {
        let (text, said) = match (flag, variable("LEASEHOLD_TTL")?) {
            (Some(text), _) => (text.to_owned(), "--ttl"),
            (None, _) if self.source == Source::Flag && has_option(&self.url, "ttl") => {
                return Ok(None);
            }
            (None, Some(text)) => (text, "LEASEHOLD_TTL"),
            (None, None) => return Ok(None),
        };
        let ttl = duration(&text).map_err(|why| Failure::new(exit::DATA, format!("invalid ttl in {said}: {why}")))?;
        if ttl < MIN_TTL || ttl > MAX_TTL {
            return Err(Failure::new(
                exit::DATA,
                format!("invalid ttl in {said}: {} is not between {MIN_TTL:?} and 24h", clip(&text)),
            ));
        }
        Ok(Some(ttl))
    }

    /// Opens the store and applies the namespace.
    pub(crate) async fn open(&self) -> Result<LockManagerBuilder, Failure> {
        let builder = leasehold::config::open(&self.url).await.map_err(|error| self.failure(&error))?;
        Ok(match &self.namespace {
            Some(namespace) => builder.namespace(namespace),
            None => builder,
        })
    }

    /// Builds the manager; a store that does not exclude other processes is refused, or announced if it was named.
    pub(crate) fn build(&self, builder: LockManagerBuilder) -> Result<LockManager, Failure> {
        let manager = builder.build().map_err(|error| self.failure(&error))?;
        match manager.scope() {
            Scope::Process => Err(Failure::new(
                exit::CONFIG,
                format!(
                    "the {} store excludes within one process only, and every command is a process of its own: \
                     name a shared one with --store, such as sqlite:///var/lib/leasehold/leases.db",
                    manager.store_name()
                ),
            )),
            Scope::None => {
                output::tell(&format!(
                    "WARNING: the {} store excludes nobody: everybody is granted every key at any time",
                    manager.store_name()
                ));
                Ok(manager)
            }
            _ => Ok(manager),
        }
    }

    /// An error from the library as this command reports it.
    pub(crate) fn failure(&self, error: &leasehold::Error) -> Failure {
        let failure = Failure::from_error(error, self.is_local_file());
        match failure.code {
            exit::UNAVAILABLE => failure.note(&format!("store: {}", self.place())),
            exit::CONFIG if error.kind() == ErrorKind::Unsupported => failure.note("name another store with --store"),
            _ => failure,
        }
    }

    /// The store's URL without credentials; for the default store the one that names its file.
    pub(crate) fn place(&self) -> String {
        let unnamed = self.url.split('?').next().is_some_and(|base| base.trim().eq_ignore_ascii_case(DEFAULT_STORE));
        match SqliteStore::default_path() {
            Ok(path) if unnamed => {
                let path = path.to_string_lossy().replace('%', "%25").replace('?', "%3F").replace('#', "%23");
                output::clean(&format!("sqlite://{path}"))
            }
            _ => output::clean(&redacted(&self.url)),
        }
    }

    /// The options that make another command find the same store and namespace.
    pub(crate) fn options_again(&self) -> String {
        let store = match self.source {
            Source::Flag => format!(" -s {}", output::quoted(&self.place())),
            _ => String::new(),
        };
        let namespace = match &self.namespace {
            Some(namespace) if raw_variable("LEASEHOLD_NAMESPACE").ok().flatten().as_ref() != Some(namespace) => {
                format!(" --namespace {}", output::quoted(namespace))
            }
            _ => String::new(),
        };
        store + &namespace
    }

    fn is_local_file(&self) -> bool {
        let scheme = self.url.trim().split(':').next().unwrap_or_default();
        scheme.eq_ignore_ascii_case("sqlite")
    }
}

/// The key as it was typed, checked before any store is touched.
pub(crate) fn key_name(typed: &OsStr) -> Result<&str, Failure> {
    let name = typed.to_str().ok_or_else(|| Failure::new(exit::DATA, "invalid key: it is not UTF-8: encode it"))?;
    Key::new("", name).map_err(|error| Failure::from_error(&error, false))?;
    Ok(name)
}

/// How long to wait: `-n` or `-w`, else `LEASEHOLD_WAIT`, else for ever.
pub(crate) fn wait(nonblock: bool, flag: Option<&str>) -> Result<Wait, Failure> {
    let (text, said, code) = match (flag, variable("LEASEHOLD_WAIT")?) {
        _ if nonblock => return Ok(Wait::No),
        (Some(text), _) => (text.to_owned(), "--wait", exit::USAGE),
        (None, Some(text)) => (text, "LEASEHOLD_WAIT", exit::CONFIG),
        (None, None) => return Ok(Wait::Forever),
    };
    let wait = duration(&text)
        .map_err(|why| Failure::new(code, format!("invalid {said}: {why}; without it the wait has no end")))?;
    Ok(if wait.is_zero() { Wait::No } else { Wait::UpTo(wait) })
}

/// A length of time from a flag.
pub(crate) fn length(flag: &str, text: Option<&str>) -> Result<Option<Duration>, Failure> {
    text.map(|text| duration(text).map_err(|why| Failure::new(exit::USAGE, format!("invalid {flag}: {why}"))))
        .transpose()
}

/// A length of time, or a fragment that says what is wrong with it.
fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.message().to_owned())
}

/// A value as it can stand in a message.
fn clip(text: &str) -> String {
    output::clean(&text.chars().take(40).collect::<String>())
}

/// A variable of the environment; an empty one counts as absent.
fn variable(name: &str) -> Result<Option<String>, Failure> {
    Ok(raw_variable(name)?.filter(|value| !value.is_empty()))
}

fn raw_variable(name: &str) -> Result<Option<String>, Failure> {
    env::var_os(name)
        .map(|value| value.into_string().map_err(|_| Failure::new(exit::CONFIG, format!("{name} is not UTF-8"))))
        .transpose()
}

const DEFAULT_STORE: &str = "sqlite:";

fn has_option(url: &str, name: &str) -> bool {
    url.split_once('?').is_some_and(|(_, query)| query.split('&').any(|option| option.split('=').next() == Some(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_inside_of_urls_are_seen() {
        assert!(has_option("sqlite:///x?ttl=3s&namespace=a", "namespace"));
        assert!(!has_option("sqlite:///namespace", "namespace"));
    }
}
