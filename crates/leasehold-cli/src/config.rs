//! Settings: flag over environment over default, and the store that they name.

use std::env;
use std::ffi::OsStr;
use std::time::Duration;

use jiff::SignedDuration;
use leasehold::store::Scope;
use leasehold::{Key, LockManager, LockManagerBuilder, MAX_TTL, MIN_TTL, Wait};

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
        Ok(Self {
            url,
            source,
            namespace,
            quiet: global.quiet,
            verbose: global.verbose,
        })
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
        let ttl = duration(&text)
            .map_err(|why| Failure::new(exit::DATA, format!("invalid ttl in {said}: {why}")))?;
        if ttl < MIN_TTL || ttl > MAX_TTL {
            return Err(Failure::new(
                exit::DATA,
                format!(
                    "invalid ttl in {said}: {} is not between {MIN_TTL:?} and 24h",
                    clip(&text)
                ),
            ));
        }
        Ok(Some(ttl))
    }

    /// Opens the store and applies the namespace.
    pub(crate) async fn open(&self) -> Result<LockManagerBuilder, Failure> {
        let builder = leasehold::config::open(&self.url)
            .await
            .map_err(|error| self.failure(&error))?;
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
            _ => failure,
        }
    }

    /// The store as people may read it: the file's name, or the URL without credentials.
    pub(crate) fn place(&self) -> String {
        match local_file(&self.url) {
            Some(path) if self.is_local_file() => format!("{} (sqlite)", output::clean(&path)),
            _ => redacted(&self.url),
        }
    }

    /// The store as a program may read it: a URL without credentials.
    pub(crate) fn redacted_url(&self) -> String {
        match local_file(&self.url) {
            Some(path) if self.is_local_file() => format!("sqlite://{path}"),
            _ => redacted(&self.url),
        }
    }

    /// The options that make another command find the same store and namespace.
    pub(crate) fn options_again(&self) -> String {
        let store = match self.source {
            Source::Flag => format!(" -s {}", output::quoted(&redacted(&self.url))),
            _ => String::new(),
        };
        let namespace = match &self.namespace {
            Some(namespace)
                if raw_variable("LEASEHOLD_NAMESPACE").ok().flatten().as_ref()
                    != Some(namespace) =>
            {
                format!(" --namespace {}", output::quoted(namespace))
            }
            _ => String::new(),
        };
        store + &namespace
    }

    fn is_local_file(&self) -> bool {
        scheme(&self.url) == "sqlite"
    }
}

/// The key as it was typed, checked before any store is touched.
pub(crate) fn key_name(typed: &OsStr) -> Result<&str, Failure> {
    let name = typed
        .to_str()
        .ok_or_else(|| Failure::new(exit::DATA, "invalid key: it is not UTF-8: encode it"))?;
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
    let wait = duration(&text).map_err(|why| {
        Failure::new(
            code,
            format!("invalid {said}: {why}; without it the wait has no end"),
        )
    })?;
    Ok(if wait.is_zero() {
        Wait::No
    } else {
        Wait::UpTo(wait)
    })
}

/// A length of time from a flag.
pub(crate) fn length(flag: &str, text: Option<&str>) -> Result<Option<Duration>, Failure> {
    text.map(|text| {
        duration(text).map_err(|why| Failure::new(exit::USAGE, format!("invalid {flag}: {why}")))
    })
    .transpose()
}

/// The longest length of time that is taken for meant: 100 years.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A length of time as people write it: `30s`, `1.5s`, `500ms`, `1h30m`; a bare number is seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let example = "write it as 30s, 1.5s, 500ms, 2m or 1h30m";
    if text.is_empty() {
        return Err(format!("it is empty: {example}"));
    }
    // Said here because the parser below wants a unit even to see the sign.
    let unsigned = text.strip_prefix('-');
    if unsigned.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
        return Err(format!("{} is negative: {example}", clip(text)));
    }
    let bare = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let parsed: Result<SignedDuration, _> = if bare {
        format!("{text}s").parse()
    } else {
        text.parse()
    };
    let signed =
        parsed.map_err(|_| format!("\"{}\" is no length of time: {example}", clip(text)))?;
    match Duration::try_from(signed) {
        Err(_) => Err(format!("{} is negative: {example}", clip(text))),
        Ok(length) if length > LONGEST => Err(format!(
            "{} is longer than a hundred years: {example}",
            clip(text)
        )),
        Ok(length) => Ok(length),
    }
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
        .map(|value| {
            value
                .into_string()
                .map_err(|_| Failure::new(exit::CONFIG, format!("{name} is not UTF-8")))
        })
        .transpose()
}

