//! Pages: their bounds, what is cut and how it says so, and the small questions of a front end.

use holdpoint_core::approval::ApprovalStatus;
use holdpoint_core::ids::{ApprovalId, RunId};
use holdpoint_core::transition::Durability;

use super::support::*;
use crate::connection::{GroupLedger as _, GroupRecord};
use crate::store::{GroupStore, ReadError, TEXT_CHARS_MAX};

const LONG: usize = 70_000;

#[tokio::test]
async fn a_page_has_a_size_and_a_total() {
    let bench = Bench::start().await;
    for i in 0..5 {
        bench.intent(begun(&format!("r{i}"), Durability::Written)).await;
    }
    let page = bench.client.read(|r| r.runs_page(2, 1)).await.unwrap();
    assert_eq!(
        (page.total, page.rows.iter().map(|r| r.id.as_str()).collect::<Vec<_>>()),
        (5, vec!["r3", "r2"])
    );
    assert_eq!(page.rows[0].limits.as_ref().unwrap().max_steps, 50);
    bench.other().execute("UPDATE runs SET created_at = '2099-01-01T00:00:00Z' WHERE id = 'r0'", []).unwrap();
    let page = bench.client.read(|r| r.runs_page(2, 1)).await.unwrap();
    assert_eq!(page.rows[0].id.as_str(), "r3", "by when they were written, and by no time of theirs");
    for (limit, offset) in [(0, 0), (-1, 0), (1, -1)] {
        let refused = bench.client.read(move |r| r.runs_page(limit, offset)).await.unwrap_err();
        assert!(matches!(refused, ReadError::NoPage { .. }), "{refused}");
    }
    let page = bench.client.read(|r| r.events_page(&RunId::from("r1"), 10, 1)).await.unwrap();
    assert_eq!((page.total, page.rows[0].kind.as_str(), page.rows.len()), (2, "run.started", 1));
    let after = bench.client.read(|r| r.events_after(None, 3, 2)).await.unwrap();
    assert_eq!(after.iter().map(|e| e.seq).collect::<Vec<_>>(), [4, 5]);
    let after = bench.client.read(|r| r.events_after(Some(&RunId::from("r4")), 3, 9)).await.unwrap();
    assert_eq!(after.iter().map(|e| e.seq).collect::<Vec<_>>(), [9, 10]);
    let left = |run: Option<&'static str>, seq, most| {
        bench.client.read(move |r| r.events_left(run.map(RunId::from).as_ref(), seq, most))
    };
    assert_eq!(left(None, 3, 100).await.unwrap(), 7);
    assert_eq!(left(None, 3, 5).await.unwrap(), 5, "no further than it was asked to");
    assert_eq!(left(Some("r4"), 9, 100).await.unwrap(), 1);
}

