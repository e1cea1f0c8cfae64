//! Colours: for people on a terminal that has them, and who have not said that they want none.

use std::env;
use std::io::{self, IsTerminal};

/// What a colour stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    /// Titles.
    Bold,
    /// As it should be.
    Green,
    /// To be looked at.
    Yellow,
    /// Failed.
    Red,
}

/// Where it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Answers.
    Stdout,
    /// Messages.
    Stderr,
}

/// A text in a colour, or as it was if there are to be none.
pub(crate) fn paint(stream: Stream, colour: Colour, text: &str) -> String {
    if is_coloured(stream) { painted(colour, text) } else { text.to_owned() }
}

fn painted(colour: Colour, text: &str) -> String {
    let code = match colour {
        Colour::Bold => 1,
        Colour::Green => 32,
        Colour::Yellow => 33,
        Colour::Red => 31,
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

fn is_coloured(stream: Stream) -> bool {
    let is_terminal = match stream {
        Stream::Stdout => io::stdout().is_terminal(),
        Stream::Stderr => io::stderr().is_terminal(),
    };
    // An empty NO_COLOR counts as absent, as its authors say.
    let is_wanted = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    is_terminal && is_wanted && env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// What the first word of a message stands for.
pub(super) fn of_message(text: &str) -> Colour {
    match text.split_once(": ").map(|(word, _)| word) {
        Some("lost") => Colour::Red,
        Some("busy" | "warning" | "WARNING") => Colour::Yellow,
        _ => Colour::Bold,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_decides() {
        for (text, colour) in [
            ("lost: the lease", Colour::Red),
            ("busy: \"k\" is held", Colour::Yellow),
            ("WARNING: the noop store", Colour::Yellow),
            ("waiting for \"k\": held by", Colour::Bold),
        ] {
            assert_eq!(of_message(text), colour, "{text}");
        }
        assert_eq!(painted(Colour::Green, "ok"), "\u{1b}[32mok\u{1b}[0m");
    }
}
