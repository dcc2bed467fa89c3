//! The approver over a database of this machine.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use holdpoint::approver::{Approver, Decision, Error, Local, RunReader};
use holdpoint::gate::{ApprovalStatus, Attached, Event, HandClock, Limits, Observer, RunStatus};
use holdpoint::view;
use serde_json::{Value, json};

use super::{REASON, Scene, Told, start};

#[tokio::test]
async fn what_is_shown_is_granted_by_its_hash_and_runs_once_when_the_run_is_resumed() {
    let scene = Scene::titled(&"long ".repeat(600)).await;
    let local = Local::open(&scene.path).unwrap();
    let listed = local.pending(&scene.run(), 20).await.unwrap();
    let shown = local.show(&scene.run(), &scene.approval.id).await.unwrap();
    assert_eq!(listed, std::slice::from_ref(&shown));
    assert_eq!((&shown.approval, shown.reason.as_str(), shown.expired), (&scene.approval, REASON, false));
    let json: Value = serde_json::from_str(&serde_json::to_string(&shown).unwrap()).unwrap();
    assert_eq!((&json["reason"], &json["hash"]), (&json!(REASON), &json!(scene.approval.hash)));
    assert!(json.get("expired").is_none());
    assert!(json["presentation"]["title"].as_str().unwrap().len() < 500, "a long string keeps its ends");

    local.approve(&scene.decision("chat:ada")).await.unwrap();
    assert_eq!(scene.standing(), "approved WAITING_FOR_APPROVAL ");
    assert_eq!(scene.published.0.load(Ordering::SeqCst), 0, "a grant runs nothing");
    let decided = local.show(&scene.run(), &scene.approval.id).await.unwrap().approval;
    assert_eq!((decided.status, decided.decided_by.as_str()), (ApprovalStatus::Approved, "chat:ada"));

    let runtime = scene.runtime().await;
    let Attached::Allowed(session, step) = runtime.gate().attach(scene.run()).await.unwrap() else {
        panic!("the grant is collected");
    };
    step.execute().await.unwrap();
    session.close().await;
    runtime.stop().await;
    assert_eq!(scene.published.0.load(Ordering::SeqCst), 1);
    let run = local.run(&scene.run()).await.unwrap();
    assert_eq!(run.status, RunStatus::Completed.as_str());
}

#[tokio::test]
async fn each_refusal_has_its_kind() {
    let scene = Scene::of("t", &["r1", "r2"], Limits::default()).await;
    let local = Local::open(&scene.path).unwrap();
    let decision = scene.decision("ada");
    let with = |change: fn(&mut Decision)| {
        let mut changed = decision.clone();
        change(&mut changed);
        changed
    };
    for (incomplete, what) in [
        (with(|d| d.run = "".into()), "run"),
        (with(|d| d.approval = "".into()), "approval"),
        (with(|d| d.by.clear()), "one as who decides"),
    ] {
        let refused = local.approve(&incomplete).await.unwrap_err();
        assert!(matches!(refused, Error::Incomplete(found) if found == what), "{refused}");
    }
    for changed in [with(|d| d.hash = "".into()), with(|d| d.hash = "0".repeat(64).into())] {
        assert!(matches!(local.approve(&changed).await, Err(Error::Changed(_))));
        assert!(matches!(local.reject(&changed).await, Err(Error::Changed(_))));
    }
    for missing in [with(|d| d.run = "r3".into()), with(|d| d.run = "r2".into())] {
        let refused = local.approve(&missing).await.unwrap_err();
        assert!(matches!(refused, Error::NotFound(_)), "another run's approval is not found: {refused}");
    }
    assert!(matches!(local.show(&"r2".into(), &decision.approval).await, Err(Error::NotFound(_))));
    assert!(matches!(local.pending(&"r3".into(), 20).await, Err(Error::NotFound(_))));
    assert!(matches!(local.run(&"r3".into()).await, Err(Error::NotFound(_))));
    assert!(matches!(local.cancel(&"r3".into(), "ada", "").await, Err(Error::NotFound(_))));
    assert!(matches!(local.cancel(&"r1".into(), "", "").await, Err(Error::Incomplete(_))));
    assert_eq!(scene.standing(), "pending WAITING_FOR_APPROVAL ", "none of these decided anything");

    local.approve(&decision).await.unwrap();
    let late = local.reject(&decision).await.unwrap_err();
    assert!(matches!(late, Error::NotPending { status: ApprovalStatus::Approved, .. }), "{late}");
    assert!(late.is_not_pending());
    local.cancel(&scene.run(), "ada", "enough").await.unwrap();
    assert!(matches!(local.approve(&decision).await, Err(Error::RunNotWaiting { .. })));
    assert!(matches!(local.cancel(&scene.run(), "ada", "").await, Err(Error::RunFinished { .. })));
    assert_eq!(local.pending(&scene.run(), 20).await.unwrap(), [], "nobody can decide it any more");
}

