//! Tests of the index: what the rules are shown, and that the writer's memory of it is what the tables say.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdpoint_core::across_calls::{Asked, IndexWrite, Obstacle, OpenCalls, Ruling, decide};
use holdpoint_core::approval::INTERRUPTED_SIDE_EFFECT;
use holdpoint_core::attempt::Upstream;
use holdpoint_core::ids::{RequestKey, SessionName};
use holdpoint_core::policy::Outcome;
use holdpoint_core::run::Limits;
use holdpoint_core::time::UnixNanos;
use holdpoint_core::tool::SideEffect;
use rusqlite::Connection;

use super::cache::IndexCache;
use super::recent::{RECENT, RECENT_OF_MANY};
use super::session::SESSION_RUNS;
use super::view::{Depth, Entering, open_calls};
use crate::store::{Options, Reader, open};

const NOW: UnixNanos = UnixNanos::from_nanos(1_790_000_000_000_000_000);

fn seconds(n: i64) -> UnixNanos {
    UnixNanos::from_nanos(NOW.as_nanos() + n * 1_000_000_000)
}

fn upstreams() -> Arc<HashMap<String, Upstream>> {
    let tool = |remote: &str, class| {
        let name = format!("bank_{remote}");
        (name.clone(), Upstream { name, server: "bank".into(), remote: remote.into(), class })
    };
    Arc::new(HashMap::from([
        tool("pay", SideEffect::RemoteMutation),
        tool("refund", SideEffect::Destructive),
        tool("balance", SideEffect::ReadOnly),
    ]))
}

fn asked(tools: &Arc<HashMap<String, Upstream>>, tool: &str, key: &str) -> Asked {
    Asked {
        session: SessionName::from("s"),
        key: Some(RequestKey::from(key)),
        tool: tool.to_owned(),
        class: tools[tool].class,
        window: Duration::from_secs(600),
        outcome: Outcome::RequireApproval,
        max_pending: 3,
        tools: Arc::clone(tools),
        now: NOW,
        wall: NOW,
    }
}

struct File {
    _folder: tempfile::TempDir,
    conn: Connection,
    other: Connection,
}

fn file() -> File {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let (conn, _) = open::writer(&path, &Options::default()).unwrap();
    let other = Connection::open::<&Path>(path.as_ref()).unwrap();
    for conn in [&conn, &other] {
        conn.execute_batch("PRAGMA synchronous = OFF").unwrap();
    }
    File { _folder: folder, conn, other }
}

fn row(conn: &Connection, id: i64, key: &str, tool: &str) {
    conn.execute(
        "UPDATE proxy_calls SET open = 0, closed_at = ? WHERE session = 's' AND request_key = ? AND open = 1",
        (NOW.as_nanos(), key),
    )
    .unwrap();
    conn.execute(
        "INSERT INTO proxy_calls (id, session, request_key, tool, side_effect, run_id, created_at)
         VALUES (?, 's', ?, ?, 'remote_mutation', ?, 1)",
        (id, key, tool, format!("s.{id}")),
    )
    .unwrap();
}

fn run(conn: &Connection, id: i64, status: &str, reason: &str, lease_until: Option<UnixNanos>) {
    let (owner, until) = lease_until.map_or(("", String::new()), |until| ("o", until.to_rfc3339()));
    let limits = Limits::default().grant_ttl(Duration::from_secs(60)).to_json();
    // Whoever begins the run of a row that a scan has settled unsettles it.
    conn.execute(
        "UPDATE proxy_calls SET settled_at = 0, outcome = 0
         WHERE run_id = ?1 AND NOT EXISTS (SELECT 1 FROM runs WHERE id = ?1)",
        [format!("s.{id}")],
    )
    .unwrap();
    conn.execute(
        "INSERT INTO runs (id, goal, status, reason, limits_json, created_at, finished_at, lease_owner, lease_expires_at)
         VALUES (?1, 'g', ?2, ?3, ?4, '', ?5, ?6, ?7)
         ON CONFLICT (id) DO UPDATE SET status = ?2, reason = ?3, finished_at = ?5, lease_owner = ?6, lease_expires_at = ?7",
        (format!("s.{id}"), status, reason, limits, seconds(-5).to_rfc3339(), owner, until),
    )
    .unwrap();
}

fn step(conn: &Connection, id: i64, status: &str, observation: &str) {
    conn.execute(
        "INSERT INTO steps (id, run_id, idx, status, decision_json, observation_json, started_at)
         VALUES (?1, ?2, 0, ?3, '{\"kind\":\"tool_call\",\"tool\":\"bank_pay\",\"args\":{}}', ?4, ?5)
         ON CONFLICT (id) DO UPDATE SET status = ?3, observation_json = ?4",
        (format!("{id}"), format!("s.{id}"), status, observation, seconds(-9).to_rfc3339()),
    )
    .unwrap();
}

