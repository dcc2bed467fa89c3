//! Tests of the answers: prefix, `isError`, and what a text may not contain.

use serde_json::Value;

use super::*;

const AT: UnixNanos = UnixNanos::from_nanos(1_700_000_000_500_000_000);

fn every_answer() -> Vec<Answer> {
    let approval = ApprovalId::from("a1");
    let mut all = vec![
        Answer::PendingApproval { approval: approval.clone() },
        Answer::InProgress,
        Answer::Interrupted { approval: approval.clone() },
        Answer::UnknownOutcome { ended: Ended::TimedOut, error: None, approval: None },
        Answer::UnknownOutcome {
            ended: Ended::NoAnswer,
            error: Some("connection closed".into()),
            approval: Some(approval.clone()),
        },
        Answer::Unrecorded { reason: "too deep".into(), window: Duration::from_secs(600) },
        Answer::Unrecorded { reason: "too deep".into(), window: Duration::ZERO },
        Answer::Denied { reason: "because".into() },
        Answer::Invalid { reason: "to is missing".into() },
        Answer::Rejected {
            approval: approval.clone(),
            note: "not \"today\"".into(),
            until: AT,
            came_to: Executed::No,
        },
        Answer::Rejected {
            approval: approval.clone(),
            note: " ".into(),
            until: AT,
            came_to: Executed::Perhaps,
        },
        Answer::Cancelled { note: "stop".into(), until: AT, came_to: Executed::No },
        Answer::Cancelled { note: "stop".into(), until: AT, came_to: Executed::Yes("it succeeded".into()) },
        Answer::Expired { approval: Some(approval.clone()), until: AT },
        Answer::Expired { approval: None, until: AT },
        Answer::Duplicate { at: AT, window: Duration::from_secs(90), outcome: "it succeeded".into() },
        Answer::BlockedByUnknown { tool: "bank_pay".into(), approval },
        Answer::BlockedByCap { max: 5 },
        Answer::GateStatus("nothing waits".into()),
    ];
    use Unavailable as U;
    for what in [
        U::Records,
        U::Record,
        U::Start,
        U::Collect,
        U::Recover,
        U::Ask,
        U::NoTools,
        U::Busy,
        U::NotSent,
        U::Outcome,
        U::Status,
    ] {
        all.push(Answer::Unavailable(what));
    }
    all
}

#[test]
fn every_answer_reads_as_it_was_written() {
    let all: Vec<String> = every_answer()
        .iter()
        .map(|a| format!("{}{}", a.text(), if a.is_error() { " [isError]" } else { "" }))
        .collect();
    insta::assert_snapshot!(all.join("\n\n"));
}

#[test]
fn no_answer_names_a_command_or_a_run() {
    for answer in every_answer() {
        let text = answer.text().to_lowercase();
        for word in ["holdpoint", "agentrt", "command", "database", "config", "sqlite", " run s.", "/"] {
            assert!(!text.contains(word), "{word}: {text}");
        }
    }
}

#[test]
fn text_that_somebody_chose_is_escaped_and_cut() {
    let hostile = "\u{1b}[2J\u{202e}\n".repeat(400);
    let bounded = [
        (Answer::Denied { reason: hostile.clone() }, REASON_BYTES_MAX),
        (Answer::Invalid { reason: hostile.clone() }, INVALID_BYTES_MAX),
        (Answer::Unrecorded { reason: hostile.clone(), window: Duration::ZERO }, REASON_BYTES_MAX),
        (
            Answer::Cancelled { note: hostile.clone(), until: AT, came_to: Executed::Perhaps },
            2 * REASON_BYTES_MAX,
        ),
        (
            Answer::UnknownOutcome { ended: Ended::NoAnswer, error: Some(hostile), approval: None },
            REASON_BYTES_MAX,
        ),
    ];
    for (answer, bound) in bounded {
        let text = answer.text();
        assert!(text.len() < bound + 700, "{}", text.len());
        assert!(!text.contains(['\u{1b}', '\u{202e}', '\n']), "{text}");
        assert!(text.contains('…'));
    }
}

fn result_of(kind: ObservationKind, content: &str) -> Value {
    let observation = Observation::new(kind, Json::trusted(content), "");
    serde_json::from_str(&of_observation(&observation).unwrap()).unwrap()
}

#[test]
fn a_result_goes_back_as_it_was_recorded() {
    let text = result_of(ObservationKind::ToolResult, "\"line\\n\\u001b[31m\u{202e}\"");
    assert_eq!(text["content"][0]["text"], "line\n\u{1b}[31m\u{202e}");
    assert_eq!(text.get("structuredContent"), None);
    let object = of_observation(&Observation::new(
        ObservationKind::ToolResult,
        Json::trusted(r#"{"n":123456789012345678901234567890,"d":1.10}"#),
        "",
    ))
    .unwrap();
    assert!(
        object.ends_with(r#""structuredContent":{"n":123456789012345678901234567890,"d":1.10}}"#),
        "{object}"
    );
    let list = result_of(ObservationKind::ToolResult, "[1,2]");
    assert_eq!((list["content"][0]["text"].as_str(), list.get("structuredContent")), (Some("[1,2]"), None));
    assert_eq!(list.get("isError"), None);
}

#[test]
fn a_servers_failure_is_an_error_with_its_text_escaped() {
    let failed =
        result_of(ObservationKind::ToolError, r#"{"error":"declined\n\u001b[31m","failure":"error"}"#);
    assert_eq!(failed["isError"], true);
    assert_eq!(failed["content"][0]["text"], "declined \\x1b[31m");
    assert_eq!(
        of_observation(&Observation::new(ObservationKind::PolicyDenied, Json::empty_object(), "")),
        None
    );
}

#[test]
fn a_repeated_call_is_told_what_came_of_the_first() {
    let outcome = |kind, content: &str| recorded_outcome(&Observation::new(kind, Json::trusted(content), ""));
    assert!(outcome(ObservationKind::ToolResult, "\"paid\"").ends_with("result: paid"));
    assert!(outcome(ObservationKind::ToolError, r#"{"error":"no"}"#).ends_with("error: no"));
    let unrecordable = outcome(ObservationKind::ToolError, r#"{"error":"deep","failure":"invalid_content"}"#);
    assert!(unrecordable.contains("could not be recorded: deep"), "{unrecordable}");
    let odd = outcome(ObservationKind::ToolError, "[7]");
    assert!(odd.ends_with("[7]"), "{odd}");
}
