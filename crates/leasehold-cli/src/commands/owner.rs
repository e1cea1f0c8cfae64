//! The secret that owns a lease, between the commands of a script: in a file that its user alone can read.

use std::env;
use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use leasehold::store::sqlite::SqliteStore;
use leasehold::{Key, MAX_TTL, OwnerToken};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};
use rustix::process::{Pid, Signal};

use crate::exit::{self, Failure};
use crate::file::{self, Mode};
use crate::output;
use crate::process::{self, Watched};

/// What is read of a file that is to hold a secret, at most.
const LONGEST: u64 = 4096;

/// How the names begin of files that were not named.
const PREFIX: &str = "owner-";

/// Tells a keeper that the lease is being taken on by somebody else, which is no loss.
pub(super) const LET_GO: Signal = Signal::USR1;

/// Tells a keeper that this came to nothing.
pub(super) const HOLD_ON: Signal = Signal::USR2;

/// The process that renews a lease in the background.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keeper {
    id: Pid,
    /// When it was started, which tells it from a later process of the same number.
    start: u64,
    /// What it keeps, with the namespace.
    key: String,
}

impl Keeper {
    /// This process; `None` where its start cannot be seen, and nobody can be sure of it later.
    pub(super) fn this(key: &Key) -> Option<Self> {
        let id = rustix::process::getpid();
        process::start_of(id).map(|start| Self { id, start, key: key.as_stored().to_owned() })
    }

    /// Whether it still lives, and is not another one of its number.
    pub(super) fn lives(&self) -> bool {
        process::start_of(self.id) == Some(self.start)
    }

    /// Whether it lives, and is not stopped: then its lease stands, since it ends with it.
    pub(super) fn is_at_work(&self) -> bool {
        self.lives() && !process::is_stopped(self.id)
    }

    /// The process, to be waited for and signalled; `None` if it lives no more.
    pub(super) fn process(&self) -> Option<Watched> {
        // Opened before it is looked at: what is found to be the keeper then is what is open.
        Watched::open(self.id).ok().filter(|_| self.lives())
    }
}

/// A keeper that was told that its lease is being taken on. If this is dropped, it is told that this came to nothing.
#[derive(Debug)]
pub(super) struct Asked {
    keeper: Watched,
    word: Signal,
}

impl Asked {
    pub(super) fn to_let_go(keeper: Watched) -> Self {
        keeper.signal(LET_GO).ok();
        Self { keeper, word: HOLD_ON }
    }

    /// There is nothing left to keep.
    pub(super) fn to_end(mut self) {
        self.word = Signal::TERM;
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.keeper.signal(self.word).ok();
    }
}

/// The secret, and where it is.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) token: OwnerToken,
    pub(super) keeper: Option<Keeper>,
    path: Option<PathBuf>,
}

impl Owner {
    /// What the flag, `LEASEHOLD_OWNER_FILE` or `LEASEHOLD_OWNER` says, in this order.
    pub(super) fn find(flag: Option<&Path>) -> Result<Self, Failure> {
        let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        match (flag, variable("LEASEHOLD_OWNER_FILE"), variable("LEASEHOLD_OWNER")) {
            (Some(path), ..) if path == Path::new("-") => Self::read(io::stdin(), "standard input", None),
            (Some(path), ..) => Self::open(path),
            (None, Some(path), _) => Self::open(Path::new(&path)),
            (None, None, Some(token)) => Self::parse(token.as_encoded_bytes(), "LEASEHOLD_OWNER", None),
            (None, None, None) => Err(Failure::new(
                exit::USAGE,
                "whose lease? say --owner-file FILE, or set LEASEHOLD_OWNER_FILE; acquire --format shell does that; \
                 if nobody has the owner token any more: leasehold force-release",
            )),
        }
    }

