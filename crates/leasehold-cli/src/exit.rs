//! Exit codes: part of the command's contract, so that scripts and supervisors can tell the cases apart.

use std::error::Error as _;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use leasehold::{Error, ErrorKind};
use rustix::io::Errno;

pub(crate) use self::table::TABLE;

mod table;

/// Done.
pub(crate) const DONE: u8 = 0;
/// A question was answered with "no": nobody holds the key, nothing is held.
pub(crate) const NO: u8 = 1;
/// The command line is wrong.
pub(crate) const USAGE: u8 = 64;
/// A key or a ttl is malformed.
pub(crate) const DATA: u8 = 65;
/// The store did not answer, or what became of the request is unknown; the command was not started.
pub(crate) const UNAVAILABLE: u8 = 69;
/// A fault of this program.
pub(crate) const BUG: u8 = 70;
/// The operating system could not start another process.
pub(crate) const OS: u8 = 71;
/// The local store's file cannot be created, read or written.
pub(crate) const CANT_CREATE: u8 = 73;
/// Output could not be written.
pub(crate) const IO: u8 = 74;
/// Somebody else holds the key; `-E` changes it.
pub(crate) const BUSY: u8 = 75;
/// The store's server refused.
pub(crate) const REFUSED: u8 = 77;
/// The configuration is wrong, or the store cannot do what was asked of it.
pub(crate) const CONFIG: u8 = 78;
/// The lease was lost while the command ran.
pub(crate) const LOST: u8 = 79;
/// `--max-runtime` was reached.
pub(crate) const TIMED_OUT: u8 = 124;
/// The command exists and cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;
/// Added to a signal's number.
pub(crate) const SIGNAL: u8 = 128;

/// The code of an error from the library.
///
/// A refusal by the local file is a matter of that file (73), not of a server's permissions (77).
pub(crate) fn of_error(error: &Error, local_file: bool) -> u8 {
    match error.kind() {
        ErrorKind::Contended => BUSY,
        ErrorKind::Closed | ErrorKind::Indeterminate | ErrorKind::Unavailable => UNAVAILABLE,
        ErrorKind::InvalidConfig | ErrorKind::Unsupported => CONFIG,
        ErrorKind::InvalidInput => DATA,
        ErrorKind::Lost | ErrorKind::NotHeld => LOST,
        ErrorKind::Rejected if local_file => CANT_CREATE,
        ErrorKind::Rejected => REFUSED,
        _ => BUG,
    }
}

/// Whether a `run` that ends with this has not executed its command, unless the command ended with it.
pub(crate) fn is_not_begun(code: u8) -> bool {
    [DATA, UNAVAILABLE, BUG, OS, CANT_CREATE, BUSY, REFUSED, CONFIG].contains(&code)
}

/// The code of a command that could not be started, as shells give it.
pub(crate) fn of_spawn_error(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ if is_shortage(error) => OS,
        _ => NOT_EXECUTABLE,
    }
}

/// Whether the system, or a limit of this user or process, has no more of what was asked for.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    let short = [Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| short.contains(&errno))
}

/// Says if this process cannot open the few files that any work takes.
///
/// The runtime cannot say it without a panic, and a store may tell it as a file that it cannot open.
pub(crate) fn descriptors() -> Result<(), Failure> {
    let opened: io::Result<Vec<_>> = (0..DESCRIPTORS).map(|_| File::open("/dev/null")).collect();
    match opened {
        Err(error) if is_shortage(&error) => Err(Failure::shortage(&error)),
        _ => Ok(()),
    }
}

/// How many files the work takes at a time; more than that are not tried.
const DESCRIPTORS: usize = 8;

/// The code of a command that ended: its own, or 128 + N if signal N ended it.
pub(crate) fn of_status(status: ExitStatus) -> u8 {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => i32::from(SIGNAL) + signal,
        (None, None) => i32::from(BUG),
    };
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Why the command ends without having done its work: one line to print and the code to leave with.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) code: u8,
    /// A lower-case fragment that says what is wrong and what to do about it.
    pub(crate) message: String,
    /// What else to do, for people at this command.
    pub(crate) advice: Option<String>,
}

impl Failure {
    /// A failure with this code.
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), advice: None }
    }

    /// An error from the library, with its causes.
    pub(crate) fn from_error(error: &Error, local_file: bool) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(source) = cause {
            if let Some(shortage) = source.downcast_ref().filter(|error| is_shortage(error)) {
                return Self::shortage(shortage);
            }
            // Some libraries repeat their causes.
            let text = source.to_string();
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            cause = source.source();
        }
        let code = of_error(error, local_file);
        // SQLite says of a file that it could not open, and not why.
        if code == CANT_CREATE
            && let Err(shortage) = descriptors()
        {
            return shortage;
        }
        Self::new(code, message)
    }

    /// Something that the system has no more of.
    fn shortage(error: &io::Error) -> Self {
        let (what, limit) = match Errno::from_io_error(error) {
            Some(Errno::AGAIN) => ("too many processes or threads", "raise ulimit -u"),
            Some(Errno::NOMEM) => ("no memory left", "raise ulimit -v or free some"),
            _ => ("too many open files", "raise ulimit -n"),
        };
        Self::new(OS, format!("{what}: {limit}: {error}"))
    }

    /// Adds what to do, or what was not done because of this.
    pub(crate) fn note(mut self, note: &str) -> Self {
        self.message.push_str("; ");
        self.message.push_str(note);
        self
    }

    /// Adds what to do next, unless the command that fails is just that.
    pub(crate) fn advise(mut self, advice: String) -> Self {
        self.advice = Some(advice);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_code() {
        for (kind, code) in [
            (ErrorKind::Closed, 69),
            (ErrorKind::Contended, 75),
            (ErrorKind::Indeterminate, 69),
            (ErrorKind::InvalidConfig, 78),
            (ErrorKind::InvalidInput, 65),
            (ErrorKind::Lost, 79),
            (ErrorKind::NotHeld, 79),
            (ErrorKind::Rejected, 77),
            (ErrorKind::Unavailable, 69),
            (ErrorKind::Unsupported, 78),
        ] {
            assert_eq!(of_error(&Error::new(kind, "why"), false), code, "{kind}");
        }
        assert_eq!(of_error(&Error::new(ErrorKind::Rejected, "why"), true), 73);
    }

    #[test]
    fn statuses_come_out_as_shells_give_them() {
        for (raw, code) in [(0, 0), (1 << 8, 1), (255 << 8, 255), (9, 137), (15, 143)] {
            assert_eq!(of_status(ExitStatus::from_raw(raw)), code);
        }
    }

    #[test]
    fn causes_are_part_of_the_line() {
        let error = Error::new(ErrorKind::Unavailable, "no answer").with_source(io::Error::other("disk on fire"));
        assert_eq!(Failure::from_error(&error, false).message, "no answer: disk on fire");
    }
}
