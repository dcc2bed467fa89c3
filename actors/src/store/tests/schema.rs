//! Tables and versions: the shape of a new file, how older files get there, and which files are refused.

use std::path::Path;

use holdpoint_core::transition::Transition;
use rusqlite::Connection;

use super::support::*;
use crate::clock;
use crate::store::apply::{Applier, Stamp};
use crate::store::schema::migrate_runtime_upto;
use crate::store::{Arguments, OpenError, OperatorStore, Options, SchemaError};

/// A file with the reference's tables and nothing of ours.
pub(super) fn as_the_reference_makes_it(path: &Path) {
    let conn = Connection::open(path).unwrap();
    conn.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
    migrate_runtime_upto(&conn, i64::MAX, start_time()).unwrap();
    tighten(path);
}

/// Applies a transition as any program with these tables would.
pub(super) fn write_with_their_tables(path: &Path, transition: &Transition) {
    let mut conn = Connection::open(path).unwrap();
    let tx = conn.transaction().unwrap();
    let mut applier = Applier::default();
    applier.begun(&tx).unwrap();
    let stamp = Stamp { monotonic: clock::monotonic(), wall: start_time() };
    applier.apply(&tx, transition, stamp).unwrap();
    tx.commit().unwrap();
}

fn tighten(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn shape(conn: &Connection, table: &str) -> Vec<String> {
    rows(conn, &format!("SELECT name, type, \"notnull\", dflt_value, pk FROM pragma_table_info('{table}')"))
}

fn indexes(conn: &Connection, table: &str) -> Vec<String> {
    let mut found = rows(
        conn,
        &format!(
            "SELECT l.name, l.\"unique\", l.origin, l.partial, (SELECT group_concat(i.name) FROM pragma_index_info(l.name) i)
             FROM pragma_index_list('{table}') l"
        ),
    );
    found.sort();
    found
}

/// The tables of version 6 as the specification lists them: name, type, not null, default, place in the key.
const EXPECTED: &[(&str, &[&str])] = &[
    ("schema_migrations", &["version|INTEGER|0|NULL|1", "applied_at|TEXT|1|NULL|0"]),
    (
        "runs",
        &[
            "id|TEXT|0|NULL|1",
            "goal|TEXT|1|NULL|0",
            "status|TEXT|1|NULL|0",
            "reason|TEXT|1|''|0",
            "reason_detail|TEXT|1|''|0",
            "limits_json|TEXT|1|NULL|0",
            "step_count|INTEGER|1|0|0",
            "created_at|TEXT|1|NULL|0",
            "started_at|TEXT|1|''|0",
            "finished_at|TEXT|1|''|0",
            "result_json|TEXT|1|''|0",
            "model_calls|INTEGER|1|0|0",
            "input_tokens|INTEGER|1|0|0",
            "output_tokens|INTEGER|1|0|0",
            "cached_input_tokens|INTEGER|1|0|0",
            "estimated_cost_micros|INTEGER|1|0|0",
            "active_ms|INTEGER|1|0|0",
            "lease_owner|TEXT|1|''|0",
            "lease_expires_at|TEXT|1|''|0",
        ],
    ),
    (
        "steps",
        &[
            "id|TEXT|0|NULL|1",
            "run_id|TEXT|1|NULL|0",
            "idx|INTEGER|1|NULL|0",
            "status|TEXT|1|NULL|0",
            "decision_json|TEXT|1|''|0",
            "policy_json|TEXT|1|''|0",
            "observation_json|TEXT|1|''|0",
            "observation_hash|TEXT|1|''|0",
            "started_at|TEXT|1|NULL|0",
            "finished_at|TEXT|1|''|0",
            "spec_hash|TEXT|1|''|0",
            "policy_id|TEXT|1|''|0",
        ],
    ),
    (
        "events",
        &[
            "seq|INTEGER|0|NULL|1",
            "run_id|TEXT|1|NULL|0",
            "step_id|TEXT|1|''|0",
            "at|TEXT|1|NULL|0",
            "type|TEXT|1|NULL|0",
            "payload_json|TEXT|1|NULL|0",
            "hash|TEXT|1|''|0",
        ],
    ),
    (
        "approvals",
        &[
            "id|TEXT|0|NULL|1",
            "run_id|TEXT|1|NULL|0",
            "step_id|TEXT|1|NULL|0",
            "kind|TEXT|1|NULL|0",
            "capability_json|TEXT|1|NULL|0",
            "presentation_json|TEXT|1|NULL|0",
            "request_json|TEXT|1|NULL|0",
            "hash|TEXT|1|NULL|0",
            "status|TEXT|1|NULL|0",
            "created_at|TEXT|1|NULL|0",
            "decided_at|TEXT|1|''|0",
            "decided_by|TEXT|1|''|0",
            "note|TEXT|1|''|0",
            "expires_at|TEXT|1|''|0",
        ],
    ),
    (
        "model_calls",
        &[
            "id|TEXT|0|NULL|1",
            "run_id|TEXT|1|NULL|0",
            "step_id|TEXT|1|NULL|0",
            "attempt|INTEGER|1|NULL|0",
            "status|TEXT|1|NULL|0",
            "model|TEXT|1|NULL|0",
            "input_tokens|INTEGER|1|0|0",
            "output_tokens|INTEGER|1|0|0",
            "cached_input_tokens|INTEGER|1|0|0",
            "cost_micros|INTEGER|1|0|0",
            "latency_ms|INTEGER|1|0|0",
            "error|TEXT|1|''|0",
            "dispatched_at|TEXT|1|NULL|0",
            "completed_at|TEXT|1|''|0",
        ],
    ),
    ("tool_specs", &["hash|TEXT|0|NULL|1", "spec_json|TEXT|1|NULL|0"]),
    ("proxy_schema_migrations", &["version|INTEGER|0|NULL|1", "applied_at|INTEGER|1|NULL|0"]),
    (
        "proxy_calls",
        &[
            "id|INTEGER|0|NULL|1",
            "session|TEXT|1|NULL|0",
            "request_key|TEXT|1|NULL|0",
            "tool|TEXT|1|NULL|0",
            "side_effect|TEXT|1|NULL|0",
            "run_id|TEXT|1|NULL|0",
            "created_at|INTEGER|1|NULL|0",
            "open|INTEGER|1|1|0",
            "closed_at|INTEGER|1|0|0",
            "settled_at|INTEGER|1|0|0",
            "outcome|INTEGER|1|0|0",
        ],
    ),
];

#[test]
fn a_new_file_has_the_tables_of_the_specification() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.db");
    make(&path);
    let db = Connection::open(&path).unwrap();
    for (table, columns) in EXPECTED {
        assert_eq!(shape(&db, table), *columns, "{table}");
    }
    let ours = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'holdpoint%' ORDER BY name";
    assert_eq!(
        rows(&db, ours),
        [
            "holdpoint_endings",
            "holdpoint_groups",
            "holdpoint_migrations",
            "holdpoint_signature_horizon",
            "holdpoint_signatures",
            "holdpoint_sync"
        ]
    );
    let tables =
        number(&db, "SELECT COUNT(*) FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'");
    assert_eq!(usize::try_from(tables).unwrap(), EXPECTED.len() + 6);
    assert_eq!(number(&db, "SELECT COUNT(*) FROM sqlite_schema WHERE type IN ('view', 'trigger')"), 0);
    assert_eq!(rows(&db, "SELECT version FROM schema_migrations"), ["1", "2", "3", "4", "5", "6"]);
    assert_eq!(rows(&db, "SELECT version FROM proxy_schema_migrations"), ["1", "2"]);
    assert_eq!(text(&db, "PRAGMA journal_mode"), "wal");
}