    fn open(path: &Path) -> Result<Self, Failure> {
        let name = output::clean(&path.display().to_string());
        match fs::File::open(path) {
            Ok(file) => Self::read(file, &name, Some(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Failure::new(
                exit::LOST,
                format!(
                    "not held: there is no owner file {name}: the lease was given back or lost, or the name is wrong"
                ),
            )),
            Err(error) => Err(Failure::new(exit::CANT_CREATE, format!("cannot read {name}: {error}: check its mode"))),
        }
    }

    fn read(source: impl Read, name: &str, path: Option<PathBuf>) -> Result<Self, Failure> {
        let mut content = Vec::new();
        match source.take(LONGEST).read_to_end(&mut content) {
            Ok(_) => Self::parse(&content, name, path),
            Err(error) => Err(Failure::new(exit::IO, format!("cannot read {name}: {error}"))),
        }
    }

    /// The first line is the secret; the second may name a keeper.
    fn parse(content: &[u8], name: &str, path: Option<PathBuf>) -> Result<Self, Failure> {
        let mut lines = content.split(|byte| *byte == b'\n');
        let token = OwnerToken::from_bytes(lines.next().unwrap_or_default().trim_ascii())
            .map_err(|error| Failure::new(exit::DATA, format!("{error}: check {name}")))?;
        let keeper = lines.next().and_then(|line| {
            let mut words = std::str::from_utf8(line).ok()?.strip_prefix("keeper ")?.splitn(3, ' ');
            let (id, start) = (Pid::from_raw(words.next()?.parse().ok()?)?, words.next()?.parse().ok()?);
            Some(Keeper { id, start, key: words.next()?.to_owned() })
        });
        Ok(Self { token, keeper, path })
    }

    /// Refuses the secret of another key that is kept: its keeper must not be asked to end.
    pub(super) fn check(&self, key: &Key) -> Result<(), Failure> {
        match &self.keeper {
            Some(keeper) if keeper.key != key.as_stored() => Err(Failure::new(
                exit::LOST,
                format!(
                    "\"{}\" is not held by this owner token, which is that of \"{}\": name the owner file of this key",
                    key.as_stored(),
                    output::clean(&keeper.key)
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Notes on the file that its lease stands anew.
    pub(super) fn renew(&self) {
        if let Some(path) = &self.path {
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            let times = Timestamps { last_access: now, last_modification: now };
            fs::File::open(path).and_then(|file| Ok(futimens(file, &times)?)).ok();
        }
    }

    /// Removes the file, whose secret is worth nothing any more.
    pub(super) fn discard(&self) {
        if let Some(path) = &self.path {
            discard(path, &self.token);
        }
    }
}

/// Writes the secret, and who renews the lease in the background.
pub(super) fn write(path: &Path, token: &OwnerToken, keeper: Option<&Keeper>) -> Result<(), Failure> {
    let keeper = keeper.map_or_else(String::new, |Keeper { id, start, key }| {
        format!("keeper {} {start} {key}\n", id.as_raw_nonzero())
    });
    file::write(path, format!("{}\n{keeper}", token.expose()).as_bytes(), Mode::Secret)
}

/// Removes an owner file, unless somebody has put another secret in its place since.
pub(super) fn discard(path: &Path, token: &OwnerToken) {
    file::alone(path, || {
        if Owner::open(path).is_ok_and(|found| found.token == *token) {
            fs::remove_file(path).ok();
        }
    });
}

/// Where a secret goes for which no file was named: a directory of this user alone.
pub(super) fn directory() -> Result<PathBuf, Failure> {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute() && path.is_dir());
    // Beside the file of the default store.
    let state = || SqliteStore::default_path().ok().and_then(|path| path.parent().map(Path::to_owned));
    let places = runtime.map(|path| path.join("leasehold")).into_iter().chain(state());
    for place in places {
        let place = place.join("owners");
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&place);
        if made.is_ok() && is_own(&place) && file::check(&place.join("owner"), Mode::Secret).is_ok() {
            sweep(&place);
            return Ok(place);
        }
    }
    Err(Failure::new(exit::CONFIG, "there is no place for the owner file: name one with --owner-file"))
}

/// Whether nobody else can put other files in the place of those in a directory.
fn is_own(directory: &Path) -> bool {
    let found = fs::metadata(directory);
    found.is_ok_and(|found| found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0)
}

/// The file of a secret in such a directory. Each has its own, so that a script whose lease has ended cannot take the
/// secret of the next holder for its own.
pub(super) fn path_in(directory: &Path, token: &OwnerToken) -> PathBuf {
    directory.join(format!("{PREFIX}{}", token.fingerprint()))
}

/// Removes what scripts that were killed have left: no lease stands longer than the longest ttl without being extended or
/// kept, and both show.
fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let modified = entry.metadata().and_then(|found| found.modified());
        let is_old = modified.is_ok_and(|modified| output::ago(modified) > MAX_TTL + MAX_TTL / 10);
        let path = entry.path();
        if is_old
            && entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())
            && Owner::open(&path).is_ok_and(|owner| !owner.keeper.as_ref().is_some_and(Keeper::lives))
        {
            fs::remove_file(&path).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("owner");
        let token = OwnerToken::mint().unwrap();
        let key = Key::new("app", "a key ").unwrap();
        let keeper = Keeper::this(&key);
        assert!(keeper.as_ref().unwrap().is_at_work());
        for keeper in [None, keeper] {
            write(&path, &token, keeper.as_ref()).unwrap();
            let owner = Owner::open(&path).unwrap();
            owner.check(&key).unwrap();
            let other = owner.check(&Key::new("app", "a").unwrap());
            assert_eq!(other.map_err(|failure| failure.code), keeper.as_ref().map_or(Ok(()), |_| Err(exit::LOST)));
            assert_eq!((&owner.token, owner.keeper), (&token, keeper));
        }
        discard(&path, &OwnerToken::mint().unwrap());
        assert!(path.exists());
        discard(&path, &token);
        assert!(!path.exists());
        assert_eq!(Owner::open(&path).unwrap_err().code, exit::LOST);
    }

    #[test]
    fn what_was_left_over_is_swept_away() {
        let place = tempfile::tempdir().unwrap();
        let make = |name: &str, keeper, age| {
            let path = place.path().join(name);
            let keeper: Option<Keeper> = keeper;
            write(&path, &OwnerToken::mint().unwrap(), keeper.as_ref()).unwrap();
            let file = fs::File::open(&path).unwrap();
            file.set_modified(file.metadata().unwrap().modified().unwrap() - age).unwrap();
            path
        };
        let old = MAX_TTL * 2;
        let (left, kept) =
            (make("owner-1", None, old), make("owner-2", Keeper::this(&Key::new("", "k").unwrap()), old));
        let (young, other) = (make("owner-3", None, MAX_TTL), make("other", None, old));
        let extended = make("owner-4", None, old);
        Owner::open(&extended).unwrap().renew();
        sweep(place.path());
        assert!(!left.exists());
        assert!(kept.exists() && young.exists() && other.exists() && extended.exists());
    }

    #[test]
    fn a_malformed_secret_is_refused_and_not_repeated() {
        assert_eq!(Owner::parse(b"\n", "x", None).unwrap_err().code, exit::DATA);
        let failure = Owner::parse(&[b's'; 600], "x", None).unwrap_err();
        assert!(failure.code == exit::DATA && !failure.message.contains("sss"), "{failure}");
        let owner = Owner::parse(b" secret\r\nkeeper 1 x y\n", "x", None).unwrap();
        assert_eq!((owner.token.expose().as_str(), owner.keeper), ("secret", None));
    }
}
