//! SQLite's error codes, sorted by what the store does about them.
//!
//! Owns the sorting and nothing else. The writer, the openers and the operator's commands ask it.

use rusqlite::ffi;

/// What an SQLite error means for whoever was writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Another connection holds the lock. Try again.
    Locked,
    /// There is no room. Try again.
    Full,
    /// The file can't be written. Try again: somebody may put that right.
    ReadOnly,
    /// Reading, writing or syncing failed. What reached the disk is unknown, so the connection must end.
    Io,
    /// The file is no database, or a damaged one. Nothing that the connection caches can be trusted.
    Damaged,
    /// The statement or its values are at fault; other statements may still do.
    Statement,
}

impl Fault {
    /// Sorts an error.
    pub(super) fn of(error: &rusqlite::Error) -> Fault {
        let Some(error) = error.sqlite_error() else { return Fault::Statement };
        match error.extended_code & 0xff {
            ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED => Fault::Locked,
            ffi::SQLITE_FULL => Fault::Full,
            // The file was moved or deleted under us: a connection to nowhere, not a matter of modes.
            ffi::SQLITE_READONLY if error.extended_code == ffi::SQLITE_READONLY_DBMOVED => Fault::Io,
            ffi::SQLITE_READONLY => Fault::ReadOnly,
            ffi::SQLITE_IOERR | ffi::SQLITE_CANTOPEN | ffi::SQLITE_PROTOCOL => Fault::Io,
            ffi::SQLITE_CORRUPT | ffi::SQLITE_NOTADB => Fault::Damaged,
            _ => Fault::Statement,
        }
    }

    /// Whether the connection that met it must not be used again.
    pub(super) const fn ends_the_writer(self) -> bool {
        match self {
            Fault::Io | Fault::Damaged => true,
            Fault::Locked | Fault::Full | Fault::ReadOnly | Fault::Statement => false,
        }
    }
}

/// Whether a directory that can't be written kept SQLite from making its shared-memory file.
pub(super) fn is_readonly_directory(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|e| e.extended_code == ffi::SQLITE_READONLY_DIRECTORY)
}