fn approval(conn: &Connection, id: i64, kind: &str, status: &str, expires_at: UnixNanos) {
    conn.execute(
        "INSERT INTO approvals (id, run_id, step_id, kind, capability_json, presentation_json, request_json, hash,
             status, created_at, decided_at, expires_at)
         VALUES (?1, ?2, ?3, ?4, '{}', '{}', '{}', 'h', ?5, ?6, ?6, ?7)
         ON CONFLICT (id) DO UPDATE SET status = ?5, expires_at = ?7",
        (
            format!("a{id}"),
            format!("s.{id}"),
            format!("{id}"),
            kind,
            status,
            seconds(-30).to_rfc3339(),
            expires_at.to_rfc3339(),
        ),
    )
    .unwrap();
}

const PAID: &str = r#"{"kind":"tool_result","content":"paid"}"#;
const LOST: &str = r#"{"kind":"tool_error","content":{"error":"x","failure":"timeout"}}"#;

fn settled(conn: &Connection, id: i64, outcome: i64) {
    conn.execute(
        "UPDATE proxy_calls SET settled_at = 5, outcome = ? WHERE run_id = ? AND outcome = 0",
        (outcome, format!("s.{id}")),
    )
    .unwrap();
}

fn see(conn: &Connection, asked: &Asked) -> super::Seen {
    Reader::over(conn).call_view(asked, Depth::Session).unwrap()
}

#[test]
fn a_request_that_is_new_begins() {
    let (f, tools) = (file(), upstreams());
    let seen = see(&f.conn, &asked(&tools, "bank_pay", "k"));
    assert!(matches!(decide(&asked(&tools, "bank_pay", "k"), &seen.view), Ruling::Begin(_)));
    assert_eq!(seen.settles, []);
}

#[test]
fn a_requests_own_history_is_read_as_far_as_it_decides() {
    let (f, tools) = (file(), upstreams());
    row(&f.conn, 1, "k", "bank_pay");
    run(&f.conn, 1, "COMPLETED", "goal_completed", None);
    step(&f.conn, 1, "done", PAID);
    let ruling = |f: &File| {
        let asked = asked(&tools, "bank_pay", "k");
        let seen = see(&f.conn, &asked);
        (decide(&asked, &seen.view), seen.settles.len())
    };
    assert!(matches!(ruling(&f), (Ruling::Refuse(_), 1)), "a duplicate, and its row can be settled");
    settled(&f.conn, 1, 2);
    assert!(matches!(ruling(&f), (Ruling::Refuse(_), 0)));
    // A newer, denied call hides nothing.
    row(&f.conn, 2, "k", "bank_pay");
    run(&f.conn, 2, "FAILED", "goal_failed", None);
    settled(&f.conn, 2, 1);
    assert!(matches!(ruling(&f).0, Ruling::Refuse(_)));
    row(&f.conn, 3, "k", "bank_pay");
    run(&f.conn, 3, "FAILED", "limit_steps", None);
    step(&f.conn, 3, "failed", LOST);
    let (Ruling::Begin(begin), 1) = ruling(&f) else { panic!("{:?}", ruling(&f)) };
    assert_eq!((begin.closes, begin.rerun.unwrap().run_id.as_str()), (Some(3), "s.3"));
    row(&f.conn, 4, "k", "bank_pay");
    let (Ruling::Begin(begin), _) = ruling(&f) else { panic!("{:?}", ruling(&f)) };
    assert_eq!(begin.reuse.unwrap().as_str(), "s.4");
}

#[test]
fn a_row_without_a_run_is_settled_by_whoever_finds_it_and_stays_to_be_begun() {
    let (f, tools) = (file(), upstreams());
    row(&f.conn, 1, "k1", "bank_pay");
    let other = asked(&tools, "bank_pay", "k2");
    let seen = see(&f.conn, &other);
    assert_eq!(seen.settles, [IndexWrite::SettleEmpty { run_id: "s.1".into(), at: other.now }]);
    assert!(
        matches!(decide(&other, &seen.view), Ruling::Begin(_)),
        "nothing started, so nothing is in the way"
    );
    settled(&f.conn, 1, 1);
    assert_eq!(see(&f.conn, &other).settles, []);
    let own = asked(&tools, "bank_pay", "k1");
    let Ruling::Begin(begin) = decide(&own, &see(&f.conn, &own).view) else { panic!("it begins") };
    assert_eq!(begin.reuse, Some("s.1".into()));
}

