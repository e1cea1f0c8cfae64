//! From a store's URL, the environment or a file to a manager: which stores there are, which options they take.
//!
//! | URL | store |
//! |---|---|
//! | `sqlite:`, `sqlite:///path` | a local file, by default the one of `SqliteStore::default_path` |
//! | `redis://[user:password@]host[:6379][/database]` | a Redis or Valkey server |
//! | `rediss://..` | the same, encrypted; `ca_file=path` names the authorities to trust instead of the system's |
//! | `redis+unix:///path` | the same by a socket, with the options `db` and `user` |
//! | `redis+cluster://host,host` | a cluster, known by some of its servers; `rediss+cluster` encrypted |
//! | `redis+sentinel://host,host/name[/database]` | the primary that sentinels know by this name, with the option `sentinel_password_file`; `rediss+sentinel` encrypted |
//! | `redlock://host1,host2,host3[/database]` | a majority of independent servers, with the options `node_timeout` and `max_ttl` |
//! | `postgres://[user[:password]@]host[:5432][/database]` | a table of PostgreSQL, or with `mode=advisory` locks of a session and with `mode=xact` locks of transactions, with the options `schema`, `table`, `sslmode` (`disable`, `prefer`, `require`, `verify-full`) and `ca_file`; also `postgresql://` |
//! | `memory:` | one process |
//! | `noop:` | none: everybody is granted |
//!
//! Every store takes the options `namespace`, `ttl`, `op_timeout`, `connect_timeout`, `retry`, `breaker` and `own_runtime`,
//! as in `sqlite:///run/app.db?ttl=1m&namespace=app`; those with a password also `password_file`, and those of Redis but `redlock` also
//! `wait_replicas`. Parts of a path and of an option are percent-encoded where they hold `?`, `#`, `%` or `&`.
//!
//! [`Config`] gathers settings from several places; with the feature `config` also from TOML and everything else that
//! serde reads.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use jiff::SignedDuration;

use crate::error::{Error, ErrorKind, Operation, Result};
use crate::manager::{LockManager, LockManagerBuilder};
use crate::options::{DEFAULT_TTL, MAX_OPERATION_LIMIT, Wait};
use crate::types::DEFAULT_NAMESPACE;

mod environment;
#[cfg(feature = "config")]
mod file;
mod redact;
#[cfg(feature = "redis")]
mod redlock;
mod resolved;
mod source;
mod url;
mod words;

pub use self::redact::redacted;
pub use self::resolved::Resolved;
use self::source::Said;
pub use self::source::{Setting, Source};
use self::url::Parts;
use self::words::{named, near, path_in_words, positive, switch_in_words, wait_in_words, words, words_or_off};

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
    Config::from_url(url).open().await
}

