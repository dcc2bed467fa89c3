//! The views that the commands and the approver are made of.

use std::time::Duration;

use holdpoint::gate::{ApprovalStatus, HandClock, Limits};
use holdpoint::view::{CANDIDATES_MAX, Error, Page, Records, Verdict};

use super::{REASON, Scene, start};

#[tokio::test]
async fn runs_come_newest_first_with_the_approval_that_they_wait_for() {
    let scene = Scene::of("t", &["r1", "r2", "r3"], Limits::default()).await;
    let mut records = Records::open_to_read(&scene.path).unwrap();
    let runs = records.runs().unwrap();
    let ids: Vec<&str> = runs.iter().map(|run| run.id.as_str()).collect();
    assert_eq!(ids, ["r3", "r2", "r1"]);
    assert_eq!(runs[2].pending_approval_id.as_deref(), Some(scene.approval.id.as_str()));
    assert_eq!((runs[2].steps, runs[2].goal.as_str()), (1, "upgrade a library in r1"));
    let page = records.runs_page(1, 1).unwrap();
    assert_eq!(page, Page { rows: vec![runs[1].clone()], total: 3 });
    assert_eq!(records.summary(&"r1".into()).unwrap(), runs[2]);
    assert!(matches!(records.summary(&"r4".into()), Err(Error::NoRun(run)) if run.as_str() == "r4"));
    assert!(matches!(records.runs_page(0, 0), Err(Error::Read(_))), "a page has at least one row");
}

#[tokio::test]
async fn a_run_in_detail_has_its_steps_what_waits_and_why() {
    let scene = Scene::titled("t").await;
    let mut records = Records::open_to_read(&scene.path).unwrap();
    let steps = records.steps(&scene.run()).unwrap();
    assert_eq!(steps.len(), 1);
    let step = &steps[0];
    let named = (step.tool.as_str(), step.status, step.policy, step.observation);
    assert_eq!(named, ("publish_proposal", "awaiting_approval", "require_approval", ""));
    assert!(matches!(records.steps(&"r4".into()), Err(Error::NoRun(_))));
    let detail = records.detail(&scene.run()).unwrap();
    assert_eq!(detail.steps.rows, steps);
    let waiting = detail.waiting().unwrap();
    assert_eq!((&waiting.approval, waiting.reason.as_deref()), (&scene.approval, Some(REASON)));
    assert_eq!((detail.approvals.total, detail.granted), (1, None));
    assert!(matches!(records.detail(&"r4".into()), Err(Error::NoRun(_))));
    // The parts share one page.
    let beyond = records.detail_page(&scene.run(), 5, 1).unwrap();
    assert_eq!((beyond.steps.rows.len(), beyond.pending.rows.len(), beyond.approvals.rows.len()), (0, 0, 0));
    assert_eq!((beyond.steps.total, beyond.pending.total, beyond.approvals.total), (1, 1, 1));
    assert!(beyond.waiting().is_none(), "it is not on this page");
}

#[tokio::test]
async fn a_decided_approval_is_no_candidate_and_its_grant_is_shown() {
    let scene = Scene::titled("t").await;
    let mut records = Records::open_to_decide(&scene.path).unwrap();
    let waiting = records.pending_approval(&scene.run(), None).unwrap();
    assert_eq!(waiting.approval, scene.approval);
    assert_eq!(records.pending_approval(&scene.run(), Some(&scene.approval.id)).unwrap(), waiting);
    let unknown = records.pending_approval(&scene.run(), Some(&"nope".into()));
    assert!(matches!(unknown, Err(Error::NoApproval { .. })));
    let events = records.approve_shown(&waiting.approval, "ada", "").unwrap();
    assert_eq!(events[0].kind, "approval.decided");
    assert!(matches!(records.pending_approval(&scene.run(), None), Err(Error::NoPending(_))));
    let named = records.pending_approval(&scene.run(), Some(&scene.approval.id)).unwrap_err();
    assert!(matches!(named, Error::NotPending { status: ApprovalStatus::Approved, .. }), "{named}");
    let again = records.reject_shown(&waiting.approval, "ada", "").unwrap_err();
    assert!(matches!(again, Error::NotPending { .. }), "the decision itself says so too: {again}");
    let granted = records.detail(&scene.run()).unwrap().granted.unwrap();
    assert_eq!((granted.status, granted.decided_by.as_str()), (ApprovalStatus::Approved, "ada"));
    records.cancel(&scene.run(), "ada", "").unwrap();
    let late = records.pending_approval(&scene.run(), None).unwrap_err();
    assert!(matches!(late, Error::RunNotWaiting { .. }), "{late}");
    assert!(matches!(records.cancel(&scene.run(), "ada", ""), Err(Error::RunFinished { .. })));
}

#[tokio::test]
async fn of_several_approvals_none_is_guessed_and_twenty_are_named() {
    let scene = Scene::titled("t").await;
    scene.tamper(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 24)
         INSERT INTO approvals (id, run_id, step_id, kind, capability_json, presentation_json, request_json, hash, \
             status, created_at)
         SELECT printf('copy-%02d', i), run_id, step_id, kind, capability_json, presentation_json, request_json, \
             hash, status, created_at FROM approvals, n",
    );
    let mut records = Records::open_to_read(&scene.path).unwrap();
    let refused = records.pending_approval(&scene.run(), None).unwrap_err();
    let Error::Ambiguous { candidates, more, .. } = &refused else { panic!("{refused}") };
    assert_eq!((candidates.len(), *more, &candidates[0]), (CANDIDATES_MAX, 5, &scene.approval.id));
    let text = refused.to_string();
    assert!(text.contains("25 wait") && text.contains("copy-19 and 5 more"), "{text}");
    assert_eq!(records.summary(&scene.run()).unwrap().pending_approval_id, None);
    assert!(records.detail(&scene.run()).unwrap().waiting().is_none());
}

#[tokio::test]
async fn a_decision_is_bound_to_what_was_shown() {
    let scene = Scene::titled("t").await;
    let mut records = Records::open_to_decide(&scene.path).unwrap();
    let shown = records.pending_approval(&scene.run(), None).unwrap().approval;
    scene.tamper("UPDATE approvals SET hash = 'another'");
    for verdict in [Verdict::Approve, Verdict::Reject] {
        assert!(matches!(records.decide_shown(verdict, &shown, "ada", ""), Err(Error::Changed(_))));
    }
    assert_eq!(scene.standing(), "pending WAITING_FOR_APPROVAL ");
}

#[tokio::test]
async fn a_record_opened_to_read_decides_nothing() {
    let scene = Scene::titled("t").await;
    let mut records = Records::open_to_read(&scene.path).unwrap();
    assert!(matches!(records.approve_shown(&scene.approval, "ada", ""), Err(Error::ReadOnly)));
}

#[tokio::test]
async fn expiry_is_judged_by_the_clock_that_is_given() {
    let scene = Scene::expiring().await;
    let at = |seconds| {
        let clock = HandClock::new(start().plus(Duration::from_secs(seconds)), Duration::ZERO);
        Records::open_to_decide(&scene.path).unwrap().with_clock(std::sync::Arc::new(clock))
    };
    let refused = at(3_600).approve_shown(&scene.approval, "ada", "").unwrap_err();
    assert!(matches!(&refused, Error::Expired { events, .. } if events.len() == 2), "{refused}");
    assert!(refused.is_not_pending());
    let again = at(1).approve_shown(&scene.approval, "ada", "").unwrap_err();
    assert!(matches!(again, Error::RunNotWaiting { .. }), "its run is cancelled: {again}");
}
