//! The stored form of decisions, the bounds of an identity, and the default answers.

use std::time::Duration;

use super::*;
use crate::ids::{RunId, StepId};
use crate::tool::ToolSpec;

#[test]
fn the_names_of_the_outcomes_are_those_of_the_record() {
    let names = [
        (Outcome::Allow, "allow"),
        (Outcome::RequireApproval, "require_approval"),
        (Outcome::Deny, "deny"),
        (Outcome::Abort, "abort"),
    ];
    for (outcome, name) in names {
        assert_eq!(outcome.to_string(), name);
        assert_eq!(Outcome::parse(name), Some(outcome));
    }
    assert_eq!(Outcome::parse(""), None);
}

#[test]
fn a_decision_is_stored_in_the_order_of_its_fields() {
    let shown = Json::trusted("{ \"b\": \"<\", \"a\": 1e0 }");
    let decision = PolicyDecision::need_approval("release", "an <operator>", Json::empty_object(), shown);
    let stored = concat!(
        r#"{"outcome":"require_approval","reason":"an \u003coperator\u003e","kind":"release","#,
        r#""capability":{},"presentation":{"b":"\u003c","a":1e0}}"#
    );
    assert_eq!(decision.to_json(), stored);
    assert_eq!(PolicyDecision::parse(stored).unwrap().to_json(), stored);
    assert_eq!(PolicyDecision::allow("").to_json(), r#"{"outcome":"allow"}"#);
    assert_eq!(PolicyDecision::deny("no").to_json(), r#"{"outcome":"deny","reason":"no"}"#);
    assert_eq!(PolicyDecision::abort("").to_json(), r#"{"outcome":"abort"}"#);
}

#[test]
fn a_stored_decision_with_an_unknown_outcome_cannot_be_read() {
    assert!(PolicyDecision::parse(r#"{"outcome":"maybe"}"#).unwrap_err().contains("maybe"));
    assert!(PolicyDecision::parse(r#"{"outcome":""}"#).is_err());
    assert!(PolicyDecision::parse("{}").is_err());
}

#[test]
fn json_that_could_not_be_recorded_faithfully_is_refused() {
    let with = |capability: &str, presentation: &str| {
        PolicyDecision::need_approval("k", "", Json::trusted(capability), Json::trusted(presentation)).check()
    };
    assert_eq!(with("{}", "{}"), Ok(()));
    assert_eq!(with("", " \n"), Ok(()), "absent is an empty object");
    assert_eq!(with("{", "{}").unwrap_err().field, "capability");
    assert_eq!(with("{}", "{\"a\":1,\"a\":2}").unwrap_err().field, "presentation");
    let bad = PolicyDecision::need_approval("k", "r", Json::trusted("{"), Json::empty_object());
    assert_eq!(bad.without_json().to_json(), r#"{"outcome":"require_approval","reason":"r","kind":"k"}"#);
}

#[test]
fn a_policys_identity_is_short_and_printable() {
    assert_eq!(check_policy_id(""), Ok(()));
    assert_eq!(check_policy_id("rules-v3 é"), Ok(()));
    assert_eq!(check_policy_id(&"x".repeat(POLICY_ID_BYTES_MAX)), Ok(()));
    assert!(check_policy_id(&"x".repeat(POLICY_ID_BYTES_MAX + 1)).is_err());
    assert!(
        check_policy_id(&"é".repeat(POLICY_ID_BYTES_MAX / 2 + 1)).is_err(),
        "bytes count, not characters"
    );
    for control in ["a\nb", "\u{7f}", "\u{85}", "\0"] {
        assert!(check_policy_id(control).is_err(), "{control:?}");
    }
}

#[test]
fn by_default_reads_and_local_changes_run_remote_ones_wait_and_the_rest_is_refused() {
    let expected = [
        (SideEffect::ReadOnly, Outcome::Allow),
        (SideEffect::LocalMutation, Outcome::Allow),
        (SideEffect::RemoteMutation, Outcome::RequireApproval),
        (SideEffect::Destructive, Outcome::Deny),
    ];
    for (class, outcome) in expected {
        assert_eq!(default_outcome(class), outcome);
        let spec = ToolSpec {
            name: "push".to_owned(),
            description: String::new(),
            input_schema: Json::empty_object(),
            side_effect: class,
            timeout: Duration::from_secs(1),
            terminal: false,
        };
        let (run_id, step_id) = (RunId::from("r"), StepId::from("s"));
        let request = ToolRequest { run_id, step_id, spec, args: Json::trusted(r#"{"n":1}"#) };
        let decision = default_decision(&request);
        assert_eq!(decision.outcome, outcome);
        if outcome == Outcome::RequireApproval {
            assert_eq!(decision.kind, "remote_mutation");
            assert_eq!(decision.capability, decision.presentation);
            let shown: serde_json::Value = decision.capability.unwrap().decode().unwrap();
            assert_eq!(shown, serde_json::json!({ "tool": "push", "args": { "n": 1 } }));
        } else {
            assert_eq!(
                (decision.kind.as_str(), decision.capability, decision.presentation),
                ("", None, None)
            );
        }
    }
}
