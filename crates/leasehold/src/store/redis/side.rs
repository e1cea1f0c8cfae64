//! The key beside a key: where the fencing counter and what is known of the holder are kept.

/// The slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;

/// The name of the companion of a key. It lies in the same slot of a cluster, and begins with the key, so that one rule
/// of an access list covers both.
///
/// Never to be changed: versions that disagree would not see each other's fencing tokens.
pub(super) fn companion(key: &str) -> String {
    match (tag(key), key.contains(['{', '}'])) {
        (Some(_), _) => format!("{key}:fence"),
        (None, false) => format!("{key}:fence{{{key}}}"),
        // Braces that mark nothing would end a mark that is the key itself.
        (None, true) => numbered(key),
    }
}

/// The companion of a key with braces that mark nothing: with the first number by which it lies in the same slot.
///
/// Some ten thousand numbers are tried, so only what differs between them is looked at for each.
fn numbered(key: &str) -> String {
    let head = format!("{key}:fence{{");
    // What decides on the slot: all of it where the first mark is empty, else what follows the first brace.
    let (start, end) = match key.split_once('{') {
        Some((before, rest)) if !rest.contains('}') => (before.len() + 1, ""),
        Some(_) => (0, "}"),
        None => (head.len(), ""),
    };
    let (slot, crc) = (slot(key), crc16(0, &head.as_bytes()[start..]));
    let lies_there = |number: &u32| {
        let first = (number.max(&1).ilog2()) / 4;
        let digits = (0..=first).rev().map(|at| b"0123456789abcdef"[(number >> (4 * at)) as usize % 16]);
        crc16(digits.fold(crc, |crc, digit| crc16(crc, &[digit])), end.as_bytes()) % SLOTS == slot
    };
    let number = (0..).find(lies_there).unwrap_or_default();
    format!("{head}{number:x}}}")
}

/// The part of a key that decides on its slot: what stands between the first `{` and the next `}`, if anything.
fn tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    rest.split_once('}').map(|(tag, _)| tag).filter(|tag| !tag.is_empty())
}

/// The slot of a cluster in which a key lies.
pub(super) fn slot(key: &str) -> u16 {
    crc16(0, tag(key).unwrap_or(key).as_bytes()) % SLOTS
}

/// CRC-16/XMODEM, as the cluster specification asks for.
fn crc16(before: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(before, |crc, byte| (crc << 8) ^ STEPS[usize::from(crc.to_be_bytes()[0] ^ byte)])
}

/// What each byte does to a sum.
const STEPS: [u16; 256] = {
    let mut steps = [0; 256];
    let mut byte = 0;
    while byte < steps.len() {
        let (mut step, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            step = if step & 0x8000 == 0 { step << 1 } else { (step << 1) ^ 0x1021 };
            bit += 1;
        }
        steps[byte] = step;
        byte += 1;
    }
    steps
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster() {
        // The check value of the algorithm, and slots that a cluster gave.
        assert_eq!(crc16(0, b"123456789"), 0x31c3);
        for (key, expected) in [("foo", 12_182), ("bar", 5_061), ("{foo}.x", 12_182), ("", 0)] {
            assert_eq!(slot(key), expected, "{key}");
        }
        assert_eq!(slot("a{}b"), crc16(0, b"a{}b") % SLOTS);
        assert_eq!(slot("{a}{b}"), slot("a"));
    }

    /// Golden: a change would separate versions from each other.
    #[test]
    fn the_companion_has_this_name() {
        for (key, expected) in [
            ("leasehold:deploy", "leasehold:deploy:fence{leasehold:deploy}"),
            ("deploy", "deploy:fence{deploy}"),
            ("leasehold:{tenant}:x", "leasehold:{tenant}:x:fence"),
            ("täglich ü", "täglich ü:fence{täglich ü}"),
            ("{}x", "{}x:fence{1531}"),
            ("a}b", "a}b:fence{ddb9}"),
            ("a{b", "a{b:fence{1131}"),
        ] {
            assert_eq!(companion(key), expected);
        }
    }

    #[test]
    fn the_companion_lies_in_the_same_slot() {
        let long = ["{}", "}", "{", "}{", "a}{}", "{{", "}}{{"].map(|odd| odd.to_owned() + &"x".repeat(500));
        let keys =
            ["a", "a{b}c", "{}x", "a}b", "a{b", "}{", "{", "a{}b{c}", "{{a}}", "x:fence{x}", "{{}", "a{}{}", "}{}"];
        for key in keys.into_iter().chain(long.iter().map(String::as_str)) {
            let companion = companion(key);
            assert_eq!(slot(&companion), slot(key), "{companion}");
            assert!(companion.starts_with(key) && companion != key);
        }
    }

    /// The number is the first that fits, however it is found.
    #[test]
    fn numbers_are_tried_in_order() {
        for key in ["{}x", "a}b", "a{b", "}{", "{", "a{}b{c}", "{{", "x{}", "}"] {
            let names = (0..).map(|number: u32| format!("{key}:fence{{{number:x}}}"));
            assert_eq!(Some(companion(key)), names.into_iter().find(|name| slot(name) == slot(key)), "{key}");
        }
    }
}
