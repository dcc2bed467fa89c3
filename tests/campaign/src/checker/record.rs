//! The record as it lies on disk, read with the checker's own SQL from a copy of the files.
//!
//! Owns the copying, so that looking changes nothing: opening a database that a death left behind copies its log, and
//! that is for the product to do. Knows the tables from the specification (section 1.2) alone.

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Row};
use serde_json::Value;

#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) seq: i64,
    pub(crate) run: String,
    pub(crate) step: String,
    pub(crate) at: String,
    pub(crate) kind: String,
    pub(crate) payload_text: String,
    pub(crate) payload: Value,
    pub(crate) hash: String,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Run {
    pub(crate) id: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) detail: String,
    pub(crate) goal: String,
    pub(crate) limits: Value,
    pub(crate) steps: i64,
    pub(crate) owner: String,
    pub(crate) created_at: String,
    pub(crate) started_at: String,
    pub(crate) finished_at: String,
    pub(crate) result: String,
    pub(crate) active_ms: i64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Step {
    pub(crate) id: String,
    pub(crate) run: String,
    pub(crate) idx: i64,
    pub(crate) status: String,
    pub(crate) decision: Value,
    pub(crate) policy: Value,
    pub(crate) observation: Value,
    pub(crate) observation_hash: String,
    pub(crate) spec: String,
    pub(crate) policy_id: String,
    pub(crate) started_at: String,
    pub(crate) finished_at: String,
    /// How its last call ended, where the gate knows more than the observation says.
    pub(crate) ending: String,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Approval {
    pub(crate) id: String,
    pub(crate) run: String,
    pub(crate) step: String,
    pub(crate) kind: String,
    pub(crate) capability: String,
    pub(crate) presentation: String,
    pub(crate) request: String,
    pub(crate) hash: String,
    pub(crate) status: String,
    pub(crate) by: String,
    pub(crate) note: String,
    pub(crate) created_at: String,
    pub(crate) decided_at: String,
    pub(crate) expires_at: String,
}

/// A row of the proxy's index.
#[derive(Debug, Clone, Default)]
pub(crate) struct Call {
    pub(crate) key: String,
    pub(crate) run: String,
    pub(crate) open: bool,
    pub(crate) tool: String,
    pub(crate) class: String,
    pub(crate) settled: bool,
    pub(crate) outcome: i64,
    pub(crate) session: String,
}

#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) events: Vec<Event>,
    pub(crate) runs: Vec<Run>,
    pub(crate) steps: Vec<Step>,
    pub(crate) approvals: Vec<Approval>,
    pub(crate) calls: Vec<Call>,
    /// The specifications of tools, each with its hash.
    pub(crate) specs: Vec<(String, String)>,
    pub(crate) groups: i64,
    /// What SQLite's own check says.
    pub(crate) integrity: String,
}

impl Record {
    /// Reads a copy of a database; a file that has no tables yet is an empty record.
    pub(crate) fn of(database: &Path, scratch: &Path) -> Result<Record, String> {
        let copy = copy(database, scratch)?;
        let Some(copy) = copy else { return Ok(Record { integrity: "ok".to_owned(), ..Record::default() }) };
        Record::at(&copy)
    }

    /// Reads a database that nobody else has.
    pub(crate) fn at(database: &Path) -> Result<Record, String> {
        let conn = Connection::open(database).map_err(|error| error.to_string())?;
        // It is thrown away, so nothing of its log need come into it.
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
            .map_err(|error| error.to_string())?;
        read(&conn).map_err(|error| format!("read the record: {error}"))
    }
}

fn copy(database: &Path, scratch: &Path) -> Result<Option<PathBuf>, String> {
    let whole = |error: std::io::Error| format!("copy the record: {error}");
    let copy = scratch.join("judged.db");
    for suffix in ["", "-wal", "-shm"] {
        let named = |path: &Path| PathBuf::from(format!("{}{suffix}", path.display()));
        let to = named(&copy);
        if to.exists() {
            fs::remove_file(&to).map_err(whole)?;
        }
        // The shared memory is made anew from the log, as after a power cut.
        if suffix != "-shm" && named(database).exists() {
            fs::copy(named(database), &to).map_err(whole)?;
        }
    }
    Ok(copy.exists().then_some(copy))
}

