//! What runs, what is refused, what is repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdpoint_actors::clock::{Mint, RandomMint};
use holdpoint_core::policy::Outcome;
use serde_json::Value;

use super::support::{Place, Settings};
use crate::proxy::front::{CallAnswer, Cancelled, HostCall};

const ALLOWED: [&str; 8] = [
    "run.created",
    "run.started",
    "step.started",
    "step.decided",
    "step.policy",
    "step.tool_started",
    "step.tool_finished",
    "run.finished",
];

#[tokio::test]
async fn the_tools_are_listed_in_order_and_the_status_tool_last() {
    let place = Place::new();
    let desk = place.desk(|_| {}).await;
    let listed: Vec<Value> =
        desk.desk.listing().iter().map(|tool| serde_json::from_str(tool).unwrap()).collect();
    let names: Vec<&str> = listed.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["bank_balance", "bank_pay", "bank_refund", "gate_status"]);
    assert_eq!(listed[1]["inputSchema"]["required"][0], "to");
    assert_eq!(listed[3]["inputSchema"]["additionalProperties"], false);
    let keys: Vec<&String> = listed[1].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["name", "description", "inputSchema"]);
}

#[tokio::test]
async fn an_allowed_read_runs_and_is_recorded() {
    let place = Place::new();
    let desk = place.desk(|_| {}).await;
    for _ in 0..2 {
        let got = desk.call("bank_balance", r#"{"account":"a"}"#).await;
        assert_eq!((got.text.as_str(), got.is_error), ("42", false));
    }
    let rows = place.rows();
    assert_eq!(
        rows.iter().map(|(_, open, outcome)| (*open, *outcome)).collect::<Vec<_>>(),
        [(false, 2), (true, 2)]
    );
    assert_eq!(place.events(&rows[0].0), ALLOWED);
    assert_eq!(place.origins(&rows[0].0), ["model"]);
    assert!(rows[0].0.as_str().len() == 18 && rows[0].0.as_str().starts_with("s."), "{}", rows[0].0);
}

#[tokio::test]
async fn denied_and_invalid_calls_run_nothing_and_may_be_made_again() {
    let place = Place::new();
    let desk = place.desk(|_| {}).await;
    for _ in 0..2 {
        let got = desk.call("bank_refund", r#"{"to":"a","amount":1}"#).await;
        assert!(got.is("DENIED", true).contains("destructive"), "{got:?}");
    }
    let denied = [
        "run.created",
        "run.started",
        "step.started",
        "step.decided",
        "step.policy",
        "step.failed",
        "step.started",
        "step.decided",
        "run.finished",
    ];
    assert_eq!(place.events(&place.last_run()), denied);
    assert_eq!(place.origins(&place.last_run()), ["model", "operator"], "who ends a run is the gate");
    for bad in
        [r#"{"to":"a"}"#, r#"{"to":"a","to":"b","amount":1}"#, r#"{"to":"\ud800","amount":1}"#, "[1", "7"]
    {
        for _ in 0..2 {
            let got = desk.pay(bad).await;
            got.is("INVALID", true);
        }
    }
    let invalid: Vec<&str> = denied.into_iter().filter(|kind| *kind != "step.policy").collect();
    assert_eq!(place.events(&place.last_run()), invalid);
    assert_eq!((place.bank.payments(), place.pending().len()), (0, 0));
    assert!(place.rows().iter().all(|(_, _, outcome)| *outcome == 1), "no tool started: {:?}", place.rows());
}

#[tokio::test]
async fn an_allowed_payment_runs_once_within_its_window() {
    let place = Place::new();
    let desk = place.desk(|s| s.pay = Some(Outcome::Allow)).await;
    let args = r#"{"to":"kim","amount":10}"#;
    assert_eq!(desk.pay(args).await.text, "paid kim");
    assert_eq!(place.events(&place.last_run()), ALLOWED);
    for same in [args, r#"{ "amount": 10, "to": "\u006bim" }"#] {
        assert!(desk.pay(same).await.is("DUPLICATE", true).contains("paid kim"));
    }
    for other in
        [r#"{"to":"Kim","amount":10}"#, r#"{"to":"kim","amount":10.0}"#, r#"{"to":"kim","amount":1e1}"#]
    {
        assert!(!desk.pay(other).await.is_error, "{other}");
    }
    assert_eq!(place.bank.payments(), 4);
    desk.advance(Duration::from_secs(601));
    assert_eq!(desk.pay(args).await.text, "paid kim");
}

#[tokio::test]
async fn a_servers_failure_is_told_and_counts_as_executed() {
    let place = Place::new();
    let desk = place.desk(|s| s.pay = Some(Outcome::Allow)).await;
    let args = r#"{"to":"oli","amount":2,"mode":"error"}"#;
    let failed = desk.pay(args).await;
    assert!(failed.is_error && failed.text.contains("card declined for oli"), "{failed:?}");
    assert!(desk.pay(args).await.is("DUPLICATE", true).contains("card declined for oli"));
    assert_eq!((place.bank.payments(), place.pending().len()), (1, 0));
    let run = place.last_run();
    assert_eq!(place.steps(&run).len(), 2, "the call and the decision that ends its run");
    let finished = place.events(&run);
    assert_eq!(
        finished[6..],
        ["step.tool_finished", "step.failed", "step.started", "step.decided", "run.finished"]
    );
}

#[tokio::test]
async fn a_structured_result_goes_back_whole() {
    let place = Place::new();
    let desk = place.desk(|s| s.pay = Some(Outcome::Allow)).await;
    let got = desk.pay(r#"{"to":"pia","amount":2,"mode":"structured"}"#).await;
    assert_eq!(got.structured.unwrap()["amount"].to_string(), "1.50");
    assert_eq!(got.text, r#"{"to":"pia","amount":1.50}"#);
}

#[tokio::test]
async fn an_answer_that_cannot_be_recorded_counts_as_executed() {
    let place = Place::new();
    let desk = place.desk(|s| s.pay = Some(Outcome::Allow)).await;
    let args = r#"{"to":"ned","amount":2,"mode":"deep"}"#;
    let got = desk.pay(args).await;
    let text = got.is("UNRECORDED", false);
    assert!(text.contains("nested deeper than 256 levels") && text.contains("10m0s"), "{text}");
    assert!(desk.pay(args).await.is("DUPLICATE", true).contains("could not be recorded"));
    assert!(!desk.pay(r#"{"to":"other","amount":1}"#).await.is_error, "the tool is not blocked");
}

#[tokio::test]
async fn a_call_that_never_left_is_unavailable_and_may_be_made_again() {
    let place = Place::new();
    let desk = place.desk(|s| s.pay = Some(Outcome::Allow)).await;
    let args = r#"{"to":"zed","amount":2,"mode":"unsent"}"#;
    for _ in 0..2 {
        desk.pay(args).await.is("UNAVAILABLE", true);
    }
    assert_eq!((place.bank.payments(), place.pending().len()), (0, 0));
    assert!(place.rows().iter().all(|(_, _, outcome)| *outcome == 1), "{:?}", place.rows());
}

#[tokio::test]
async fn a_policy_that_panics_runs_nothing_and_why_is_told_to_the_operator_alone() {
    let place = Place::new();
    let desk = place.desk(|s| (s.pay, s.policy_breaks) = (Some(Outcome::Allow), true)).await;
    let got = desk.pay(r#"{"to":"kim","amount":3}"#).await;
    let (text, run) = (got.is("UNAVAILABLE", true), place.last_run());
    assert!(!text.contains(run.as_str()) && !text.contains("test breaks"), "{text}");
    let told = format!("error: run {run}: policy: panic: a test breaks at run {run}");
    assert!(desk.journal.lines().contains(&told), "{:?}", desk.journal.lines());
    assert_eq!(place.bank.payments(), 0);
}

#[tokio::test]
async fn a_host_that_cancels_stops_no_tool() {
    let place = Place::new();
    let desk = Arc::new(place.desk(|s| s.pay = Some(Outcome::Allow)).await);
    let args = r#"{"to":"kim","amount":3,"mode":"block"}"#;
    let calling = tokio::spawn({
        let desk = Arc::clone(&desk);
        async move { desk.call_with("bank_pay", args, Cancelled::already()).await }
    });
    place.bank.entered.notified().await;
    desk.pay(args).await.is("IN_PROGRESS", false);
    place.bank.release.notify_one();
    assert_eq!(calling.await.unwrap().text, "paid kim");
    assert!(desk.pay(args).await.is("DUPLICATE", true).contains("paid kim"));
}

#[tokio::test]
async fn identical_calls_of_two_proxies_run_once() {
    let place = Place::new();
    let desks = [
        place.desk(|s| s.pay = Some(Outcome::Allow)).await,
        place.desk(|s| s.pay = Some(Outcome::Allow)).await,
    ];
    let desks = Arc::new(desks);
    let calls: Vec<_> = (0..20)
        .map(|n| {
            let desks = Arc::clone(&desks);
            tokio::spawn(async move { desks[n % 2].pay(r#"{"to":"kim","amount":3}"#).await })
        })
        .collect();
    let mut paid = 0;
    for call in calls {
        let got = call.await.unwrap();
        paid += usize::from(got.text == "paid kim");
        assert!(
            ["paid kim", "IN_PROGRESS", "DUPLICATE"].iter().any(|text| got.text.starts_with(text)),
            "{got:?}"
        );
    }
    assert_eq!((paid, place.bank.payments()), (1, 1));
}

#[tokio::test]
async fn a_row_whose_run_nobody_began_is_begun_under_its_id() {
    let place = Place::new();
    let desk = place.desk(|s| s.pay = Some(Outcome::Allow)).await;
    let key = holdpoint_core::hash::request_key("bank_pay", Some(br#"{"to":"kim","amount":3}"#)).unwrap();
    place.sql(&format!(
        "INSERT INTO proxy_calls (session, request_key, tool, side_effect, run_id, created_at, settled_at, outcome)
         VALUES ('s', '{key}', 'bank_pay', 'remote_mutation', 's.0123456789abcdef', 1, 7, 1)"
    ));
    assert_eq!(desk.pay(r#"{"to":"kim","amount":3}"#).await.text, "paid kim");
    assert_eq!(place.rows().iter().map(|(run, ..)| run.as_str()).collect::<Vec<_>>(), ["s.0123456789abcdef"]);
    assert_eq!(place.rows()[0].2, 2, "it was unsettled, and then settled by what came of it");
}

#[tokio::test]
async fn no_call_begins_once_the_end_has_begun() {
    let place = Place::new();
    let desk = place.desk(|_| {}).await;
    desk.desk.begin_end();
    let call = HostCall {
        name: "bank_balance".into(),
        arguments: Some(br#"{"account":"a"}"#.to_vec()),
        progress: None,
        cancelled: Cancelled::never(),
    };
    assert!(matches!(desk.desk.take(call).await, CallAnswer::ShuttingDown));
    desk.end().await;
    assert_eq!(place.rows(), []);
}

/// Draws one short id for the first two runs, and others after that.
#[derive(Debug, Default)]
struct Repeating(AtomicU64);

impl Mint for Repeating {
    fn id(&self) -> String {
        RandomMint.id()
    }

    fn short_id(&self) -> String {
        let drawn = self.0.fetch_add(1, Ordering::SeqCst);
        format!("{:016x}", drawn.saturating_sub(1))
    }
}

#[tokio::test]
async fn a_call_whose_run_id_is_taken_is_decided_again_under_another() {
    let place = Place::new();
    let mint = Arc::new(Repeating::default());
    let change = |s: &mut Settings| {
        s.mint = Arc::clone(&mint) as Arc<dyn Mint>;
        s.pay = Some(Outcome::Allow);
    };
    let desk = place.desk(change).await;
    for to in ["kim", "lou"] {
        let got = desk.pay(&format!(r#"{{"to":"{to}","amount":1}}"#)).await;
        assert_eq!(got.text, format!("paid {to}"));
    }
    let runs: Vec<String> = place.rows().into_iter().map(|(run, _, _)| run.to_string()).collect();
    assert_eq!(runs, ["s.0000000000000000", "s.0000000000000001"]);
    assert_eq!(mint.0.load(Ordering::SeqCst), 3, "the second call drew twice");
    assert_eq!(place.bank.payments(), 2);
}
