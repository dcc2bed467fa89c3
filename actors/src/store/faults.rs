//! Faults that tests put into the writer, at named points of a batch.
//!
//! In a build without the `faults` feature this is an empty type whose only method does nothing, so that the writer
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

    use rusqlite::ffi;

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

    /// Faults to come, in order.
    #[derive(Debug, Clone, Default)]
    pub struct Faults(Arc<Mutex<VecDeque<(Point, Act)>>>);

    impl Faults {
        /// Adds a fault: it strikes once, when the writer is next at `point` and every earlier fault has struck.
        pub fn add(&self, point: Point, act: Act) {
            lock(&self.0).push_back((point, act));
        }

        /// How many have not struck yet.
        pub fn left(&self) -> usize {
            lock(&self.0).len()
        }

        pub(in crate::store) fn at(&self, point: Point) -> rusqlite::Result<()> {
            let act = {
                let mut faults = lock(&self.0);
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
    pub(super) fn at(&self, _point: Point) -> rusqlite::Result<()> {
        Ok(())
    }
}
