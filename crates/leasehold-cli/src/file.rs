//! Files that others read while they are written: they appear whole or not at all.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{Access, FlockOperation, access, flock};
use rustix::io::Errno;

use crate::exit::{self, Failure};
use crate::output;

/// The pauses between looks whether another process is done with a file, and how many there are: who holds it up for
/// longer means no good.
const LOOKS: (Duration, u32) = (Duration::from_millis(5), 200);

/// Who may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Whoever the umask lets.
    Plain,
    /// Its user.
    Secret,
}

/// Checks that a file of this name can be written.
pub(crate) fn check(path: &Path, mode: Mode) -> Result<(), Failure> {
    if is_special(path) {
        if mode == Mode::Secret {
            return Err(cannot_write(path, &no_plain_file()));
        }
        return access(path, Access::WRITE_OK).map_err(|error| cannot_write(path, &error.into()));
    }
    if path.is_dir() || path.file_name().is_none() {
        return Err(cannot_write(path, &io::ErrorKind::IsADirectory.into()));
    }
    access(directory(path), Access::WRITE_OK | Access::EXEC_OK).map_err(|error| cannot_write(path, &error.into()))
}

/// Writes a file as a whole, in place of one that is there; a link is replaced and not followed. What is no plain file
/// (a pipe, a terminal, `/dev/stdout`) is written to, but never a secret.
pub(crate) fn write(path: &Path, content: &[u8], mode: Mode) -> Result<(), Failure> {
    let written = if !is_special(path) {
        replace(path, content, mode)
    } else if mode == Mode::Secret {
        Err(no_plain_file())
    } else {
        File::options().append(true).open(path).and_then(|mut file| file.write_all(content))
    };
    written.map_err(|error| cannot_write(path, &error))
}

/// Does something to a file while no other process of this program does, unless that takes too long.
///
/// Without it a secret that is put in the place of an old one could be removed together with that.
pub(crate) fn alone<T>(path: &Path, work: impl FnOnce() -> T) -> T {
    let directory = File::open(directory(path));
    if let Ok(directory) = &directory {
        for _ in 0..LOOKS.1 {
            match flock(directory, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => thread::sleep(LOOKS.0),
                // Not every file system can.
                Ok(()) | Err(_) => break,
            }
        }
    }
    work()
}

fn replace(path: &Path, content: &[u8], mode: Mode) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let mut draft = std::ffi::OsString::from(".");
    draft.push(name);
    draft.push(format!(".{}", std::process::id()));
    let draft = directory(path).join(draft);
    // One of this name can only be left over from a process that is gone.
    if let Err(error) = fs::remove_file(&draft)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let bits = if mode == Mode::Secret { 0o600 } else { 0o666 };
    let written = File::options()
        .write(true)
        .create_new(true)
        .mode(bits)
        .open(&draft)
        .and_then(|mut file| {
            if mode == Mode::Secret {
                // The umask may have taken away what its user needs.
                file.set_permissions(Permissions::from_mode(bits))?;
            }
            file.write_all(content)
        })
        .and_then(|()| alone(path, || fs::rename(&draft, path)));
    if written.is_err() {
        fs::remove_file(&draft).ok();
    }
    written
}

/// Whether the name stands for something that must not be replaced by a file. Names in `/dev` and `/proc` lead to
/// whatever this process has open: `/dev/stdout` is a link, and often one to a plain file.
fn is_special(path: &Path) -> bool {
    let directory = directory(path);
    let directory = directory.canonicalize().unwrap_or(directory);
    // Shared memory is a place for files like any other.
    let is_window =
        (directory.starts_with("/dev") && !directory.starts_with("/dev/shm")) || directory.starts_with("/proc");
    match fs::metadata(path) {
        Ok(found) if found.is_file() => is_window,
        Ok(found) => !found.is_dir(),
        Err(_) => false,
    }
}

fn directory(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn no_plain_file() -> io::Error {
    io::Error::other("it is no plain file")
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    let path = output::clean(&path.display().to_string());
    Failure::new(exit::CANT_CREATE, format!("cannot write {path}: {error}: name a file in a directory of yours"))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn files_are_replaced_as_a_whole() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("secret");
        fs::write(&path, "longer than what follows").unwrap();
        write(&path, b"new", Mode::Secret).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn whoever_comes_second_waits() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("secret");
        let second = alone(&path, || {
            let path = path.clone();
            let second = thread::spawn(move || alone(&path, || fs::read(&path)));
            thread::sleep(LOOKS.0 * 4);
            fs::write(place.path().join("secret"), "first").unwrap();
            second
        });
        assert_eq!(second.join().unwrap().unwrap(), b"first");
    }

    #[test]
    fn a_link_is_replaced_and_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let (target, link) = (place.path().join("target"), place.path().join("link"));
        fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        write(&link, b"new", Mode::Plain).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"precious");
        assert_eq!(fs::read(&link).unwrap(), b"new");
    }

    #[test]
    fn what_this_process_has_open_is_written_to_and_stays() {
        let place = tempfile::tempdir().unwrap();
        let target = File::create(place.path().join("target")).unwrap();
        for name in ["/dev/fd", "/proc/self/fd", "/dev/../dev/fd"] {
            let path = format!("{name}/{}", target.as_raw_fd());
            check(Path::new(&path), Mode::Plain).unwrap();
            assert_eq!(check(Path::new(&path), Mode::Secret).unwrap_err().code, exit::CANT_CREATE);
            write(Path::new(&path), b"x", Mode::Plain).unwrap();
            assert_eq!(write(Path::new(&path), b"x", Mode::Secret).unwrap_err().code, exit::CANT_CREATE);
        }
        assert_eq!(fs::read(place.path().join("target")).unwrap(), b"xxx");
        assert!(is_special(Path::new("/dev/stdout")));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_file_stays_what_it_is() {
        let null = Path::new("/dev/null");
        check(null, Mode::Plain).unwrap();
        write(null, b"x", Mode::Plain).unwrap();
        assert_eq!(write(null, b"x", Mode::Secret).unwrap_err().code, exit::CANT_CREATE);
        for path in ["/no/such/directory/x", "/", "/etc", "..", ""] {
            assert_eq!(check(Path::new(path), Mode::Plain).unwrap_err().code, exit::CANT_CREATE, "{path}");
            assert_eq!(write(Path::new(path), b"x", Mode::Plain).unwrap_err().code, exit::CANT_CREATE, "{path}");
        }
    }
}
