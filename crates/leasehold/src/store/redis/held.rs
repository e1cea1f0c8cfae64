//! Since when somebody holds a key, as it is noted in the companion.

use crate::types::OwnerToken;

/// Since when, in milliseconds of the wall clock, and the owner.
pub(super) fn held(since: u64, owner: &OwnerToken) -> Vec<u8> {
    let mut held = since.to_string().into_bytes();
    held.push(b' ');
    held.extend_from_slice(owner.as_bytes());
    held
}

/// Since when this owner holds the key, if that is what was noted: clients that note nothing leave it as it was.
pub(super) fn since(held: &[u8], owner: &[u8]) -> Option<u64> {
    let at = held.iter().position(|byte| *byte == b' ')?;
    let (since, noted) = (&held[..at], &held[at + 1..]);
    std::str::from_utf8(since).ok()?.parse().ok().filter(|_| noted == owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_known_of_the_same_owner_only() {
        let owner = OwnerToken::mint().unwrap();
        assert_eq!(since(&held(7, &owner), owner.as_bytes()), Some(7));
        assert_eq!(since(&held(7, &owner), b"somebody else"), None);
    }
}
