//! From a store's URL to a manager: which stores there are, which options they take.
//!
//! | URL | store |
//! |---|---|
//! | `sqlite:`, `sqlite:///path` | a local file, by default the one of `SqliteStore::default_path` |
//! | `memory:` | one process |
//! | `noop:` | none: everybody is granted |
//!
//! Every store takes the options `namespace`, `ttl`, `op_timeout` and `connect_timeout`, as in
//! `sqlite:///run/app.db?ttl=1m&namespace=app`. Parts of a path and of an option are percent-encoded where they hold
//! `?`, `#`, `%` or `&`.

use std::time::Duration;

use jiff::SignedDuration;
use url::form_urlencoded;

use crate::error::{Error, ErrorKind, Operation, Result};
use crate::manager::{LockManager, LockManagerBuilder};
use crate::store::SharedStore;
use crate::store::memory::MemoryStore;
use crate::store::noop::NoopStore;
#[cfg(feature = "sqlite")]
use crate::store::sqlite::SqliteStore;
use crate::types::check_namespace;

mod redact;

pub use self::redact::redacted;

/// Schemes, and the feature that each needs; a scheme without its feature is known but refused.
const SCHEMES: [(&str, bool); 3] = [("memory", true), ("noop", true), ("sqlite", cfg!(feature = "sqlite"))];

const OPTIONS: [&str; 4] = ["connect_timeout", "namespace", "op_timeout", "ttl"];

/// How far a name may be from the one that was meant, in letters.
const NEAR: usize = 2;

/// Opens the store that `url` names and prepares a manager with the options that it gives.
///
/// The scheme's case and space around the URL do not matter.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let builder = leasehold::config::open("memory:?ttl=1m&namespace=app").await?;
/// # drop(builder);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`ErrorKind::InvalidConfig`] for an unknown scheme or option, a malformed value, or a store that is not compiled
/// in; the message lists what there is. [`ErrorKind::Unavailable`] after `connect_timeout`. Else what opening the
/// store comes to. No message holds the URL.
///
/// # Cancel safety
///
/// A file may have been created if the future is dropped; nothing else remains.
pub async fn open(url: &str) -> Result<LockManagerBuilder> {
    open_parts(url).await.map_err(|error| error.during(Operation::Connect))
}

/// A length of time as people write it: `30s`, `1.5s`, `2m`, `1h 30m`; a bare number is seconds.
///
/// # Errors
///
/// [`ErrorKind::InvalidConfig`] if it is malformed or negative.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let text = text.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let parsed = if is_number {
        text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    } else {
        text.parse::<SignedDuration>().ok().and_then(|duration| Duration::try_from(duration).ok())
    };
    parsed.ok_or_else(|| {
        // Whatever it is, it is no duration: nobody needs all of it.
        let text: String = text.chars().take(16).collect();
        invalid(format!("invalid duration {text:?}: write it like 30s, 1.5s, 2m or 1h"))
    })
}

async fn open_parts(url: &str) -> Result<LockManagerBuilder> {
    let url = url.trim();
    if url.is_empty() {
        return Err(invalid(format!("no store is named: {}", choices())));
    }
    if url.contains('#') {
        return Err(invalid("a store's URL has no part after '#': write %23 where the character is meant"));
    }
    let (base, query) = redact::split_at_mark(url, '?');
    let Some((scheme, place)) = base.split_once(':').filter(|(scheme, _)| redact::is_scheme(scheme)) else {
        let path = if base.starts_with(['/', '.', '~']) { "; a file is sqlite:///path" } else { "" };
        return Err(invalid(format!("the store has no scheme: {}{path}", choices())));
    };
    let scheme = scheme.to_ascii_lowercase();
    match SCHEMES.iter().find(|(known, _)| *known == scheme) {
        None => {
            let near = near(&scheme, SCHEMES.map(|(name, _)| name));
            let meant = near.map_or(String::new(), |near| format!(", did you mean {near}:?"));
            return Err(invalid(format!("unknown store{}{meant}: {}", named(&scheme, near), choices())));
        }
        Some((_, false)) => {
            return Err(invalid(format!(
                "store {scheme:?} is not compiled in: build with the feature {scheme:?}, or {}",
                choices()
            )));
        }
        Some((_, true)) => {}
    }
    let options = Options::parse(query.trim_start_matches('?'))?;
    let opening = open_store(&scheme, place);
    let store = match options.connect_timeout {
        None => opening.await?,
        Some(limit) => tokio::time::timeout(limit, opening).await.unwrap_or_else(|_| {
            let message = format!("no answer within the connect_timeout of {limit:?}");
            Err(Error::new(ErrorKind::Unavailable, message))
        })?,
    };
    Ok(options.apply(LockManager::builder(store)))
}

