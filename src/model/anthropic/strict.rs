//! A tool's schema reduced to what strict tool use takes.
//!
//! Owns the reduction and what can't be reduced. Walks the schema's own structure, so a property that is named like a
//! keyword is a property, and what stands in `enum`, `const`, `default` or `examples` is left alone. Numbers keep every digit.

use std::collections::BTreeMap;

use holdpoint_core::json::Json;
use serde_json::{Map, Value};

/// Keywords that strict tool use refuses. The runtime holds a call to them all the same.
const REMOVED: [&str; 10] = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "maxItems",
    "pattern",
    "uniqueItems",
];

/// Keywords whose value maps names to schemas.
const NAMED: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// Keywords whose value is a list of schemas.
const LISTED: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];

/// Keywords whose value is a schema, or, of `items`, may be a list of them.
const SINGLE: [&str; 11] = [
    "items",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "additionalItems",
    "unevaluatedProperties",
    "unevaluatedItems",
];

/// Why a schema can't be used in strict mode: reducing it would make another schema of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StrictError {
    /// It is no JSON object.
    #[error("its schema is no JSON object")]
    NoObject,
    /// It chooses among schemas.
    #[error("strict mode has no oneOf, and its schema has one at {0}")]
    OneOf(String),
    /// It says what other properties are like.
    #[error(
        "strict mode takes additionalProperties as true or false alone, and its schema has another at {0}"
    )]
    AdditionalProperties(String),
    /// It refers to itself as a whole.
    #[error("strict mode has no reference to the whole schema, and its schema has one")]
    RefToRoot,
    /// It refers to itself.
    #[error("strict mode has no recursion, and its schema has one through {0}")]
    Recursive(String),
}

/// Gives the reduced schema: without the keywords for bounds, lengths and patterns, without a `minItems` above 1, and with
/// `additionalProperties` false in every object. Sending it is what [`Config::strict`](super::Config::strict) does; who
/// shows a person what is sent asks here.
///
/// # Errors
/// When the schema holds what strict tool use can't express.
pub fn strict_schema(schema: &Json) -> Result<Json, StrictError> {
    let mut root: Value = schema.decode().map_err(|_| StrictError::NoObject)?;
    if !root.is_object() {
        return Err(StrictError::NoObject);
    }
    expressible(&root, "#")?;
    References { root: &root, seen: BTreeMap::new() }.follow(&root)?;
    reduce(&mut root);
    if let Value::Object(members) = &mut root {
        members.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    Ok(Json::trusted(root.to_string()))
}

/// Every schema that stands directly in this one, with the place of each.
fn inner(members: &Map<String, Value>) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    for (keyword, value) in members {
        if let Some(named) = value.as_object().filter(|_| is_named(keyword)) {
            found.extend(named.iter().map(|(name, schema)| (format!("{keyword}/{name}"), schema)));
        } else if let Some(list) = value.as_array().filter(|_| is_listed(keyword)) {
            found.extend(list.iter().enumerate().map(|(at, schema)| (format!("{keyword}/{at}"), schema)));
        } else if SINGLE.contains(&keyword.as_str()) {
            found.push((keyword.clone(), value));
        }
    }
    found
}

fn is_named(keyword: &str) -> bool {
    NAMED.contains(&keyword)
}

fn is_listed(keyword: &str) -> bool {
    LISTED.contains(&keyword) || keyword == "items"
}

fn expressible(schema: &Value, at: &str) -> Result<(), StrictError> {
    let Value::Object(members) = schema else { return Ok(()) };
    if members.contains_key("oneOf") {
        return Err(StrictError::OneOf(at.to_owned()));
    }
    if members.get("additionalProperties").is_some_and(|value| !value.is_boolean()) {
        return Err(StrictError::AdditionalProperties(at.to_owned()));
    }
    inner(members).into_iter().try_for_each(|(place, schema)| expressible(schema, &format!("{at}/{place}")))
}

/// The references of a schema, followed to their ends.
struct References<'a> {
    root: &'a Value,
    /// Whether the walk through a reference is over.
    seen: BTreeMap<String, bool>,
}

impl<'a> References<'a> {
    fn follow(&mut self, schema: &'a Value) -> Result<(), StrictError> {
        let Value::Object(members) = schema else { return Ok(()) };
        if let Some(Value::String(reference)) = members.get("$ref") {
            self.enter(reference)?;
        }
        inner(members).into_iter().try_for_each(|(_, schema)| self.follow(schema))
    }

    fn enter(&mut self, reference: &str) -> Result<(), StrictError> {
        let Some(pointer) = reference.strip_prefix('#') else { return Ok(()) };
        if pointer.is_empty() {
            return Err(StrictError::RefToRoot);
        }
        match self.seen.insert(reference.to_owned(), false) {
            Some(false) => return Err(StrictError::Recursive(reference.to_owned())),
            Some(true) => {}
            None => {
                let target = self.root.pointer(pointer);
                target.map_or(Ok(()), |target| self.follow(target))?;
            }
        }
        self.seen.insert(reference.to_owned(), true);
        Ok(())
    }
}