/// Reads everything that is checked. Longer than other functions by one query for each table.
fn read(conn: &Connection) -> rusqlite::Result<Record> {
    let integrity = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    let has = |table: &str| -> rusqlite::Result<bool> {
        conn.query_row("SELECT COUNT(*) FROM sqlite_schema WHERE name = ?", [table], |row| {
            row.get::<_, i64>(0)
        })
        .map(|count| count > 0)
    };
    if !has("events")? {
        return Ok(Record { integrity, ..Record::default() });
    }
    let groups = match has("holdpoint_groups")? {
        true => conn.query_row("SELECT COUNT(*) FROM holdpoint_groups", [], |row| row.get(0))?,
        false => 0,
    };
    let ending = match has("holdpoint_endings")? {
        true => "COALESCE((SELECT ending FROM holdpoint_endings e WHERE e.step_id = s.id), '')",
        false => "''",
    };
    Ok(Record {
        events: all(conn, "SELECT seq, run_id, step_id, at, type, payload_json, hash FROM events ORDER BY seq", event)?,
        runs: all(conn, "SELECT id, status, reason, step_count, lease_owner, reason_detail, goal, limits_json, created_at,
                  started_at, finished_at, result_json, active_ms FROM runs ORDER BY rowid", |row| {
            Ok(Run {
                id: row.get(0)?,
                status: row.get(1)?,
                reason: row.get(2)?,
                steps: row.get(3)?,
                owner: row.get(4)?,
                detail: row.get(5)?,
                goal: row.get(6)?,
                limits: json(row, 7)?,
                created_at: row.get(8)?,
                started_at: row.get(9)?,
                finished_at: row.get(10)?,
                result: row.get(11)?,
                active_ms: row.get(12)?,
            })
        })?,
        steps: all(
            conn,
            &format!(
                "SELECT id, run_id, idx, status, decision_json, observation_json, policy_json, observation_hash, spec_hash,
                     {ending}, policy_id, started_at, finished_at FROM steps s ORDER BY run_id, idx"
            ),
            |row| {
                Ok(Step {
                    id: row.get(0)?,
                    run: row.get(1)?,
                    idx: row.get(2)?,
                    status: row.get(3)?,
                    decision: json(row, 4)?,
                    observation: json(row, 5)?,
                    policy: json(row, 6)?,
                    observation_hash: row.get(7)?,
                    spec: row.get(8)?,
                    ending: row.get(9)?,
                    policy_id: row.get(10)?,
                    started_at: row.get(11)?,
                    finished_at: row.get(12)?,
                })
            },
        )?,
        approvals: all(
            conn,
            "SELECT id, run_id, step_id, kind, capability_json, presentation_json, request_json, hash, status, decided_by,
                 note, created_at, decided_at, expires_at
             FROM approvals ORDER BY rowid",
            approval,
        )?,
        calls: match has("proxy_calls")? {
            true => all(conn, "SELECT request_key, run_id, open, tool, side_effect, settled_at > 0, outcome, session FROM proxy_calls ORDER BY id", |row| {
                Ok(Call {
                    key: row.get(0)?,
                    run: row.get(1)?,
                    open: row.get(2)?,
                    tool: row.get(3)?,
                    class: row.get(4)?,
                    settled: row.get(5)?,
                    outcome: row.get(6)?,
                    session: row.get(7)?,
                })
            })?,
            false => Vec::new(),
        },
        specs: all(conn, "SELECT hash, spec_json FROM tool_specs ORDER BY hash", |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?,
        groups,
        integrity,
    })
}

fn all<T>(
    conn: &Connection,
    sql: &str,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    conn.prepare(sql)?.query_map([], read)?.collect()
}

fn json(row: &Row<'_>, at: usize) -> rusqlite::Result<Value> {
    let text: String = row.get(at)?;
    Ok(serde_json::from_str(&text).unwrap_or_default())
}

fn event(row: &Row<'_>) -> rusqlite::Result<Event> {
    let payload_text: String = row.get(5)?;
    Ok(Event {
        seq: row.get(0)?,
        run: row.get(1)?,
        step: row.get(2)?,
        at: row.get(3)?,
        kind: row.get(4)?,
        payload: serde_json::from_str(&payload_text).unwrap_or_default(),
        payload_text,
        hash: row.get(6)?,
    })
}

fn approval(row: &Row<'_>) -> rusqlite::Result<Approval> {
    Ok(Approval {
        id: row.get(0)?,
        run: row.get(1)?,
        step: row.get(2)?,
        kind: row.get(3)?,
        capability: row.get(4)?,
        presentation: row.get(5)?,
        request: row.get(6)?,
        hash: row.get(7)?,
        status: row.get(8)?,
        by: row.get(9)?,
        note: row.get(10)?,
        created_at: row.get(11)?,
        decided_at: row.get(12)?,
        expires_at: row.get(13)?,
    })
}
