//! What a session did of late, for a report. Decides nothing.

use holdpoint_core::approval::Approval;
use holdpoint_core::ids::{RequestKey, RunId, SessionName, StepId};
use holdpoint_core::run::Run;
use holdpoint_core::step::Step;
use holdpoint_core::time::UnixNanos;

use super::super::endings;
use super::super::reader::{ReadError, Reader};

/// A call of the index with its run's record, for a report.
#[derive(Debug, Clone)]
pub struct RecentCall {
    /// Which request.
    pub key: RequestKey,
    /// Its tool.
    pub tool: String,
    /// Its run.
    pub run: Run,
    /// The run's steps as their calls came out; none when no person was asked about it.
    pub steps: Vec<Step>,
    /// The run's approvals.
    pub approvals: Vec<Approval>,
    /// How its steps' calls ended, where that is kept.
    pub endings: Vec<(StepId, holdpoint_core::attempt::Ending)>,
}

/// From so many calls on that were settled of late, the newest are sooner found by their ids than sorted out.
const MANY: i64 = 1_000;

/// The newest calls that are open or were settled of late.
///
/// Two searches of one index; with an OR, SQLite reads all that the session ever did.
pub(super) const RECENT: &str = "SELECT request_key, tool, run_id FROM proxy_calls WHERE id IN (
       SELECT * FROM (SELECT id FROM proxy_calls
                      WHERE session = ?1 AND settled_at = 0 ORDER BY id DESC LIMIT ?3)
       UNION ALL
       SELECT * FROM (SELECT id FROM proxy_calls
                      WHERE session = ?1 AND settled_at >= ?2 AND settled_at != 0
                      ORDER BY id DESC LIMIT ?3)
     ) ORDER BY id DESC LIMIT ?3";

/// The same, by the key, backwards, which the plus asks for: it stops at the last one wanted.
pub(super) const RECENT_OF_MANY: &str = "SELECT request_key, tool, run_id FROM proxy_calls
     WHERE +session = ?1 AND (settled_at = 0 OR settled_at >= ?2) ORDER BY id DESC LIMIT ?3";

impl Reader<'_> {
    /// Whether [`MANY`] calls of a session were settled at or after `since`.
    fn settled_many(&self, session: &SessionName, since: UnixNanos) -> Result<bool, ReadError> {
        let found: i64 = self
            .conn
            .prepare_cached(
                "SELECT COUNT(*) FROM (SELECT 1 FROM proxy_calls
                 WHERE session = ? AND settled_at >= ? AND settled_at != 0 LIMIT ?)",
            )?
            .query_row((session.as_str(), since.as_nanos(), MANY), |row| row.get(0))?;
        Ok(found == MANY)
    }

    /// The calls of a session that are open or were settled at or after `since`, newest first, at most `limit`.
    ///
    /// # Errors
    /// When the database can't be read.
    pub fn recent_calls(
        &self,
        session: &SessionName,
        since: UnixNanos,
        limit: u32,
    ) -> Result<Vec<RecentCall>, ReadError> {
        let rows: Vec<(String, String, String)> = self
            .conn
            .prepare_cached(if self.settled_many(session, since)? { RECENT_OF_MANY } else { RECENT })?
            .query_map((session.as_str(), since.as_nanos(), limit), |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })?
            .collect::<Result<_, _>>()?;
        let mut calls = Vec::with_capacity(rows.len());
        for (key, tool, run_id) in rows {
            let run_id = RunId::from(run_id);
            let approvals = self.approvals(&run_id)?;
            let Some(run) = self.run(&run_id)? else { continue };
            // Only what a person was asked about is told of.
            let steps = if approvals.is_empty() { Vec::new() } else { self.steps_as_they_came_out(&run_id)? };
            let mut ended = Vec::with_capacity(steps.len());
            for step in &steps {
                ended.extend(endings::get(self.conn, &step.id)?.map(|ending| (step.id.clone(), ending)));
            }
            calls.push(RecentCall {
                key: RequestKey::from(key),
                tool,
                run,
                steps,
                approvals,
                endings: ended,
            });
        }
        Ok(calls)
    }
}
