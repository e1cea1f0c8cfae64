//! The table of exit codes: the manual's pages are made from it, and docs/cli.md is checked against it.

use super::{
    BUG, BUSY, CANT_CREATE, CONFIG, DATA, DONE, IO, LOST, NO, NOT_EXECUTABLE, NOT_FOUND, OS, REFUSED, SIGNAL,
    TIMED_OUT, UNAVAILABLE, USAGE,
};

/// Some codes and what they mean.
#[derive(Debug)]
pub(crate) struct Row {
    /// The codes; none = those of CMD.
    codes: &'static [u8],
    /// What they mean, in Markdown without links.
    meaning: &'static str,
}

impl Row {
    /// The codes as people read them.
    pub(crate) fn label(&self) -> String {
        match self.codes {
            [] => "CMD's".to_owned(),
            codes => codes.iter().map(u8::to_string).collect::<Vec<_>>().join(", "),
        }
    }

    /// The meaning as plain text.
    pub(crate) fn plain(&self) -> String {
        self.meaning.replace('`', "")
    }
}

/// Every code that this program ends with.
pub(crate) const TABLE: [Row; 17] = [
    Row { codes: &[], meaning: "unchanged; 128 + N if signal N ended it" },
    Row { codes: &[DONE], meaning: "done" },
    Row {
        codes: &[NO],
        meaning: "`show`: free; `list --exit-code`: nothing held; `force-release`: nothing to remove; `doctor`: warnings",
    },
    Row {
        codes: &[USAGE],
        meaning: "usage, including a malformed length of time in a flag other than `--ttl`, a `--renew-every` of zero, \
                  and a key held by one's own parent",
    },
    Row {
        codes: &[DATA],
        meaning: "malformed key or owner token; ttl that is malformed in `--ttl`, `LEASEHOLD_TTL` or a file, or out of \
                  range wherever it was said; `--renew-every` longer than half of the ttl",
    },
    Row {
        codes: &[UNAVAILABLE],
        meaning: "the store does not answer, or what became of the request is not known; CMD was not started",
    },
    Row { codes: &[BUG], meaning: "a fault of `leasehold`" },
    Row {
        codes: &[OS],
        meaning: "the system or a limit (`ulimit -n`, `-u`) does not allow another process, thread or open file",
    },
    Row {
        codes: &[CANT_CREATE],
        meaning: "the store's file cannot be created, read or written, is on a network file system, or belongs to another \
                  program; so for the files of `--report`, `--owner-file` and `man --write`",
    },
    Row { codes: &[IO], meaning: "output could not be written" },
    Row { codes: &[BUSY], meaning: "busy (`-E` changes it); `wait` ran out of time" },
    Row {
        codes: &[REFUSED],
        meaning: "a server refused; `force-release`: the key was not typed, or the holder is another one by now",
    },
    Row {
        codes: &[CONFIG],
        meaning: "configuration: unknown scheme, option or key, malformed URL (`?ttl=x` too), file, variable or \
                  namespace, `--kill-after` too long, something required that the store does not have, no place for the \
                  default file",
    },
    Row {
        codes: &[LOST],
        meaning: "the lease was lost while CMD ran, or before it could be executed; `release`, `extend`, `resume`: not \
                  held by that owner token",
    },
    Row { codes: &[TIMED_OUT], meaning: "`--max-runtime`" },
    Row {
        codes: &[NOT_EXECUTABLE, NOT_FOUND],
        meaning: "CMD cannot be executed, was not found; the key was given back",
    },
    Row {
        codes: &[SIGNAL + 1, SIGNAL + 2, SIGNAL + 3, SIGNAL + 15],
        meaning: "ended by HUP, INT, QUIT, TERM while waiting",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    const MANUAL: &str = include_str!("../../../../docs/cli.md");
    const CODES: &str = include_str!("../exit.rs");

    #[test]
    fn the_manual_has_this_table() {
        let rows: String = TABLE.iter().map(|row| format!("| {} | {} |\n", row.label(), row.meaning)).collect();
        let section = MANUAL.split("\n## Exit codes\n").nth(1).unwrap();
        let shown: Vec<_> = section.lines().filter(|line| line.starts_with('|')).skip(2).collect();
        assert_eq!(shown, rows.lines().collect::<Vec<_>>(), "docs/cli.md should have these rows:\n{rows}");
    }

    #[test]
    fn every_code_stands_in_one_row() {
        let constants = CODES.lines().filter_map(|line| line.strip_prefix("pub(crate) const ")?.split_once(": u8 = "));
        let mut constants: Vec<u8> = constants
            .filter(|(name, _)| *name != "SIGNAL")
            .map(|(_, value)| value.trim_end_matches(';').parse().unwrap())
            .collect();
        constants.extend([1, 2, 3, 15].map(|signal| SIGNAL + signal));
        let mut codes: Vec<u8> = TABLE.iter().flat_map(|row| row.codes).copied().collect();
        constants.sort_unstable();
        codes.sort_unstable();
        assert_eq!(codes, constants);
    }
}