#[test]
fn a_new_file_has_the_indexes_of_the_specification() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.db");
    make(&path);
    let db = Connection::open(&path).unwrap();
    assert_eq!(indexes(&db, "runs"), ["sqlite_autoindex_runs_1|1|pk|0|id"]);
    assert_eq!(
        indexes(&db, "steps"),
        ["sqlite_autoindex_steps_1|1|pk|0|id", "sqlite_autoindex_steps_2|1|u|0|run_id,idx"]
    );
    assert_eq!(indexes(&db, "events"), ["events_run|0|c|0|run_id,seq"]);
    assert_eq!(
        indexes(&db, "approvals"),
        ["approvals_run|0|c|0|run_id,created_at", "sqlite_autoindex_approvals_1|1|pk|0|id"]
    );
    assert_eq!(
        indexes(&db, "model_calls"),
        ["model_calls_run|0|c|0|run_id,dispatched_at", "sqlite_autoindex_model_calls_1|1|pk|0|id"]
    );
    assert_eq!(
        indexes(&db, "proxy_calls"),
        [
            "proxy_calls_key|0|c|0|session,request_key,id",
            "proxy_calls_open|1|c|1|session,request_key",
            "proxy_calls_outcome|0|c|0|session,request_key,outcome,id",
            "proxy_calls_unsettled|0|c|0|session,settled_at,id",
            "sqlite_autoindex_proxy_calls_1|1|u|0|run_id",
        ]
    );
}

