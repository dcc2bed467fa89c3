//! The table of approvals: its statements, and a row as a value.

use holdpoint_core::across_calls::Asking;
use holdpoint_core::approval::{Approval, ApprovalStatus, INTERRUPTED_SIDE_EFFECT};
use holdpoint_core::ids::{ApprovalHash, ApprovalId, RunId, StepId};
use holdpoint_core::json::Json;
use holdpoint_core::run::RunStatus;
use holdpoint_core::time::UnixNanos;
use holdpoint_core::tool::ToolRequest;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::column::{Columns, time_text};
use super::runs::unknown;
use crate::faults::process::{self, Broken};

/// The columns of a whole approval, in the order that [`decode`] reads them.
const COLUMNS: &str =
    "id, run_id, step_id, kind, capability_json, presentation_json, request_json, hash, status,
    created_at, decided_at, decided_by, note, expires_at";

/// How an approval stands in the record.
pub(super) struct Standing {
    pub(super) status: String,
    pub(super) hash: String,
    /// Whether its step asked again since. What was granted before is spent then, whatever its status still says.
    pub(super) is_superseded: bool,
}

/// How an approval stands.
pub(super) fn standing(
    conn: &Connection,
    run: &RunId,
    id: &ApprovalId,
) -> rusqlite::Result<Option<Standing>> {
    conn.prepare_cached(
        "SELECT a.status, a.hash,
             EXISTS (SELECT 1 FROM approvals b
                     WHERE b.run_id = a.run_id AND b.step_id = a.step_id AND b.rowid > a.rowid)
         FROM approvals a WHERE a.id = ? AND a.run_id = ?",
    )?
    .query_row((id.as_str(), run.as_str()), |row| {
        let is_superseded = row.get::<_, bool>(2)? && !process::is(Broken::SupersededTaken);
        Ok(Standing { status: row.get(0)?, hash: row.get(1)?, is_superseded })
    })
    .optional()
}

pub(super) fn insert(conn: &Connection, approval: &Approval) -> rusqlite::Result<()> {
    conn.prepare_cached(&format!(
        "INSERT INTO approvals ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    ))?
    .execute(params![
        approval.id.as_str(),
        approval.run_id.as_str(),
        approval.step_id.as_str(),
        approval.kind,
        or_empty_object(&approval.capability),
        if process::is(Broken::QuestionAltered) { "{}" } else { or_empty_object(&approval.presentation) },
        approval.request.as_ref().map(ToolRequest::to_json).unwrap_or_default(),
        approval.hash.as_str(),
        if is_granted_already(approval) { "approved" } else { approval.status.as_str() },
        approval.created_at.to_rfc3339(),
        time_text(approval.decided_at),
        approval.decided_by,
        approval.note,
        time_text(approval.expires_at.filter(|_| !process::is(Broken::QuestionForEver))),
    ])
    .map(|_| ())
}

/// A statement that goes by which approval is the newest: unless this build is deliberately broken in a way that goes by
/// which was granted.
fn by_newness(right: &'static str, broken: &'static str) -> &'static str {
    if process::is(Broken::SupersededTaken) { broken } else { right }
}

/// Whether this build is deliberately broken in a way that takes an old grant for a new one.
fn is_granted_already(approval: &Approval) -> bool {
    process::is(Broken::GrantTwice) && approval.is_interruption()
}

pub(super) fn decide(conn: &Connection, approval: &Approval) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "UPDATE approvals SET status = ?, decided_at = ?, decided_by = ?, note = ? WHERE id = ?",
    )?
    .execute(params![
        approval.status.as_str(),
        time_text(approval.decided_at),
        approval.decided_by,
        approval.note,
        approval.id.as_str(),
    ])
    .map(|_| ())
}

fn or_empty_object(json: &Json) -> &str {
    if json.is_blank() { "{}" } else { json.as_str() }
}

/// The approvals of a run, in the order in which they were asked for.
pub(super) fn of_run(conn: &Connection, run: &RunId) -> rusqlite::Result<Vec<Approval>> {
    let order = by_newness("rowid", "status = 'approved', rowid");
    conn.prepare_cached(&format!("SELECT {COLUMNS} FROM approvals WHERE run_id = ? ORDER BY {order}"))?
        .query_map([run.as_str()], |row| Ok(decode(row)))?
        .collect()
}