/// The schemes of store URLs, and whether each is compiled in.
pub fn schemes() -> impl Iterator<Item = (&'static str, bool)> {
    url::SCHEMES.iter().map(|scheme| (scheme.name, scheme.is_compiled))
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

/// How long to wait, as people write it: a length of time, 0 = not at all, or `forever`.
///
/// # Errors
///
/// [`ErrorKind::InvalidConfig`] if it is malformed or negative.
pub fn parse_wait(text: &str) -> Result<Wait> {
    if text.trim().eq_ignore_ascii_case("forever") {
        return Ok(Wait::Forever);
    }
    let wait = parse_duration(text)?;
    Ok(if wait.is_zero() { Wait::No } else { Wait::UpTo(wait) })
}

/// Settings of a manager, each with the place where it was said.
///
/// What was said in several places is laid over each other with [`or`](Self::or). An option in the store's URL counts
/// just below what was said in the place that named the URL. Nothing is checked until [`resolve`](Self::resolve), and
/// only what is used then: a malformed value that is overridden, or a password for a store that takes none, is no
/// error. There is no default store: excluding nobody must not happen by accident.
///
/// ```
/// # use leasehold::config::Config;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let config = Config::from_env("MY_APP").or(Config::from_url("memory:").namespace("my-app"));
/// for setting in config.describe() {
///     println!("{} = {:?} ({})", setting.name, setting.value, setting.source);
/// }
/// let locks = config.connect().await?;
/// # drop(locks);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use = "nothing happens until `open` or `connect`"]
pub struct Config {
    store: Option<Said<String>>,
    namespace: Option<Said<String>>,
    ttl: Option<Said<Duration>>,
    wait: Option<Said<Wait>>,
    op_timeout: Option<Said<Duration>>,
    connect_timeout: Option<Said<Duration>>,
    /// Zero = off, as for `breaker`.
    retry: Option<Said<Duration>>,
    breaker: Option<Said<Duration>>,
    own_runtime: Option<Said<bool>>,
    password: Option<Said<String>>,
    password_file: Option<Said<PathBuf>>,
}

impl Config {
    /// Settings that name the store and nothing else but what its URL says.
    pub fn from_url(url: &str) -> Self {
        Self::default().store(url)
    }

    /// Sets the store's URL; the bare name of a store is enough where it needs no more.
    pub fn store(mut self, url: &str) -> Self {
        self.store = Some(Said::of(Ok(url.to_owned()), Source::Program));
        self
    }

    /// Sets the namespace of all keys: at most 64 of `A-Z a-z 0-9 . _ -`; empty = keys are stored as they are.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(Said::of(Ok(namespace.to_owned()), Source::Program));
        self
    }

    /// Sets the ttl of locks that set none.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(Said::of(Ok(ttl), Source::Program));
        self
    }

    /// Sets how long [`Lock::run`](crate::Lock::run) waits on locks that do not say so.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = Some(Said::of(Ok(wait), Source::Program));
        self
    }

    /// Sets the longest time of a single store operation; a sixth of the ttl limits it further.
    pub fn op_timeout(mut self, limit: Duration) -> Self {
        self.op_timeout = Some(Said::of(Ok(limit), Source::Program));
        self
    }

    /// Sets how long opening the store may take.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = Some(Said::of(Ok(limit), Source::Program));
        self
    }

    /// Sets for how long requests are [retried](crate::store::retry) that were surely not applied; zero = not at all, as
    /// it is unless set. At most three quarters of `op_timeout`.
    pub fn retry(mut self, within: Duration) -> Self {
        self.retry = Some(Said::of(Ok(within), Source::Program));
        self
    }

    /// Puts a [circuit breaker](crate::store::breaker) in front of the store, which stays open for this long; zero =
    /// none, as it is unless set.
    pub fn breaker(mut self, pause: Duration) -> Self {
        self.breaker = Some(Said::of(Ok(pause), Source::Program));
        self
    }

    /// Sets whether the store's connections and the renewals have a [thread of their own](crate::OwnRuntime), as they
    /// have not unless set.
    pub fn own_runtime(mut self, is_on: bool) -> Self {
        self.own_runtime = Some(Said::of(Ok(is_on), Source::Program));
        self
    }

    /// Sets the password for stores that take one.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(Said::of(Ok(password.to_owned()), Source::Program));
        self
    }

    /// Sets the file whose first line is the password for stores that take one.
    pub fn password_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.password_file = Some(Said::of(Ok(path.into()), Source::Program));
        self
    }

    /// Notes where everything that is set here was said.
    pub fn said_by(mut self, source: &Source) -> Self {
        self.each(|said| {
            let Place { source: known, .. } = said;
            *known = source.clone();
        });
        self
    }

    /// Fills in from `lower` what is not set here.
    pub fn or(mut self, mut lower: Self) -> Self {
        let mut highest = 0;
        self.each(|said| highest = highest.max(*said.layer));
        lower.each(|said| *said.layer += highest + 1);
        Self {
            store: self.store.or(lower.store),
            namespace: self.namespace.or(lower.namespace),
            ttl: self.ttl.or(lower.ttl),
            wait: self.wait.or(lower.wait),
            op_timeout: self.op_timeout.or(lower.op_timeout),
            connect_timeout: self.connect_timeout.or(lower.connect_timeout),
            retry: self.retry.or(lower.retry),
            breaker: self.breaker.or(lower.breaker),
            own_runtime: self.own_runtime.or(lower.own_runtime),
            password: self.password.or(lower.password),
            password_file: self.password_file.or(lower.password_file),
        }
    }

    /// Opens the store and prepares a manager.
    ///
    /// # Errors
    ///
    /// As [`resolve`](Self::resolve) and [`Resolved::open`].
    ///
    /// # Cancel safety
    ///
    /// A file may have been created if the future is dropped; nothing else remains.
    pub async fn open(&self) -> Result<LockManagerBuilder> {
        self.resolve().map_err(|error| error.during(Operation::Connect))?.open().await
    }

    /// Opens the store and builds a manager.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open) and [`LockManagerBuilder::build`].
    ///
    /// # Cancel safety
    ///
    /// As [`open`](Self::open).
    pub async fn connect(&self) -> Result<LockManager> {
        self.open().await?.build()
    }

    /// The password for a store that takes one: what was said in the highest place, from there or from its file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the file cannot be read or is empty, or if one place gives both.
    pub fn read_password(&self) -> Result<Option<String>> {
        let layer = |said: Option<usize>| said.unwrap_or(usize::MAX);
        let (plain, file) =
            (self.password.as_ref().map(|said| said.layer), self.password_file.as_ref().map(|said| said.layer));
        if plain.is_some() && plain == file {
            return Err(invalid("password and password_file are both given: keep one"));
        }
        if layer(plain) <= layer(file) {
            return value(self.password.clone(), "password", ErrorKind::InvalidConfig);
        }
        let path = value(self.password_file.clone(), "password_file", ErrorKind::InvalidConfig)?;
        path.map(|path| environment::read(&path)).transpose()
    }

    /// The store's URL as it was said; may hold a password, see [`redacted`].
    pub fn url(&self) -> Option<&str> {
        self.store.as_ref()?.value.as_deref().ok()
    }

    /// Every setting with its value and where it was said; defaults are there, secrets are not.
    pub fn describe(&self) -> Vec<Setting> {
        let options = self.url().and_then(|url| Parts::parse(url).ok()).map(|parts| parts.options).unwrap_or_default();
        vec![
            shown("store", self.store.clone(), |url| redacted(&url), None),
            shown(
                "namespace",
                self.chosen(&self.namespace, options.namespace),
                |namespace| namespace,
                Some(DEFAULT_NAMESPACE.to_owned()),
            ),
            shown("ttl", self.chosen(&self.ttl, options.ttl), words, Some(words(DEFAULT_TTL))),
            shown("wait", self.wait.clone(), wait_in_words, Some(wait_in_words(Wait::Forever))),
            shown(
                "op_timeout",
                self.chosen(&self.op_timeout, options.op_timeout),
                words,
                Some(words(MAX_OPERATION_LIMIT)),
            ),
            shown("connect_timeout", self.chosen(&self.connect_timeout, options.connect_timeout), words, None),
            shown("retry", self.chosen(&self.retry, options.retry), words_or_off, Some("off".to_owned())),
            shown("breaker", self.chosen(&self.breaker, options.breaker), words_or_off, Some("off".to_owned())),
            shown(
                "own_runtime",
                self.chosen(&self.own_runtime, options.own_runtime),
                switch_in_words,
                Some("off".to_owned()),
            ),
            shown("password", self.password.clone(), |_| "***".to_owned(), None),
            shown("password_file", self.password_file.clone(), path_in_words, None),
        ]
    }

    /// Whichever stands higher: what was said, or the option in the store's URL.
    fn chosen<T: Clone>(&self, said: &Option<Said<T>>, option: Option<T>) -> Option<Said<T>> {
        let url_layer = self.store.as_ref().map_or(usize::MAX, |store| store.layer);
        match (said, option) {
            (Some(said), Some(_)) if said.layer <= url_layer => Some(said.clone()),
            (_, Some(option)) => Some(Said::of(Ok(option), Source::Url)),
            (said, None) => said.clone(),
        }
    }

    fn each(&mut self, mut change: impl FnMut(Place<'_>)) {
        let Self {
            store,
            namespace,
            ttl,
            wait,
            op_timeout,
            connect_timeout,
            retry,
            breaker,
            own_runtime,
            password,
            password_file,
        } = self;
        for said in [store, namespace, password].into_iter().flatten() {
            change(said.place());
        }
        for said in [ttl, op_timeout, connect_timeout, retry, breaker].into_iter().flatten() {
            change(said.place());
        }
        wait.iter_mut().for_each(|said| change(said.place()));
        own_runtime.iter_mut().for_each(|said| change(said.place()));
        password_file.iter_mut().for_each(|said| change(said.place()));
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.describe()).finish()
    }
}

