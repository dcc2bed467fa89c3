//! A session's calls in the order of the index, for whoever looks at all of them.
//!
//! Reads a page at a time, so that a session of any length can be walked. Works on a file that has no index.

use holdpoint_core::ids::RunId;
use rusqlite::OptionalExtension as _;

use super::super::reader::{ReadError, Reader};

/// By the key, backwards, which the plus asks for: an index would have to sort the whole session for each page.
pub(super) const SESSION_RUNS: &str =
    "SELECT id, run_id FROM proxy_calls WHERE +session = ? AND id < ? ORDER BY id DESC LIMIT ?";

/// A row of the index, as far as it says which run it is of. The run may never have begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexedRun {
    /// The row.
    pub row: i64,
    /// The run.
    pub run: RunId,
}

impl Reader<'_> {
    /// At most `limit` of a session's runs, newest first, from the one before the row `before` on; `None` begins with the
    /// newest. Gives `None` when the file has no index of calls.
    ///
    /// # Errors
    /// When the database can't be read.
    pub fn session_runs(
        &self,
        session: &str,
        before: Option<i64>,
        limit: i64,
    ) -> Result<Option<Vec<IndexedRun>>, ReadError> {
        let has_index = self
            .conn
            .query_row(
                "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'proxy_calls'",
                [],
                |_| Ok(()),
            )
            .optional()?;
        if has_index.is_none() {
            return Ok(None);
        }
        let before = before.unwrap_or(i64::MAX);
        let rows = self
            .conn
            .prepare_cached(SESSION_RUNS)?
            .query_map((session, before, limit.max(0)), |row| {
                Ok(IndexedRun { row: row.get(0)?, run: RunId::from(row.get::<_, String>(1)?) })
            })?
            .collect::<Result<_, _>>()?;
        Ok(Some(rows))
    }
}
