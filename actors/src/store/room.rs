//! How much space is left beside the database.
//!
//! Looked at now and then, not for each call: the answer only has to leave room for the outcomes of calls in flight.

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long one look holds.
const LOOK: Duration = Duration::from_millis(250);

/// The space on the database's file system.
#[derive(Debug)]
pub(super) struct Room {
    path: PathBuf,
    free_min: u64,
    seen: Option<(Instant, bool)>,
}

impl Room {
    /// Looks beside `path`; `free_min` bytes are enough.
    pub(super) fn beside(path: PathBuf, free_min: u64) -> Room {
        Room { path, free_min, seen: None }
    }

    /// Whether there is enough. A file system that doesn't say has enough: SQLite will find out.
    pub(super) fn is_enough(&mut self, now: Instant) -> bool {
        match self.seen {
            Some((at, enough)) if now.duration_since(at) < LOOK => enough,
            Some(_) | None => {
                let enough = rustix::fs::statvfs(&self.path)
                    .map_or(true, |fs| fs.f_bavail.saturating_mul(fs.f_frsize) >= self.free_min);
                self.seen = Some((now, enough));
                enough
            }
        }
    }
}