const DEFAULT_STORE: &str = "sqlite:";

fn scheme(url: &str) -> &str {
    url.split(':').next().unwrap_or_default()
}

fn has_option(url: &str, name: &str) -> bool {
    url.split_once('?').is_some_and(|(_, query)| {
        query
            .split('&')
            .any(|option| option.split('=').next() == Some(name))
    })
}

/// A URL without what stands before an `@` and without options that hold secrets.
fn redacted(url: &str) -> String {
    let url = output::clean(url);
    let Some((scheme, rest)) = url.split_once("://") else {
        return url;
    };
    // The last `@`, wherever it stands: a password with a stray `/` or `?` must not show, whatever else is hidden.
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    let Some((place, query)) = rest.split_once('?') else {
        return format!("{scheme}://{rest}");
    };
    let options: Vec<_> = query
        .split('&')
        .map(|option| match option.split_once('=') {
            Some((name, _))
                if name.contains("pass") || name.contains("secret") || name.contains("token") =>
            {
                format!("{name}=***")
            }
            _ => option.to_owned(),
        })
        .collect();
    format!("{scheme}://{place}?{}", options.join("&"))
}

/// The path of the local file; `None` if there is no place for it.
fn local_file(url: &str) -> Option<String> {
    let path = url.strip_prefix("sqlite:")?.split('?').next()?;
    match path.strip_prefix("//").unwrap_or(path) {
        "" => default_file(),
        path => Some(path.to_owned()),
    }
}

fn default_file() -> Option<String> {
    let state = env::var("XDG_STATE_HOME")
        .ok()
        .filter(|path| !path.is_empty());
    let home = env::var("HOME").ok().filter(|path| !path.is_empty());
    let directory = match (state, home) {
        (Some(state), _) => state,
        (None, _) if rustix::process::geteuid().is_root() => "/var/lib".to_owned(),
        (None, Some(home)) => format!("{home}/.local/state"),
        (None, None) => return None,
    };
    Some(format!("{directory}/leasehold/leases.db"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read() {
        for (text, ms) in [
            ("120", 120_000),
            ("120ms", 120),
            ("2m", 120_000),
            ("1.5s", 1_500),
            ("1.5", 1_500),
            ("1h30m", 5_400_000),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in [
            "",
            " ",
            "-1",
            "-5s",
            "abc",
            "1x",
            ".",
            "99999999999999h",
            "9".repeat(400).as_str(),
            "-n",
            "\u{1b}",
        ] {
            let why = duration(text).unwrap_err();
            assert!(
                why.contains("30s") && !why.contains('\u{1b}'),
                "{text}: {why}"
            );
        }
    }

    #[test]
    fn credentials_never_show() {
        for (url, shown) in [
            ("redis://localhost:6379/0", "redis://localhost:6379/0"),
            ("redis://u:hunter2@cache-1:6379/0", "redis://cache-1:6379/0"),
            ("redis://u:hun@ter/2@cache-1/0", "redis://cache-1/0"),
            (
                "postgres://u@h/db?mode=table&password=hunter2",
                "postgres://h/db?mode=table&password=***",
            ),
        ] {
            assert_eq!(redacted(url), shown);
        }
    }

    #[test]
    fn options_inside_of_urls_are_seen() {
        assert!(has_option("sqlite:///x?ttl=3s&namespace=a", "namespace"));
        assert!(!has_option("sqlite:///namespace", "namespace"));
    }
}
