//! What an error of the server or of the connection means for a lease.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use redis::{RedisError, ServerErrorKind};

use crate::error::{Error, ErrorKind};

/// The longest text of a server that is repeated.
const MAX_TEXT: usize = 200;

/// What a script is told that does something which its user may not.
const DENIALS: [&str; 3] = ["can't run this command", "can't access", "ACL failure in script"];

/// What to do about it.
const LACKING: &str =
    "give the user the rights that the documentation of this store lists; ACL LOG at the server tells which is missing";

/// What to do where nothing better is known.
const UNKNOWN: &str = "see the server's log";

/// Codes of servers of ours that say no more than that it was refused.
const KNOWN: [&str; 6] = ["ERR", "EXECABORT", "NOPROTO", "NOTBUSY", "NOSCRIPT", "NOSUB"];

/// What stands before the words that a server repeats.
const ARGUMENTS: &str = ", with args";

/// Whether a request changes something if it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Change,
    Look,
}

/// What the failure of a request comes to.
///
/// The server's own word is a certain answer. A script that fails has not changed the key: most touch it only when
/// nothing can go wrong any more, and a grant that cannot be noted is taken back; where that was refused, too, an error
/// of its own says so. Everything else leaves open whether the request was applied, also a word that no server of ours
/// has: of a proxy that lost its server, say.
pub(super) fn of(error: RedisError, effect: Effect) -> Error {
    match refused(&error) {
        Some((kind, advice)) => told(kind, error, advice),
        None if error.code().is_some() => told(unexpected(effect).kind(), error, UNKNOWN),
        None => uncertain(&error, effect).with_source(error),
    }
}

/// What the failure to connect to a server comes to.
pub(super) fn connecting(error: RedisError, server: &str) -> Error {
    let failed = match refused(&error) {
        Some((kind, advice)) => return told(kind, error, advice),
        None if error.code().is_some() => return told(ErrorKind::Rejected, error, UNKNOWN),
        None if error.kind() == redis::ErrorKind::AuthenticationFailed => Error::new(
            ErrorKind::Rejected,
            "the server refused the user name or the password: check both, and that the user may connect",
        ),
        None if error.kind() == redis::ErrorKind::InvalidClientConfig => {
            Error::new(ErrorKind::InvalidConfig, format!("cannot connect to {server} that way: {error}"))
        }
        None if error.kind() == redis::ErrorKind::Parse => unexpected(Effect::Look),
        None => unreached(&error, server),
    };
    failed.with_source(error)
}

/// Why nothing of the server was reached.
fn unreached(error: &RedisError, server: &str) -> Error {
    let source = error.source().and_then(|source| source.downcast_ref::<Arc<dyn StdError + Send + Sync>>());
    let source = source.and_then(|source| source.downcast_ref::<io::Error>());
    let encryption = source.and_then(io::Error::get_ref).and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match (encryption, source) {
        (Some(rustls::Error::InvalidCertificate(why)), _) => Error::new(
            ErrorKind::InvalidConfig,
            format!(
                "the certificate of {server} is not trusted ({why}): name its authority by ca_file, and the server by a \
                 name that the certificate is for"
            ),
        ),
        (Some(_), _) => Error::new(
            ErrorKind::Unavailable,
            format!("{server} speaks no encryption that we know: does it expect redis:?"),
        ),
        // So ends who speaks plainly to a server that expects encryption.
        (None, Some(source))
            if matches!(source.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof) =>
        {
            Error::new(
                ErrorKind::Unavailable,
                format!("{server} ended the connection before it let us in ({source}): does it expect rediss:?"),
            )
        }
        (None, Some(source)) => Error::new(ErrorKind::Unavailable, format!("cannot connect to {server}: {source}")),
        (None, None) => Error::new(ErrorKind::Unavailable, format!("cannot connect to {server}")),
    }
}

/// An answer that no server of ours gives.
pub(super) fn unexpected(effect: Effect) -> Error {
    let message = "the server gave an answer that does not fit the question: is something else behind this address?";
    Error::new(if effect == Effect::Change { ErrorKind::Indeterminate } else { ErrorKind::Unavailable }, message)
}

