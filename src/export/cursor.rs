//! Where a follower stands: the number of the last event that it has delivered.
//!
//! Owns the two places in which that is kept. A file is replaced whole or not at all, so that a crash leaves the number
//! before and never half a number.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::replace::{replace, try_beside};

/// The most bytes of a cursor's file: a number is shorter, and anything longer is something else.
const FILE_BYTES_MAX: u64 = 64;

/// Keeps the number of the last event delivered.
pub trait Cursor: Send {
    /// The number; zero when nothing was delivered yet.
    ///
    /// # Errors
    /// When it can't be read, or what is kept is no such number.
    fn load(&self) -> Result<i64, CursorError>;

    /// Keeps another number. It must last once this returns.
    ///
    /// # Errors
    /// When it can't be kept; the number before must stay then.
    fn save(&mut self, seq: i64) -> Result<(), CursorError>;

    /// Tries whether another number could be kept, and changes nothing. It is asked before the first event is delivered:
    /// what is delivered and not kept comes again the next time, and the time after that.
    ///
    /// # Errors
    /// When it could not be kept.
    fn check(&self) -> Result<(), CursorError> {
        Ok(())
    }
}

/// Why a cursor was not read or kept.
#[derive(Debug, thiserror::Error)]
pub enum CursorError {
    /// The operating system refused.
    #[error("{action} the cursor {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file holds something else.
    #[error("read the cursor {}: it holds no event number; name another file, or delete it to begin at the first event", path.display())]
    NoNumber {
        /// The file.
        path: PathBuf,
    },
    /// The number is below zero.
    #[error("read the cursor: {0} is below zero, and events are counted from one")]
    Negative(i64),
    /// Another kind of cursor failed.
    #[error("keep the cursor: {0}")]
    Other(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A cursor that lives as long as its follower, or as the number that its caller keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemCursor {
    /// The number of the last event delivered.
    pub seq: i64,
}

impl Cursor for MemCursor {
    fn load(&self) -> Result<i64, CursorError> {
        Ok(self.seq)
    }

    fn save(&mut self, seq: i64) -> Result<(), CursorError> {
        self.seq = seq;
        Ok(())
    }
}

/// A cursor in a file of its own: the number in decimal, for its owner only (mode 0600). A missing file is zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileCursor {
    path: PathBuf,
}

impl FileCursor {
    /// A cursor in the file at `path`, whose folder must exist.
    pub fn new(path: impl Into<PathBuf>) -> FileCursor {
        FileCursor { path: path.into() }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(io::Error) -> CursorError {
        let path = self.path.clone();
        move |source| CursorError::Io { action, path, source }
    }
}

impl Cursor for FileCursor {
    fn load(&self) -> Result<i64, CursorError> {
        // Without it, opening a pipe would wait for somebody to write into it.
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(self.failed("open")(error)),
        };
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(self.failed("read"))?;
        let number = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok());
        match number {
            Some(seq) if seq >= 0 => Ok(seq),
            Some(_) | None => Err(CursorError::NoNumber { path: self.path.clone() }),
        }
    }

    fn save(&mut self, seq: i64) -> Result<(), CursorError> {
        replace(&self.path, &format!("{seq}\n")).map_err(self.failed("write"))
    }

    fn check(&self) -> Result<(), CursorError> {
        try_beside(&self.path).map_err(self.failed("write"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_missing_cursor_is_zero_and_a_kept_one_is_a_number_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let mut cursor = FileCursor::new(folder.path().join("cursor"));
        assert_eq!(cursor.load().unwrap(), 0);
        cursor.check().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "trying leaves nothing");
        cursor.save(42).unwrap();
        cursor.save(43).unwrap();
        assert_eq!(cursor.load().unwrap(), 43);
        assert_eq!(fs::read_to_string(cursor.path()).unwrap(), "43\n");
        assert_eq!(fs::metadata(cursor.path()).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_file_that_holds_no_number_or_one_below_zero_is_no_cursor() {
        let folder = tempfile::tempdir().unwrap();
        let cursor = FileCursor::new(folder.path().join("cursor"));
        for text in ["not a number", "-1", "", "1 2", "9223372036854775808", "\u{0}"] {
            fs::write(cursor.path(), text).unwrap();
            let refused = cursor.load().unwrap_err();
            assert!(matches!(refused, CursorError::NoNumber { .. }), "{text:?}: {refused}");
            assert!(refused.to_string().contains("delete it to begin at the first event"), "{refused}");
        }
        fs::write(cursor.path(), vec![b'1'; 1_000_000]).unwrap();
        assert!(cursor.load().is_err(), "no more of a file is read than a number takes");
    }

    #[test]
    fn a_cursor_that_can_not_be_replaced_keeps_what_it_held() {
        let folder = tempfile::tempdir().unwrap();
        let mut cursor = FileCursor::new(folder.path().join("gone").join("cursor"));
        assert_eq!(cursor.load().unwrap(), 0);
        assert!(matches!(cursor.check(), Err(CursorError::Io { .. })));
        assert!(matches!(cursor.save(1), Err(CursorError::Io { .. })));
        // A directory in its place can be neither read nor replaced.
        fs::create_dir_all(cursor.path()).unwrap();
        assert!(matches!(cursor.save(1), Err(CursorError::Io { .. })));
        let left = fs::read_dir(folder.path().join("gone")).unwrap().count();
        assert_eq!(left, 1, "no temporary file is left");
    }
}
