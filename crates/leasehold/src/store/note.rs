//! What is noted about a holder, for people to read.

use std::sync::Arc;

use crate::store::{Claim, HolderInfo};

/// Host, process id, command, label and reason in a line each; empty if the claim tells nothing.
pub(super) fn of(claim: &Claim<'_>) -> Vec<u8> {
    let Some(info) = claim.holder else { return Vec::new() };
    let pid = info.pid.map(|pid| pid.to_string());
    let parts = [&info.host, &pid, &info.command, &info.label, &info.reason];
    let mut note = Vec::with_capacity(64);
    for (at, part) in parts.into_iter().enumerate() {
        if at > 0 {
            note.push(b'\n');
        }
        let text = part.as_deref().unwrap_or_default();
        note.extend(text.bytes().map(|byte| if matches!(byte, b'\n' | 0) { b' ' } else { byte }));
    }
    note
}

pub(super) fn read(note: &[u8]) -> Arc<HolderInfo> {
    let text = String::from_utf8_lossy(note);
    let mut lines = text.split('\n').map(|line| Some(line.to_owned()).filter(|line| !line.is_empty()));
    let mut next = || lines.next().flatten();
    let (host, pid) = (next(), next().and_then(|pid| pid.parse().ok()));
    Arc::new(HolderInfo { host, pid, command: next(), label: next(), reason: next() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::types::{Key, OwnerToken};

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let (key, owner) = (Key::new("", "k").unwrap(), OwnerToken::mint().unwrap());
        let claim = Claim::new(&key, &owner, Duration::from_secs(1));
        assert!(of(&claim).is_empty());
        let mut info = HolderInfo::default();
        assert_eq!(*read(&of(&claim.holder(&Arc::new(info.clone())))), info);
        info.pid = Some(7);
        info.reason = Some("two\nlines\0".to_owned());
        let info = Arc::new(info);
        let known = read(&of(&claim.holder(&info)));
        assert_eq!((known.pid, known.reason.as_deref()), (Some(7), Some("two lines ")));
        assert_eq!((&known.host, &known.label), (&None, &None));
        assert_eq!(read(b"only a host").host.as_deref(), Some("only a host"));
    }
}
