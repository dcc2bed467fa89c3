//! Calls whose outcome nobody knows.

use std::sync::Arc;
use std::time::Duration;

use holdpoint_actors::clock::wall;
use holdpoint_core::approval::Approval;
use holdpoint_core::attempt::{Attempt, Ended};
use holdpoint_core::policy::Outcome;

use super::support::{Place, TestDesk};

const LOST: &str = r#"{"to":"kim","amount":7,"mode":"lost"}"#;
const LOU: &str = r#"{"to":"lou","amount":1}"#;

async fn allowing(place: &Place) -> TestDesk {
    place.desk(|s| s.pay = Some(Outcome::Allow)).await
}

fn attempt(approval: &Approval) -> Attempt {
    Attempt::named_in(&approval.capability).unwrap()
}

#[tokio::test]
async fn a_payment_without_an_answer_waits_for_a_person_whatever_the_policy() {
    let place = Place::new();
    let desk = allowing(&place).await;
    let got = desk.pay(LOST).await;
    let text = got.is("UNKNOWN_OUTCOME", false);
    let question = place.question();
    assert!(text.contains("connection closed") && text.contains(question.id.as_str()), "{text}");
    assert_eq!(attempt(&question).ended, Ended::NoAnswer);
    let events = [
        "run.created",
        "run.started",
        "step.started",
        "step.decided",
        "step.policy",
        "step.tool_started",
        "step.tool_finished",
        "step.failed",
        "step.started",
        "step.decided",
        "step.policy",
        "approval.requested",
    ];
    assert_eq!(place.events(&question.run_id), events);
    assert_eq!(place.origins(&question.run_id), ["model", "operator"]);
    for later in [Duration::ZERO, Duration::from_secs(3600)] {
        desk.advance(later);
        assert!(desk.pay(LOST).await.is("UNKNOWN_OUTCOME", false).contains(question.id.as_str()));
        assert!(desk.pay(LOU).await.is("BLOCKED", true).contains(question.id.as_str()));
    }
    assert!(!desk.call("bank_balance", r#"{"account":"a"}"#).await.is_error, "a read is not blocked");
    assert!(desk.status_of(&question).await.contains("OUTCOME UNKNOWN"));
    assert_eq!(place.bank.payments(), 1);
    place.approve(&question);
    desk.pay(LOST).await.is("UNKNOWN_OUTCOME", false);
    assert_eq!(place.bank.payments(), 2, "the approved repeat, which was lost too");
    let next = place.question();
    assert_ne!(next.id, question.id);
    let status = desk.status_of(&question).await;
    assert!(status.contains("APPROVED and executed, but it failed with no answer"), "{status}");
    assert!(status.contains(&format!("Approval {} waits now", next.id)), "{status}");
}

#[tokio::test]
async fn a_rejection_unblocks_the_tool_and_the_same_call_asks_again() {
    let place = Place::new();
    let desk = allowing(&place).await;
    desk.pay(r#"{"to":"max","amount":8,"mode":"timeout"}"#).await.is("UNKNOWN_OUTCOME", false);
    let args = r#"{"to":"max","amount":8,"mode":"timeout"}"#;
    assert_eq!(attempt(&place.question()).ended, Ended::TimedOut);
    place.reject(&place.question(), "it went through");
    assert!(desk.pay(args).await.is("REJECTED", true).contains("it went through"));
    assert!(!desk.pay(LOU).await.is_error);
    for _ in 0..3 {
        desk.advance(Duration::from_secs(11 * 60));
        desk.pay(args).await.is("UNKNOWN_OUTCOME", false);
        place.reject(&place.question(), "");
    }
    assert_eq!(place.bank.payments(), 2);
}

#[tokio::test]
async fn the_step_limit_keeps_the_tool_blocked_on_something_to_decide() {
    let place = Place::new();
    let desk = allowing(&place).await;
    desk.pay(LOST).await.is("UNKNOWN_OUTCOME", false);
    let run = place.question().run_id;
    for _ in 0..2 {
        place.approve(&place.question());
        desk.pay(LOST).await.is("UNKNOWN_OUTCOME", false);
    }
    let question = place.question();
    assert_ne!(question.run_id, run, "asked in a fresh run");
    assert_eq!(place.bank.payments(), 3);
    assert!(desk.pay(LOU).await.is("BLOCKED", true).contains(question.id.as_str()));
    assert!(desk.pay(LOST).await.is("UNKNOWN_OUTCOME", false).contains(question.id.as_str()));
    place.reject(&question, "");
    assert!(!desk.pay(LOU).await.is_error);
    assert_eq!(place.bank.payments(), 4);
}

#[tokio::test]
async fn a_question_that_ran_out_is_asked_again() {
    let place = Place::new();
    let desk = place
        .desk(|s| {
            s.pay = Some(Outcome::Allow);
            s.approval_ttl = Duration::from_secs(60);
        })
        .await;
    desk.pay(LOST).await;
    let first = place.question();
    desk.advance(Duration::from_secs(61));
    let blocked = desk.pay(LOU).await;
    let again = place.question();
    assert!(again.id != first.id && blocked.is("BLOCKED", true).contains(again.id.as_str()), "{blocked:?}");
    assert!(desk.pay(LOST).await.is("UNKNOWN_OUTCOME", false).contains(again.id.as_str()));
    desk.advance(Duration::from_secs(61));
    assert!(!desk.pay(LOST).await.is("UNKNOWN_OUTCOME", false).contains(again.id.as_str()));
    assert_eq!((place.bank.payments(), attempt(&place.question())), (1, attempt(&first)));
}

/// Starts a payment that blocks in the bank and takes its lease away, as its process had been killed.
async fn cut_off(place: &Place, desk: &Arc<TestDesk>, args: &'static str) {
    let calling = Arc::clone(desk);
    tokio::spawn(async move { calling.pay(args).await });
    place.bank.entered.notified().await;
    place.sql("UPDATE runs SET lease_owner = 'dead', lease_expires_at = '2020-01-01T00:00:00Z' WHERE status = 'RUNNING'");
}

#[tokio::test]
async fn a_call_that_was_cut_off_waits_for_a_person() {
    let place = Place::new();
    let dead = Arc::new(allowing(&place).await);
    let args = r#"{"to":"kim","amount":7,"mode":"block"}"#;
    cut_off(&place, &dead, args).await;
    let desk = allowing(&place).await;
    assert!(desk.pay(LOU).await.is("BLOCKED", true).contains(place.question().id.as_str()));
    let question = place.question();
    assert_eq!(attempt(&question).ended, Ended::CutOff);
    assert!(desk.pay(args).await.is("INTERRUPTED", false).contains(question.id.as_str()));
    let events = place.events(&question.run_id);
    let tail =
        ["step.tool_started", "lease.taken_over", "step.interrupted", "step.policy", "approval.requested"];
    assert_eq!(events[events.len() - 5..], tail);
    place.approve(&question);
    place.bank.release.notify_waiters();
    let again = tokio::spawn({
        let desk = Arc::new(desk);
        async move { (desk.pay(args).await, desk) }
    });
    place.bank.entered.notified().await;
    place.bank.release.notify_one();
    let (got, desk) = again.await.unwrap();
    assert_eq!(got.text, "paid kim");
    assert_eq!(place.bank.payments(), 2);
    assert!(!desk.pay(LOU).await.is_error);
    let events = place.events(&question.run_id);
    let rest = [
        "approval.decided",
        "run.resumed",
        "step.policy",
        "step.tool_started",
        "step.tool_finished",
        "run.finished",
    ];
    assert_eq!(events[events.len() - 6..], rest);
}

#[tokio::test]
async fn what_an_earlier_process_left_is_recovered_at_the_start() {
    let place = Place::new();
    let dead = Arc::new(allowing(&place).await);
    cut_off(&place, &dead, r#"{"to":"kim","amount":7,"mode":"block"}"#).await;
    let desk = allowing(&place).await;
    assert_eq!(place.pending(), []);
    Arc::clone(&desk.desk).recover_left_behind().await;
    let question = place.question();
    assert!(
        desk.journal.lines().iter().any(|line| line.contains(question.id.as_str())),
        "{:?}",
        desk.journal.lines()
    );
}

#[tokio::test]
async fn what_somebody_still_holds_at_the_start_is_looked_at_again_when_its_lease_ends() {
    let place = Place::new();
    let dead = Arc::new(allowing(&place).await);
    cut_off(&place, &dead, r#"{"to":"kim","amount":7,"mode":"block"}"#).await;
    let until = wall().plus(Duration::from_secs(1));
    place.sql(&format!("UPDATE runs SET lease_expires_at = '{until}' WHERE status = 'RUNNING'"));
    let desk = allowing(&place).await;
    Arc::clone(&desk.desk).recover_left_behind().await;
    assert!(wall() > until, "nobody else's lease is broken");
    assert_eq!(attempt(&place.question()).ended, Ended::CutOff);
}

#[tokio::test]
async fn what_is_another_sessions_or_of_a_tool_that_is_not_offered_is_left_alone_at_the_start() {
    let place = Place::new();
    let dead = Arc::new(allowing(&place).await);
    cut_off(&place, &dead, r#"{"to":"kim","amount":7,"mode":"block"}"#).await;
    let (run, as_it_was) = (place.last_run(), place.events(&place.last_run()));
    let desk = allowing(&place).await;
    for elsewhere in ["session = 'other'", "session = 's', tool = 'bank_lend'"] {
        place.sql(&format!("UPDATE proxy_calls SET {elsewhere}"));
        Arc::clone(&desk.desk).recover_left_behind().await;
        assert_eq!((place.pending(), place.events(&run)), (Vec::new(), as_it_was.clone()), "{elsewhere}");
    }
    place.sql("UPDATE proxy_calls SET tool = 'bank_pay'");
    Arc::clone(&desk.desk).recover_left_behind().await;
    assert_eq!(place.question().run_id, run);
}

#[tokio::test]
async fn a_call_cut_off_before_it_executed_was_no_attempt() {
    let place = Place::new();
    let desk = allowing(&place).await;
    let key = holdpoint_core::hash::request_key("bank_pay", Some(LOU.as_bytes())).unwrap();
    let decision =
        r#"{"kind":"tool_call","tool":"bank_pay","args":{"to":"lou","amount":1},"origin":"model"}"#;
    place.sql(&format!(
        "INSERT INTO runs (id, goal, status, limits_json, step_count, created_at, started_at)
         VALUES ('s.dead', 'call bank_pay', 'RUNNING', '{}', 1, '2026-01-01T00:00:00Z', '2026-01-01T00:00:00Z');
         INSERT INTO steps (id, run_id, idx, status, decision_json, started_at)
         VALUES ('st', 's.dead', 0, 'deciding', '{decision}', '2026-01-01T00:00:00Z');
         INSERT INTO proxy_calls (session, request_key, tool, side_effect, run_id, created_at)
         VALUES ('s', '{key}', 'bank_pay', 'remote_mutation', 's.dead', 1)",
        holdpoint_core::run::Limits::default().to_json()
    ));
    assert!(!desk.pay(r#"{"to":"other","amount":1}"#).await.is_error, "the tool is not blocked");
    let dead = place.rows()[0].clone();
    assert_eq!((dead.0.as_str(), dead.2), ("s.dead", 1), "its run was ended, with no attempt made");
    assert_eq!(desk.pay(LOU).await.text, "paid lou");
    assert_eq!(place.pending(), []);
}

#[tokio::test]
async fn an_unknown_outcome_that_nobody_is_asked_about_is_asked_about_by_the_next_call() {
    let place = Place::new();
    let desk = allowing(&place).await;
    desk.pay(LOST).await;
    let question = place.question();
    // As if the process had gone between the outcome's record and the question: the run ended without one.
    place.sql(&format!(
        "DELETE FROM approvals; DELETE FROM steps WHERE idx = 1;
         UPDATE runs SET status = 'FAILED', reason = 'goal_failed', finished_at = created_at WHERE id = '{}'",
        question.run_id
    ));
    let got = desk.pay(LOU).await;
    let asked = place.question();
    assert!(got.is("BLOCKED", true).contains(asked.id.as_str()), "{got:?}");
    assert_ne!(asked.run_id, question.run_id);
    let step = &place.steps(&asked.run_id)[0];
    assert_eq!(step.decision.as_ref().unwrap().origin, "operator");
    assert_eq!(attempt(&asked).run_id, question.run_id);
    assert!(desk.pay(LOST).await.is("UNKNOWN_OUTCOME", false).contains(asked.id.as_str()));
    assert_eq!(place.bank.payments(), 1);
}

#[tokio::test]
async fn a_rejected_repeat_of_a_call_that_was_cut_off_asks_again_after_the_window() {
    let place = Place::new();
    let dead = Arc::new(allowing(&place).await);
    let args = r#"{"to":"kim","amount":7,"mode":"block"}"#;
    cut_off(&place, &dead, args).await;
    let desk = allowing(&place).await;
    desk.pay(args).await.is("INTERRUPTED", false);
    place.reject(&place.question(), "it was paid");
    desk.pay(args).await.is("REJECTED", true);
    assert!(!desk.pay(LOU).await.is_error, "the tool is no longer blocked");
    desk.advance(Duration::from_secs(601));
    desk.pay(args).await.is("INTERRUPTED", false);
    assert_eq!(place.bank.payments(), 2);
}

#[tokio::test]
async fn an_approved_call_that_was_cut_off_needs_another_approval() {
    let place = Place::new();
    let dead = Arc::new(place.desk(|_| {}).await);
    let args = r#"{"to":"kim","amount":7,"mode":"block"}"#;
    dead.pay(args).await.is("PENDING_APPROVAL", false);
    let first = place.only_pending();
    place.approve(&first);
    cut_off(&place, &dead, args).await;
    let desk = place.desk(|_| {}).await;
    desk.pay(args).await.is("INTERRUPTED", false);
    let question = place.question();
    assert_eq!((&question.run_id, &attempt(&question).step_id), (&first.run_id, &first.step_id));
    let status = desk.status_of(&first).await;
    assert!(
        status.contains(&format!("another approval was asked for the same call (approval {})", question.id))
    );
    place.bank.release.notify_waiters();
    place.approve(&question);
    let again = tokio::spawn(async move { desk.pay(args).await });
    place.bank.entered.notified().await;
    place.bank.release.notify_one();
    assert_eq!(again.await.unwrap().text, "paid kim");
    assert_eq!(place.bank.payments(), 2);
}

#[tokio::test]
async fn an_abandoned_read_is_ended_and_a_fresh_one_answers() {
    let place = Place::new();
    let desk = allowing(&place).await;
    let args = r#"{"account":"a"}"#;
    let key = holdpoint_core::hash::request_key("bank_balance", Some(args.as_bytes())).unwrap();
    let decision = r#"{"kind":"tool_call","tool":"bank_balance","args":{"account":"a"}}"#;
    place.sql(&format!(
        "INSERT INTO runs (id, goal, status, limits_json, step_count, created_at, started_at, lease_owner, lease_expires_at)
         VALUES ('s.dead', 'g', 'RUNNING', '{}', 1, '2026-01-01T00:00:00Z', '2026-01-01T00:00:00Z', 'dead',
             '2026-01-01T00:00:30Z');
         INSERT INTO steps (id, run_id, idx, status, decision_json, started_at)
         VALUES ('st', 's.dead', 0, 'executing', '{decision}', '2026-01-01T00:00:00Z');
         INSERT INTO proxy_calls (session, request_key, tool, side_effect, run_id, created_at)
         VALUES ('s', '{key}', 'bank_balance', 'read_only', 's.dead', 1)",
        holdpoint_core::run::Limits::default().to_json()
    ));
    assert_eq!(desk.call("bank_balance", args).await.text, "42");
    let events = place.events(&"s.dead".into());
    let ended = [
        "lease.taken_over",
        "step.interrupted",
        "run.resumed",
        "step.started",
        "step.decided",
        "run.finished",
    ];
    assert_eq!(events, ended);
    let closing = place.steps(&"s.dead".into()).pop().unwrap().decision.unwrap();
    assert!(closing.message.contains("taken over after an interruption") && closing.origin == "operator");
    assert_eq!(place.rows().len(), 2);
}
