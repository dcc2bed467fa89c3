//! Which parameters an operator may hide from the model, and the schema that is left.
//!
//! A denied or fixed parameter disappears from `properties` and `required`. That is sound only if nothing else in
//! the schema speaks of it: an `anyOf` that still demands the name would leave the model a schema that nothing
//! satisfies, or one that a hidden value satisfies by accident. Where it can't be told, the answer is no.

use serde_json::Value;
use thiserror::Error;

use super::object::ObjectSchema;
use crate::pin::canonical;

/// The keywords through which the top level can speak of its parameters, in the order they are searched.
const SPEAKING: &[&str] = &[
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "$defs",
    "definitions",
];

/// Why parameters can't be hidden.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unsound {
    /// The schema has no such parameter: most likely the rule misspells it.
    #[error("the rule hides {name:?}, but the input schema has no top-level property of that name")]
    NotAProperty {
        /// The hidden name.
        name: String,
    },
    /// The top level has `patternProperties`, which could admit any name again.
    #[error("the rule hides {name:?}, but the input schema's patternProperties could let it in again")]
    PatternProperties {
        /// The first hidden name.
        name: String,
    },
    /// Another part of the schema speaks of the name.
    #[error("the rule hides {name:?}, but the input schema's {keyword} speaks of it")]
    Mentioned {
        /// The hidden name.
        name: String,
        /// The top-level keyword under which it was found.
        keyword: &'static str,
    },
}

/// Gives the schema that a model is shown when `names` are hidden, in canonical form.
///
/// # Errors
/// [`Unsound`] when a name can't be hidden.
pub fn restrict(schema: &ObjectSchema, names: &[&str]) -> Result<String, Unsound> {
    check(schema, names)?;
    let mut document = schema.document().clone();
    if let Some(Value::Object(properties)) = document.get_mut("properties") {
        properties.retain(|name, _| !names.contains(&name.as_str()));
    }
    if let Some(Value::Array(required)) = document.get_mut("required") {
        required.retain(|item| !is_one_of(item, names));
        if let (true, Some(object)) = (required.is_empty() && !names.is_empty(), document.as_object_mut()) {
            object.shift_remove("required");
        }
    }
    Ok(written(&document))
}

fn check(schema: &ObjectSchema, names: &[&str]) -> Result<(), Unsound> {
    let Some(first) = names.first() else { return Ok(()) };
    let properties = schema.get("properties").and_then(Value::as_object);
    for name in names {
        if !properties.is_some_and(|properties| properties.contains_key(*name)) {
            return Err(Unsound::NotAProperty { name: (*name).to_owned() });
        }
    }
    if schema.get("patternProperties").is_some() {
        return Err(Unsound::PatternProperties { name: (*first).to_owned() });
    }
    for keyword in SPEAKING {
        let Some(value) = schema.get(keyword) else { continue };
        for name in names {
            if mentions(value, name) {
                return Err(Unsound::Mentioned { name: (*name).to_owned(), keyword });
            }
        }
    }
    Ok(())
}

