//! Stored forms of specs and requests, the spec's golden hash, and the form that a policy is handed.

use super::*;

fn push() -> ToolSpec {
    ToolSpec {
        name: "push".to_owned(),
        description: "push <main> & tag".to_owned(),
        input_schema: Json::trusted(r#"{"type":"object"}"#),
        side_effect: SideEffect::RemoteMutation,
        timeout: Duration::from_secs(30),
        terminal: false,
    }
}

#[test]
fn the_classes_have_the_names_of_the_record_from_the_mildest() {
    let names = ["read_only", "local_mutation", "remote_mutation", "destructive"];
    for (class, name) in SideEffect::ALL.into_iter().zip(names) {
        assert_eq!(class.to_string(), name);
        assert_eq!(SideEffect::parse(name), Some(class));
        assert_eq!(class.is_read(), name == "read_only");
    }
    assert!(SideEffect::ALL.is_sorted());
    assert_eq!(SideEffect::parse("ReadOnly"), None);
}

#[test]
fn a_spec_is_stored_in_the_order_of_its_fields_and_hashed_in_canonical_form() {
    let stored = concat!(
        r#"{"name":"push","description":"push \u003cmain\u003e \u0026 tag","input_schema":{"type":"object"},"#,
        r#""side_effect":"remote_mutation","timeout":30000000000}"#
    );
    let canonical = concat!(
        r#"{"description":"push \u003cmain\u003e \u0026 tag","input_schema":{"type":"object"},"name":"push","#,
        r#""side_effect":"remote_mutation","timeout":30000000000}"#
    );
    let recorded = push().recorded();
    assert_eq!(push().to_json(), stored);
    assert_eq!(recorded.canonical.as_str(), canonical);
    assert_eq!(recorded.hash.as_str(), "65fa607c5f6e901adc995d63f374d8d38330a4980002115de9b303b2c9531118");
    assert_eq!(ToolSpec::parse(stored).unwrap(), push());
    assert_eq!(ToolSpec::parse(canonical).unwrap().recorded().hash, recorded.hash);
}

#[test]
fn any_change_of_a_spec_is_another_hash() {
    let changes: [fn(&mut ToolSpec); 6] = [
        |s| s.name.push('2'),
        |s| s.description.clear(),
        |s| s.input_schema = Json::trusted(r#"{"type":"object","x":1}"#),
        |s| s.side_effect = SideEffect::ReadOnly,
        |s| s.timeout += Duration::from_nanos(1),
        |s| s.terminal = true,
    ];
    let mut hashes = vec![push().recorded().hash];
    for change in changes {
        let mut spec = push();
        change(&mut spec);
        hashes.push(spec.recorded().hash);
    }
    let distinct: std::collections::HashSet<_> = hashes.iter().collect();
    assert_eq!(distinct.len(), hashes.len());
    let mut pretty = push();
    pretty.input_schema = Json::trusted("{\n  \"type\": \"object\"\n}");
    assert_eq!(pretty.recorded().hash, push().recorded().hash);
}

#[test]
fn a_terminal_spec_says_so_and_any_other_says_nothing() {
    let mut spec = push();
    spec.terminal = true;
    assert!(spec.to_json().ends_with(r#","timeout":30000000000,"terminal":true}"#));
    assert!(ToolSpec::parse(&spec.to_json()).unwrap().terminal);
    assert!(!push().to_json().contains("terminal"));
}

#[test]
fn a_spec_that_makes_no_sense_cannot_be_read() {
    assert!(ToolSpec::parse(r#"{"name":"a","side_effect":"harmless","timeout":1}"#).is_err());
    assert!(ToolSpec::parse(r#"{"name":"a","side_effect":"read_only"}"#).is_err());
    let bare = ToolSpec::parse(r#"{"name":"a","side_effect":"read_only","timeout":-5}"#).unwrap();
    assert_eq!((bare.timeout, bare.input_schema.as_str()), (Duration::ZERO, "null"));
}

fn request(args: &str) -> ToolRequest {
    let (run_id, step_id) = (RunId::from("r1"), StepId::from("s1"));
    ToolRequest { run_id, step_id, spec: push(), args: Json::trusted(args) }
}

#[test]
fn a_request_is_stored_with_its_arguments_compact_and_their_keys_in_place() {
    let stored = request("{ \"ref\": \"a&b\", \"n\": 1E2 }").to_json();
    let expected = concat!(
        r#"{"run_id":"r1","step_id":"s1","spec":{"name":"push","description":"push \u003cmain\u003e \u0026 tag","#,
        r#""input_schema":{"type":"object"},"side_effect":"remote_mutation","timeout":30000000000},"#,
        r#""args":{"ref":"a\u0026b","n":1E2}}"#
    );
    assert_eq!(stored, expected);
    assert_eq!(ToolRequest::parse(&stored).unwrap().to_json(), stored);
    let bare = r#"{"run_id":"r","step_id":"s","spec":{"name":"a","side_effect":"read_only","timeout":1}}"#;
    assert_eq!(ToolRequest::parse(bare).unwrap().args.as_str(), "{}");
    assert!(ToolRequest::parse("{}").is_err());
}

#[test]
fn a_policy_is_handed_the_same_bytes_from_what_was_written_and_from_the_record() {
    let written = request("{ \"z\": \"<&>\", \"a\": [10, 1e1, -0] }");
    let stored = ToolRequest::parse(&written.to_json()).unwrap();
    let handed = written.policy_form().unwrap();
    assert_eq!(handed, stored.policy_form().unwrap());
    assert_eq!(handed.args.as_str(), r#"{"a":[10,1e1,-0],"z":"<&>"}"#);
    assert!(request(r#"{"a":1,"a":2}"#).policy_form().is_err());
}
