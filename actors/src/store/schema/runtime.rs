//! The runtime's tables, version 6: the reference's, so that either program can read and write the same file.
//!
//! A released migration is never edited: files that took it are out there. Column order, types and defaults are those
//! that `PRAGMA table_info` shows for a file of the reference.

use holdpoint_core::run::{LEASE_TTL_SECONDS, RunStatus};
use holdpoint_core::time::UnixNanos;
use rusqlite::Connection;
use std::time::Duration;

use super::Tables;

/// The version that this build reads and writes.
pub(in crate::store) const VERSION: i64 = 6;

/// The version that brought leases.
const LEASES: i64 = 5;
/// The version that brought the chain of events.
const CHAIN: i64 = 6;
/// Who holds a run that was RUNNING when leases came: a process of an older version may still be executing it, so
/// it keeps the run for the length of one lease.
const BEFORE_LEASES: &str = "agentrt:pre-lease-version";

pub(super) const TABLES: Tables = Tables {
    what: "tables of runs",
    migrations: "schema_migrations",
    base: "CREATE TABLE IF NOT EXISTS schema_migrations (version INTEGER PRIMARY KEY, applied_at TEXT NOT NULL)",
    current: "SELECT COALESCE(MAX(version), 0) FROM schema_migrations",
    note: "INSERT INTO schema_migrations (version, applied_at) VALUES (?, ?)",
    stamp: |now| now.to_rfc3339().into(),
    steps: &[RUNS_STEPS_EVENTS, APPROVALS, MODEL_CALLS, TIMES, RUN_LEASES, SPECS_AND_CHAIN],
    after,
};

const RUNS_STEPS_EVENTS: &str = "
CREATE TABLE runs (
    id            TEXT PRIMARY KEY,
    goal          TEXT NOT NULL,
    status        TEXT NOT NULL,
    reason        TEXT NOT NULL DEFAULT '',
    reason_detail TEXT NOT NULL DEFAULT '',
    limits_json   TEXT NOT NULL,
    step_count    INTEGER NOT NULL DEFAULT 0,
    created_at    TEXT NOT NULL,
    started_at    TEXT NOT NULL DEFAULT '',
    finished_at   TEXT NOT NULL DEFAULT '',
    result_json   TEXT NOT NULL DEFAULT ''
);
CREATE TABLE steps (
    id               TEXT PRIMARY KEY,
    run_id           TEXT NOT NULL REFERENCES runs(id),
    idx              INTEGER NOT NULL,
    status           TEXT NOT NULL,
    decision_json    TEXT NOT NULL DEFAULT '',
    policy_json      TEXT NOT NULL DEFAULT '',
    observation_json TEXT NOT NULL DEFAULT '',
    observation_hash TEXT NOT NULL DEFAULT '',
    started_at       TEXT NOT NULL,
    finished_at      TEXT NOT NULL DEFAULT '',
    UNIQUE (run_id, idx)
);
CREATE TABLE events (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id       TEXT NOT NULL REFERENCES runs(id),
    step_id      TEXT NOT NULL DEFAULT '',
    at           TEXT NOT NULL,
    type         TEXT NOT NULL,
    payload_json TEXT NOT NULL
);
-- The events of one run, in order.
CREATE INDEX events_run ON events(run_id, seq);
";

const APPROVALS: &str = "
CREATE TABLE approvals (
    id                TEXT PRIMARY KEY,
    run_id            TEXT NOT NULL REFERENCES runs(id),
    step_id           TEXT NOT NULL,
    kind              TEXT NOT NULL,
    capability_json   TEXT NOT NULL,
    presentation_json TEXT NOT NULL,
    request_json      TEXT NOT NULL,
    hash              TEXT NOT NULL,
    status            TEXT NOT NULL,
    created_at        TEXT NOT NULL,
    decided_at        TEXT NOT NULL DEFAULT '',
    decided_by        TEXT NOT NULL DEFAULT '',
    note              TEXT NOT NULL DEFAULT ''
);
-- The approvals of one run.
CREATE INDEX approvals_run ON approvals(run_id, created_at);
";

const MODEL_CALLS: &str = "
CREATE TABLE model_calls (
    id                  TEXT PRIMARY KEY,
    run_id              TEXT NOT NULL REFERENCES runs(id),
    step_id             TEXT NOT NULL,
    attempt             INTEGER NOT NULL,
    status              TEXT NOT NULL,
    model               TEXT NOT NULL,
    input_tokens        INTEGER NOT NULL DEFAULT 0,
    output_tokens       INTEGER NOT NULL DEFAULT 0,
    cached_input_tokens INTEGER NOT NULL DEFAULT 0,
    cost_micros         INTEGER NOT NULL DEFAULT 0,
    latency_ms          INTEGER NOT NULL DEFAULT 0,
    error               TEXT NOT NULL DEFAULT '',
    dispatched_at       TEXT NOT NULL,
    completed_at        TEXT NOT NULL DEFAULT ''
);
-- The model attempts of one run.
CREATE INDEX model_calls_run ON model_calls(run_id, dispatched_at);
ALTER TABLE runs ADD COLUMN model_calls INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN input_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN output_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN cached_input_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN estimated_cost_micros INTEGER NOT NULL DEFAULT 0;
";

const TIMES: &str = "
ALTER TABLE runs ADD COLUMN active_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE approvals ADD COLUMN expires_at TEXT NOT NULL DEFAULT '';
";

const RUN_LEASES: &str = "
ALTER TABLE runs ADD COLUMN lease_owner TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN lease_expires_at TEXT NOT NULL DEFAULT '';
";

const SPECS_AND_CHAIN: &str = "
CREATE TABLE tool_specs (
    hash      TEXT PRIMARY KEY,
    spec_json TEXT NOT NULL
);
ALTER TABLE steps ADD COLUMN spec_hash TEXT NOT NULL DEFAULT '';
ALTER TABLE steps ADD COLUMN policy_id TEXT NOT NULL DEFAULT '';
ALTER TABLE events ADD COLUMN hash TEXT NOT NULL DEFAULT '';
";

fn after(conn: &Connection, version: i64, now: UnixNanos) -> rusqlite::Result<()> {
    match version {
        LEASES => {
            let until = now.plus(Duration::from_secs(LEASE_TTL_SECONDS)).to_rfc3339();
            conn.execute(
                "UPDATE runs SET lease_owner = ?, lease_expires_at = ? WHERE status = ?",
                (BEFORE_LEASES, until, RunStatus::Running.as_str()),
            )
            .map(|_| ())
        }
        CHAIN => super::head::backfill(conn),
        _ => Ok(()),
    }
}
