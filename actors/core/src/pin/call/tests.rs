//! Calls as a server sees them and results as the record does.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::schema::cost::Cost;
use crate::tool::{SideEffect, ToolSpec};

fn tool(remote: &str, deny: &[&str], fixed: &[(&str, &str)]) -> LoadedTool {
    LoadedTool {
        server: "fs".to_owned(),
        remote_name: remote.to_owned(),
        spec: ToolSpec {
            name: format!("fs_{remote}"),
            description: String::new(),
            input_schema: Json::trusted(r#"{"type":"object"}"#),
            side_effect: SideEffect::ReadOnly,
            timeout: Duration::from_secs(1),
            terminal: false,
        },
        deny: deny.iter().map(|name| (*name).to_owned()).collect(),
        fixed: fixed
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Json::trusted(*value)))
            .collect::<BTreeMap<_, _>>(),
        hint_mismatch: None,
        cost: Cost { per_value: 1, recursion: None },
    }
}

fn answered(remote: &str, result: &str, cap: usize) -> (String, String) {
    let mapped = map_result(&tool(remote, &[], &[]), result, cap);
    let Mapped::Answered { content, summary } = mapped else { panic!("{mapped:?}") };
    (content.as_str().to_owned(), summary)
}

fn texts(parts: &[&str]) -> String {
    let block = |text: &&str| format!(r#"{{"type":"text","text":{}}}"#, serde_json::to_string(text).unwrap());
    format!(r#"{{"content":[{}]}}"#, parts.iter().map(block).collect::<Vec<_>>().join(","))
}

#[test]
fn a_call_keeps_the_caller_s_members_and_adds_the_operator_s() {
    let rooted = tool("read_file", &["force"], &[("root", r#""/srv""#), ("limit", "[1e2, 1.50]")]);
    assert_eq!(
        prepare_arguments(
            &rooted,
            "{ \"path\" : \"a\\u00e9 b\",\n \"n\" : 1.50, \"m\": 123456789012345678901 }"
        )
        .unwrap(),
        r#"{"path":"a\u00e9 b","n":1.50,"m":123456789012345678901,"limit":[1e2,1.50],"root":"/srv"}"#
    );
    for nothing in ["", " \n", "null", " null ", "{}", "{ }"] {
        assert_eq!(prepare_arguments(&rooted, nothing).unwrap(), r#"{"limit":[1e2,1.50],"root":"/srv"}"#);
        assert_eq!(prepare_arguments(&tool("t", &[], &[]), nothing).unwrap(), "{}");
    }
}

#[test]
fn a_denied_or_fixed_parameter_in_a_call_is_refused_and_never_overridden() {
    let rooted = tool("read_file", &["force"], &[("root", r#""/safe""#)]);
    let refused = |args: &str| prepare_arguments(&rooted, args).unwrap_err().to_string();
    assert_eq!(
        refused(r#"{"path":"a","force":true}"#),
        r#"fs_read_file: parameter "force" is denied by the operator"#
    );
    assert_eq!(refused(r#"{"root":"/etc"}"#), r#"fs_read_file: parameter "root" is fixed by the operator"#);
    assert_eq!(
        refused(r#"{"r\u006fot":"/safe"}"#),
        r#"fs_read_file: parameter "root" is fixed by the operator"#,
        "an escaped key is the same key, and the same value is still not the caller's to set"
    );
    assert_eq!(
        refused(r#"{"root":1,"force":1}"#),
        r#"fs_read_file: parameter "force" is denied by the operator"#
    );
    assert!(
        prepare_arguments(&rooted, r#"{"path":{"root":"/etc","force":1}}"#).is_ok(),
        "deeper is another thing"
    );
}

#[test]
fn arguments_that_are_no_object_are_refused() {
    for args in ["[]", "1", "\"{}\"", "true", "{", "{} {}", "nul"] {
        let refused = prepare_arguments(&tool("t", &[], &[]), args).unwrap_err();
        assert_eq!(refused.to_string(), "fs_t: arguments are not a JSON object", "{args}");
    }
}

#[test]
fn structured_content_is_the_answer_and_text_blocks_are_joined() {
    let (content, summary) =
        answered("structured", r#"{"content":[],"structuredContent":{"ok":true,"lines":2}}"#, 1000);
    assert_eq!(content, r#"{"lines":2,"ok":true}"#);
    assert_eq!(summary, "fs/structured: 21 bytes");
    let mixed = r#"{"content":[{"type":"text","text":"first"},{"type":"image","data":"AA==","mimeType":"image/png"},
        {"type":"audio"},{"type":"resource_link","uri":"x"},{"type":"resource","resource":{}},{"type":"hologram"},
        {"type":"text","text":"last"},7],"structuredContent":null}"#;
    let (content, summary) = answered("mixed", mixed, 1000);
    assert_eq!(
        serde_json::from_str::<String>(&content).unwrap(),
        "first\n[image omitted]\n[audio omitted]\n[resource link omitted]\n[embedded resource omitted]\n[content omitted]\nlast\n[content omitted]"
    );
    assert_eq!(summary, format!("fs/mixed: {} bytes", content.len()));
    assert_eq!(answered("none", "{}", 1000), ("\"\"".to_owned(), "fs/none: 2 bytes".to_owned()));
}

#[test]
fn structured_content_keeps_its_numbers_and_its_key_is_matched_exactly() {
    let result = r#"{"content":[{"type":"text","text":"t"}],"StructuredContent":{"x":1},
        "structuredContent":{"id":123456789012345678901234567890,"n":9007199254740993,"f":0.1,"s":"<b>"}}"#;
    let (content, _) = answered("t", result, 1000);
    assert_eq!(
        content,
        r#"{"f":0.1,"id":1.2345678901234567890123456789e+29,"n":9007199254740993,"s":"<b>"}"#
    );
    let (content, _) = answered("t", r#"{"content":[],"StructuredContent":{"x":1}}"#, 1000);
    assert_eq!(content, "\"\"");
}

#[test]
fn structured_content_that_no_record_can_hold_is_handed_on_for_the_boundary_to_refuse() {
    let deep = format!("{}1{}", "[ ".repeat(300), " ]".repeat(300));
    for structured in [deep.as_str(), r#"{"a": 1e400}"#, r#"[1e-99999999999999999999]"#] {
        let (content, _) = answered(
            "t",
            &format!(r#"{{"content":[{{"type":"text","text":"t"}}],"structuredContent":{structured}}}"#),
            10_000,
        );
        assert_eq!(content, structured.replace(' ', ""));
        assert!(Json::checked(content.as_bytes()).is_err(), "{content}");
    }
}

#[test]
fn a_result_that_says_error_is_an_error_with_the_text() {
    let mapped = map_result(
        &tool("read_file", &[], &[]),
        r#"{"isError":true,"content":[{"type":"text","text":"no such\nfile"}]}"#,
        1000,
    );
    let text = "fs/read_file: 15 bytes, error: no such\nfile".to_owned();
    assert_eq!(mapped, Mapped::ToolError { text });
    let structured = map_result(
        &tool("t", &[], &[]),
        r#"{"isError":true,"content":[],"structuredContent":{"code":1.0}}"#,
        1000,
    );
    assert_eq!(structured, Mapped::ToolError { text: r#"fs/t: 10 bytes, error: {"code":1}"#.to_owned() });
    let long = map_result(
        &tool("t", &[], &[]),
        &format!(
            r#"{{"isError":true,"content":[{{"type":"text","text":"{}"}}],"structuredContent":{{"k":"{}"}}}}"#,
            "x".repeat(100),
            "y".repeat(100)
        ),
        64,
    );
    let kept = "x".repeat(49);
    let text = format!(
        "fs/t: 64 bytes, truncated, structured content of 108 bytes dropped for the text, error: {kept}\n[truncated]"
    );
    assert_eq!(long, Mapped::ToolError { text });
    assert!(matches!(map_result(&tool("t", &[], &[]), r#"{"isError":false}"#, 9), Mapped::Answered { .. }));
}

#[test]
fn content_past_the_cap_is_cut_to_it_and_the_summary_says_so() {
    let (content, summary) = answered("read_file", &texts(&[&"x".repeat(500)]), 64);
    assert_eq!(content.len(), 64);
    assert_eq!(content, format!("\"{}\\n[truncated]\"", "x".repeat(49)));
    assert_eq!(summary, "fs/read_file: 64 bytes, truncated");
}

#[test]
fn the_cap_counts_encoded_bytes() {
    for unit in ["\u{1}", "世"] {
        let (content, summary) = answered("t", &texts(&[&unit.repeat(100)]), 100);
        assert!(content.len() <= 100);
        assert_eq!(summary, format!("fs/t: {} bytes, truncated", content.len()));
        assert!(serde_json::from_str::<String>(&content).unwrap().ends_with(TRUNCATION_MARKER));
    }
    let (content, summary) = answered("t", &texts(&[&"\u{1}".repeat(16)]), 100);
    assert_eq!((content.len(), summary.as_str()), (98, "fs/t: 98 bytes"));
}

#[test]
fn structured_content_past_the_cap_is_dropped_for_the_text_and_never_cut() {
    let big = format!(r#"{{"k":"{}"}}"#, "x".repeat(200));
    let with_text =
        format!(r#"{{"content":[{{"type":"text","text":"summary text"}}],"structuredContent":{big}}}"#);
    assert_eq!(
        answered("with_text", &with_text, 100),
        (
            "\"summary text\"".to_owned(),
            "fs/with_text: 14 bytes, truncated, structured content of 208 bytes dropped for the text"
                .to_owned()
        )
    );
    let (content, summary) = answered("alone", &format!(r#"{{"structuredContent":{big}}}"#), 100);
    assert_eq!(serde_json::from_str::<String>(&content).unwrap(), STRUCTURED_DROPPED);
    assert_eq!(
        summary,
        format!(
            "fs/alone: {} bytes, truncated, structured content of 208 bytes dropped for the text",
            content.len()
        )
    );
    assert_eq!(
        answered("small", r#"{"content":[{"type":"text","text":"one"}],"structuredContent":{"k":1}}"#, 100),
        (r#"{"k":1}"#.to_owned(), "fs/small: 7 bytes".to_owned())
    );
    let (content, _) = answered("tiny", &texts(&["some text"]), 0);
    assert_eq!(content, "\"\\n[truncated]\"", "a cap below the marker is raised to it");
}

#[test]
fn a_result_that_asks_for_input_is_refused_under_the_offered_name() {
    for result in [
        r#"{"resultType":"input_required","inputRequests":{}}"#,
        r#"{"content":[],"inputRequests":{"which":{"method":"elicitation/create"}}}"#,
    ] {
        let Mapped::InputRequired { text } = map_result(&tool("read_file", &[], &[]), result, 100) else {
            panic!("{result}")
        };
        assert!(text.starts_with("fs_read_file: the server asked for more input"), "{text}");
    }
    let complete = r#"{"resultType":"complete","content":[],"inputRequests":null}"#;
    assert!(matches!(map_result(&tool("t", &[], &[]), complete, 100), Mapped::Answered { .. }));
}

#[test]
fn a_result_from_which_success_cannot_be_told_is_not_taken_for_one() {
    for result in [
        "[]",
        "7",
        "{",
        r#"{"isError":"yes"}"#,
        r#"{"isError":1}"#,
        r#"{"content":{}}"#,
        r#"{"content":"x"}"#,
    ] {
        let Mapped::Malformed { text } = map_result(&tool("t", &[], &[]), result, 100) else {
            panic!("{result}")
        };
        assert!(text.starts_with(r#"mcp: server "fs": tool "t": "#), "{text}");
    }
}

#[test]
fn a_failure_names_server_and_tool_and_escapes_what_the_server_said() {
    assert_eq!(
        failure_text("fs", "read", "closed\u{1b}[2K\r\nok"),
        "mcp: server \"fs\": tool \"read\": closed\\x1b[2K  ok"
    );
}
