//! Holdpoint's own tables, beside the reference's and under migrations of their own.
//!
//! A program that knows none of them loses nothing but what they add: how a call ended as a type, and what to clean up
//! after a dead process. Operator commands never make them and work without them.

use super::{Tables, nothing_more};

pub(super) const TABLES: Tables = Tables {
    what: "holdpoint tables",
    base: "CREATE TABLE IF NOT EXISTS holdpoint_migrations (version INTEGER PRIMARY KEY, applied_at TEXT NOT NULL)",
    current: "SELECT COALESCE(MAX(version), 0) FROM holdpoint_migrations",
    note: "INSERT INTO holdpoint_migrations (version, applied_at) VALUES (?, ?)",
    stamp: |now| now.to_rfc3339().into(),
    steps: &[ENDINGS_GROUPS_SYNC],
    after: nothing_more,
};

const ENDINGS_GROUPS_SYNC: &str = "
-- How each step's last call ended, beside the text that its observation records.
CREATE TABLE holdpoint_endings (
    step_id TEXT PRIMARY KEY,
    ending  TEXT NOT NULL
) WITHOUT ROWID;
-- Process groups that were started and not yet seen to be gone.
CREATE TABLE holdpoint_groups (
    boot_id           TEXT NOT NULL,
    pid_namespace     TEXT NOT NULL,
    pgid              INTEGER NOT NULL,
    leader_start_time INTEGER NOT NULL,
    forks_before      INTEGER NOT NULL,
    owner_pid         INTEGER NOT NULL,
    owner_start_time  INTEGER NOT NULL,
    session           TEXT NOT NULL,
    server            TEXT NOT NULL,
    PRIMARY KEY (boot_id, pid_namespace, pgid, leader_start_time)
) WITHOUT ROWID;
-- One row that a synced commit changes: SQLite syncs nothing for a transaction that wrote nothing.
CREATE TABLE holdpoint_sync (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    times INTEGER NOT NULL
);
INSERT INTO holdpoint_sync (id, times) VALUES (1, 0);
";
