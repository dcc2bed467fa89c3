//! What a proxy's policy decided, put to it again: also where it decided from what only the proxy knew.

use std::sync::Arc;
use std::time::Duration;

use holdpoint_actors::session::{Attached, Gate, GateSpec};
use holdpoint_core::policy::Outcome;
use holdpoint_core::recheck::{Finding, Report};

use super::support::{Place, TestDesk};

async fn allowing(place: &Place) -> TestDesk {
    place.desk(|s| s.pay = Some(Outcome::Allow)).await
}

/// What each evaluation of all runs recorded, the oldest first; all of them must be decided the same again.
#[track_caller]
fn outcomes(reports: &[Report]) -> Vec<&str> {
    let evaluations = || reports.iter().flat_map(|report| &report.evaluations);
    assert!(evaluations().all(|evaluation| evaluation.result != Finding::Different), "{reports:#?}");
    assert!(reports.iter().all(Report::complete), "{reports:#?}");
    let asked = evaluations().filter(|evaluation| evaluation.was_rechecked());
    asked.map(|evaluation| evaluation.recorded.outcome.as_str()).collect()
}

const ASKED: &str = "require_approval";

#[tokio::test]
async fn repeats_of_unknown_outcomes_are_decided_the_same_again() {
    let place = Place::new();
    let desk = allowing(&place).await;
    let lost = r#"{"to":"kim","amount":7,"mode":"lost"}"#;
    desk.pay(lost).await.is("UNKNOWN_OUTCOME", false);
    assert_eq!(
        outcomes(&desk.recheck(&place).await),
        ["allow", ASKED],
        "the attempt, and whether to repeat it"
    );
    // In the same run, and, when its steps are used up, in a fresh one.
    for repeats in 1..=3 {
        place.approve(&place.question());
        desk.pay(lost).await.is("UNKNOWN_OUTCOME", false);
        assert_eq!(place.bank.payments(), repeats + 1);
    }
    let reports = desk.recheck(&place).await;
    assert_eq!(reports.len(), 2);
    assert_eq!(outcomes(&reports), ["allow", ASKED, ASKED, ASKED, ASKED, ASKED, ASKED, ASKED]);
    place.reject(&place.question(), "the bank says no");
    desk.advance(Duration::from_secs(601));
    desk.pay(lost).await.is("UNKNOWN_OUTCOME", false);
    assert_eq!(outcomes(&desk.recheck(&place).await).len(), 9, "asked again after the rejection");

    // Under a policy that denies them, each is another decision; under this one, nothing is.
    let denying = place.desk(|s| s.pay = Some(Outcome::Deny)).await;
    let reports = denying.recheck(&place).await;
    assert_eq!(reports.iter().map(Report::differences).sum::<usize>(), 9);
}

#[tokio::test]
async fn a_denied_repeat_left_no_question_and_counts_as_a_fresh_request() {
    let place = Place::new();
    let desk = allowing(&place).await;
    let lost = r#"{"to":"kim","amount":7,"mode":"lost"}"#;
    desk.pay(lost).await.is("UNKNOWN_OUTCOME", false);
    place.reject(&place.question(), "");
    desk.end().await;
    let denying = place.desk(|s| (s.pay, s.window) = (Some(Outcome::Deny), Duration::ZERO)).await;
    denying.pay(lost).await.is("DENIED", true);
    let reports = allowing(&place).await.recheck(&place).await;
    let denied = &reports[1].evaluations[0];
    assert_eq!((denied.result, denied.recorded.outcome.as_str()), (Finding::Different, "deny"));
    assert_eq!(
        denied.rechecked.as_ref().unwrap().outcome,
        "allow",
        "the record does not say that it repeats one"
    );
}

/// Leaves a payment that had its effect and whose process is gone.
async fn cut_off(place: &Place, args: &'static str) -> TestDesk {
    let desk = Arc::new(allowing(place).await);
    let calling = Arc::clone(&desk);
    let call = tokio::spawn(async move { calling.pay(args).await });
    place.bank.entered.notified().await;
    place.sql("UPDATE runs SET lease_owner = 'dead', lease_expires_at = '2020-01-01T00:00:00Z' WHERE status = 'RUNNING'");
    place.bank.release.notify_one();
    // Its outcome is nobody's: another may hold the run by now.
    call.await.unwrap();
    Arc::into_inner(desk).expect("the call is over")
}

#[tokio::test]
async fn an_attempt_that_was_cut_off_is_named_by_its_own_question_and_is_no_repeat() {
    let place = Place::new();
    let args = r#"{"to":"kim","amount":7,"mode":"block"}"#;
    cut_off(&place, args).await.end().await;
    let desk = allowing(&place).await;
    desk.pay(args).await.is("INTERRUPTED", false);
    let reports = desk.recheck(&place).await;
    assert_eq!(outcomes(&reports), ["allow"], "the pause is no evaluation, and the attempt repeats nothing");
    assert_eq!(reports[0].evaluations[1].result, Finding::NotAnEvaluation);
    place.approve(&place.question());
    place.bank.release.notify_one();
    assert_eq!(desk.pay(args).await.text, "paid kim");
    assert_eq!(outcomes(&desk.recheck(&place).await), ["allow", ASKED]);
}

#[tokio::test]
async fn a_question_that_another_program_asked_about_the_step_itself_is_decided_the_same_again() {
    let place = Place::new();
    let args = r#"{"to":"kim","amount":7,"mode":"block"}"#;
    let dead = cut_off(&place, args).await;
    // A gate without a reconciliation of the proxy's asks in the runtime's own words, which name no attempt.
    let tools = dead.tools.clone();
    let plain =
        Gate::new(dead.tree.clone(), GateSpec::new(Arc::new(holdpoint_actors::policy::DefaultPolicy), tools));
    let attached = plain.unwrap().attach(place.last_run()).await;
    assert!(matches!(attached, Ok(Attached::Pending(..))), "{attached:?}");
    dead.end().await;
    let desk = allowing(&place).await;
    place.approve(&place.question());
    // The proxy's own words are another question, asked when the first is collected.
    desk.pay(args).await.is("INTERRUPTED", false);
    place.approve(&place.question());
    place.bank.release.notify_one();
    assert_eq!(desk.pay(args).await.text, "paid kim");
    assert_eq!(outcomes(&desk.recheck(&place).await), ["allow", ASKED, ASKED]);
}
