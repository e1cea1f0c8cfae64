//! What stands at the path: telling files apart, and making a new one.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::fault::{Fault, rejected};
use super::host::since_1970;
use crate::error::Result;

/// What SQLite puts beside a file that is not yet a write-ahead file, while it writes.
pub(super) const JOURNAL: &str = "-journal";

/// What SQLite puts beside a write-ahead file: the log, and the memory that its processes share.
pub(super) const LOG: &str = "-wal";
pub(super) const SHARED_MEMORY: &str = "-shm";

/// Device and inode of a file and of the two beside it. While they are open no other file can have them, and SQLite
/// removes none of them while anybody has them open.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) file: (u64, u64),
    log: (u64, u64),
    shared_memory: (u64, u64),
}

impl Place {
    /// `None` where one of the three is missing.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let at = |path: &Path| fs::metadata(path).ok().map(|found| number(&found));
        Some(Self { file: at(path)?, log: at(&beside(path, LOG))?, shared_memory: at(&beside(path, SHARED_MEMORY))? })
    }
}

pub(super) fn number(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// What tells a file from one before or after it, also over reboots: its inode, and when that was made, because a
/// deleted file's number is soon given to another. Devices are numbered anew with each boot.
pub(super) fn stamp(found: &Metadata) -> String {
    match found.created() {
        Ok(made) => format!("{}:{}", found.ino(), since_1970(made)),
        Err(_) => found.ino().to_string(),
    }
}

pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Makes the directory of the default file, for this user only; refuses one that somebody else could tamper with.
pub(super) fn make_private_directory(path: &Path) -> Result<()> {
    let directory = path.parent().unwrap_or(path);
    let refused = |why: &str| rejected(path, &format!("its directory {} {why}", directory.display()));
    let found = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .and_then(|()| fs::metadata(directory))
        .map_err(|error| refused("cannot be created: name another file").with_source(error))?;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(refused("belongs to another user: give it to this one (chown), or name another file"));
    }
    if found.mode() & 0o022 != 0 {
        return Err(refused("can be written by others: close it (chmod go-w), or name the file if that is meant"));
    }
    Ok(())
}

/// Makes an empty file where there is none, readable by its owner only: it will hold owner tokens.
///
/// In a directory that is shared by a group (group-writable and set-group-id), the group may use it.
pub(super) fn create(path: &Path) -> Result<(), Fault> {
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    let directory = path.parent().unwrap_or(path);
    let mode = match fs::metadata(directory) {
        Ok(found) if found.is_dir() => found.mode(),
        Ok(_) => {
            return Err(rejected(path, "what should be its directory is none: name another file").into());
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let text = format!("its directory does not exist: create it (mkdir -p {})", directory.display());
            return Err(rejected(path, &text).with_source(error).into());
        }
        Err(error) => return Err(unreachable_file(path, error)),
    };
    match make_file(path, if mode & 0o2020 == 0o2020 { 0o660 } else { 0o600 }) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => {
            let text = format!(
                "it cannot be created: allow this user to write to {}, or name another file",
                directory.display()
            );
            Err(rejected(path, &text).with_source(error).into())
        }
    }
}

/// Made under another name, so that it appears with its final mode, and is never opened by its own: closing a
/// descriptor of an SQLite file drops the locks that this process has on it.
fn make_file(path: &Path, mode: u32) -> io::Result<()> {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{:016x}", fastrand::u64(..)));
    let unfinished = path.with_file_name(name);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
    let made = file.set_permissions(Permissions::from_mode(mode)).and_then(|()| {
        drop(file);
        fs::hard_link(&unfinished, path)
    });
    // What cannot be removed is in nobody's way.
    fs::remove_file(&unfinished).ok();
    made
}

pub(super) fn unreachable_file(path: &Path, error: io::Error) -> Fault {
    // Deleted since it was made: the next attempt makes it again.
    if error.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() {
        return Fault::Replaced;
    }
    let text = "it cannot be reached: check the path and its permissions, or name another file";
    rejected(path, text).with_source(error).into()
}
