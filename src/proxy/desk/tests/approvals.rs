//! Calls that a person decides.

use std::sync::Arc;
use std::time::Duration;

use holdpoint_core::ids::RunId;
use holdpoint_core::json::Json;
use holdpoint_core::policy::Outcome;

use super::support::Place;
use crate::proxy::journal::Journal;

const KIM: &str = r#"{"to":"kim","amount":10}"#;

#[tokio::test]
async fn an_approved_request_is_collected_once() {
    let place = Place::new();
    let desk = place.desk(|_| {}).await;
    let pending = desk.pay(KIM).await;
    let approval = place.only_pending();
    assert!(pending.is("PENDING_APPROVAL", false).contains(approval.id.as_str()));
    assert_eq!(desk.pay(KIM).await, pending, "the same request waits with the same approval");
    let hints = desk.journal.lines();
    assert_eq!(hints.len(), 2, "{hints:?}");
    assert!(hints[0].contains(approval.id.as_str()) && hints[0].contains("bank_pay"), "{}", hints[0]);
    assert!(
        hints[1].contains(&format!("approve {} --approval {}", approval.run_id, approval.id)),
        "{}",
        hints[1]
    );
    assert_eq!(place.bank.payments(), 0);
    place.approve(&approval);
    assert_eq!(desk.pay(KIM).await.text, "paid kim");
    desk.pay(KIM).await.is("DUPLICATE", true);
    assert_eq!(place.bank.payments(), 1);
    let events = [
        "run.created",
        "run.started",
        "step.started",
        "step.decided",
        "step.policy",
        "approval.requested",
        "approval.decided",
        "run.resumed",
        "step.policy",
        "step.tool_started",
        "step.tool_finished",
        "run.finished",
    ];
    assert_eq!(place.events(&approval.run_id), events);
}

/// An operator who says yes as soon as the line comes that asks them, which is before the host is answered.
#[derive(Debug)]
struct AtOnce(Arc<Place>);

impl Journal for AtOnce {
    fn line(&self, text: &str) {
        if text.contains("waits for an operator") {
            self.0.approve(&self.0.only_pending());
        }
    }
}

#[tokio::test]
async fn a_call_that_is_approved_before_its_host_is_answered_runs_at_once() {
    let place = Arc::new(Place::new());
    let desk = place.desk(|s| s.reads_along = Some(Arc::new(AtOnce(Arc::clone(&place))))).await;
    assert_eq!(desk.pay(KIM).await.text, "paid kim");
    assert_eq!(place.bank.payments(), 1);
}

