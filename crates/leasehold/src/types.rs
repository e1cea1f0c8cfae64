//! The three names that pass through everything: [`Key`], [`OwnerToken`], [`FencingToken`].

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind, Result};

/// The namespace of a manager that was given none, in the library and in the command alike.
pub const DEFAULT_NAMESPACE: &str = "leasehold";

/// The longest key name, in bytes.
pub const MAX_KEY_LEN: usize = 512;

/// The longest namespace, in bytes.
pub const MAX_NAMESPACE_LEN: usize = 64;

/// The longest owner token, in bytes; ours have 32, those of foreign clients may be longer.
pub const MAX_OWNER_LEN: usize = 512;

/// The name of a lock, with the namespace it lives in.
///
/// A name is any non-empty UTF-8 text of at most [`MAX_KEY_LEN`] bytes without control characters, compared byte by
/// byte: no case folding, no normalisation. A namespace is at most [`MAX_NAMESPACE_LEN`] of `A-Z a-z 0-9 . _ -`;
/// stores keep `namespace:name`. An empty namespace means the exact name, to live beside foreign clients.
///
/// Two keys are equal when what stores keep is equal. Cloning is a reference count.
#[derive(Clone)]
pub struct Key {
    stored: Arc<str>,
    name_at: usize,
}

impl Key {
    /// A checked key.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for a malformed name, [`ErrorKind::InvalidConfig`] for a malformed namespace.
    pub fn new(namespace: &str, name: &str) -> Result<Self> {
        check_namespace(namespace)?;
        let problem = if name.is_empty() {
            Some("it is empty: give the lock a name".to_owned())
        } else if name.len() > MAX_KEY_LEN {
            Some(format!("it has {} bytes, at most {MAX_KEY_LEN} are allowed: shorten or hash it", name.len()))
        } else if name.chars().any(char::is_control) {
            Some("it holds a control character: remove or encode it".to_owned())
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(Error::new(ErrorKind::InvalidInput, format!("invalid key: {problem}")));
        }
        Ok(if namespace.is_empty() {
            Self { stored: name.into(), name_at: 0 }
        } else {
            Self { stored: format!("{namespace}:{name}").into(), name_at: namespace.len() + 1 }
        })
    }

    /// The key that a store keeps as `stored`, seen from `namespace`; `None` if it lies outside of it or no key
    /// of ours can have that form.
    pub fn from_stored(namespace: &str, stored: &str) -> Option<Self> {
        let name = if namespace.is_empty() { stored } else { stored.strip_prefix(namespace)?.strip_prefix(':')? };
        Self::new(namespace, name).ok()
    }

    /// The name, without the namespace.
    pub fn name(&self) -> &str {
        &self.stored[self.name_at..]
    }

    /// The namespace; may be empty.
    pub fn namespace(&self) -> &str {
        &self.stored[..self.name_at.saturating_sub(1)]
    }

    /// What stores keep: `namespace:name`, or the bare name in the empty namespace.
    pub fn as_stored(&self) -> &str {
        &self.stored
    }
}

/// Checks a namespace on its own, before there is a name.
pub(crate) fn check_namespace(namespace: &str) -> Result<()> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if namespace.len() > MAX_NAMESPACE_LEN || !namespace.bytes().all(allowed) {
        return Err(Error::new(
            ErrorKind::InvalidConfig,
            format!("invalid namespace: use at most {MAX_NAMESPACE_LEN} of A-Z a-z 0-9 . _ -"),
        ));
    }
    Ok(())
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.stored == other.stored
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.stored.hash(state);
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?})", self.as_stored())
    }
}

/// The random secret that names one acquisition; whoever knows it may extend, release or take on the lease.
///
/// Ours are 128 bits from the operating system, as 32 lower-case hexadecimal digits. A store shared with foreign
/// clients may hold other values; up to [`MAX_OWNER_LEN`] bytes of any content fit. `Debug` and `Display` show a
/// fingerprint only: the first 8 hexadecimal digits of the value's SHA-256. The secret leaves through
/// [`expose`](Self::expose) and [`as_bytes`](Self::as_bytes), and nowhere else.
#[derive(Clone)]
pub struct OwnerToken(Repr);

#[derive(Clone)]
enum Repr {
    Minted([u8; 32]),
    Foreign(Arc<[u8]>),
}

