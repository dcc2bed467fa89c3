//! Whether the database's path still leads to the file that is open.
//!
//! SQLite goes on writing to a file that was deleted, moved or replaced, and nobody who opens the path sees any of it.
//! The same goes for the files beside it, of which the log holds the newest commits.
//! So the writer looks before it begins anything new, and a writer that follows another opens the same file or none.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A path, and the file that it led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    path: PathBuf,
    file: (u64, u64),
}

impl Place {
    /// The file that `path` leads to now.
    pub(super) fn of(path: &Path) -> io::Result<Place> {
        Ok(Place { path: path.to_owned(), file: identity(path)? })
    }

    /// The path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it still does. A path that can't be looked at does not.
    pub(super) fn is_still_there(&self) -> bool {
        identity(&self.path).is_ok_and(|file| file == self.file)
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::metadata(path).map(|file| (file.dev(), file.ino()))
}
