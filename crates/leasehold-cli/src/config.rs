//! Settings: flag over environment over files over default, and the store that they name.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::config::{Config, Resolved, Source, parse_duration, parse_wait, redacted};
use leasehold::store::Scope;
use leasehold::store::sqlite::SqliteStore;
use leasehold::{ErrorKind, Key, LockManager, LockManagerBuilder, MAX_TTL, MIN_TTL, Wait};

use crate::cli::{Global, Reach};
use crate::exit::{self, Failure};
use crate::output;

/// What holds where nothing was said.
const DEFAULT_STORE: &str = "sqlite:";

/// The settings of the system.
const SYSTEM_FILE: &str = "/etc/leasehold/config.toml";

/// Everything that was said, wherever it was.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) config: Config,
    /// The files that were looked for, and whether they were there.
    pub(crate) files: Vec<(PathBuf, bool)>,
}

impl Said {
    /// Gathers flags, environment and files; `flags` holds those that are not global.
    pub(crate) fn gather(global: &Global, flags: Config) -> Result<Self, Failure> {
        let mut flags = flags;
        if let Some(url) = &global.store {
            flags = flags.store(url);
        }
        if let Some(namespace) = &global.namespace {
            flags = flags.namespace(namespace);
        }
        let mut said =
            Self { config: flags.said_by(&Source::Flag).or(Config::from_env("LEASEHOLD")), files: Vec::new() };
        let named = match &global.config {
            Some(path) => Some(("--config", path.clone())),
            None => env::var_os("LEASEHOLD_CONFIG")
                .filter(|path| !path.is_empty())
                .map(|path| ("LEASEHOLD_CONFIG", PathBuf::from(path))),
        };
        if let Some((place, path)) = named
            && !said.read(&path)?
        {
            let path = output::clean(&path.display().to_string());
            return Err(Failure::new(exit::CONFIG, format!("there is no file {path}: check {place}")));
        }
        if let Some(path) = user_file() {
            said.read(&path)?;
        }
        said.read(Path::new(SYSTEM_FILE))?;
        said.config = said.config.or(Config::from_url(DEFAULT_STORE).said_by(&Source::Default));
        Ok(said)
    }

    /// Adds the settings of a file below those that are there; `false` if there is no such file.
    fn read(&mut self, path: &Path) -> Result<bool, Failure> {
        let found = Config::from_file(path).map_err(|error| Failure::new(exit::CONFIG, error.message()))?;
        self.files.push((path.to_owned(), found.is_some()));
        let Some(lower) = found else {
            return Ok(false);
        };
        self.config = std::mem::take(&mut self.config).or(lower);
        Ok(true)
    }

    /// Where a setting was said.
    fn source(&self, name: &str) -> Source {
        let setting = self.config.describe().into_iter().find(|setting| setting.name == name);
        setting.map_or(Source::Default, |setting| setting.source)
    }
}

/// What every subcommand needs to know.
#[derive(Debug)]
pub(crate) struct Settings {
    resolved: Resolved,
    store_source: Source,
    namespace_source: Source,
    file: Option<PathBuf>,
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
}

impl Settings {
    /// Settings from everywhere, checked; the store is not touched yet.
    pub(crate) fn new(global: &Global, flags: Config) -> Result<Self, Failure> {
        let said = Said::gather(global, flags)?;
        let resolved = said.config.resolve().map_err(|error| Failure::from_error(&error, false))?;
        Ok(Self {
            resolved,
            store_source: said.source("store"),
            namespace_source: said.source("namespace"),
            file: global.config.clone(),
            quiet: global.quiet,
            verbose: global.verbose,
        })
    }

    /// How long to wait for a key.
    pub(crate) fn wait(&self) -> Wait {
        self.resolved.wait
    }

    /// How long leases stand that are not renewed.
    pub(crate) fn ttl(&self) -> Duration {
        self.resolved.ttl
    }

    /// The prefix of every key.
    pub(crate) fn namespace(&self) -> &str {
        &self.resolved.namespace
    }