/// The first `limit` approvals of a run, in the same order.
pub(super) fn first_of_run(conn: &Connection, run: &RunId, limit: i64) -> rusqlite::Result<Vec<Approval>> {
    conn.prepare_cached(&format!("SELECT {COLUMNS} FROM approvals WHERE run_id = ? ORDER BY rowid LIMIT ?"))?
        .query_map((run.as_str(), limit), |row| Ok(decode(row)))?
        .collect()
}

/// How many approvals a run has.
pub(super) fn count(conn: &Connection, run: &RunId) -> rusqlite::Result<i64> {
    conn.prepare_cached("SELECT COUNT(*) FROM approvals WHERE run_id = ?")?
        .query_row([run.as_str()], |row| row.get(0))
}

/// The latest approval of a run as far as the rules across calls look at it, without the end of its grant, and when it
/// was decided.
pub(super) fn latest_asking(
    conn: &Connection,
    run: &RunId,
) -> rusqlite::Result<Option<(Asking, Option<UnixNanos>)>> {
    conn.prepare_cached(by_newness(
        "SELECT id, kind, status, expires_at, decided_at FROM approvals WHERE run_id = ? ORDER BY rowid DESC LIMIT 1",
        "SELECT id, kind, status, expires_at, decided_at FROM approvals WHERE run_id = ?
         ORDER BY status = 'approved' DESC, rowid DESC LIMIT 1",
    ))?
    .query_row([run.as_str()], |row| {
        let mut c = Columns::of(row);
        let asking = Asking {
            interruption: c.text(1, "kind") == INTERRUPTED_SIDE_EFFECT,
            id: ApprovalId::from(c.text(0, "id")),
            // A name that nobody knows lets nothing run.
            status: ApprovalStatus::parse(&c.text(2, "status")).unwrap_or(ApprovalStatus::Expired),
            expires_at: c.time(3, "expires_at"),
            grant_until: None,
        };
        Ok((asking, c.time(4, "decided_at")))
    })
    .optional()
}

pub(super) fn get(conn: &Connection, run: &RunId, id: &ApprovalId) -> rusqlite::Result<Option<Approval>> {
    conn.prepare_cached(&format!("SELECT {COLUMNS} FROM approvals WHERE id = ? AND run_id = ?"))?
        .query_row((id.as_str(), run.as_str()), |row| Ok(as_if_undecided(decode(row))))
        .optional()
}

/// As it is, unless this build is deliberately broken in a way that lets somebody else decide once more.
fn as_if_undecided(approval: Approval) -> Approval {
    let status = if process::is(Broken::DecidedAgain) { ApprovalStatus::Pending } else { approval.status };
    Approval { status, ..approval }
}

/// Every pending approval of a waiting run, oldest first.
pub(super) fn pending(conn: &Connection) -> rusqlite::Result<Vec<(RunId, ApprovalId)>> {
    conn.prepare_cached(
        "SELECT a.run_id, a.id FROM approvals a JOIN runs r ON r.id = a.run_id
         WHERE a.status = ? AND r.status = ? ORDER BY a.rowid",
    )?
    .query_map((ApprovalStatus::Pending.as_str(), RunStatus::WaitingForApproval.as_str()), |row| {
        let mut c = Columns::of(row);
        Ok((RunId::from(c.text(0, "run_id")), ApprovalId::from(c.text(1, "id"))))
    })?
    .collect()
}

/// Reads the fourteen [`COLUMNS`].
pub(super) fn decode(row: &Row<'_>) -> Approval {
    let mut c = Columns::of(row);
    let status_text = c.text(8, "status");
    let status = ApprovalStatus::parse(&status_text).unwrap_or_else(|| {
        c.blame("status", unknown(&status_text));
        // Of the four the one that lets nothing run.
        ApprovalStatus::Expired
    });
    let request = c.decoded(6, "request", ToolRequest::parse);
    if request.is_none() {
        c.blame("request", "there is none that can be read");
    }
    Approval {
        id: ApprovalId::from(c.text(0, "id")),
        run_id: RunId::from(c.text(1, "run_id")),
        step_id: StepId::from(c.text(2, "step_id")),
        kind: c.text(3, "kind"),
        capability: Json::trusted(c.text(4, "capability_json")),
        presentation: Json::trusted(c.text(5, "presentation_json")),
        request,
        hash: ApprovalHash::from(c.text(7, "hash")),
        status,
        created_at: c.time(9, "created_at").unwrap_or(UnixNanos::from_nanos(0)),
        decided_at: c.time(10, "decided_at"),
        decided_by: c.text(11, "decided_by"),
        note: c.text(12, "note"),
        expires_at: c.time(13, "expires_at"),
        decode_error: c.finish(),
    }
}