/// Says whether a key or a string anywhere in `value` is `name`.
fn mentions(value: &Value, name: &str) -> bool {
    match value {
        Value::String(text) => text == name,
        Value::Array(items) => items.iter().any(|item| mentions(item, name)),
        Value::Object(object) => object.iter().any(|(key, value)| key == name || mentions(value, name)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn is_one_of(item: &Value, names: &[&str]) -> bool {
    item.as_str().is_some_and(|text| names.contains(&text))
}

/// Writes the document canonically: its keys are sorted and its numbers canonical already, and stay so.
fn written(document: &Value) -> String {
    let text = document.to_string();
    // Every number here was canonical before, so it can't overflow now.
    canonical::canonical(&text).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: &str = r#"{"properties":{"force":{"type":"boolean"},"path":{"type":"string"},"text":{"type":"string"}},"required":["path","text"],"type":"object"}"#;

    fn hide(schema: &str, names: &[&str]) -> Result<String, Unsound> {
        restrict(&ObjectSchema::read(&canonical::canonical(schema).unwrap()).unwrap(), names)
    }

    #[test]
    fn a_hidden_parameter_is_gone_from_properties_and_from_required() {
        assert_eq!(
            hide(WRITE, &["force", "text"]).unwrap(),
            r#"{"properties":{"path":{"type":"string"}},"required":["path"],"type":"object"}"#
        );
        assert_eq!(
            hide(WRITE, &["text", "path"]).unwrap(),
            r#"{"properties":{"force":{"type":"boolean"}},"type":"object"}"#,
            "an empty required is dropped"
        );
    }

    #[test]
    fn with_nothing_hidden_the_schema_stays_as_it_is() {
        assert_eq!(hide(WRITE, &[]).unwrap(), WRITE);
        let empty = r#"{"anyOf":[{}],"patternProperties":{"^x":{}},"properties":{"n":{"maximum":1.2345678901234567890123456789e+29}},"required":[],"type":"object"}"#;
        assert_eq!(hide(empty, &[]).unwrap(), empty);
    }

    #[test]
    fn a_name_is_hidden_only_where_nothing_else_speaks_of_it() {
        let with = |extra: &str| {
            format!(
                r#"{{"type":"object","properties":{{"path":{{"type":"string"}},"force":{{"type":"boolean"}}}},{extra}}}"#
            )
        };
        let force = "force".to_owned();
        let mentioned = |keyword| Unsound::Mentioned { name: force.clone(), keyword };
        for (extra, want) in [
            (r#""anyOf":[{"required":["force"]},{"required":["path"]}]"#, mentioned("anyOf")),
            (
                r#""patternProperties":{"^zz":{"type":"boolean"}}"#,
                Unsound::PatternProperties { name: force.clone() },
            ),
            (r#""dependentRequired":{"path":["force"]}"#, mentioned("dependentRequired")),
            (
                r#""if":{"properties":{"path":{"const":"x"}}},"then":{"required":["force"]}"#,
                mentioned("then"),
            ),
            (r#""$defs":{"f":{"properties":{"force":{"const":true}}}}"#, mentioned("$defs")),
            (r#""definitions":{"force":{}},"not":{"required":["force"]}"#, mentioned("not")),
            (r#""dependencies":{"force":["path"]}"#, mentioned("dependencies")),
            (r#""allOf":[{"const":"force"}]"#, mentioned("allOf")),
        ] {
            assert_eq!(hide(&with(extra), &["force"]), Err(want), "{extra}");
        }
        assert_eq!(hide(WRITE, &["forse"]), Err(Unsound::NotAProperty { name: "forse".to_owned() }));
        assert_eq!(hide(r#"{"type":"object"}"#, &["x"]), Err(Unsound::NotAProperty { name: "x".to_owned() }));

        for fine in [
            r#""oneOf":[{"required":["path"]}]"#,
            r#""additionalProperties":{"properties":{"force":{}}},"description":"force""#,
        ] {
            assert!(hide(&with(fine), &["force"]).is_ok(), "{fine}");
        }
        let nested = r#"{"type":"object","properties":{"force":{},"opts":{"type":"object","properties":{"force":{}}}},"allOf":[{"required":["path"]}]}"#;
        assert_eq!(
            hide(nested, &["force"]).unwrap(),
            r#"{"allOf":[{"required":["path"]}],"properties":{"opts":{"properties":{"force":{}},"type":"object"}},"type":"object"}"#
        );
    }

    #[test]
    fn a_refusal_names_the_parameter_and_the_keyword() {
        let schema = r#"{"type":"object","properties":{"root":{}},"then":{"required":["root"]}}"#;
        let reason = hide(schema, &["root"]).unwrap_err().to_string();
        assert!(reason.contains("\"root\"") && reason.contains("then"), "{reason}");
    }
}