fn reduce(schema: &mut Value) {
    let Value::Object(members) = schema else { return };
    members.retain(|keyword, value| !is_removed(keyword, value));
    for (keyword, value) in members.iter_mut() {
        if is_named(keyword) && value.is_object() {
            value.as_object_mut().into_iter().flat_map(Map::values_mut).for_each(reduce);
        } else if is_listed(keyword) && value.is_array() {
            value.as_array_mut().into_iter().flatten().for_each(reduce);
        } else if SINGLE.contains(&keyword.as_str()) {
            reduce(value);
        }
    }
    if members.get("type").is_some_and(admits_objects) {
        members.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
}

fn is_removed(keyword: &str, value: &Value) -> bool {
    let too_many = keyword == "minItems" && value.as_f64().is_some_and(|number| number > 1.0);
    too_many || REMOVED.contains(&keyword)
}

fn admits_objects(kind: &Value) -> bool {
    kind == "object" || kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "object"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strict(schema: &str) -> Result<String, StrictError> {
        strict_schema(&Json::checked(schema.as_bytes()).unwrap()).map(|schema| schema.as_str().to_owned())
    }

    #[test]
    fn keywords_that_strict_mode_refuses_are_removed() {
        let schema = r#"{"type":"object","properties":{
            "findings":{"type":"array","maxItems":20,"minItems":2,"uniqueItems":true,"items":{"type":"object","properties":{
                "claim":{"type":"string","minLength":1,"maxLength":500},
                "refs":{"type":"array","maxItems":10,"minItems":1,"items":{"type":"string","pattern":"^ev_"}}},
                "required":["claim"],"additionalProperties":false}},
            "limit":{"type":"integer","minimum":1,"maximum":50,"exclusiveMinimum":0,"exclusiveMaximum":51,"multipleOf":1},
            "nested":{"type":"object","properties":{"x":{"type":"string"}}}
        },"required":["findings"],"additionalProperties":true}"#;
        let expected = concat!(
            r#"{"type":"object","properties":{"findings":{"type":"array","items":{"type":"object","properties":{"#,
            r#""claim":{"type":"string"},"refs":{"type":"array","minItems":1,"items":{"type":"string"}}},"#,
            r#""required":["claim"],"additionalProperties":false}},"limit":{"type":"integer"},"#,
            r#""nested":{"type":"object","properties":{"x":{"type":"string"}},"additionalProperties":false}},"#,
            r#""required":["findings"],"additionalProperties":false}"#,
        );
        assert_eq!(strict(schema).unwrap(), expected);
    }

    #[test]
    fn names_and_values_are_no_keywords() {
        let schema = r#"{"type":"object","properties":{"pattern":{"type":"string","pattern":"^a"},"maximum":{"type":"integer","maximum":3},
            "opt":{"type":["object","null"],"properties":{"a":{"type":"string"}}},
            "mode":{"enum":[{"pattern":"kept"},1.50],"default":{"maximum":12345678901234567890},"const":{"oneOf":[]}}},
            "required":["pattern"],"$defs":{"x":{"type":"string","maxLength":3}},"anyOf":[{"minItems":1.0},{"minItems":2.5}]}"#;
        let expected = concat!(
            r#"{"type":"object","properties":{"pattern":{"type":"string"},"maximum":{"type":"integer"},"#,
            r#""opt":{"type":["object","null"],"properties":{"a":{"type":"string"}},"additionalProperties":false},"#,
            r#""mode":{"enum":[{"pattern":"kept"},1.50],"default":{"maximum":12345678901234567890},"const":{"oneOf":[]}}},"#,
            r#""required":["pattern"],"$defs":{"x":{"type":"string"}},"anyOf":[{"minItems":1.0},{}],"additionalProperties":false}"#,
        );
        assert_eq!(strict(schema).unwrap(), expected);
    }

    #[test]
    fn a_reference_that_ends_is_kept() {
        let schema = r##"{"type":"object","properties":{"a":{"$ref":"#/$defs/x"},"b":{"$ref":"#/$defs/x"},"c":{"$ref":"#/$defs/y"}},"$defs":{"x":{"type":"string","pattern":"^a"},"y":{"items":{"$ref":"#/$defs/x"}}},"description":"top"}"##;
        let expected = r##"{"type":"object","properties":{"a":{"$ref":"#/$defs/x"},"b":{"$ref":"#/$defs/x"},"c":{"$ref":"#/$defs/y"}},"$defs":{"x":{"type":"string"},"y":{"items":{"$ref":"#/$defs/x"}}},"description":"top","additionalProperties":false}"##;
        assert_eq!(strict(schema).unwrap(), expected);
    }

    #[test]
    fn what_strict_mode_cannot_express_is_refused() {
        let recursive = |text: &str| StrictError::Recursive(text.to_owned());
        for (schema, expected) in [
            (
                r#"{"type":"object","properties":{"a":{"oneOf":[{"type":"string"}]}}}"#,
                StrictError::OneOf("#/properties/a".to_owned()),
            ),
            (
                r#"{"properties":{"a":{"items":{"additionalProperties":{"type":"string"}}}}}"#,
                StrictError::AdditionalProperties("#/properties/a/items".to_owned()),
            ),
            (r##"{"properties":{"self":{"$ref":"#"}}}"##, StrictError::RefToRoot),
            (
                r##"{"properties":{"n":{"$ref":"#/$defs/node"}},"$defs":{"node":{"properties":{"next":{"$ref":"#/$defs/node"}}}}}"##,
                recursive("#/$defs/node"),
            ),
            (
                r##"{"$defs":{"a":{"items":{"$ref":"#/$defs/b"}},"b":{"anyOf":[{"$ref":"#/$defs/a"}]}},"properties":{"a":{"$ref":"#/$defs/a"}}}"##,
                recursive("#/$defs/b"),
            ),
            (
                r##"{"properties":{"a":{"properties":{"b":{"$ref":"#/properties/a"}}}}}"##,
                recursive("#/properties/a"),
            ),
            ("[]", StrictError::NoObject),
            ("true", StrictError::NoObject),
        ] {
            assert_eq!(strict(schema), Err(expected), "{schema}");
        }
    }
}
