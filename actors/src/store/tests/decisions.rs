//! A person's decisions through the operator's store: the order of refusals, and what is recorded.

use holdpoint_core::approval::{Approval, ApprovalStatus};
use holdpoint_core::ids::{ApprovalHash, ApprovalId, RunId};
use holdpoint_core::run::RunStatus;
use holdpoint_core::transition::Durability;

use super::support::*;
use crate::store::{Answer, DecideError, OperatorStore, Verdict};

/// A yes to an approval, bound to its hash.
pub(super) fn approve<'a>(run: &'a RunId, approval: &'a Approval) -> Answer<'a> {
    Answer {
        run,
        approval: &approval.id,
        shown: Some(&approval.hash),
        verdict: Verdict::Approve,
        by: "ann",
        note: "go on",
    }
}

fn reject<'a>(run: &'a RunId, approval: &'a Approval) -> Answer<'a> {
    Answer { verdict: Verdict::Reject, note: "not today", ..approve(run, approval) }
}

async fn one_waiting() -> (Bench, RunId, std::sync::Arc<Approval>) {
    let bench = Bench::start().await;
    let (mut call, approval) = waiting("r1");
    bench.intent(call.take(Durability::Synced)).await;
    (bench, RunId::from("r1"), approval)
}

#[tokio::test]
async fn an_approval_leaves_the_run_waiting_for_whoever_collects_it() {
    let (bench, run, approval) = one_waiting().await;
    let events = bench.operator().decide(&approve(&run, &approval), at(5)).unwrap();
    assert_eq!(
        events.iter().map(|e| (e.kind.as_str(), e.payload.as_str())).collect::<Vec<_>>(),
        [("approval.decided", r#"{"approval_id":"r1-a0","by":"ann","note":"go on","status":"approved"}"#)]
    );
    let db = bench.other();
    assert_eq!(
        rows(&db, "SELECT status, decided_at, decided_by, note FROM approvals"),
        ["approved|2026-10-01T09:00:05Z|ann|go on"]
    );
    assert_eq!(text(&db, "SELECT status FROM runs"), "WAITING_FOR_APPROVAL");
    let again = bench.operator().decide(&reject(&run, &approval), at(6)).unwrap_err();
    assert!(matches!(again, DecideError::NotPending { status: ApprovalStatus::Approved, .. }), "{again}");
}

#[tokio::test]
async fn a_rejection_fails_the_step_and_cancels_the_run_in_one_commit() {
    let (bench, run, approval) = one_waiting().await;
    let decision = text(&bench.other(), "SELECT decision_json FROM steps");
    let events = bench.operator().decide(&reject(&run, &approval), at(5)).unwrap();
    assert_eq!(
        events.iter().map(|e| e.kind.as_str()).collect::<Vec<_>>(),
        ["approval.decided", "run.finished"]
    );
    let db = bench.other();
    assert_eq!(
        rows(&db, "SELECT status, reason, reason_detail, finished_at FROM runs"),
        ["CANCELLED|approval_rejected|not today|2026-10-01T09:00:05Z"]
    );
    assert_eq!(text(&db, "SELECT status FROM steps"), "failed");
    assert_eq!(text(&db, "SELECT decision_json FROM steps"), decision);
    assert!(text(&db, "SELECT observation_json FROM steps").contains("approval rejected: not today"));
}

#[tokio::test]
async fn each_refusal_comes_in_its_place() {
    let (bench, run, approval) = one_waiting().await;
    let mut store = bench.operator();
    let (nobody, other) = (RunId::from("nobody"), ApprovalId::from("other"));
    let (blank, wrong) = (ApprovalHash::from(""), ApprovalHash::from("wrong"));
    let yes = approve(&run, &approval);

    let e = store.decide(&Answer { shown: Some(&blank), run: &nobody, ..yes }, at(5)).unwrap_err();
    assert!(matches!(e, DecideError::Changed(_)), "{e}");
    let e = store.decide(&Answer { run: &nobody, approval: &other, ..yes }, at(5)).unwrap_err();
    assert!(matches!(e, DecideError::NoRun(_)), "{e}");
    let e = store.decide(&Answer { approval: &other, ..yes }, at(5)).unwrap_err();
    assert!(matches!(e, DecideError::NoApproval { .. }), "{e}");
    let e = store.decide(&Answer { shown: Some(&wrong), ..yes }, at(500)).unwrap_err();
    assert!(matches!(e, DecideError::Changed(_)), "{e}");

    bench.other().execute("UPDATE approvals SET presentation_json = '{\"tool\":\"other\"}'", []).unwrap();
    let e = store.decide(&Answer { shown: None, ..yes }, at(500)).unwrap_err();
    assert!(matches!(e, DecideError::Hash(_)), "{e}");
    bench.other().execute("UPDATE runs SET status = 'RUNNING'", []).unwrap();
    let e = store.decide(&yes, at(5)).unwrap_err();
    assert!(matches!(e, DecideError::RunIs { status: RunStatus::Running, .. }), "{e}");
    assert_eq!(number(&bench.other(), "SELECT COUNT(*) FROM events"), 6);
}

#[tokio::test]
async fn a_decision_that_comes_too_late_expires_the_approval_and_cancels_the_run() {
    let (bench, run, approval) = one_waiting().await;
    let mut store = bench.operator();
    // Strictly after: on the second itself it still counts.
    let late = store.decide(&reject(&run, &approval), at(63)).unwrap_err();
    let DecideError::Expired { events, at: Some(expired), .. } = late else { panic!("{late}") };
    assert_eq!(expired, at(62));
    assert_eq!(
        events.iter().map(|e| e.kind.as_str()).collect::<Vec<_>>(),
        ["approval.decided", "run.finished"]
    );
    assert_eq!(events[0].payload, r#"{"approval_id":"r1-a0","status":"expired"}"#);
    let db = bench.other();
    assert_eq!(rows(&db, "SELECT status, note FROM approvals"), ["expired|expired"]);
    assert_eq!(rows(&db, "SELECT status, reason FROM runs"), ["CANCELLED|approval_expired"]);
    assert_eq!(text(&db, "SELECT status FROM steps"), "awaiting_approval");
    let again = store.decide(&approve(&run, &approval), at(64)).unwrap_err();
    assert!(matches!(again, DecideError::RunIs { status: RunStatus::Cancelled, .. }), "{again}");
}

#[tokio::test]
async fn a_decision_on_the_last_moment_counts() {
    let (bench, run, approval) = one_waiting().await;
    bench.operator().decide(&approve(&run, &approval), at(62)).unwrap();
}

#[tokio::test]
async fn a_cancelled_run_s_step_in_flight_fails_and_its_approval_stays_pending() {
    let (bench, run, _approval) = one_waiting().await;
    let mut store = bench.operator();
    let events = store.cancel(&run, "bob", "enough", at(7)).unwrap();
    assert_eq!(
        events[0].payload,
        r#"{"by":"bob","detail":"enough","reason":"operator_cancelled","status":"CANCELLED","steps":1}"#
    );
    let db = bench.other();
    assert_eq!(text(&db, "SELECT status FROM approvals"), "pending");
    assert_eq!(rows(&db, "SELECT status, finished_at FROM steps"), ["failed|2026-10-01T09:00:07Z"]);
    let again = store.cancel(&run, "bob", "enough", at(8)).unwrap_err();
    assert!(matches!(again, DecideError::RunIs { .. }), "{again}");
    let nobody = store.cancel(&RunId::from("nobody"), "bob", "", at(8)).unwrap_err();
    assert!(matches!(nobody, DecideError::NoRun(_)), "{nobody}");
}

#[tokio::test]
async fn a_running_run_is_cancelled_under_its_session_which_then_loses_its_next_write() {
    let bench = Bench::start().await;
    let mut call = executing("r1", "me");
    bench.intent(call.take(Durability::Synced)).await;
    bench.operator().cancel(&RunId::from("r1"), "bob", "", at(7)).unwrap();
    assert_eq!(rows(&bench.other(), "SELECT status, lease_owner FROM runs"), ["CANCELLED|"]);
    finish(&mut call, at(8));
    let lost =
        bench.client.apply(crate::store::Lane::Outcome, call.take(Durability::Synced)).await.unwrap_err();
    assert!(lost.to_string().contains("CANCELLED"), "{lost}");
}

#[tokio::test]
async fn decisions_work_on_a_file_that_only_the_reference_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("theirs.db");
    super::schema::as_the_reference_makes_it(&path);
    let (mut call, approval) = waiting("r1");
    super::schema::write_with_their_tables(&path, &call.take(Durability::Synced));
    let run = RunId::from("r1");
    let mut store = OperatorStore::open(&path, false).unwrap();
    store.decide(&approve(&run, &approval), at(5)).unwrap();
    let report = store.read(|r| r.verify(0, 0)).unwrap();
    assert_eq!((report.checked, report.broken), (7, None));
    assert_eq!(
        number(
            &rusqlite::Connection::open(&path).unwrap(),
            "SELECT COUNT(*) FROM sqlite_schema WHERE name LIKE 'holdpoint%' OR name LIKE 'proxy%'"
        ),
        0
    );
}

#[tokio::test]
async fn a_store_opened_for_reading_decides_nothing() {
    let (bench, run, approval) = one_waiting().await;
    let mut store = OperatorStore::open(&bench.path, true).unwrap();
    let refused = store.decide(&approve(&run, &approval), at(5)).unwrap_err();
    assert!(matches!(refused, DecideError::ReadOnly), "{refused}");
    assert_eq!(store.read(|r| r.approvals(&run)).unwrap().len(), 1);
}
