//! The table of steps: its statements, and a row as a value.

use holdpoint_core::attempt;
use holdpoint_core::decision::Decision;
use holdpoint_core::ids::{PolicyId, RunId, SpecHash, StepId};
use holdpoint_core::policy::PolicyDecision;
use holdpoint_core::step::{Observation, Step, StepStatus};
use holdpoint_core::time::UnixNanos;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::column::{Columns, time_text};
use super::events;
use super::runs::unknown;

pub(super) fn status(conn: &Connection, run: &RunId, step: &StepId) -> rusqlite::Result<Option<String>> {
    conn.prepare_cached("SELECT status FROM steps WHERE id = ? AND run_id = ?")?
        .query_row((step.as_str(), run.as_str()), |row| row.get(0))
        .optional()
}

pub(super) fn insert(conn: &Connection, step: &Step) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO steps (id, run_id, idx, status, decision_json, policy_json, observation_json, observation_hash,
             started_at, finished_at, spec_hash, policy_id)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?
    .execute(params![
        step.id.as_str(),
        step.run_id.as_str(),
        step.index,
        step.status.as_str(),
        decision_text(step),
        policy_text(step),
        observation_text(step),
        observation_hash(step),
        step.started_at.to_rfc3339(),
        time_text(step.finished_at),
        step.spec_hash.as_ref().map_or("", SpecHash::as_str),
        step.policy_id.as_ref().map_or("", PolicyId::as_str),
    ])
    .map(|_| ())
}

pub(super) fn update(conn: &Connection, step: &Step) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "UPDATE steps SET status = ?, decision_json = ?, policy_json = ?, observation_json = ?, observation_hash = ?,
             started_at = ?, finished_at = ?, spec_hash = ?, policy_id = ?
         WHERE id = ?",
    )?
    .execute(params![
        step.status.as_str(),
        decision_text(step),
        policy_text(step),
        observation_text(step),
        observation_hash(step),
        step.started_at.to_rfc3339(),
        time_text(step.finished_at),
        step.spec_hash.as_ref().map_or("", SpecHash::as_str),
        step.policy_id.as_ref().map_or("", PolicyId::as_str),
        step.id.as_str(),
    ])
    .map(|_| ())
}

/// An outcome for the columns that hold one: status, observation, its hash, end.
pub(super) struct Outcome<'a> {
    pub(super) status: StepStatus,
    /// The observation's stored form and its hash.
    pub(super) observation: (&'a str, &'a str),
    pub(super) finished_at: UnixNanos,
}

/// Writes the outcome of one step; its decision and policy stay as stored.
pub(super) fn end(
    conn: &Connection,
    run: &RunId,
    step: &StepId,
    outcome: &Outcome<'_>,
) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "UPDATE steps SET status = ?, observation_json = ?,
             observation_hash = ?, finished_at = ?
         WHERE id = ? AND run_id = ?",
    )?
    .execute(params![
        outcome.status.as_str(),
        outcome.observation.0,
        outcome.observation.1,
        outcome.finished_at.to_rfc3339(),
        step.as_str(),
        run.as_str(),
    ])
    .map(|_| ())
}

/// Writes one outcome for every step of the run that is deciding, awaiting approval or executing.
pub(super) fn end_in_flight(conn: &Connection, run: &RunId, outcome: &Outcome<'_>) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "UPDATE steps SET status = ?, observation_json = ?,
             observation_hash = ?, finished_at = ?
         WHERE run_id = ? AND status IN (?, ?, ?)",
    )?
    .execute(params![
        outcome.status.as_str(),
        outcome.observation.0,
        outcome.observation.1,
        outcome.finished_at.to_rfc3339(),
        run.as_str(),
        StepStatus::Deciding.as_str(),
        StepStatus::AwaitingApproval.as_str(),
        StepStatus::Executing.as_str(),
    ])
    .map(|_| ())
}

fn decision_text(step: &Step) -> String {
    step.decision.as_ref().map(Decision::to_json).unwrap_or_default()
}

fn policy_text(step: &Step) -> String {
    step.policy.as_ref().map(PolicyDecision::to_json).unwrap_or_default()
}

fn observation_text(step: &Step) -> String {
    step.observation.as_ref().map(Observation::to_json).unwrap_or_default()
}

fn observation_hash(step: &Step) -> &str {
    step.observation.as_ref().map_or("", |observation| observation.content_hash.as_str())
}

/// The steps of a run, in order. A damaged one is there, and says what is wrong with it.
pub(super) fn of_run(conn: &Connection, run: &RunId) -> rusqlite::Result<Vec<Step>> {
    conn.prepare_cached(
        "SELECT id, run_id, idx, status, decision_json, policy_json, observation_json, started_at, finished_at,
             spec_hash, policy_id
         FROM steps WHERE run_id = ? ORDER BY idx",
    )?
    .query_map([run.as_str()], |row| Ok(decode(row)))?
    .collect()
}

/// As [`of_run`], with each interrupted step as its call came out.
pub(super) fn as_they_came_out(conn: &Connection, run: &RunId) -> rusqlite::Result<Vec<Step>> {
    let came_out = |step: Step| {
        if !attempt::is_interrupted(&step) {
            return Ok(step);
        }
        let events = events::of_step(conn, run, &step.id)?;
        Ok(attempt::as_it_came_out(step, &events))
    };
    of_run(conn, run)?.into_iter().map(came_out).collect()
}

/// Reads the eleven columns that [`of_run`] selects.
pub(super) fn decode(row: &Row<'_>) -> Step {
    let mut c = Columns::of(row);
    let status_text = c.text(3, "status");
    let status = StepStatus::parse(&status_text).unwrap_or_else(|| {
        c.blame("status", unknown(&status_text));
        StepStatus::Interrupted
    });
    Step {
        id: StepId::from(c.text(0, "id")),
        run_id: RunId::from(c.text(1, "run_id")),
        index: c.int(2, "idx"),
        status,
        decision: c.decoded(4, "decision", Decision::parse),
        policy: c.decoded(5, "policy", PolicyDecision::parse),
        observation: c.decoded(6, "observation", Observation::parse),
        started_at: c.time(7, "started_at").unwrap_or(UnixNanos::from_nanos(0)),
        finished_at: c.time(8, "finished_at"),
        spec_hash: Some(c.text(9, "spec_hash")).filter(|text| !text.is_empty()).map(SpecHash::from),
        policy_id: Some(c.text(10, "policy_id")).filter(|text| !text.is_empty()).map(PolicyId::from),
        decode_error: c.finish(),
    }
}
