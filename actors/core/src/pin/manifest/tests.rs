//! The manifest's file form, and what a review is shown.

use super::*;
use crate::pin::canonical::{description_hash, schema_hash};
use crate::pin::listing::Page;

const READ: &str = r#"{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}"#;

fn listing(entries: &str) -> Listing {
    let mut listing = Listing::new();
    listing.take(Page::read(format!(r#"{{"tools":[{entries}]}}"#).as_bytes()).unwrap()).unwrap();
    listing
}

fn at() -> UnixNanos {
    UnixNanos::parse("2026-11-30T10:00:00.5Z").unwrap()
}

fn pinned(entries: &str) -> Manifest {
    Manifest::pin("fs", at(), &listing(entries))
}

#[test]
fn a_pin_records_what_the_server_presents() {
    let manifest = pinned(&format!(
        r#"{{"name":"read_file","description":"Read a file.","inputSchema":{READ},"annotations":{{"readOnlyHint":true}}}},
           {{"name":"write_file","description":"Write a file.","inputSchema":{READ},"outputSchema":{{}},"title":"W"}}"#
    ));
    assert_eq!(manifest.server, "fs");
    assert_eq!(manifest.pinned_at, Some(at()));
    let read = &manifest.tools["read_file"];
    let want = r#"{"properties":{"path":{"type":"string"}},"required":["path"],"type":"object"}"#;
    assert_eq!(read.input_schema, want);
    assert_eq!(read.schema_hash, schema_hash(want));
    assert_eq!(read.description_hash, description_hash("Read a file."));
    assert_eq!(read.annotations.as_ref().unwrap().read_only_hint, Some(true));
    assert_eq!(manifest.tools["write_file"].annotations, None);
}

#[test]
fn only_the_name_the_description_and_the_input_schema_are_in_the_hashes() {
    let one = pinned(&format!(r#"{{"name":"t","description":"d","inputSchema":{READ}}}"#));
    let other = pinned(&format!(
        r#"{{"title":"T","name":"t","annotations":{{"readOnlyHint":true}},"outputSchema":{{"a":1}},"description":"d","inputSchema": {READ} }}"#
    ));
    assert_eq!(one.tools["t"].schema_hash, other.tools["t"].schema_hash);
    assert_eq!(one.tools["t"].description_hash, other.tools["t"].description_hash);
}

#[test]
fn a_manifest_is_written_indented_and_reads_back_the_same() {
    let manifest = pinned(&format!(
        r#"{{"name":"b","description":"<b> \u202e \"q\"","inputSchema":{{"properties":{{"n":{{"maximum":123456789012345678901234567890}}}}}},"annotations":{{"readOnlyHint":false,"title":"t"}}}},
           {{"name":"a","inputSchema":{READ}}}"#
    ));
    let text = manifest.to_text();
    let start = format!(
        r#"{{
  "server": "fs",
  "pinned_at": "2026-11-30T10:00:00.5Z",
  "tools": {{
    "a": {{
      "name": "a",
      "description": "",
      "input_schema": {{
        "properties": {{
          "path": {{
            "type": "string"
          }}
        }},
        "required": [
          "path"
        ],
        "type": "object"
      }},
      "schema_hash": "{}",
      "description_hash": "{}"
    }},
    "b": {{"#,
        manifest.tools["a"].schema_hash, manifest.tools["a"].description_hash
    );
    assert!(text.starts_with(&start), "{text}");
    assert!(text.ends_with("}\n"));
    assert!(text.contains("1.2345678901234567890123456789e+29"), "{text}");
    assert_eq!(Manifest::parse(text.as_bytes()).unwrap(), manifest);
    assert_eq!(Manifest::parse_strict(text.as_bytes()).unwrap(), manifest);
    let empty = Manifest { server: String::new(), pinned_at: None, tools: BTreeMap::new() };
    assert!(empty.to_text().contains("\"pinned_at\": \"0001-01-01T00:00:00Z\",\n  \"tools\": {}\n"));
    assert_eq!(Manifest::parse(empty.to_text().as_bytes()).unwrap(), empty);
}

#[test]
fn unknown_fields_are_ignored_and_a_repeated_key_is_refused_only_by_the_strict_reading() {
    let text = br#"{"server":"x","server":"fs","note":1,"tools":{"t":{"name":"t","extra":[],"input_schema":{"type":"object"}}}}"#;
    let manifest = Manifest::parse(text).unwrap();
    assert_eq!(manifest.server, "fs");
    assert_eq!(manifest.tools["t"].input_schema, r#"{"type":"object"}"#);
    assert!(matches!(Manifest::parse_strict(text), Err(Error::Unusable(_))));
}

#[test]
fn what_is_no_manifest_is_refused_with_the_place() {
    for (text, place) in [
        ("[]", "not an object"),
        ("{", "well-formed"),
        (r#"{"server":1}"#, "server"),
        (r#"{"pinned_at":"yesterday"}"#, "pinned_at"),
        (r#"{"tools":[]}"#, "tools"),
        (r#"{"tools":{"t":1}}"#, "\"t\""),
        (r#"{"tools":{"t":{"schema_hash":1}}}"#, "schema_hash"),
        (r#"{"tools":{"t":{"annotations":{"readOnlyHint":"no"}}}}"#, "readOnlyHint"),
        (r#"{"tools":{"t":{"input_schema":{"maximum":1e999}}}}"#, "1e999"),
        (r#"{"tools":{"safe":{"name":"wipe"}}}"#, "\"wipe\""),
    ] {
        let error = Manifest::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(place), "{text}: {error}");
    }
}

#[test]
fn a_review_shows_each_change_with_what_was_and_what_is() {
    let old = pinned(&format!(
        r#"{{"name":"gone","inputSchema":{READ}}},{{"name":"same","inputSchema":{READ}}},
           {{"name":"both","description":"before","inputSchema":{READ},"annotations":{{}}}}"#
    ));
    let new = pinned(&format!(
        r#"{{"name":"both","description":"after","inputSchema":{{"type":"object"}},"annotations":{{"destructiveHint":true}}}},
           {{"name":"added","inputSchema":{READ}}},{{"name":"same","inputSchema":{READ}}}"#
    ));
    let changes = diff(&old, &new);
    assert_eq!(
        changes.iter().map(ToolChange::tool).collect::<Vec<_>>(),
        ["added", "both", "both", "both", "gone"]
    );
    assert_eq!(changes[0], ToolChange::Added(new.tools["added"].clone()));
    assert_eq!(
        changes[1],
        ToolChange::Description { tool: "both".into(), before: "before".into(), after: "after".into() }
    );
    assert_eq!(
        changes[2],
        ToolChange::Schema {
            tool: "both".into(),
            before: old.tools["both"].input_schema.clone(),
            after: r#"{"type":"object"}"#.into()
        }
    );
    assert!(
        matches!(&changes[3], ToolChange::Annotations { after: Some(hints), .. } if hints.claims_destructive())
    );
    assert_eq!(changes[4], ToolChange::Removed(old.tools["gone"].clone()));
    assert_eq!(diff(&old, &old), []);
}

#[test]
fn an_operator_may_accept_some_changes_and_keep_the_other_pins() {
    let old = pinned(&format!(
        r#"{{"name":"a","description":"1","inputSchema":{READ}}},{{"name":"b","description":"1","inputSchema":{READ}}},{{"name":"c","inputSchema":{READ}}}"#
    ));
    let new = pinned(&format!(
        r#"{{"name":"a","description":"2","inputSchema":{READ}}},{{"name":"b","description":"2","inputSchema":{READ}}},{{"name":"d","inputSchema":{READ}}}"#
    ));
    let accepted = old.accepting(&new, &["a", "c", "d"].map(str::to_owned).into());
    assert_eq!(accepted.tools.keys().collect::<Vec<_>>(), ["a", "b", "d"]);
    assert_eq!(accepted.tools["a"].description, "2");
    assert_eq!(accepted.tools["b"].description, "1");
}
