//! The write-ahead log as a file: how long it is made, and how a reader makes what it has read durable.
//!
//! A commit into a log that must grow for it costs about one and a half of one into a log that is there already, and a
//! log that is there already still takes outcomes when the disk is full. So the log is made as long as it becomes
//! between two checkpoints, once, before anything is served; it outgrows that only where somebody always waits. Never
//! shortens it and never touches what is in it.
//!
//! A reader may see commits that their writer has not synced yet. Who sends on what it read asks for [`Synced`] first.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rusqlite::Connection;

use super::files::beside;
use super::room::Room;
use crate::clock;

/// Pages from which on the log is copied when nobody waits for the writer.
pub(super) const PAGES: i64 = 1_000;
/// Pages from which on it is copied whoever waits. Their index is one block, which a reader looks through at once.
pub(super) const PAGES_MAX: i64 = 4_000;
/// A header and a thousand frames of a page each: what it grows to unless there is always somebody who waits.
pub const LOG_BYTES: u64 = 32 + PAGES.unsigned_abs() * (24 + 4_096);
/// Free bytes without which it is left as it is.
const FREE_MIN: u64 = 64 << 20;
const CHUNK: usize = 64 << 10;

/// Makes the log of an open database at least `bytes` long. If that can't be, it stays as it is.
///
/// Frames are only ever appended by who holds the write lock, which is held here. Recovery stops at the first frame
/// that doesn't carry the header's salt, and zeros don't.
pub(super) fn lengthen(conn: &Connection, database: &Path, bytes: u64) {
    if bytes == 0 || !Room::beside(database.to_owned(), FREE_MIN).is_enough(clock::monotonic()) {
        return;
    }
    if let Err(error) = conn.execute_batch("BEGIN IMMEDIATE") {
        tracing::debug!(%error, "the log was not lengthened");
        return;
    }
    if let Err(error) = append_zeros(&beside(database, "-wal"), bytes) {
        tracing::debug!(%error, "the log was not lengthened");
    }
    if let Err(error) = conn.execute_batch("ROLLBACK") {
        tracing::warn!(%error, "the lock for the log's length was not given up");
    }
}

/// Syncs the log for a reader, in whatever process.
#[derive(Debug, Default)]
pub(super) struct Synced {
    /// The log whose name in the folder was synced too.
    named: Option<(u64, u64)>,
}

impl Synced {
    /// Makes every commit that could be read before this call survive a power failure.
    ///
    /// A commit is found in the log until a checkpoint has put it into the database, and a checkpoint syncs both before the
    /// log is used again. So syncing the log's file, which any process that can read it may do, is enough; where there is no
    /// log, nothing waits to be synced. The database's own file is never opened here: closing it would drop SQLite's locks.
    pub(super) fn make(&mut self, database: &Path) -> io::Result<()> {
        let log = beside(database, "-wal");
        let file = match OpenOptions::new().read(true).custom_flags(no_link()).open(&log) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        file.sync_data()?;
        let meta = file.metadata()?;
        let identity = (meta.dev(), meta.ino());
        if self.named != Some(identity) {
            let folder = log.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
            self.named = Some(identity);
        }
        Ok(())
    }
}

fn no_link() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
}

fn append_zeros(log: &Path, bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).custom_flags(no_link()).open(log)?;
    let from = file.metadata()?.len();
    if from < bytes {
        // A log that was emptied is not emptied on disk yet. Zeros that reach it before that is would cut the old frames
        // short, and what is left of them would be laid over the newer pages of the database.
        file.sync_all()?;
    }
    let zeros = vec![0; CHUNK];
    let mut at = from;
    while at < bytes {
        let some = usize::try_from(bytes - at).unwrap_or(CHUNK).min(CHUNK);
        if let Err(error) = file.write_all_at(&zeros[..some], at) {
            // Room for outcomes matters more than the length.
            file.set_len(from)?;
            return Err(error);
        }
        at += some as u64;
    }
    if at > from { file.sync_all() } else { Ok(()) }
}