#[tokio::test]
async fn the_events_before_one_are_those_nearest_to_it() {
    let bench = Bench::start().await;
    bench.intent(executing("r1", "me").take(Durability::Written)).await;
    bench.intent(begun("r2", Durability::Written)).await;
    let before = |seq, limit| {
        bench
            .client
            .read(move |r| Ok(r.events_before(&RunId::from("r1"), seq, limit)?.into_iter().map(|e| e.seq)))
    };
    assert_eq!(before(5, 2).await.unwrap().collect::<Vec<_>>(), [3, 4]);
    assert_eq!(before(100, 100).await.unwrap().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(before(1, 5).await.unwrap().count(), 0);
    assert!(matches!(before(5, 0).await.map(|_| ()), Err(ReadError::NoPage { .. })));
}

#[tokio::test]
async fn long_texts_are_cut_inside_sql_and_say_so() {
    let bench = Bench::start().await;
    let (mut call, _approval) = waiting("r1");
    bench.intent(call.take(Durability::Synced)).await;
    let (db, long) = (bench.other(), "x".repeat(LONG));
    db.execute("UPDATE runs SET goal = ?1, limits_json = ?1, result_json = json_object('r', ?1)", [&long])
        .unwrap();
    db.execute(
        "UPDATE steps SET decision_json = json_set(decision_json, '$.reason', ?1), policy_json = ?1",
        [&long],
    )
    .unwrap();
    db.execute(
        "UPDATE approvals SET request_json = json_set(request_json, '$.args', ?1), presentation_json = json_object('p', ?1)",
        [&long],
    )
    .unwrap();
    db.execute("UPDATE events SET payload_json = json_object('p', ?1) WHERE seq = 1", [&long]).unwrap();
    let id = RunId::from("r1");
    let (runs, steps, approvals, events, one) = bench
        .client
        .read(move |r| {
            Ok((
                r.runs_page(9, 0)?,
                r.steps_page(&id, 9, 0)?,
                r.approvals_page(&id, None, 9, 0)?,
                r.events_page(&id, 9, 0)?,
                r.listed_run(&id)?,
            ))
        })
        .await
        .unwrap();
    let run = &runs.rows[0];
    assert_eq!(one.as_ref(), Some(run));
    assert!(run.goal.starts_with("xxx") && run.goal.ends_with("… (cut, 70000 characters)"));
    assert_eq!(run.limits, None);
    let result: serde_json::Value = run.result.as_ref().unwrap().decode().unwrap();
    assert_eq!((&result["truncated"], result["head"].as_str().unwrap().len()), (&true.into(), 65_536));
    let step = &steps.rows[0];
    assert_eq!(step.decision.as_ref().unwrap().tool, "pay");
    assert_eq!((step.policy.as_ref(), step.decision.as_ref().unwrap().reason.as_str()), (None, ""));
    let cut = step.decode_error.as_ref().unwrap();
    assert!(cut.contains("decision: over 65536") && cut.contains("policy: over 65536"), "{cut}");
    let approval = &approvals.rows[0];
    let request = approval.request.as_ref().unwrap();
    assert_eq!((request.spec.name.as_str(), request.step_id.as_str()), ("pay", "r1-s0"));
    assert!(request.args.as_str().starts_with(r#"{"truncated":true,"length":7"#), "{}", request.args);
    assert!(approval.decode_error.as_ref().unwrap().contains("request: over"));
    assert!(approval.presentation.as_str().len() < LONG);
    assert!(events.rows[0].payload.starts_with(r#"{"truncated":true"#));
}

#[tokio::test]
async fn a_text_that_hides_behind_a_nul_is_cut_too() {
    let bench = Bench::start().await;
    bench.intent(begun("r1", Durability::Synced)).await;
    let hidden = format!("a\0{}", "x".repeat(400_000));
    bench.other().execute("UPDATE runs SET goal = ?1, reason_detail = ?1", [&hidden]).unwrap();
    let page = bench.client.read(|r| r.runs_page(1, 0)).await.unwrap();
    let most = usize::try_from(TEXT_CHARS_MAX).unwrap() + 100;
    assert!(page.rows[0].goal.len() < most && page.rows[0].reason_detail.len() < most);
}

#[tokio::test]
async fn approvals_are_found_by_status_and_by_run_and_tell_why_they_were_asked_for() {
    let bench = Bench::start().await;
    for run in ["r1", "r2", "r3"] {
        let (mut call, _approval) = waiting(run);
        bench.intent(call.take(Durability::Synced)).await;
    }
    bench.operator().cancel(&RunId::from("r3"), "bob", "", at(5)).unwrap();
    let ids = ["r1", "r2", "r3", "none"].map(RunId::from);
    let found = bench.client.read(move |r| r.pending_approval_ids_of(&ids, 5)).await.unwrap();
    let found: Vec<(&str, &str)> = found.iter().map(|(run, id)| (run.as_str(), id.as_str())).collect();
    // A cancelled run's approval stays pending, and nobody waits for it.
    assert_eq!(found, [("r1", "r1-a0"), ("r2", "r2-a0")]);
    let all = bench.client.read(|r| r.pending_approvals()).await.unwrap();
    assert_eq!(all.len(), 2);
    let reason = |id: &'static str| {
        bench.client.read(move |r| r.approval_reason(&RunId::from("r1"), &ApprovalId::from(id)))
    };
    assert_eq!(reason("r1-a0").await.unwrap().as_deref(), Some("ask first"));
    assert_eq!(reason("r2-a0").await.unwrap(), None);
    let count =
        |status| bench.client.read(move |r| Ok(r.approvals_page(&RunId::from("r1"), status, 5, 0)?.total));
    assert_eq!(count(Some(ApprovalStatus::Pending)).await.unwrap(), 1);
    assert_eq!(count(Some(ApprovalStatus::Approved)).await.unwrap(), 0);
    bench.other().execute("DELETE FROM events WHERE type = 'approval.requested'", []).unwrap();
    assert_eq!(reason("r1-a0").await.unwrap().as_deref(), Some(""));
}

#[tokio::test]
async fn a_read_is_of_one_moment() {
    let bench = Bench::start().await;
    bench.intent(begun("r1", Durability::Synced)).await;
    let path = bench.path.clone();
    let (before, after) = bench
        .client
        .read(move |r| {
            let before = r.head()?.seq;
            let other = rusqlite::Connection::open(&path)?;
            other.execute(
                "INSERT INTO events (run_id, at, type, payload_json) VALUES ('r1', '', 'x', '{}')",
                [],
            )?;
            Ok((before, r.head()?.seq))
        })
        .await
        .unwrap();
    assert_eq!((before, after), (2, 2));
    assert_eq!(bench.client.read(|r| r.head()).await.unwrap().seq, 3);
}

#[tokio::test]
async fn a_reader_that_panics_costs_its_connection_and_nothing_else() {
    let bench = Bench::start().await;
    let read: Result<(), ReadError> = bench.client.read(|_| panic!("a fault")).await;
    assert!(matches!(read, Err(ReadError::Panicked)));
    for _ in 0..8 {
        assert_eq!(bench.client.read(|r| r.head()).await.unwrap().seq, 0);
    }
}

#[tokio::test]
async fn started_groups_are_written_down_and_struck_out_beside_a_running_writer() {
    let bench = Bench::start().await;
    let groups = GroupStore::new(&bench.path);
    let group = |pgid| GroupRecord {
        pgid,
        leader_start_time: 77,
        boot_id: "b".to_owned(),
        pid_namespace: "pid:[1]".to_owned(),
        forks_before: 5,
        owner_pid: 1,
        owner_start_time: 2,
        session: "s".to_owned(),
        server: "files".to_owned(),
    };
    groups.record(&group(10));
    groups.record(&group(10));
    groups.record(&group(11));
    assert_eq!(groups.list_groups().unwrap(), [group(10), group(11)]);
    groups.forget(&GroupRecord { leader_start_time: 78, ..group(10) });
    groups.forget(&group(11));
    assert_eq!(groups.list_groups().unwrap(), [group(10)]);
    bench.intent(begun("r1", Durability::Synced)).await;
    // A file without the table is a warning in the log, not an error of the caller's.
    GroupStore::new(bench.folder.path().join("missing.db")).record(&group(12));
}
