//! Faults that tests put into the writer, at named points of a batch.
//!
//! In a build without the `faults` feature this is an empty type whose methods do nothing, so that the writer
//! reads the same in both.

/// Where a fault can strike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    /// A batch was taken and nothing was begun.
    Taken,
    /// Everything is written and nothing committed.
    Commit,
    /// It is committed and nobody knows.
    Answer,
    /// The row that makes earlier commits durable is about to be committed.
    Flush,
}

#[cfg(any(test, feature = "faults"))]
mod armed {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use rusqlite::{Connection, ffi};

    use super::Point;
    use crate::clock::lock;

    /// What a fault does.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Act {
        /// The thread panics.
        Panic,
        /// A sync fails.
        SyncFails,
        /// The disk is full.
        DiskFull,
        /// A statement is refused.
        StatementFails,
    }

    /// Faults to come, in order, and how large the file may grow.
    #[derive(Debug, Clone, Default)]
    pub struct Faults(Arc<Mutex<Armed>>);

    #[derive(Debug, Default)]
    struct Armed {
        faults: VecDeque<(Point, Act)>,
        pages_max: Option<i64>,
    }

    impl Faults {
        /// Adds a fault: it strikes once, when the writer is next at `point` and every earlier fault has struck.
        pub fn add(&self, point: Point, act: Act) {
            lock(&self.0).faults.push_back((point, act));
        }

        /// How many have not struck yet.
        pub fn left(&self) -> usize {
            lock(&self.0).faults.len()
        }

        /// Lets the file grow to so many pages, from the next batch on.
        pub fn limit_pages(&self, pages: i64) {
            lock(&self.0).pages_max = Some(pages);
        }

        pub(in crate::store) fn limit(&self, conn: &Connection) -> rusqlite::Result<()> {
            match lock(&self.0).pages_max.take() {
                Some(pages) => conn.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(())),
                None => Ok(()),
            }
        }

        pub(in crate::store) fn at(&self, point: Point) -> rusqlite::Result<()> {
            let act = {
                let faults = &mut lock(&self.0).faults;
                match faults.front() {
                    Some((next, act)) if *next == point => {
                        let act = *act;
                        faults.pop_front();
                        act
                    }
                    Some(_) | None => return Ok(()),
                }
            };
            let code = match act {
                Act::Panic => panic!("a fault at {point:?}"),
                Act::SyncFails => ffi::SQLITE_IOERR_FSYNC,
                Act::DiskFull => ffi::SQLITE_FULL,
                Act::StatementFails => ffi::SQLITE_CONSTRAINT,
            };
            Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some(format!("a fault at {point:?}"))))
        }
    }
}

#[cfg(any(test, feature = "faults"))]
pub use armed::{Act, Faults};

/// No faults.
#[cfg(not(any(test, feature = "faults")))]
#[derive(Debug, Clone, Default)]
pub struct Faults(());

#[cfg(not(any(test, feature = "faults")))]
impl Faults {
    pub(super) fn limit(&self, _conn: &rusqlite::Connection) -> rusqlite::Result<()> {
        Ok(())
    }

    pub(super) fn at(&self, _point: Point) -> rusqlite::Result<()> {
        Ok(())
    }
}
