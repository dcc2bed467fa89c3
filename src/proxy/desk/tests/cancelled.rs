//! Calls that a person cancels while they execute: what came of them is told, whenever it is known.

use std::sync::Arc;
use std::time::Duration;

use holdpoint_core::attempt::{Attempt, Ended};
use holdpoint_core::policy::Outcome;

use super::support::{Place, Settings, TestDesk};
use crate::view::read::pending_approval;

const KIM: &str = r#"{"to":"kim","amount":7,"mode":"block"}"#;
const DECLINED: &str = r#"{"to":"kim","amount":7,"mode":"block-error"}"#;
const LOST: &str = r#"{"to":"kim","amount":7,"mode":"block-lost"}"#;
const LOU: &str = r#"{"to":"lou","amount":1}"#;

const AFTER_THE_WINDOW: Duration = Duration::from_secs(601);
/// The tool's timeout, and what a call may take beside it.
const AFTER_THE_CALL: Duration = Duration::from_secs(51);

async fn allowing(place: &Place) -> Arc<TestDesk> {
    Arc::new(place.desk(|s| s.pay = Some(Outcome::Allow)).await)
}

#[tokio::test]
async fn a_payment_cancelled_while_it_executed_is_told_as_executed_once_that_is_known() {
    let place = Place::new();
    let (desk, other) = (Arc::new(place.desk(|_| {}).await), place.desk(|_| {}).await);
    desk.pay(KIM).await.is("PENDING_APPROVAL", false);
    let approval = place.only_pending();
    place.approve(&approval);
    let paying = tokio::spawn({
        let desk = Arc::clone(&desk);
        async move { desk.pay(KIM).await }
    });
    place.bank.entered.notified().await;
    place.cancel(&approval.run_id, "stop it");
    for asked in [&*desk, &other] {
        let got = asked.pay(KIM).await;
        assert!(
            got.is("REJECTED", true).contains("it may have been. Nothing further was executed"),
            "{got:?}"
        );
        let status = asked.status_of(&approval).await;
        assert!(status.contains("APPROVED and executed, but it was cut off"), "{status}");
    }
    place.bank.release.notify_one();
    assert_eq!(paying.await.unwrap().text, "paid kim", "whoever waits for the answer gets it");
    let restarted = place.desk(|_| {}).await;
    for asked in [&*desk, &other, &restarted] {
        let got = asked.pay(KIM).await;
        let text = got.is("REJECTED", true);
        assert!(text.contains("\"stop it\"") && text.contains("It was executed all the same"), "{text}");
        assert!(text.ends_with("gave this result: paid kim"), "{text}");
        let status = asked.status_of(&approval).await;
        assert!(status.contains("APPROVED and executed, and it succeeded."), "{status}");
    }
    desk.advance(AFTER_THE_WINDOW);
    desk.pay(KIM).await.is("PENDING_APPROVAL", false);
    assert!(!place.only_pending().is_interruption(), "nothing about the first payment is in doubt");
    assert_eq!(place.bank.payments(), 1);
}

#[tokio::test]
async fn a_failure_after_the_cancellation_is_told_as_the_servers() {
    let place = Place::new();
    let desk = Arc::new(place.desk(|_| {}).await);
    desk.pay(DECLINED).await.is("PENDING_APPROVAL", false);
    let approval = place.only_pending();
    place.approve(&approval);
    let got = desk.pay_cancelled(&place, DECLINED).await;
    assert!(got.is_error && got.text.contains("card declined for kim"), "{got:?}");
    let status = desk.status_of(&approval).await;
    assert!(status.contains("APPROVED and executed, and the server reported a failure: "), "{status}");
    let got = desk.pay(DECLINED).await;
    assert!(got.is("REJECTED", true).contains("it failed with this error: bank/pay: "), "{got:?}");
    desk.advance(AFTER_THE_WINDOW);
    desk.pay(DECLINED).await.is("PENDING_APPROVAL", false);
}

#[tokio::test]
async fn a_cancelled_payment_without_an_answer_stands_in_no_other_ones_way() {
    let place = Place::new();
    let desk = allowing(&place).await;
    let got = desk.pay_cancelled(&place, LOST).await;
    assert!(
        got.is("UNKNOWN_OUTCOME", false).contains("does not run before an operator has agreed"),
        "{got:?}"
    );
    assert_eq!(place.pending(), [], "whoever cancelled it has decided");
    assert_eq!(desk.pay(LOU).await.text, "paid lou");
    let got = desk.pay(LOST).await;
    assert!(got.is("REJECTED", true).contains("it may have been. Nothing further"), "{got:?}");
    desk.advance(AFTER_THE_WINDOW);
    desk.pay(LOST).await.is("UNKNOWN_OUTCOME", false);
    let question = place.question();
    assert_eq!(Attempt::named_in(&question.capability).unwrap().ended, Ended::NoAnswer);
    assert!(desk.pay(LOU).await.is("BLOCKED", true).contains(question.id.as_str()), "now somebody is asked");
    assert_eq!(place.bank.payments(), 2);
}

