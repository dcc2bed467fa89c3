//! The step's machine against the table of the specification, written out, and the stored form of observations.

use super::StepStatus::{AwaitingApproval as Awaiting, Deciding, Done, Executing, Failed, Interrupted};
use super::*;

/// The columns are the statuses in the order of [`StepStatus::ALL`]: deciding, awaiting, executing, done, failed,
/// interrupted.
const TABLE: &[(StepEvent, [Option<StepStatus>; 6])] = &[
    (StepEvent::ToolStarted, [Some(Executing), Some(Executing), None, None, None, None]),
    (StepEvent::Paused, [Some(Awaiting), Some(Awaiting), None, None, None, Some(Awaiting)]),
    (StepEvent::Succeeded, [Some(Done), None, Some(Done), None, None, None]),
    (StepEvent::Failed, [Some(Failed), Some(Failed), Some(Failed), None, None, Some(Failed)]),
    (StepEvent::CutOff, [Some(Interrupted), None, Some(Interrupted), None, None, None]),
];

#[test]
fn every_move_of_a_step_is_the_one_in_the_table_or_refused() {
    for (event, row) in TABLE {
        for (from, to) in StepStatus::ALL.into_iter().zip(row) {
            let expected = to.ok_or(IllegalStepMove { from, event: *event });
            assert_eq!(from.after(*event), expected, "{from} by {event:?}");
        }
    }
}

#[test]
fn the_names_of_statuses_and_kinds_are_those_of_the_record() {
    let names = ["deciding", "awaiting_approval", "executing", "done", "failed", "interrupted"];
    for (status, name) in StepStatus::ALL.into_iter().zip(names) {
        assert_eq!(status.to_string(), name);
        assert_eq!(StepStatus::parse(name), Some(status));
        assert_eq!(status.is_final(), matches!(status, Done | Failed));
    }
    assert_eq!(StepStatus::parse("Done"), None);
    let kinds = [
        (ObservationKind::ToolResult, "tool_result", false),
        (ObservationKind::ToolError, "tool_error", true),
        (ObservationKind::PolicyDenied, "policy_denied", true),
        (ObservationKind::InvalidDecision, "invalid_decision", true),
        (ObservationKind::Interrupted, "interrupted", true),
    ];
    for (kind, name, failure) in kinds {
        assert_eq!(kind.as_str(), name);
        assert_eq!(Observation::new(kind, Json::empty_object(), "").is_failure(), failure, "{name}");
    }
    assert_eq!(Deciding.as_str(), "deciding");
}

#[test]
fn an_observation_is_stored_with_the_hash_of_its_canonical_content() {
    let content = Json::trusted("{ \"b\": 1.0, \"a\": \"<\" }");
    let observation = Observation::new(ObservationKind::ToolResult, content, "two <fields>");
    let hash = hash::sha256_hex(br#"{"a":"\u003c","b":1.0}"#);
    let stored = format!(
        r#"{{"kind":"tool_result","content":{{"b":1.0,"a":"\u003c"}},"summary":"two \u003cfields\u003e","content_hash":"{hash}"}}"#
    );
    assert_eq!(observation.to_json(), stored);
    let read = Observation::parse(&observation.to_json()).unwrap();
    assert_eq!(read.content.as_str(), r#"{"b":1.0,"a":"\u003c"}"#);
    assert_eq!((read.kind, read.summary), (observation.kind, observation.summary));
}

#[test]
fn an_observation_of_the_runtimes_own_sorts_its_fields() {
    let fields = [("tool", "push"), ("error", "no"), ("failure", "timeout")];
    let observation = Observation::of_fields(ObservationKind::ToolError, &fields, "");
    assert_eq!(observation.content.as_str(), r#"{"error":"no","failure":"timeout","tool":"push"}"#);
    assert_eq!(observation.field("failure").as_deref(), Some("timeout"));
    assert_eq!(observation.field("absent"), None);
    assert_eq!(
        observation.to_json(),
        format!(
            r#"{{"kind":"tool_error","content":{{"error":"no","failure":"timeout","tool":"push"}},"content_hash":"{}"}}"#,
            observation.content_hash
        )
    );
}

#[test]
fn an_observation_of_an_unknown_kind_cannot_be_read() {
    assert!(Observation::parse(r#"{"kind":"guess","content":{}}"#).unwrap_err().contains("guess"));
    assert!(Observation::parse("not json").is_err());
    let bare = Observation::parse(r#"{"kind":"interrupted"}"#).unwrap();
    assert_eq!(bare.content.as_str(), "null");
}

#[test]
fn only_an_interruption_says_where_a_step_was_cut_off() {
    let mut step = Step::begun(StepId::from("s"), RunId::from("r"), 0, UnixNanos::from_nanos(0));
    let cut = |was: &str| {
        Some(Observation::of_fields(ObservationKind::Interrupted, &[("previous_status", was)], ""))
    };
    step.observation = cut("executing");
    assert_eq!(step.cut_off_while(), None, "a step that goes on was not cut off");
    step.status = Interrupted;
    assert_eq!(step.cut_off_while(), Some(Executing));
    step.observation = cut("deciding");
    assert_eq!(step.cut_off_while(), Some(Deciding));
    step.observation = cut("elsewhere");
    assert_eq!(step.cut_off_while(), None);
    step.observation =
        Some(Observation::of_fields(ObservationKind::ToolError, &[("previous_status", "executing")], ""));
    assert_eq!(step.cut_off_while(), None);
}
