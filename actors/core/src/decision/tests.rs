//! What is proposed is recorded verbatim, and what is unusable never looks as if it had been usable.

use super::*;

fn args(bytes: &[u8]) -> Decision {
    Proposal::tool_call("push", bytes).recorded()
}

#[test]
fn usable_arguments_are_recorded_in_their_place_as_they_were_written() {
    let recorded = args(b"{ \"n\" : 1.0e1, \"s\" : \"<\" }");
    assert_eq!(recorded.args.as_ref().map(Json::as_str), Some("{ \"n\" : 1.0e1, \"s\" : \"<\" }"));
    assert_eq!(recorded.to_json(), r#"{"kind":"tool_call","tool":"push","args":{"n":1.0e1,"s":"\u003c"}}"#);
}

#[test]
fn arguments_of_white_space_are_absent() {
    for blank in ["", " ", "\t\r\n", "\u{b}\u{c}", "\u{a0}\u{2003}"] {
        let recorded = args(blank.as_bytes());
        assert_eq!(recorded.to_json(), r#"{"kind":"tool_call","tool":"push"}"#, "{blank:?}");
        assert_eq!(recorded.args_or_empty().as_str(), "{}");
    }
}

#[test]
fn unusable_arguments_are_kept_beside_their_place() {
    let cases: [(&[u8], &str); 5] = [
        (br#"{"n":"#, r#"{\"n\":"#),
        (br#"{"n":1,"n":2}"#, r#"{\"n\":1,\"n\":2}"#),
        (b"1 2", "1 2"),
        (br#""\ud800""#, r#"\"\\ud800\""#),
        (b"<script>", r"\u003cscript\u003e"),
    ];
    for (bytes, kept) in cases {
        let stored = format!(r#"{{"kind":"tool_call","tool":"push","invalid_args":"{kept}"}}"#);
        let recorded = args(bytes);
        assert_eq!(recorded.to_json(), stored);
        assert_eq!(recorded.invalid_args.as_bytes(), bytes, "verbatim");
        assert_eq!(Decision::parse(&stored).unwrap(), recorded);
    }
}

#[test]
fn bytes_that_are_no_text_are_kept_as_base64_and_so_is_what_stands_beside_them() {
    let proposal = Proposal {
        kind: "tool_call".to_owned(),
        tool: "push".to_owned(),
        args: b"\xff{".to_vec(),
        result: b"{".to_vec(),
        ..Proposal::default()
    };
    let stored = r#"{"kind":"tool_call","tool":"push","invalid_args":"/3s=","invalid_result":"ew==","invalid_base64":true}"#;
    assert_eq!(proposal.recorded().to_json(), stored);
    assert_eq!(Decision::parse(stored).unwrap(), proposal.recorded());

    let result = Proposal { args: b"{}".to_vec(), result: b"\"\xff\"".to_vec(), ..proposal };
    let recorded = result.recorded();
    assert_eq!(recorded.args.as_ref().map(Json::as_str), Some("{}"), "what is usable stays in its place");
    assert_eq!((recorded.invalid_args.as_str(), recorded.invalid_result.as_str()), ("", "Iv8i"));
}

#[test]
fn a_decision_is_stored_in_the_order_of_its_fields() {
    let proposal = Proposal {
        kind: "complete".to_owned(),
        tool: "t".to_owned(),
        args: b"[1]".to_vec(),
        reason: "because".to_owned(),
        result: b"{\"b\":1,\"a\":2}".to_vec(),
        message: "m".to_owned(),
        origin: "model".to_owned(),
    };
    let stored = concat!(
        r#"{"kind":"complete","tool":"t","args":[1],"reason":"because","result":{"b":1,"a":2},"#,
        r#""message":"m","origin":"model"}"#
    );
    assert_eq!(proposal.recorded().to_json(), stored);
    assert_eq!(Decision::parse(stored).unwrap(), proposal.recorded());
    assert_eq!(Decision::parse("{}").unwrap(), Decision::default());
    assert!(Decision::parse("[").is_err());
    assert!(Decision::parse(r#"{"kind":1}"#).is_err());
}

#[test]
fn a_valid_proposal_says_what_follows_from_it() {
    assert_eq!(Proposal::complete("").validate(), Ok(Ask::Complete { result: None }));
    assert_eq!(Proposal::complete(" \u{a0}").validate(), Ok(Ask::Complete { result: None }));
    assert_eq!(
        Proposal::complete(r#"{"a":1}"#).validate(),
        Ok(Ask::Complete { result: Some(Json::trusted(r#"{"a":1}"#)) })
    );
    assert_eq!(Proposal::fail("no").validate(), Ok(Ask::Fail { message: "no".to_owned() }));
    assert_eq!(
        Proposal::tool_call("push", "not judged here").validate(),
        Ok(Ask::ToolCall { tool: "push".to_owned() })
    );
}

#[test]
fn an_invalid_proposal_says_why() {
    let of_kind = |kind: &str| Proposal { kind: kind.to_owned(), ..Proposal::default() };
    let cases = [
        (of_kind(""), "decision has no kind"),
        (of_kind("truncated"), "the reply was cut off"),
        (of_kind("no_tool_call"), "the reply contained no tool call"),
        (of_kind("wander"), "unknown decision kind \"wander\""),
        (Proposal::tool_call("", "{}"), "tool_call without a tool name"),
        (Proposal::complete("{"), "result is not usable JSON"),
        (
            Proposal { origin: "oracle".to_owned(), ..Proposal::complete("") },
            "unknown decision origin \"oracle\"",
        ),
    ];
    for (proposal, why) in cases {
        let error = proposal.validate().unwrap_err();
        assert!(error.starts_with(why), "{error}");
    }
}

#[test]
fn the_origins_are_recorded_and_change_nothing_else() {
    let plain = Proposal::tool_call("push", "{}");
    for (origin, name) in [(Origin::Model, "model"), (Origin::Plan, "plan"), (Origin::Operator, "operator")] {
        let from = plain.clone().from_origin(origin);
        assert_eq!(from.validate(), plain.validate());
        assert_eq!(
            from.recorded().to_json(),
            format!(r#"{{"kind":"tool_call","tool":"push","args":{{}},"origin":"{name}"}}"#)
        );
    }
}