#[test]
fn an_embedder_s_file_has_no_index_of_calls() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.db");
    drop(Arguments::open(&path, Options { proxy_index: false, ..plain() }).unwrap());
    let db = Connection::open(&path).unwrap();
    assert_eq!(number(&db, "SELECT COUNT(*) FROM sqlite_schema WHERE name LIKE 'proxy%'"), 0);
}

#[test]
fn a_file_of_every_older_version_comes_to_the_same_shape() {
    for version in 1..=6 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("old.db");
        {
            let conn = Connection::open(&path).unwrap();
            migrate_runtime_upto(&conn, version, start_time()).unwrap();
            conn.execute_batch(
                "INSERT INTO runs (id, goal, status, limits_json, created_at) VALUES
                     ('r1', 'g', 'RUNNING', '{}', '2026-01-01T00:00:00Z'),
                     ('r2', 'g', 'COMPLETED', '{}', '2026-01-01T00:00:00Z');
                 INSERT INTO events (run_id, at, type, payload_json) VALUES
                     ('r1', '2026-01-01T00:00:00Z', 'run.created', '{}'),
                     ('r2', '2026-01-01T00:00:00Z', 'run.created', '{\"long\":1}');",
            )
            .unwrap();
        }
        tighten(&path);
        if version < 6 {
            let refused = OperatorStore::open(&path, true).unwrap_err();
            assert!(matches!(refused, OpenError::Schema(SchemaError::Older { .. })), "{refused}");
        }
        make(&path);
        let db = Connection::open(&path).unwrap();
        for (table, columns) in EXPECTED {
            assert_eq!(shape(&db, table), *columns, "{table} from version {version}");
        }
        let leases = rows(&db, "SELECT lease_owner != '', lease_expires_at != '' FROM runs ORDER BY id");
        let stamped = if version < 5 { "1|1" } else { "0|0" };
        assert_eq!(leases, [stamped, "0|0"], "from version {version}");
        if version < 5 {
            assert_eq!(
                text(&db, "SELECT lease_owner FROM runs WHERE id = 'r1'"),
                "agentrt:pre-lease-version"
            );
        }
        let mut store = OperatorStore::open(&path, true).unwrap();
        let report = store.read(|r| r.verify(0, 0)).unwrap();
        // A file that was at version 6 already keeps what stands there, hashes or not.
        assert_eq!(report.broken.is_none(), version < 6, "from version {version}");
    }
}

#[test]
fn a_run_that_was_running_before_leases_came_is_held_for_the_length_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let conn = Connection::open(folder.path().join("old.db")).unwrap();
    migrate_runtime_upto(&conn, 4, start_time()).unwrap();
    conn.execute_batch(
        "INSERT INTO runs (id, goal, status, limits_json, created_at) VALUES
             ('r1', 'g', 'RUNNING', '{}', '2026-01-01T00:00:00Z'),
             ('r2', 'g', 'WAITING_FOR_APPROVAL', '{}', '2026-01-01T00:00:00Z');",
    )
    .unwrap();
    migrate_runtime_upto(&conn, i64::MAX, at(100)).unwrap();
    let held = format!("agentrt:pre-lease-version|{}", at(130).to_rfc3339());
    assert_eq!(rows(&conn, "SELECT lease_owner, lease_expires_at FROM runs ORDER BY id"), [&*held, "|"]);
}