async fn open_store(scheme: &str, place: &str) -> Result<SharedStore> {
    match scheme {
        "memory" => no_place(scheme, place).map(|()| MemoryStore::new().into()),
        "noop" => no_place(scheme, place).map(|()| NoopStore::new().into()),
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(match sqlite_path(place)? {
            None => SqliteStore::open_default().await?.into(),
            Some(path) => SqliteStore::open(path).await?.into(),
        }),
        _ => Err(invalid(format!("unknown store {scheme:?}: {}", choices()))),
    }
}

fn no_place(scheme: &str, place: &str) -> Result<()> {
    if matches!(place, "" | "//") {
        return Ok(());
    }
    Err(invalid(format!("{scheme:?} takes nothing but options: write {scheme}: or {scheme}:?ttl=30s")))
}

/// The file that is named; `None` = the default one.
#[cfg(feature = "sqlite")]
fn sqlite_path(place: &str) -> Result<Option<std::path::PathBuf>> {
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

/// What every store takes.
#[derive(Debug, Default)]
struct Options {
    namespace: Option<String>,
    ttl: Option<Duration>,
    op_timeout: Option<Duration>,
    connect_timeout: Option<Duration>,
}

impl Options {
    fn parse(query: &str) -> Result<Self> {
        let mut options = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let is_repeated = match &*name {
                "namespace" => {
                    check_namespace(&value)?;
                    options.namespace.replace(value.into_owned()).is_some()
                }
                "ttl" => options.ttl.replace(positive(&name, &value)?).is_some(),
                "op_timeout" => options.op_timeout.replace(positive(&name, &value)?).is_some(),
                "connect_timeout" => options.connect_timeout.replace(positive(&name, &value)?).is_some(),
                _ => {
                    let near = near(&name, OPTIONS);
                    let meant = near.map_or(String::new(), |near| format!(", did you mean {near:?}?"));
                    let options = OPTIONS.join(", ");
                    return Err(invalid(format!("unknown option{}{meant}: there are {options}", named(&name, near))));
                }
            };
            if is_repeated {
                return Err(invalid(format!("option {name:?} is given twice: keep one")));
            }
        }
        Ok(options)
    }

    fn apply(self, mut builder: LockManagerBuilder) -> LockManagerBuilder {
        if let Some(namespace) = self.namespace {
            builder = builder.namespace(&namespace);
        }
        if let Some(ttl) = self.ttl {
            builder = builder.ttl(ttl);
        }
        if let Some(limit) = self.op_timeout {
            builder = builder.operation_limit(limit);
        }
        builder
    }
}

fn positive(name: &str, value: &str) -> Result<Duration> {
    match parse_duration(value) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        Ok(_) => Err(invalid(format!("option {name:?} must be longer than zero"))),
        Err(error) => Err(invalid(format!("option {name:?}: {}", error.message()))),
    }
}

fn choices() -> String {
    let schemes: Vec<_> =
        SCHEMES.iter().filter(|(_, compiled)| *compiled).map(|(name, _)| format!("{name}:")).collect();
    format!("choose one of {}", schemes.join(" "))
}