#[tokio::test]
async fn an_altered_approval_is_shown_and_never_decided() {
    let scene = Scene::titled("t").await;
    scene.tamper("UPDATE approvals SET presentation_json = json_set(presentation_json, '$.title', 'other')");
    let local = Local::open(&scene.path).unwrap();
    assert!(local.show(&scene.run(), &scene.approval.id).await.is_ok());
    assert!(matches!(local.approve(&scene.decision("ada")).await, Err(Error::Hash(_))));
    assert_eq!(scene.standing(), "pending WAITING_FOR_APPROVAL ");
}

#[tokio::test]
async fn an_expired_approval_is_shown_without_a_write_and_a_decision_cancels_its_run() {
    let scene = Scene::expiring().await;
    let told = Arc::new(Told::default());
    let now = HandClock::new(start().plus(Duration::from_secs(3_600)), Duration::ZERO);
    let local = Local::open(&scene.path)
        .unwrap()
        .clock(Arc::new(now))
        .observer(Arc::clone(&told) as Arc<dyn Observer>);
    assert!(local.show(&scene.run(), &scene.approval.id).await.unwrap().expired);
    assert!(local.pending(&scene.run(), 20).await.unwrap()[0].expired);
    assert_eq!(scene.standing(), "pending WAITING_FOR_APPROVAL ", "looking wrote nothing");
    let refused = local.approve(&scene.decision("ada")).await.unwrap_err();
    assert!(matches!(refused, Error::Expired { at: Some(_), .. }) && refused.is_not_pending(), "{refused}");
    assert_eq!(scene.standing(), "expired CANCELLED approval_expired");
    assert_eq!(told.kinds(), ["approval.decided", "run.finished"], "what was recorded is told");
}

#[tokio::test]
async fn the_observer_is_told_of_what_a_decision_committed() {
    let scene = Scene::titled("t").await;
    let told = Arc::new(Told::default());
    let local = Local::open(&scene.path).unwrap().observer(Arc::clone(&told) as Arc<dyn Observer>);
    local.reject(&scene.decision("ada")).await.unwrap();
    assert_eq!(told.kinds(), ["approval.decided", "run.finished"]);
    assert!(told.0.lock().unwrap().iter().all(|event| event.seq > 0), "they are in the record");
    assert_eq!(scene.standing(), "rejected CANCELLED approval_rejected");
}

/// Hands what it is told to whoever waits for it.
struct Waited(std::sync::mpsc::Sender<String>);

impl Observer for Waited {
    fn committed(&self, event: &Event) {
        self.0.send(event.kind.clone()).unwrap();
    }
}

#[tokio::test]
async fn a_decision_whose_asker_went_away_is_recorded_and_told() {
    let scene = Scene::titled("t").await;
    let (told, events) = std::sync::mpsc::channel();
    let local = Local::open(&scene.path).unwrap().observer(Arc::new(Waited(told)));
    let decision = scene.decision("ada");
    let mut asked = local.approve(&decision);
    // A fast thread may have done it by then; else nobody asks again.
    let first = asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(first, Poll::Pending | Poll::Ready(Ok(()))));
    drop(asked);
    assert_eq!(events.recv_timeout(Duration::from_secs(60)).unwrap(), "approval.decided");
    assert_eq!(scene.standing(), "approved WAITING_FOR_APPROVAL ");
}

#[tokio::test]
async fn only_a_database_that_exists_and_is_no_link_is_opened() {
    let scene = Scene::titled("t").await;
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("none.db");
    assert!(matches!(Local::open(&missing), Err(view::Error::Open(_))));
    assert!(!missing.exists(), "nothing is made");
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink(&scene.path, &link).unwrap();
    let refused = Local::open(&link).unwrap_err();
    assert!(refused.to_string().contains("symbolic link"), "{refused}");
    let foreign = folder.path().join("foreign.db");
    rusqlite::Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let refused = Local::open(&foreign).unwrap_err();
    assert!(refused.to_string().contains("not one of agent runs"), "{refused}");
    // What took its place later is looked at again.
    let local = Local::open(&scene.path).unwrap();
    std::fs::rename(&scene.path, folder.path().join("moved.db")).unwrap();
    std::os::unix::fs::symlink(folder.path().join("moved.db"), &scene.path).unwrap();
    assert!(matches!(local.approve(&scene.decision("ada")).await, Err(Error::Failed(_))));
}

#[tokio::test]
async fn a_run_is_read_with_its_long_texts_cut() {
    let scene = Scene::titled("t").await;
    scene.tamper(
        "UPDATE runs SET goal = printf('%.*c', 9000, 'g'), \
         result_json = json_object('text', printf('%.*c', 9000, 'r'))",
    );
    let run = Local::open(&scene.path).unwrap().run(&scene.run()).await.unwrap();
    assert!(run.goal.len() < 500 && run.goal.contains("8600 bytes left out"), "{}", run.goal.len());
    let result = run.result.unwrap();
    assert!(result.as_str().starts_with(r#"{"text":"rrr"#) && result.as_str().len() < 500);
}
