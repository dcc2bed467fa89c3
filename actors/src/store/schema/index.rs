//! The proxy's index of calls: the reference's two tables, so that either proxy can serve the same file.

use super::{Tables, nothing_more};

pub(super) const TABLES: Tables = Tables {
    what: "tables of the proxy's index",
    migrations: "proxy_schema_migrations",
    base: "CREATE TABLE IF NOT EXISTS proxy_schema_migrations (version INTEGER PRIMARY KEY, applied_at INTEGER NOT NULL)",
    current: "SELECT COALESCE(MAX(version), 0) FROM proxy_schema_migrations",
    note: "INSERT INTO proxy_schema_migrations (version, applied_at) VALUES (?, ?)",
    stamp: |now| now.as_nanos().into(),
    steps: &[CALLS, OUTCOMES],
    after: nothing_more,
};

const CALLS: &str = "
CREATE TABLE proxy_calls (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    session     TEXT NOT NULL,
    request_key TEXT NOT NULL,
    tool        TEXT NOT NULL,
    side_effect TEXT NOT NULL,
    run_id      TEXT NOT NULL UNIQUE,
    created_at  INTEGER NOT NULL,
    open        INTEGER NOT NULL DEFAULT 1,
    closed_at   INTEGER NOT NULL DEFAULT 0,
    settled_at  INTEGER NOT NULL DEFAULT 0
);
-- At most one open row for a request.
CREATE UNIQUE INDEX proxy_calls_open ON proxy_calls(session, request_key) WHERE open = 1;
-- The rows of one request, newest first.
CREATE INDEX proxy_calls_key ON proxy_calls(session, request_key, id);
-- The rows of a session whose run was not seen to finish, oldest first.
CREATE INDEX proxy_calls_unsettled ON proxy_calls(session, settled_at, id);
";

const OUTCOMES: &str = "
ALTER TABLE proxy_calls ADD COLUMN outcome INTEGER NOT NULL DEFAULT 0;
-- The rows of one request that may hold an attempt.
CREATE INDEX proxy_calls_outcome ON proxy_calls(session, request_key, outcome, id);
";