/// The name as it may be repeated in a message: one that looks like none may be a secret at the wrong place.
fn named(name: &str, near: Option<&str>) -> String {
    let is_plain = (1..=32).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if is_plain || near.is_some() { format!(" {name:?}") } else { String::new() }
}

fn near<const N: usize>(name: &str, known: [&'static str; N]) -> Option<&'static str> {
    let distances = known.into_iter().map(|known| (strsim::levenshtein(name, known), known));
    distances.filter(|(distance, _)| *distance <= NEAR).min().map(|(_, known)| known)
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_wrong_is_said_with_what_there_is() {
        for (url, says) in [
            ("", "no store is named: choose one of memory: noop:"),
            ("  \n", "no store is named"),
            ("redis://u:hunter2@h", "unknown store \"redis\": choose one of"),
            ("memry:", "unknown store \"memry\", did you mean memory:?: choose one of"),
            ("Sqlit:///x", "did you mean sqlite:?"),
            ("/tmp/hunter2.db", "the store has no scheme: choose one of"),
            ("/tmp/hunter2.db", "a file is sqlite:///path"),
            ("hunter2", "the store has no scheme"),
            ("u@hunter2:6379", "the store has no scheme"),
            ("memory:hunter2", "\"memory\" takes nothing but options"),
            ("noop://hunter2", "\"noop\" takes nothing but options"),
            ("memory:?tll=5s", "unknown option \"tll\", did you mean \"ttl\"?: there are connect_timeout, namespace"),
            ("memory:?password=hunter2", "unknown option \"password\": there are connect_timeout, namespace"),
            ("memory:?ttl=soon", "option \"ttl\": invalid duration \"soon\": write it like 30s"),
            ("memory:?ttl=", "option \"ttl\": invalid duration"),
            ("memory:?ttl=0", "option \"ttl\" must be longer than zero"),
            ("memory:?ttl=-5s", "option \"ttl\": invalid duration"),
            ("memory:?op_timeout=0s", "option \"op_timeout\" must be longer than zero"),
            ("memory:?ttl=5s&ttl=6s", "option \"ttl\" is given twice"),
            ("memory:?namespace=a:b", "invalid namespace"),
            ("memory:#hunter2", "write %23"),
            ("hunter2:x", "unknown store: choose one of"),
            ("memory:?hunter2", "unknown option: there are connect_timeout, namespace"),
            ("memory:?password%3Dhunter2", "unknown option: there are connect_timeout, namespace"),
            ("memory:?ttl=a-very-long-text-hunter2", "invalid duration \"a-very-long-text\": write"),
        ] {
            let error = open(url).await.err().unwrap_or_else(|| panic!("{url} was taken"));
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            let text = error.to_string();
            assert!(text.contains(says), "{url}: {text}");
            assert!(!text.contains("hunter2") && !text.contains('\n'), "{url}: {text}");
        }
    }

    #[tokio::test]
    async fn stores_are_named_by_scheme() {
        for url in ["memory:", " MEMORY:// ", "noop:", "memory:?ttl=30&namespace=&op_timeout=1.5s&connect_timeout=2m"] {
            assert!(open(url).await.is_ok(), "{url}");
        }
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn a_sqlite_url_names_a_file() {
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
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a b?.db");
        let url = format!("SQLite://{}?ttl=10s", path.display().to_string().replace(' ', "%20").replace('?', "%3F"));
        drop(open(&url).await.unwrap());
        assert!(path.is_file());
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, ms) in [("30", 30_000), ("1.5", 1500), ("1.5s", 1500), ("2m", 120_000), ("250ms", 250), ("0", 0)] {
            assert_eq!(parse_duration(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for text in ["", " ", ".", "1.2.3", "-1", "-1s", "inf", "nan", "1e400", "5 parsecs", &"9".repeat(400)] {
            assert_eq!(parse_duration(text).unwrap_err().kind(), ErrorKind::InvalidConfig, "{text}");
        }
    }
}
