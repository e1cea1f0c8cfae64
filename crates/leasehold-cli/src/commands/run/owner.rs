//! The secret that owns the lease, for whoever was promised it: in a file while the command runs.

use std::path::{Path, PathBuf};

use leasehold::{LockGuard, OwnerToken};

use crate::commands::owner;
use crate::exit::Failure;

/// A file that holds the owner token, removed when this is dropped.
#[derive(Debug)]
pub(super) struct OwnerFile {
    path: PathBuf,
    token: OwnerToken,
}

impl OwnerFile {
    /// Writes the file, for its user only.
    pub(super) fn write(path: &Path, guard: &LockGuard) -> Result<Self, Failure> {
        let token = guard.owner_token().clone();
        owner::write(path, &token, None)?;
        // The command may look for it from another directory.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Ok(Self { path, token })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for OwnerFile {
    fn drop(&mut self) {
        // Another run may have put its own in this place since.
        owner::discard(&self.path, &self.token);
    }
}
