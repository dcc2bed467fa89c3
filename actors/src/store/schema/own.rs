//! Holdpoint's own tables, beside the reference's and under migrations of their own.
//!
//! A program that knows none of them loses nothing but what they add: how a call ended as a type, what to clean up after
//! a dead process, and which requests the approval channel has taken. Operator commands never make them and work
//! without them; the approval channel makes them, because it may not take a request twice.

use super::{Tables, nothing_more};

pub(super) const TABLES: Tables = Tables {
    what: "holdpoint tables",
    migrations: "holdpoint_migrations",
    base: "CREATE TABLE IF NOT EXISTS holdpoint_migrations (version INTEGER PRIMARY KEY, applied_at TEXT NOT NULL)",
    current: "SELECT COALESCE(MAX(version), 0) FROM holdpoint_migrations",
    note: "INSERT INTO holdpoint_migrations (version, applied_at) VALUES (?, ?)",
    stamp: |now| now.to_rfc3339().into(),
    steps: &[ENDINGS_GROUPS_SYNC, SIGNATURES],
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

const SIGNATURES: &str = "
-- The signatures of requests that the approval channel took, while they could be sent again. Times are the requests'
-- own, in Unix seconds.
CREATE TABLE holdpoint_signatures (
    signature BLOB PRIMARY KEY,
    at        INTEGER NOT NULL
) WITHOUT ROWID;
-- What is too old.
CREATE INDEX holdpoint_signatures_at ON holdpoint_signatures(at);
-- One row: the newest time of a signature that is not remembered any more.
CREATE TABLE holdpoint_signature_horizon (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    at INTEGER NOT NULL
);
INSERT INTO holdpoint_signature_horizon (id, at) VALUES (1, 0);
";