#[tokio::test]
async fn an_approval_within_the_hold_completes_the_call() {
    let place = Place::new();
    let desk = Arc::new(place.desk(|s| s.hold = Duration::from_secs(30)).await);
    let calling = tokio::spawn({
        let desk = Arc::clone(&desk);
        async move { desk.pay(KIM).await }
    });
    let approval = loop {
        match place.pending().pop() {
            Some(approval) => break approval,
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    place.approve(&approval);
    assert_eq!(calling.await.unwrap().text, "paid kim");
    assert_eq!(place.bank.payments(), 1);
}

#[tokio::test]
async fn a_cancellation_within_the_hold_ends_it_and_is_told() {
    let place = Place::new();
    let desk = Arc::new(place.desk(|s| s.hold = Duration::from_secs(3600)).await);
    let calling = tokio::spawn({
        let desk = Arc::clone(&desk);
        async move { desk.pay(KIM).await }
    });
    let approval = loop {
        match place.pending().pop() {
            Some(approval) => break approval,
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    place.cancel(&approval.run_id, "stop it");
    let got = calling.await.unwrap();
    assert!(got.is("REJECTED", true).contains("\"stop it\""), "{got:?}");
}

#[tokio::test]
async fn the_end_of_the_session_ends_a_hold() {
    let place = Place::new();
    let desk = Arc::new(place.desk(|s| s.hold = Duration::from_secs(3600)).await);
    let calling = tokio::spawn({
        let desk = Arc::clone(&desk);
        async move { desk.pay(KIM).await }
    });
    while place.pending().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    desk.desk.begin_end();
    calling.await.unwrap().is("PENDING_APPROVAL", false);
}

#[tokio::test]
async fn without_a_window_the_same_request_asks_again() {
    let place = Place::new();
    let desk = place.desk(|s| s.window = Duration::ZERO).await;
    desk.pay(KIM).await.is("PENDING_APPROVAL", false);
    let first = place.only_pending();
    place.approve(&first);
    assert_eq!(desk.pay(KIM).await.text, "paid kim");
    desk.pay(KIM).await.is("PENDING_APPROVAL", false);
    assert_ne!(place.only_pending().id, first.id);
}

#[tokio::test]
async fn a_rejection_holds_for_the_window() {
    let place = Place::new();
    let desk = place.desk(|_| {}).await;
    desk.pay(KIM).await;
    place.reject(&place.only_pending(), "not \u{1b}today");
    let got = desk.pay(KIM).await;
    assert!(got.is("REJECTED", true).contains("\"not \\\\x1btoday\""), "{got:?}");
    desk.advance(Duration::from_secs(601));
    desk.pay(KIM).await.is("PENDING_APPROVAL", false);
    assert_eq!(place.bank.payments(), 0);
}

#[tokio::test]
async fn an_operators_cancellation_holds_for_the_window() {
    let place = Place::new();
    let desk = place.desk(|_| {}).await;
    desk.pay(KIM).await;
    let waiting = place.only_pending();
    place.cancel(&waiting.run_id, "stop it");
    let got = desk.pay(KIM).await;
    assert!(got.is("REJECTED", true).contains("\"stop it\". It was not executed."), "{got:?}");
    desk.advance(Duration::from_secs(601));
    desk.pay(KIM).await.is("PENDING_APPROVAL", false);
}

#[tokio::test]
async fn an_approval_that_ran_out_is_not_asked_for_again_within_the_window() {
    let place = Place::new();
    let desk = place.desk(|s| s.approval_ttl = Duration::from_secs(60)).await;
    desk.pay(KIM).await;
    let approval = place.only_pending();
    desk.advance(Duration::from_secs(61));
    let got = desk.pay(KIM).await;
    assert!(got.is("EXPIRED", true).contains(approval.id.as_str()), "{got:?}");
    desk.pay(KIM).await.is("EXPIRED", true);
    desk.advance(Duration::from_secs(601));
    desk.pay(KIM).await.is("PENDING_APPROVAL", false);
}

#[tokio::test]
async fn a_grant_that_nobody_collected_in_time_executes_nothing() {
    let place = Place::new();
    let desk = place.desk(|s| s.grant_ttl = Duration::from_secs(60)).await;
    desk.pay(KIM).await;
    let approval = place.only_pending();
    place.approve(&approval);
    desk.advance(Duration::from_secs(61));
    assert!(desk.pay(KIM).await.is("EXPIRED", true).contains(approval.id.as_str()));
    assert_eq!(place.bank.payments(), 0);
    assert!(desk.status_of(&approval).await.contains(": EXPIRED"));
}

#[tokio::test]
async fn the_policy_is_asked_again_at_collection() {
    let place = Place::new();
    let desk = place.desk(|_| {}).await;
    desk.pay(KIM).await;
    let approval = place.only_pending();
    place.approve(&approval);
    let stricter = place.desk(|s| s.pay = Some(Outcome::Deny)).await;
    stricter.pay(KIM).await.is("DENIED", true);
    assert_eq!(place.bank.payments(), 0);
    assert!(desk.status_of(&approval).await.contains("the policy denied it when it was collected"));
}

#[tokio::test]
async fn a_changed_fixed_value_asks_anew() {
    let place = Place::new();
    let euro = place.desk(|s| drop(s.fixed.insert("currency".into(), Json::trusted("\"EUR\"")))).await;
    euro.pay(KIM).await;
    let first = place.only_pending();
    place.approve(&first);
    let dollar = place.desk(|s| drop(s.fixed.insert("currency".into(), Json::trusted("\"USD\"")))).await;
    dollar.pay(KIM).await.is("PENDING_APPROVAL", false);
    let second = place.only_pending();
    assert_ne!(second.id, first.id);
    assert!(second.capability.as_str().contains(r#""fixed":{"currency":"USD"}"#), "{}", second.capability);
    assert_eq!(place.bank.payments(), 0);
    assert!(dollar.status_of(&first).await.contains(&format!("(approval {})", second.id)));
    place.approve(&second);
    assert_eq!(dollar.pay(KIM).await.text, "paid kim");
}

#[tokio::test]
async fn requests_wait_side_by_side_up_to_the_cap() {
    let place = Place::new();
    let desk = place.desk(|s| s.max_pending = 2).await;
    for to in ["a", "b"] {
        desk.pay(&format!(r#"{{"to":"{to}","amount":1}}"#)).await.is("PENDING_APPROVAL", false);
    }
    let got = desk.pay(r#"{"to":"c","amount":1}"#).await;
    assert!(got.is("BLOCKED", true).contains("2 requests"), "{got:?}");
    assert_eq!(place.pending().len(), 2);
    assert_eq!(desk.call("bank_balance", r#"{"account":"a"}"#).await.text, "42");
    desk.pay(r#"{"to":"a","amount":1}"#).await.is("PENDING_APPROVAL", false);
    place.approve(&place.pending()[0]);
    desk.pay(r#"{"to":"c","amount":1}"#).await.is("PENDING_APPROVAL", false);
}

#[tokio::test]
async fn the_cap_is_exact_across_proxies() {
    let place = Place::new();
    let desks = Arc::new([place.desk(|_| {}).await, place.desk(|_| {}).await]);
    let calls: Vec<_> = (0..16)
        .map(|n| {
            let desks = Arc::clone(&desks);
            tokio::spawn(async move { desks[n % 2].pay(&format!(r#"{{"to":"p{n}","amount":1}}"#)).await })
        })
        .collect();
    for call in calls {
        let got = call.await.unwrap();
        assert!(
            ["PENDING_APPROVAL", "BLOCKED", "IN_PROGRESS"].iter().any(|p| got.text.starts_with(p)),
            "{got:?}"
        );
    }
    assert_eq!(place.pending().len(), 5);
}

#[tokio::test]
async fn arguments_that_the_gate_refuses_never_collect_a_grant() {
    let place = Place::new();
    let desk = place.desk(|_| {}).await;
    desk.pay(KIM).await;
    place.approve(&place.only_pending());
    for lookalike in [
        r#"{"to":"kim","to":"kim","amount":10}"#,
        r#"{"to":"kim","amount":10,"amount":10}"#,
        r#"{"to":"kim","amount":1e99999999}"#,
        r#"{"to":"kim\ud800","amount":10}"#,
    ] {
        desk.pay(lookalike).await.is("INVALID", true);
    }
    assert_eq!(place.bank.payments(), 0);
    assert_eq!(desk.pay(KIM).await.text, "paid kim");
}

#[tokio::test]
async fn the_status_tool_reports_and_leaves_no_trace() {
    let place = Place::new();
    let desk = place.desk(|_| {}).await;
    let nothing = desk.call("gate_status", "{}").await;
    assert!(nothing.is("GATE_STATUS", false).contains("no request"), "{nothing:?}");
    desk.pay(KIM).await;
    let kim = place.only_pending();
    desk.advance(Duration::from_secs(90));
    desk.pay(r#"{"to":"lou\u202e", "amount":1}"#).await;
    let lou = place.pending().pop().unwrap();
    let runs = place.rows().len();
    let all = desk.call("gate_status", "null").await;
    let text = all.is("GATE_STATUS", false);
    assert!(text.contains("2 requests") && text.contains("PENDING for 1m30s"), "{text}");
    assert!(text.contains(&format!("approval {} for bank_pay {}", kim.id, KIM)), "{text}");
    assert!(text.contains(r#"bank_pay {"to":"lou\u{202e}","amount":1}: "#), "{text}");
    place.approve(&kim);
    place.reject(&lou, "no");
    assert!(desk.status_of(&kim).await.contains("APPROVED, awaiting collection"));
    assert!(desk.status_of(&lou).await.contains("REJECTED by an operator. The operator noted: \"no\"."));
    for bad in [r#"{"x":1}"#, "[]", r#"{"approval_id":7}"#, r#"{"approval_id":"a","approval_id":"b"}"#] {
        desk.call("gate_status", bad).await.is("INVALID", true);
    }
    let unknown = desk.call("gate_status", r#"{"approval_id":" nobody\u001b "}"#).await;
    assert!(
        unknown.is("GATE_STATUS", false).contains("no approval nobody\\x1b of the last hour"),
        "{unknown:?}"
    );
    assert_eq!((place.rows().len(), place.bank.payments()), (runs, 0));
    desk.pay(KIM).await;
    assert!(desk.status_of(&kim).await.contains("APPROVED and executed, and it succeeded."));
}

#[tokio::test]
async fn a_model_is_never_told_of_a_run_a_path_or_a_command() {
    let place = Place::new();
    let desk = place.desk(|s| s.max_pending = 2).await;
    let mut seen = Vec::new();
    for args in [KIM, KIM, r#"{"to":"b","amount":1}"#, r#"{"to":"c","amount":1}"#, r#"{"to":"c"}"#] {
        seen.push(desk.pay(args).await.text);
    }
    let waiting = place.pending();
    seen.push(desk.call("gate_status", "{}").await.text);
    place.approve(&waiting[0]);
    place.reject(&waiting[1], "no");
    for args in [KIM, KIM, r#"{"to":"b","amount":1}"#, r#"{"to":"d","amount":1,"mode":"x"}"#] {
        seen.push(desk.pay(args).await.text);
    }
    seen.push(desk.call("bank_refund", r#"{"to":"b","amount":1}"#).await.text);
    seen.push(desk.status_of(&waiting[0]).await);
    seen.extend(desk.desk.listing());
    let runs: Vec<RunId> = place.rows().into_iter().map(|(run, ..)| run).collect();
    let path = place.path.to_str().unwrap();
    for text in &seen {
        let low = text.to_lowercase();
        assert!(!low.contains("holdpoint") && !low.contains("agentrt") && !text.contains(path), "{text}");
        assert!(!runs.iter().any(|run| text.contains(run.as_str())), "{text}");
    }
    assert!(seen.len() > 12);
}

#[tokio::test]
async fn the_status_tool_says_why_an_approved_request_was_not_executed() {
    let place = Place::new();
    let desk = place.desk(|_| {}).await;
    desk.pay(KIM).await;
    let approval = place.only_pending();
    place.approve(&approval);
    place.cancel(&approval.run_id, "changed my mind");
    assert!(desk.status_of(&approval).await.contains("APPROVED but not executed: an operator cancelled it."));
    let failing = r#"{"to":"oli","amount":2,"mode":"error"}"#;
    desk.pay(failing).await;
    let declined = place.only_pending();
    place.approve(&declined);
    assert!(desk.pay(failing).await.is_error);
    let status = desk.status_of(&declined).await;
    assert!(status.contains("APPROVED and executed, and the server reported a failure: "), "{status}");
    assert!(status.contains("card declined for oli"), "{status}");
}

#[tokio::test]
async fn the_status_tool_does_not_call_a_cancelled_request_pending() {
    let place = Place::new();
    let desk = place.desk(|_| {}).await;
    desk.pay(KIM).await;
    let approval = place.only_pending();
    place.cancel(&approval.run_id, "not today");
    let all = desk.call("gate_status", "{}").await;
    assert!(all.is("GATE_STATUS", false).contains("no request of this session waits"), "{all:?}");
    let status = desk.status_of(&approval).await;
    assert!(status.contains("CLOSED without a decision: an operator cancelled it."), "{status}");
}