/// What a URL says beside the store and its place.
#[derive(Debug, Default)]
struct Options {
    namespace: Option<String>,
    ttl: Option<Duration>,
    op_timeout: Option<Duration>,
    connect_timeout: Option<Duration>,
    retry: Option<Duration>,
    breaker: Option<Duration>,
    own_runtime: Option<bool>,
    /// Those that only some schemes take.
    own: Vec<(&'static str, String)>,
}

/// Where a value was said, whatever its type.
struct Place<'a> {
    source: &'a mut Source,
    layer: &'a mut usize,
}

impl<T> Said<T> {
    fn place(&mut self) -> Place<'_> {
        Place { source: &mut self.source, layer: &mut self.layer }
    }
}

fn value<T: Clone>(said: Option<Said<T>>, name: &str, kind: ErrorKind) -> Result<Option<T>> {
    said.map(|said| said.value(name, kind)).transpose()
}

fn shown<T>(
    name: &'static str,
    said: Option<Said<T>>,
    text: impl FnOnce(T) -> String,
    default: Option<String>,
) -> Setting {
    match said {
        None => Setting { name, value: default, source: Source::Default },
        Some(Said { value, source, .. }) => {
            Setting { name, value: Some(value.map_or_else(|_| "invalid".to_owned(), text)), source }
        }
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}

#[cfg(test)]
mod tests;