    /// Opens the store.
    pub(crate) async fn open(&self) -> Result<LockManagerBuilder, Failure> {
        self.resolved.open().await.map_err(|error| self.failure(&error))
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

    /// Says how far the store reaches if nobody has named it, nor asked for a reach; `elsewhere` is what that means.
    pub(crate) fn warn_of_this_host(&self, asked: Option<Reach>, elsewhere: &str) {
        if self.store_source == Source::Default && asked.is_none() && !self.quiet {
            output::tell(&format!(
                "warning: this store reaches as far as this host: {elsewhere}; between servers name a store that they \
                 share (-s redis://host), on a single one say --require-scope host"
            ));
        }
    }

    /// An error from the library as this command reports it.
    pub(crate) fn failure(&self, error: &leasehold::Error) -> Failure {
        let failure = Failure::from_error(error, is_sqlite(&self.resolved.store));
        match failure.code {
            exit::UNAVAILABLE => {
                let again = self.options_again();
                failure.note(&format!("store: {}", self.place())).advise(format!("ask it: leasehold doctor{again}"))
            }
            exit::CONFIG if error.kind() == ErrorKind::Unsupported => failure.note("name another store with --store"),
            _ => failure,
        }
    }

    /// The store's URL without credentials; for the default store the one that names its file.
    pub(crate) fn place(&self) -> String {
        place(&self.resolved.store)
    }

    /// The options that make another command find the same store and namespace.
    pub(crate) fn options_again(&self) -> String {
        let mut options = String::new();
        if let Some(file) = &self.file {
            options.push_str(&format!(" --config {}", output::quoted(&file.display().to_string())));
        }
        if self.store_source == Source::Flag {
            options.push_str(&format!(" -s {}", output::quoted(&self.place())));
        }
        if self.namespace_source == Source::Flag {
            options.push_str(&format!(" --namespace {}", output::quoted(&self.resolved.namespace)));
        }
        options
    }
}

/// A store's URL without credentials; for the default store the one that names its file.
pub(crate) fn place(url: &str) -> String {
    let url = url.trim();
    let unnamed = url.split('?').next().is_some_and(|base| {
        base.trim_end().eq_ignore_ascii_case(DEFAULT_STORE) || base.trim_end().eq_ignore_ascii_case("sqlite")
    });
    match SqliteStore::default_path() {
        Ok(path) if unnamed => {
            let path = path.to_string_lossy().replace('%', "%25").replace('?', "%3F").replace('#', "%23");
            output::clean(&format!("sqlite://{path}"))
        }
        _ => output::clean(&redacted(url)),
    }
}

/// Whether two places are the same store, however they are spelled.
pub(crate) fn is_same_place(one: &str, other: &str) -> bool {
    let plain = |place: &str| {
        let base = place.split('?').next().unwrap_or(place).to_owned();
        let path = is_sqlite(&base).then(|| base.split_once(':').map(|(_, path)| path.to_owned())).flatten();
        // A path that is percent-encoded is not found here, and is compared as it is written.
        let path = path.map(|path| path.strip_prefix("//").map_or(path.clone(), ToOwned::to_owned));
        path.and_then(|path| Path::new(&path).canonicalize().ok()).unwrap_or_else(|| PathBuf::from(base))
    };
    plain(one) == plain(other)
}

fn is_sqlite(url: &str) -> bool {
    let scheme = url.trim().split([':', '?']).next().unwrap_or_default();
    scheme.eq_ignore_ascii_case("sqlite")
}

/// The settings of the user. The current directory is never looked at: whoever can write there must not redirect
/// somebody else's leases.
fn user_file() -> Option<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let directory = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")))?;
    Some(directory.join("leasehold/config.toml"))
}

/// The key as it was typed, checked before any store is touched.
pub(crate) fn key_name(typed: &OsStr) -> Result<&str, Failure> {
    let name = typed.to_str().ok_or_else(|| Failure::new(exit::DATA, "invalid key: it is not UTF-8: encode it"))?;
    Key::new("", name).map_err(|error| Failure::from_error(&error, false))?;
    Ok(name)
}

/// The key in its namespace.
pub(crate) fn key(settings: &Settings, name: &str) -> Result<Key, Failure> {
    Key::new(settings.namespace(), name).map_err(|error| Failure::from_error(&error, false))
}

/// The flags of `run` that may be said elsewhere too.
pub(crate) fn flags(nonblock: bool, wait: Option<&str>, ttl: Option<&str>) -> Result<Config, Failure> {
    let mut config = Config::default();
    if let Some(text) = ttl {
        let ttl = duration(text).map_err(|why| Failure::new(exit::DATA, format!("invalid --ttl: {why}")))?;
        if ttl < MIN_TTL || ttl > MAX_TTL {
            let why = format!("invalid --ttl: {} is not between {MIN_TTL:?} and 24h", clip(text));
            return Err(Failure::new(exit::DATA, why));
        }
        config = config.ttl(ttl);
    }
    if nonblock {
        config = config.wait(Wait::No);
    } else if let Some(text) = wait {
        let wait = parse_wait(text).map_err(|error| {
            let why = error.message();
            Failure::new(exit::USAGE, format!("invalid --wait: {why}; without it the wait has no end"))
        })?;
        config = config.wait(wait);
    }
    Ok(config)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_file_is_the_same_store_however_it_is_spelled() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display();
        for other in [format!("sqlite:{path}"), format!("SQLITE://{path}?ttl=1m"), format!("sqlite:///..{path}")] {
            assert!(is_same_place(&format!("sqlite://{path}"), &other), "{other}");
        }
        assert!(!is_same_place(&format!("sqlite://{path}"), &format!("sqlite://{path}.other")));
        assert!(is_same_place("redis://a/0?ttl=1s", "redis://a/0"));
        assert!(!is_same_place("redis://a/0", "redis://a/1"));
    }
}
