//! Whether a schema stays inside itself.
//!
//! A reference that leaves the document would make a compiler fetch an address or read a file that the server
//! chose. The whole document is walked, examples and defaults included, because deciding which objects are schemas
//! is the compiler's business and a guess here would be a hole. Never resolves anything.

use serde_json::Value;
use thiserror::Error;

use super::object::ObjectSchema;
use super::place::{Place, Step};

/// The meta-schemas a schema may name, without scheme and without a trailing `#`.
const KNOWN_DRAFTS: &[&str] = &[
    "json-schema.org/draft-04/schema",
    "json-schema.org/draft-06/schema",
    "json-schema.org/draft-07/schema",
    "json-schema.org/draft/2019-09/schema",
    "json-schema.org/draft/2020-12/schema",
    "json-schema.org/schema",
];

/// A keyword that points out of the schema.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{keyword} at {at} is {value:?}, which could make the compiler read outside the schema")]
pub struct ReachesOutside {
    /// Which keyword.
    pub keyword: String,
    /// The object that holds it, such as `#/properties/x`.
    pub at: String,
    /// What it says.
    pub value: String,
}

/// Finds the first keyword that points out of the schema, in the order of sorted keys.
///
/// # Errors
/// [`ReachesOutside`] names it.
pub fn check(schema: &ObjectSchema) -> Result<(), ReachesOutside> {
    let dialect = schema.get("$schema").and_then(Value::as_str).unwrap_or("");
    let bare_id = dialect.contains("draft-04");
    walk(&Place::Root, schema.document(), bare_id)
}

fn walk(at: &Place<'_>, value: &Value, bare_id: bool) -> Result<(), ReachesOutside> {
    match value {
        Value::Object(object) => {
            let mut members: Vec<(&String, &Value)> = object.iter().collect();
            members.sort_unstable_by_key(|(key, _)| *key);
            members.into_iter().try_for_each(|(key, value)| {
                if let Some(text) = value.as_str().filter(|text| leaves(key, text, bare_id)) {
                    let (keyword, value) = (key.clone(), text.to_owned());
                    return Err(ReachesOutside { keyword, at: at.to_string(), value });
                }
                walk(&Place::Below(at, Step::Key(key)), value, bare_id)
            })
        }
        Value::Array(items) => items
            .iter()
            .enumerate()
            .try_for_each(|(index, item)| walk(&Place::Below(at, Step::Index(index)), item, bare_id)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

/// Says whether `keyword: value` could lead out of the document. `bare_id` is for draft 4, where `id` is `$id`.
fn leaves(keyword: &str, value: &str, bare_id: bool) -> bool {
    let inside = value.starts_with('#');
    match keyword {
        "$ref" | "$dynamicRef" | "$recursiveRef" => !inside,
        "$id" => !inside && !is_known_draft(value),
        "$schema" => !is_known_draft(value),
        "id" => bare_id && !inside && (value.contains(':') || value.starts_with("//")),
        _ => false,
    }
}

fn is_known_draft(uri: &str) -> bool {
    let Some(rest) = uri.strip_prefix("https://").or_else(|| uri.strip_prefix("http://")) else {
        return false;
    };
    KNOWN_DRAFTS.contains(&rest.strip_suffix('#').unwrap_or(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(text: &str) -> Result<(), ReachesOutside> {
        check(&ObjectSchema::read(text).unwrap())
    }

    /// Longer than others by its cases.
    #[test]
    fn a_schema_that_reaches_outside_itself_is_refused_and_the_place_is_named() {
        for (text, keyword, at, value) in [
            (
                r#"{"type":"object","properties":{"x":{"$ref":"http://127.0.0.1:1/x.json"}}}"#,
                "$ref",
                "#/properties/x",
                "http://127.0.0.1:1/x.json",
            ),
            (
                r#"{"type":"object","properties":{"x":{"$ref":"file:///s"}}}"#,
                "$ref",
                "#/properties/x",
                "file:///s",
            ),
            (
                r#"{"type":"object","properties":{"a/b~":{"$ref":"o.json#/x"}}}"#,
                "$ref",
                "#/properties/a~1b~0",
                "o.json#/x",
            ),
            (
                r#"{"$schema":"http://127.0.0.1/meta.json","type":"object"}"#,
                "$schema",
                "#",
                "http://127.0.0.1/meta.json",
            ),
            (
                r##"{"type":"object","$id":"http://h/base.json","properties":{"x":{"$ref":"#/$defs/y"}}}"##,
                "$id",
                "#",
                "http://h/base.json",
            ),
            (
                r##"{"type":"object","properties":{"x":{"$id":"https://evil.example/","$ref":"#/y"}}}"##,
                "$id",
                "#/properties/x",
                "https://evil.example/",
            ),
            (
                r#"{"type":"object","allOf":[true,{"$dynamicRef":"https://evil.example/s#meta"}]}"#,
                "$dynamicRef",
                "#/allOf/1",
                "https://evil.example/s#meta",
            ),
            (
                r#"{"type":"object","default":{"$ref":"file:///etc/passwd"}}"#,
                "$ref",
                "#/default",
                "file:///etc/passwd",
            ),
            (r#"{"type":"object","$recursiveRef":"other"}"#, "$recursiveRef", "#", "other"),
            (
                r##"{"$schema":"http://json-schema.org/draft-04/schema#","type":"object","properties":{"x":{"id":"http://evil.example/","$ref":"#/y"}}}"##,
                "id",
                "#/properties/x",
                "http://evil.example/",
            ),
            (
                r#"{"$schema":"http://json-schema.org/draft-07/schema##","type":"object"}"#,
                "$schema",
                "#",
                "http://json-schema.org/draft-07/schema##",
            ),
        ] {
            let refused = verdict(text).unwrap_err();
            assert_eq!(
                (refused.keyword.as_str(), refused.at.as_str(), refused.value.as_str()),
                (keyword, at, value)
            );
            let reason = refused.to_string();
            assert!(reason.contains(keyword) && reason.contains(at), "{reason}");
        }
    }

    #[test]
    fn a_schema_that_refers_only_to_itself_is_accepted() {
        for text in [
            r##"{"type":"object","properties":{"x":{"$ref":"#/$defs/y"}},"$defs":{"y":{"type":"string"}}}"##,
            r#"{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"id":{"type":"string"}}}"#,
            r#"{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","examples":[{"id":"http://a:b"}]}"#,
            r##"{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"x":{"$id":"#x"}}}"##,
            r#"{"$schema":"https://json-schema.org/schema","type":"object","properties":{"$ref":{"type":"string"}}}"#,
            r#"{"$schema":"http://json-schema.org/draft-04/schema#","type":"object","properties":{"x":{"id":"plain"}}}"#,
        ] {
            assert_eq!(verdict(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn the_first_refusal_is_the_first_in_the_order_of_sorted_keys() {
        let text = r#"{"type":"object","z":{"$ref":"a"},"$defs":{"b":{"$ref":"b"},"a":{"$id":"c"}}}"#;
        assert_eq!(verdict(text).unwrap_err().at, "#/$defs/a");
    }
}