#[test]
fn a_file_of_a_newer_version_is_refused_by_both_openers() {
    for (table, stamp) in
        [("schema_migrations", "'x'"), ("proxy_schema_migrations", "1"), ("holdpoint_migrations", "'x'")]
    {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new.db");
        make(&path);
        let db = Connection::open(&path).unwrap();
        db.execute_batch(&format!("INSERT INTO {table} VALUES (99, {stamp})")).unwrap();
        let refused = Arguments::open(&path, plain()).unwrap_err();
        assert!(matches!(refused, OpenError::Schema(SchemaError::Newer { found: 99, .. })), "{refused}");
        assert!(refused.to_string().contains("newer build"), "{refused}");
        // An operator's command reads the runtime's tables alone.
        assert_eq!(OperatorStore::open(&path, true).is_err(), table == "schema_migrations");
    }
}

#[test]
fn a_file_with_a_trigger_or_a_view_is_refused_before_a_table_is_touched() {
    for bad in [
        "CREATE VIEW runs AS SELECT 1",
        "CREATE TABLE t (x); CREATE TRIGGER \"evil\n\" AFTER INSERT ON t BEGIN SELECT 1; END",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.db");
        Connection::open(&path).unwrap().execute_batch(bad).unwrap();
        tighten(&path);
        for refused in [
            Arguments::open(&path, plain()).unwrap_err(),
            OperatorStore::open(&path, true).unwrap_err(),
            OperatorStore::open(&path, false).unwrap_err(),
        ] {
            assert!(matches!(refused, OpenError::Schema(SchemaError::ForeignCode { .. })), "{refused}");
            assert!(!refused.to_string().contains('\n'), "{refused}");
        }
        let db = Connection::open(&path).unwrap();
        assert_eq!(number(&db, "SELECT COUNT(*) FROM sqlite_schema WHERE name LIKE '%migrations'"), 0);
    }
}

#[test]
fn a_database_of_something_else_is_not_taken_for_one_of_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE photos (id)").unwrap();
    tighten(&path);
    for read_only in [true, false] {
        let refused = OperatorStore::open(&path, read_only).unwrap_err();
        assert!(matches!(refused, OpenError::Schema(SchemaError::NotOurs { .. })), "{refused}");
    }
}

#[test]
fn a_file_of_another_program_is_refused_before_anything_of_it_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.db");
    let refused = |sql: &str, own: bool| {
        drop(std::fs::remove_file(&path));
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        tighten(&path);
        let before = std::fs::read(&path).unwrap();
        let opened = Arguments::open(&path, Options { own, ..plain() });
        let refused = matches!(&opened, Err(OpenError::Schema(SchemaError::NotOurs { .. })));
        assert_eq!(refused, std::fs::read(&path).unwrap() == before, "{sql}: {opened:?}");
        refused
    };
    for theirs in [
        "CREATE TABLE runs (id TEXT)",
        "CREATE TABLE schema_migrations (version TEXT); INSERT INTO schema_migrations VALUES ('20260101')",
        "CREATE TABLE schema_migrations (version INTEGER); INSERT INTO schema_migrations VALUES (6)",
        "CREATE TABLE runs (id TEXT); CREATE TABLE schema_migrations (version INTEGER)",
    ] {
        assert!(refused(theirs, true) && refused(theirs, false), "{theirs}");
    }
    let bookmarks = "CREATE TABLE bookmarks (url TEXT)";
    assert!(refused(bookmarks, true));
    assert!(!refused(bookmarks, false), "an embedder may have tables of its own");
    assert!(!refused("CREATE TABLE schema_migrations (version INTEGER, applied_at TEXT)", true), "cut off");
}

#[test]
fn two_first_openers_at_once_both_find_the_file_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.db");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| make(&path));
        }
    });
    let db = Connection::open(&path).unwrap();
    assert_eq!(number(&db, "SELECT COUNT(*) FROM schema_migrations"), 6);
    assert_eq!(number(&db, "SELECT COUNT(*) FROM holdpoint_sync"), 1);
}
