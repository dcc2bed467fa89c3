//! The proxy's index of calls: its writes, what the rules are shown of it, and whether a decision made outside still
//! holds inside.
//!
//! `settled_at` and `outcome` only cache permanent facts of a run's own record; what a call did is never read here.

mod cache;
mod recent;
mod session;
mod view;

use holdpoint_core::across_calls::IndexWrite;
use holdpoint_core::attempt::AttemptOutcome;
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::faults::process::{self, Broken};

pub(super) use cache::IndexCache;
pub use recent::RecentCall;
pub use session::IndexedRun;
pub use view::{Depth, RunningCall, Seen};

/// Whether the write can be made as it was decided: a row that opens must close the row that is open, or none.
pub(super) fn can_write(conn: &Connection, write: &IndexWrite) -> rusqlite::Result<bool> {
    match write {
        IndexWrite::Open { session, key, closes, .. } => {
            let open: Option<i64> = conn
                .prepare_cached(
                    "SELECT id FROM proxy_calls WHERE session = ? AND request_key = ? AND open = 1",
                )?
                .query_row((session.as_str(), key.as_str()), |row| row.get(0))
                .optional()?;
            Ok(open == *closes)
        }
        IndexWrite::Unsettle { .. } | IndexWrite::Settle { .. } | IndexWrite::SettleEmpty { .. } => Ok(true),
    }
}

/// Makes one write.
pub(super) fn write(conn: &Connection, write: &IndexWrite) -> rusqlite::Result<()> {
    match write {
        IndexWrite::Open { session, key, tool, side_effect, run_id, at, closes } => {
            if let Some(row) = closes {
                conn.prepare_cached(
                    "UPDATE proxy_calls SET open = 0, closed_at = ? WHERE id = ? AND open = 1",
                )?
                .execute((at.as_nanos(), row))?;
            }
            conn.prepare_cached(
                "INSERT INTO proxy_calls (session, request_key, tool, side_effect, run_id, created_at)
                 VALUES (?, ?, ?, ?, ?, ?)",
            )?
            .execute(params![
                session.as_str(),
                key.as_str(),
                tool,
                side_effect.as_str(),
                run_id.as_str(),
                at.as_nanos()
            ])?;
        }
        IndexWrite::Unsettle { run_id } => {
            conn.prepare_cached(
                "UPDATE proxy_calls SET settled_at = 0, outcome = 0 WHERE run_id = ? AND settled_at != 0",
            )?
            .execute([run_id.as_str()])?;
        }
        IndexWrite::Settle { run_id, outcome, at } => {
            // A row that was settled before outcomes were kept gets its outcome now, and keeps its time.
            conn.prepare_cached(
                "UPDATE proxy_calls
                 SET settled_at = CASE WHEN settled_at = 0 THEN ? ELSE settled_at END, outcome = ?
                 WHERE run_id = ? AND outcome = 0",
            )?
            .execute((at.as_nanos(), settled_as(*outcome).code(), run_id.as_str()))?;
        }
        IndexWrite::SettleEmpty { run_id, at } => {
            // Looking for the run and settling its row is one statement: it may begin at any time.
            conn.prepare_cached(
                "UPDATE proxy_calls SET settled_at = ?, outcome = ?
                 WHERE run_id = ? AND settled_at = 0
                   AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = proxy_calls.run_id)",
            )?
            .execute((at.as_nanos(), AttemptOutcome::None.code(), run_id.as_str()))?;
        }
    }
    Ok(())
}

/// What is settled, unless this build is deliberately broken in a way that knows what nobody knows.
fn settled_as(outcome: AttemptOutcome) -> AttemptOutcome {
    let knows = process::is(Broken::SettledAsKnown) && outcome == AttemptOutcome::Unknown;
    if knows { AttemptOutcome::Known } else { outcome }
}

#[cfg(test)]
mod tests;