#[tokio::test]
async fn a_cancelled_payment_whose_process_is_gone_stands_in_no_other_ones_way() {
    let place = Place::new();
    let dead = allowing(&place).await;
    tokio::spawn(async move { dead.pay(KIM).await });
    place.bank.entered.notified().await;
    place.cancel(&place.last_run(), "stop it");
    let desk = allowing(&place).await;
    assert_eq!(desk.pay(LOU).await.text, "paid lou");
    let got = desk.pay(KIM).await;
    assert!(got.is("REJECTED", true).contains("it may have been. Nothing further"), "{got:?}");
    desk.advance(AFTER_THE_WINDOW);
    desk.pay(KIM).await.is("INTERRUPTED", false);
    assert_eq!(Attempt::named_in(&place.question().capability).unwrap().ended, Ended::CutOff);
    assert_eq!(place.bank.payments(), 2);
}

#[tokio::test]
async fn a_rejected_repeat_is_not_told_as_if_nothing_had_run() {
    let place = Place::new();
    let desk = allowing(&place).await;
    let lost = r#"{"to":"kim","amount":7,"mode":"lost"}"#;
    desk.pay(lost).await.is("UNKNOWN_OUTCOME", false);
    let question = place.question();
    place.reject(&question, "it went through");
    let got = desk.pay(lost).await;
    assert!(got.is("REJECTED", true).contains("it may have been. Nothing further was executed"), "{got:?}");
    let status = desk.status_of(&question).await;
    assert!(status.contains("It was not executed again;"), "{status}");
}

#[tokio::test]
async fn nobody_is_asked_about_a_cancelled_payment_while_it_still_executes() {
    let place = Place::new();
    let allow_at_once = |s: &mut Settings| (s.pay, s.window) = (Some(Outcome::Allow), Duration::ZERO);
    let desk = Arc::new(place.desk(allow_at_once).await);
    let paying = Arc::clone(&desk);
    let paying = tokio::spawn(async move { paying.pay(KIM).await });
    place.bank.entered.notified().await;
    place.cancel(&place.last_run(), "stop it");
    desk.pay(KIM).await.is("IN_PROGRESS", false);
    assert_eq!(place.pending(), [], "the answer may still come");
    place.bank.release.notify_one();
    assert_eq!(paying.await.unwrap().text, "paid kim");
    place.bank.release.notify_one();
    assert_eq!(desk.pay(KIM).await.text, "paid kim", "the first is known, and no window speaks for it");
    assert_eq!((place.pending().len(), place.bank.payments()), (0, 2));
}

#[tokio::test]
async fn another_process_asks_nobody_about_a_cancelled_payment_whose_answer_came() {
    let place = Place::new();
    let allow_at_once = |s: &mut Settings| (s.pay, s.window) = (Some(Outcome::Allow), Duration::ZERO);
    let (desk, other) = (place.desk(allow_at_once).await, place.desk(allow_at_once).await);
    let paying = tokio::spawn(async move { desk.pay(KIM).await });
    place.bank.entered.notified().await;
    place.cancel(&place.last_run(), "stop it");
    other.pay(KIM).await.is("IN_PROGRESS", false);
    place.bank.release.notify_one();
    assert_eq!(paying.await.unwrap().text, "paid kim");
    place.bank.release.notify_one();
    assert_eq!(other.pay(KIM).await.text, "paid kim", "the first is known, and no window speaks for it");
    assert_eq!((place.pending().len(), place.bank.payments()), (0, 2));
}

#[tokio::test]
async fn a_question_that_is_cancelled_is_asked_again_at_once_where_no_window_speaks_for_it() {
    let place = Place::new();
    let allow_at_once = |s: &mut Settings| (s.pay, s.window) = (Some(Outcome::Allow), Duration::ZERO);
    let (dead, desk) = (place.desk(allow_at_once).await, place.desk(allow_at_once).await);
    tokio::spawn(async move { dead.pay(KIM).await });
    place.bank.entered.notified().await;
    place.sql("UPDATE runs SET lease_owner = 'dead', lease_expires_at = '2020-01-01T00:00:00Z'");
    desk.pay(KIM).await.is("INTERRUPTED", false);
    let first = place.question();
    place.cancel(&first.run_id, "not like this");
    desk.pay(KIM).await.is("INTERRUPTED", false);
    assert_ne!(place.question().id, first.id, "whoever took the call over hears nothing of it");
}

#[tokio::test]
async fn a_question_says_so_when_the_outcome_that_it_asks_about_became_known() {
    let place = Place::new();
    let allow_at_once = |s: &mut Settings| (s.pay, s.window) = (Some(Outcome::Allow), Duration::ZERO);
    let (desk, other) = (place.desk(allow_at_once).await, place.desk(allow_at_once).await);
    let paying = tokio::spawn(async move { desk.pay(KIM).await });
    place.bank.entered.notified().await;
    place.cancel(&place.last_run(), "stop it");
    // Another process can't know whether the first one still waits for its answer, but for how long it may.
    other.pay(KIM).await.is("IN_PROGRESS", false);
    assert_eq!(place.pending(), [], "the answer may still come");
    other.advance(AFTER_THE_CALL);
    other.pay(KIM).await.is("INTERRUPTED", false);
    let question = place.question();
    let shown = || {
        let waiting = place.operator().read(|reader| Ok(pending_approval(reader, &question.run_id, None)));
        waiting.unwrap().unwrap().attempt_came_to
    };
    assert_eq!(shown(), None);
    place.bank.release.notify_one();
    assert_eq!(paying.await.unwrap().text, "paid kim");
    assert_eq!(shown().unwrap().observation, "tool_result");
    other.pay(KIM).await.is("INTERRUPTED", false);
    assert_eq!((place.question().id, place.bank.payments()), (question.id, 1), "it still waits for a person");
}