#[test]
fn a_run_that_goes_on_hides_everything_before_it() {
    let (f, tools) = (file(), upstreams());
    row(&f.conn, 1, "k", "bank_pay");
    run(&f.conn, 1, "WAITING_FOR_APPROVAL", "", None);
    approval(&f.conn, 1, "remote_mutation", "pending", seconds(5));
    let pay = asked(&tools, "bank_pay", "k");
    assert!(matches!(decide(&pay, &see(&f.conn, &pay).view), Ruling::Hold { .. }));
    run(&f.conn, 1, "RUNNING", "", Some(seconds(5)));
    assert_eq!(decide(&pay, &see(&f.conn, &pay).view), Ruling::InProgress);
    run(&f.conn, 1, "RUNNING", "", Some(seconds(0)));
    assert!(matches!(decide(&pay, &see(&f.conn, &pay).view), Ruling::Recover { .. }));
}

#[test]
fn a_grants_time_is_counted_from_its_decision() {
    let (f, tools) = (file(), upstreams());
    row(&f.conn, 1, "k1", "bank_pay");
    run(&f.conn, 1, "WAITING_FOR_APPROVAL", "", None);
    approval(&f.conn, 1, INTERRUPTED_SIDE_EFFECT, "approved", seconds(-99));
    let mut pay = asked(&tools, "bank_pay", "k");
    let obstacle = |asked: &Asked| see(&f.conn, asked).view.elsewhere.unwrap().obstacle;
    assert!(matches!(obstacle(&pay), Some(Obstacle::Asked { .. })));
    pay.now = seconds(31);
    assert!(matches!(obstacle(&pay), Some(Obstacle::Expired { .. })));
}

#[test]
fn a_long_history_is_looked_through_in_one_index() {
    let f = file();
    let sql = "SELECT id FROM proxy_calls WHERE session = 's' AND outcome IN (0, 3)";
    let plan: String = f.conn.query_row(&format!("EXPLAIN QUERY PLAN {sql}"), [], |row| row.get(3)).unwrap();
    assert!(plan.contains("COVERING INDEX proxy_calls_outcome"), "{plan}");
}

/// A small generator of numbers, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Changes one thing, as a proxy or an operator would; gives the run that it concerns.
fn change(conn: &Connection, random: &mut Random, newest: &mut i64) -> i64 {
    if *newest == 0 || random.below(4) == 0 {
        *newest += 1;
        let key = random.below(5);
        let tool = ["bank_pay", "bank_refund"][usize::try_from(key % 2).unwrap()];
        row(conn, *newest, &format!("k{key}"), tool);
        return *newest;
    }
    let id = *newest - i64::try_from(random.below(6)).unwrap().min(*newest - 1);
    let soon = seconds(i64::try_from(random.below(3)).unwrap() - 1);
    match random.below(8) {
        0 => run(conn, id, "RUNNING", "", Some(soon)),
        1 => {
            run(conn, id, "WAITING_FOR_APPROVAL", "", None);
            let kind = ["remote_mutation", INTERRUPTED_SIDE_EFFECT][usize::from(random.below(2) == 0)];
            approval(conn, id, kind, ["pending", "approved"][usize::from(random.below(3) == 0)], soon);
        }
        2 => {
            run(conn, id, "COMPLETED", "goal_completed", None);
            step(conn, id, "done", PAID);
        }
        3 => {
            run(conn, id, "FAILED", "limit_steps", None);
            step(conn, id, "failed", LOST);
        }
        4 => run(
            conn,
            id,
            "CANCELLED",
            ["approval_rejected", "approval_expired"][usize::from(random.below(2) == 0)],
            None,
        ),
        _ => {
            let tools = upstreams();
            let mut e = Entering { conn, tools: &tools, now: NOW, noticed: Vec::new() };
            open_calls(&SessionName::from("s"), &mut e).unwrap();
            for write in e.noticed {
                super::write(conn, &write).unwrap();
            }
        }
    }
    id
}

