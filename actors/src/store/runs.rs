//! The table of runs: its statements, and a row as a value.
//!
//! Counters only ever grow, in SQL, and stop at the largest number instead of becoming a float.

use holdpoint_core::ids::{LeaseOwner, RunId};
use holdpoint_core::json::Json;
use holdpoint_core::run::{Lease, Limits, ModelTotals, Reason, Run, RunStatus};
use holdpoint_core::time::UnixNanos;
use holdpoint_core::transition::RunUpdate;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::column::{Columns, time_text};

/// What guards look at.
#[derive(Debug, Clone)]
pub(super) struct Standing {
    /// The status as stored.
    pub(super) status: String,
    /// The lease's owner, or nothing.
    pub(super) owner: String,
    /// When the lease ends, as stored.
    pub(super) expires_at: String,
    /// Steps started.
    pub(super) step_count: i64,
}

impl Standing {
    /// The lease, when somebody holds one. One that ends at no time that can be read has ended.
    pub(super) fn lease(&self) -> Option<Lease> {
        lease_of(&self.owner, &self.expires_at)
    }
}

/// The lease of these two columns, when somebody holds one.
pub(super) fn lease_of(owner: &str, expires_at: &str) -> Option<Lease> {
    (!owner.is_empty()).then(|| Lease {
        owner: LeaseOwner::from(owner),
        expires_at: UnixNanos::parse(expires_at).unwrap_or(UnixNanos::from_nanos(i64::MIN)),
    })
}

pub(super) fn standing(conn: &Connection, id: &RunId) -> rusqlite::Result<Option<Standing>> {
    conn.prepare_cached("SELECT status, lease_owner, lease_expires_at, step_count FROM runs WHERE id = ?")?
        .query_row([id.as_str()], |row| {
            Ok(Standing {
                status: row.get(0)?,
                owner: row.get(1)?,
                expires_at: row.get(2)?,
                step_count: row.get(3)?,
            })
        })
        .optional()
}

/// The lease that is stored on a run.
pub(super) fn lease(conn: &Connection, id: &RunId) -> rusqlite::Result<Option<Lease>> {
    Ok(standing(conn, id)?.and_then(|standing| standing.lease()))
}

pub(super) fn insert(
    conn: &Connection,
    run: &Run,
    lease: Option<(&LeaseOwner, UnixNanos)>,
) -> rusqlite::Result<()> {
    let (owner, expires_at) = lease.map_or(("", None), |(owner, at)| (owner.as_str(), Some(at)));
    conn.prepare_cached(
        "INSERT INTO runs (id, goal, status, reason, reason_detail, limits_json, step_count, created_at, started_at,
             finished_at, result_json, model_calls, input_tokens, output_tokens, cached_input_tokens,
             estimated_cost_micros, active_ms, lease_owner, lease_expires_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?
    .execute(params![
        run.id.as_str(),
        run.goal,
        run.status.as_str(),
        run.reason.map_or("", Reason::as_str),
        run.reason_detail,
        run.limits.to_json(),
        run.step_count,
        run.created_at.to_rfc3339(),
        time_text(run.started_at),
        time_text(run.finished_at),
        run.result.as_ref().map_or("", Json::as_str),
        run.totals.model_calls,
        run.totals.input_tokens,
        run.totals.output_tokens,
        run.totals.cached_input_tokens,
        run.totals.estimated_cost_micros,
        run.active_ms,
        owner,
        time_text(expires_at),
    ])
    .map(|_| ())
}

/// What becomes of the lease: `None` keeps it, an empty owner gives it up.
pub(super) type LeaseChange<'a> = Option<(&'a str, Option<UnixNanos>)>;

pub(super) fn update(
    conn: &Connection,
    id: &RunId,
    update: &RunUpdate,
    lease: LeaseChange<'_>,
) -> rusqlite::Result<()> {
    let standing = update.standing.as_ref();
    conn.prepare_cached(
        "UPDATE runs SET
             step_count = step_count + ?2,
             active_ms = CASE WHEN active_ms > 9223372036854775807 - ?3 THEN 9223372036854775807
                              ELSE active_ms + ?3 END,
             status = COALESCE(?4, status),
             reason = COALESCE(?5, reason),
             reason_detail = COALESCE(?6, reason_detail),
             finished_at = COALESCE(?7, finished_at),
             result_json = COALESCE(?8, result_json),
             lease_owner = COALESCE(?9, lease_owner),
             lease_expires_at = COALESCE(?10, lease_expires_at)
         WHERE id = ?1",
    )?
    .execute(params![
        id.as_str(),
        update.steps_started,
        update.add_active_ms.max(0),
        standing.map(|s| s.status.as_str()),
        standing.map(|s| s.reason.map_or("", Reason::as_str)),
        standing.map(|s| s.reason_detail.as_str()),
        standing.map(|s| time_text(s.finished_at)),
        standing.map(|s| s.result.as_ref().map_or("", Json::as_str)),
        lease.map(|(owner, _)| owner),
        lease.map(|(_, expires_at)| time_text(expires_at)),
    ])
    .map(|_| ())
}

/// The columns of a whole run, in the order that [`decode`] reads them.
const COLUMNS: &str = "id, goal, status, reason, reason_detail, limits_json, step_count, created_at, started_at,
    finished_at, result_json, model_calls, input_tokens, output_tokens, cached_input_tokens, estimated_cost_micros,
    active_ms";

/// A run, or why its row can't be read.
pub(super) fn get(conn: &Connection, id: &RunId) -> rusqlite::Result<Option<Result<Run, String>>> {
    conn.prepare_cached(&format!("SELECT {COLUMNS} FROM runs WHERE id = ?"))?
        .query_row([id.as_str()], |row| Ok(decode(row)))
        .optional()
}

fn decode(row: &Row<'_>) -> Result<Run, String> {
    let mut c = Columns::of(row);
    let reason = c.decoded(3, "reason", |text| Reason::parse(text).ok_or_else(|| unknown(text)));
    let limits = c.decoded(5, "limits_json", Limits::parse);
    let status_text = c.text(2, "status");
    let status = RunStatus::parse(&status_text);
    if status.is_none() {
        c.blame("status", unknown(&status_text));
    }
    let run = Run {
        id: RunId::from(c.text(0, "id")),
        goal: c.text(1, "goal"),
        status: status.unwrap_or(RunStatus::Failed),
        reason,
        reason_detail: c.text(4, "reason_detail"),
        limits: limits.unwrap_or_else(|| {
            c.blame("limits_json", "there are none");
            Limits::default()
        }),
        step_count: c.int(6, "step_count"),
        created_at: c.time(7, "created_at").unwrap_or(UnixNanos::from_nanos(0)),
        started_at: c.time(8, "started_at"),
        finished_at: c.time(9, "finished_at"),
        result: Some(c.text(10, "result_json")).filter(|text| !text.is_empty()).map(Json::trusted),
        totals: ModelTotals {
            model_calls: c.int(11, "model_calls"),
            input_tokens: c.int(12, "input_tokens"),
            output_tokens: c.int(13, "output_tokens"),
            cached_input_tokens: c.int(14, "cached_input_tokens"),
            estimated_cost_micros: c.int(15, "estimated_cost_micros"),
        },
        active_ms: c.int(16, "active_ms"),
    };
    match c.finish() {
        None => Ok(run),
        Some(damage) => Err(damage),
    }
}

/// What a column says when it holds a name that nobody knows.
pub(super) fn unknown(text: &str) -> String {
    format!("{text:?} is not a name that this build knows")
}