fn uncertain(error: &RedisError, effect: Effect) -> Error {
    if error.kind() == redis::ErrorKind::Parse {
        return unexpected(effect);
    }
    match effect {
        Effect::Change => Error::new(ErrorKind::Indeterminate, "the connection broke before the answer"),
        Effect::Look => Error::new(ErrorKind::Unavailable, "the connection broke before the answer"),
    }
}

/// The kind of what the server itself refused, and what to do about it; `None` = nobody knows whether it is its word.
fn refused(error: &RedisError) -> Option<(ErrorKind, &'static str)> {
    use ErrorKind::{Indeterminate, InvalidConfig, Rejected, Unavailable};
    let code = error.code()?;
    // Up to version 7.0 a script's own errors have no code of their own.
    let text = error.detail().unwrap_or_default();
    let has = |known: &str| text.split(|char: char| !char.is_ascii_alphanumeric()).any(|word| word == known);
    let is = |known: &str| code == known || (code == "ERR" && has(known));
    Some(match error.kind() {
        // Our own script's.
        _ if is("STANDS") => (Indeterminate, LACKING),
        redis::ErrorKind::Server(ServerErrorKind::NoPerm) => (Rejected, LACKING),
        redis::ErrorKind::Server(ServerErrorKind::ReadOnly) => (Unavailable, "it has become a replica: try again soon"),
        redis::ErrorKind::Server(ServerErrorKind::BusyLoading) => (Unavailable, "it is starting: try again soon"),
        _ if is("NOPERM") || DENIALS.iter().any(|denial| text.contains(denial)) => (Rejected, LACKING),
        _ if is("NOAUTH") => (Rejected, "name a user and a password"),
        _ if is("WRONGPASS") => (Rejected, "check the user name and the password"),
        _ if is("WRONGTYPE") => (Rejected, "the key holds something that is no lock: choose another key or namespace"),
        _ if is("READONLY") => (Unavailable, "it has become a replica: try again soon"),
        _ if is("OOM") => (Unavailable, "it is out of memory: raise maxmemory or free some"),
        _ if is("MISCONF") => (Unavailable, "it cannot save its data and refuses writes: see its log"),
        _ if is("NOREPLICAS") => (Unavailable, "too few replicas are connected to it"),
        _ if is("BUSY") => (Unavailable, "it is busy with a script of somebody else"),
        _ if is("LOADING") => (Unavailable, "it is starting: try again soon"),
        _ if is("MASTERDOWN") || is("CLUSTERDOWN") || is("TRYAGAIN") || is("UNKILLABLE") => {
            (Unavailable, "try again soon")
        }
        _ if is("MOVED") || is("ASK") || is("CROSSSLOT") => (Rejected, "it is one of a cluster: write redis+cluster:"),
        _ if text.contains("cluster support disabled") => (InvalidConfig, "it is no cluster: write redis:"),
        _ if text.contains("max number of clients") => {
            (Unavailable, "it has too many connections: close some or raise maxclients")
        }
        _ if text.contains("DB index is out of range") => (Rejected, "name a database that it has"),
        _ if text.contains("fencing tokens of this key are used up") => {
            (Rejected, "delete the key's companion, once nobody holds an old token")
        }
        _ if KNOWN.contains(&code) => (Rejected, UNKNOWN),
        _ => return None,
    })
}

/// An error in the server's own words.
fn told(kind: ErrorKind, error: RedisError, advice: &str) -> Error {
    let text = [error.code(), error.detail()].into_iter().flatten().collect::<Vec<_>>().join(" ");
    // It repeats what came with a command that it does not know: an owner token, or a password.
    let (known, secret) = text.split_once(ARGUMENTS).map_or((&*text, None), |(known, rest)| (known, Some(rest)));
    let short: String = known.chars().filter(|char| !char.is_control()).take(MAX_TEXT).collect();
    let told = Error::new(kind, format!("the server said \"{short}\": {advice}"));
    if secret.is_some() { told } else { told.with_source(error) }
}