#[test]
fn the_writers_memory_is_what_the_tables_say_whoever_wrote() {
    for seed in 0..12 {
        let (f, tools, mut random) = (file(), upstreams(), Random(seed));
        let mut cache = IndexCache::default();
        // Runs that are over stay over, as nothing that writes this table moves them on.
        let mut newest = 0;
        for turn in 0..60 {
            let by_other = random.below(3) == 0;
            let conn = if by_other { &f.other } else { &f.conn };
            conn.execute_batch("BEGIN IMMEDIATE").unwrap();
            let over = over(conn);
            let id = change(conn, &mut random, &mut newest);
            if over.contains(&format!("s.{id}")) {
                conn.execute_batch("ROLLBACK").unwrap();
                newest = newest_id(conn);
                continue;
            }
            conn.execute_batch("COMMIT").unwrap();
            if by_other {
                cache.others_wrote();
            } else {
                cache.wrote(&format!("s.{id}").into());
                cache.committed();
            }
            for (tool, key) in [("bank_pay", "k0"), ("bank_refund", "k1"), ("bank_pay", "new")] {
                let asked = asked(&tools, tool, key);
                let remembered = cache.calls(&f.conn, &asked).unwrap().elsewhere(&asked);
                let mut e = Entering { conn: &f.conn, tools: &tools, now: NOW, noticed: Vec::new() };
                let read: OpenCalls = open_calls(&asked.session, &mut e).unwrap();
                assert_eq!(remembered, read.elsewhere(&asked), "seed {seed}, turn {turn}, {tool} {key}");
            }
        }
    }
}

fn over(conn: &Connection) -> Vec<String> {
    let sql = "SELECT id FROM runs WHERE status IN ('COMPLETED', 'FAILED', 'CANCELLED')";
    let mut statement = conn.prepare(sql).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

fn newest_id(conn: &Connection) -> i64 {
    conn.query_row("SELECT COALESCE(MAX(id), 0) FROM proxy_calls", [], |row| row.get(0)).unwrap()
}

#[test]
fn a_session_is_walked_from_its_newest_call_a_page_at_a_time_and_without_sorting() {
    let f = file();
    for id in 1..=5 {
        row(&f.conn, id, &format!("k{id}"), "bank_pay");
    }
    f.conn.execute("UPDATE proxy_calls SET session = 'other' WHERE id = 3", []).unwrap();
    let reader = Reader::over(&f.conn);
    let page = |before| -> Vec<i64> {
        let rows = reader.session_runs("s", before, 2).unwrap().unwrap();
        rows.iter().map(|indexed| indexed.row).collect()
    };
    assert_eq!([page(None), page(Some(4)), page(Some(1))], [vec![5, 4], vec![2, 1], vec![]]);
    assert_eq!(reader.session_runs("other", None, 9).unwrap().unwrap().len(), 1);
    let mut plan = f.conn.prepare(&format!("EXPLAIN QUERY PLAN {SESSION_RUNS}")).unwrap();
    let steps = plan.query_map(("s", 9, 2), |row| row.get::<_, String>(3)).unwrap();
    let steps: Vec<String> = steps.map(Result::unwrap).collect();
    assert!(steps.len() == 1 && steps[0].contains("INTEGER PRIMARY KEY"), "{steps:?}");
    f.conn.execute_batch("DROP TABLE proxy_calls").unwrap();
    assert_eq!(reader.session_runs("s", None, 2).unwrap(), None, "an embedder's record has no index");
}

#[test]
fn the_newest_calls_of_late_are_the_same_whether_sorted_out_or_walked_to() {
    let f = file();
    for id in 1..=9 {
        row(&f.conn, id, &format!("k{id}"), "bank_pay");
        f.conn
            .execute("UPDATE proxy_calls SET settled_at = ? WHERE id = ?", (seconds(id % 4).as_nanos(), id))
            .unwrap();
    }
    f.conn
        .execute_batch(
            "UPDATE proxy_calls SET settled_at = 0 WHERE id = 2; UPDATE proxy_calls SET session = 'other' WHERE id = 7",
        )
        .unwrap();
    let found = |sql: &str, since: i64, limit: i64| -> Vec<String> {
        let mut statement = f.conn.prepare(sql).unwrap();
        let rows = statement.query_map(("s", seconds(since).as_nanos(), limit), |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect()
    };
    assert_eq!(found(RECENT, 2, 9), ["k6", "k3", "k2"]);
    for (since, limit) in [(0, 9), (0, 3), (1, 4), (2, 9), (3, 1), (4, 9)] {
        assert_eq!(found(RECENT, since, limit), found(RECENT_OF_MANY, since, limit), "{since} {limit}");
    }
    let mut plan = f.conn.prepare(&format!("EXPLAIN QUERY PLAN {RECENT_OF_MANY}")).unwrap();
    let steps = plan.query_map(("s", 9, 2), |row| row.get::<_, String>(3)).unwrap();
    let steps: Vec<String> = steps.map(Result::unwrap).collect();
    assert_eq!(steps, ["SCAN proxy_calls"], "by the key, without sorting");
}
