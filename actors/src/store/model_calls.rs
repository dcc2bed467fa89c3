//! The table of model calls: one row an attempt, and what it adds to its run's totals.
//!
//! Totals only ever grow, in SQL, and stop at the largest number.

use holdpoint_core::accounting::{CallStatus, ModelCall};
use holdpoint_core::ids::{ModelCallId, RunId, StepId};
use holdpoint_core::model::Usage;
use holdpoint_core::time::UnixNanos;
use holdpoint_core::transition::ModelCallWrite;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::column::{Columns, time_text};
use super::runs::unknown;

/// Whether the write finds what it needs: an outcome needs an attempt that has none.
pub(super) fn can_write(conn: &Connection, write: &ModelCallWrite) -> rusqlite::Result<bool> {
    match write {
        ModelCallWrite::Dispatch(_) => Ok(true),
        ModelCallWrite::Complete(call) => {
            let status: Option<String> = conn
                .prepare_cached("SELECT status FROM model_calls WHERE id = ?")?
                .query_row([call.id.as_str()], |row| row.get(0))
                .optional()?;
            Ok(status.as_deref() == Some(CallStatus::Dispatched.as_str()))
        }
    }
}

pub(super) fn write(conn: &Connection, write: &ModelCallWrite) -> rusqlite::Result<()> {
    match write {
        ModelCallWrite::Dispatch(call) => insert(conn, call),
        ModelCallWrite::Complete(call) => {
            complete(conn, call)?;
            charge(conn, call)
        }
    }
}

fn insert(conn: &Connection, call: &ModelCall) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO model_calls (id, run_id, step_id, attempt, status, model, dispatched_at)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
    )?
    .execute(params![
        call.id.as_str(),
        call.run_id.as_str(),
        call.step_id.as_str(),
        call.attempt,
        call.status.as_str(),
        call.model,
        call.dispatched_at.to_rfc3339(),
    ])
    .map(|_| ())
}

fn complete(conn: &Connection, call: &ModelCall) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "UPDATE model_calls SET status = ?, input_tokens = ?, output_tokens = ?, cached_input_tokens = ?,
             cost_micros = ?, latency_ms = ?, error = ?, completed_at = ?
         WHERE id = ?",
    )?
    .execute(params![
        call.status.as_str(),
        call.usage.input_tokens,
        call.usage.output_tokens,
        call.usage.cached_input_tokens,
        call.cost_micros,
        call.latency_ms,
        call.error,
        time_text(call.completed_at),
        call.id.as_str(),
    ])
    .map(|_| ())
}

fn charge(conn: &Connection, call: &ModelCall) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "UPDATE runs SET
             model_calls = CASE WHEN model_calls > 9223372036854775807 - 1 THEN 9223372036854775807
                                ELSE model_calls + 1 END,
             input_tokens = CASE WHEN input_tokens > 9223372036854775807 - ?2 THEN 9223372036854775807
                                 ELSE input_tokens + ?2 END,
             output_tokens = CASE WHEN output_tokens > 9223372036854775807 - ?3 THEN 9223372036854775807
                                  ELSE output_tokens + ?3 END,
             cached_input_tokens = CASE WHEN cached_input_tokens > 9223372036854775807 - ?4
                                        THEN 9223372036854775807 ELSE cached_input_tokens + ?4 END,
             estimated_cost_micros = CASE WHEN estimated_cost_micros > 9223372036854775807 - ?5
                                          THEN 9223372036854775807 ELSE estimated_cost_micros + ?5 END
         WHERE id = ?1",
    )?
    .execute(params![
        call.run_id.as_str(),
        call.usage.input_tokens.max(0),
        call.usage.output_tokens.max(0),
        call.usage.cached_input_tokens.max(0),
        call.cost_micros.max(0),
    ])
    .map(|_| ())
}

/// The attempts of a run, in the order in which they were dispatched. One that can't be read is an error in words.
pub(super) fn of_run(conn: &Connection, run: &RunId) -> rusqlite::Result<Vec<Result<ModelCall, String>>> {
    conn.prepare_cached(
        "SELECT id, run_id, step_id, attempt, status, model, input_tokens, output_tokens, cached_input_tokens,
             cost_micros, latency_ms, error, dispatched_at, completed_at
         FROM model_calls WHERE run_id = ? ORDER BY rowid",
    )?
    .query_map([run.as_str()], |row| Ok(decode(row)))?
    .collect()
}

fn decode(row: &Row<'_>) -> Result<ModelCall, String> {
    let mut c = Columns::of(row);
    let status_text = c.text(4, "status");
    let status = CallStatus::parse(&status_text).unwrap_or_else(|| {
        c.blame("status", unknown(&status_text));
        CallStatus::Dispatched
    });
    let call = ModelCall {
        id: ModelCallId::from(c.text(0, "id")),
        run_id: RunId::from(c.text(1, "run_id")),
        step_id: StepId::from(c.text(2, "step_id")),
        attempt: c.int(3, "attempt"),
        status,
        model: c.text(5, "model"),
        usage: Usage {
            input_tokens: c.int(6, "input_tokens"),
            output_tokens: c.int(7, "output_tokens"),
            cached_input_tokens: c.int(8, "cached_input_tokens"),
        },
        cost_micros: c.int(9, "cost_micros"),
        latency_ms: c.int(10, "latency_ms"),
        error: c.text(11, "error"),
        dispatched_at: c.time(12, "dispatched_at").unwrap_or(UnixNanos::from_nanos(0)),
        completed_at: c.time(13, "completed_at"),
    };
    c.finish().map_or(Ok(call), Err)
}