impl OwnerToken {
    /// A new token for one acquisition.
    ///
    /// Asked from the operating system each time and never from a buffer, which a `fork` would repeat.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if the operating system gives no random bytes.
    pub fn mint() -> Result<Self> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| {
            Error::new(ErrorKind::Unavailable, "the operating system gives no random bytes").with_source(error)
        })?;
        let mut hex = [0; 32];
        for (pair, byte) in hex.chunks_exact_mut(2).zip(random) {
            pair[0] = hex_digit(byte >> 4);
            pair[1] = hex_digit(byte & 15);
        }
        Ok(Self(Repr::Minted(hex)))
    }

    /// A token as a store, a file or another process gave it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if it is empty or longer than [`MAX_OWNER_LEN`] bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        if bytes.is_empty() || bytes.len() > MAX_OWNER_LEN {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("invalid owner token: it must have 1 to {MAX_OWNER_LEN} bytes"),
            ));
        }
        Ok(Self(match bytes.try_into() {
            Ok(hex) => Repr::Minted(hex),
            Err(_) => Repr::Foreign(bytes.into()),
        }))
    }

    /// The secret as bytes, for stores.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Minted(hex) => hex,
            Repr::Foreign(bytes) => bytes,
        }
    }

    /// The secret as text, to pass it to another process. Keep it out of logs, arguments and environments.
    pub fn expose(&self) -> String {
        String::from_utf8_lossy(self.as_bytes()).into_owned()
    }

    /// What may be shown: the first 8 hexadecimal digits of the value's SHA-256.
    pub fn fingerprint(&self) -> String {
        let digest = Sha256::digest(self.as_bytes());
        digest[..4].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn hex_digit(nibble: u8) -> u8 {
    b"0123456789abcdef"[usize::from(nibble)]
}

impl PartialEq for OwnerToken {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for OwnerToken {}

impl Hash for OwnerToken {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl FromStr for OwnerToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::from_bytes(text.as_bytes())
    }
}

impl fmt::Display for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fingerprint())
    }
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerToken(fingerprint {})", self.fingerprint())
    }
}

/// A number that grows with each new holder of a key.
///
/// Pass it along with every write to the guarded resource and let the resource refuse a number lower than the
/// highest it has seen: then a holder that woke up too late cannot do harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The token with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_checked() {
        for (name, valid) in [
            ("a", true),
            ("nächtlich {x}", true),
            (&"x".repeat(512), true),
            (&"x".repeat(513), false),
            ("", false),
            ("a\nb", false),
            ("a\u{85}b", false),
        ] {
            assert_eq!(Key::new("ns", name).is_ok(), valid, "{name:?}");
        }
        for namespace in ["a:b", "ä", " ", &"n".repeat(65)] {
            assert_eq!(Key::new(namespace, "k").unwrap_err().kind(), ErrorKind::InvalidConfig);
        }
    }

    #[test]
    fn namespaces_separate_and_can_be_empty() {
        let key = Key::new("prod", "deploy").unwrap();
        assert_eq!((key.namespace(), key.name(), key.as_stored()), ("prod", "deploy", "prod:deploy"));
        let bare = Key::new("", "prod:deploy").unwrap();
        assert_eq!((bare.namespace(), bare.name()), ("", "prod:deploy"));
        assert_eq!(key, bare);
        assert_ne!(key, Key::new("stage", "deploy").unwrap());
        assert_eq!(Key::from_stored("prod", "prod:deploy").unwrap().name(), "deploy");
        assert!(Key::from_stored("pro", "prod:deploy").is_none());
    }

    #[test]
    fn owner_tokens_are_unique_and_never_shown() {
        let token = OwnerToken::mint().unwrap();
        let secret = token.expose();
        assert_eq!(secret.len(), 32);
        assert_ne!(token, OwnerToken::mint().unwrap());
        assert_eq!(secret.parse::<OwnerToken>().unwrap(), token);
        assert!(!format!("{token:?} {token}").contains(&secret[..8]));
        assert!(OwnerToken::from_bytes(&[7; 513]).is_err());
        assert!(OwnerToken::from_bytes(b"").is_err());
        assert_ne!("dev".parse::<OwnerToken>().unwrap(), "dev-server".parse().unwrap());
    }
}
