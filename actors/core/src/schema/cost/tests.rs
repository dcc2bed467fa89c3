//! The bound against schemas that servers might send, honest and not.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn bounded(schema: &serde_json::Value) -> Result<Cost, Uncheckable> {
    bound(&ObjectSchema::read(&schema.to_string()).unwrap())
}

/// Each definition refers to the next one twice.
fn doubling(levels: usize, keyword: &str) -> serde_json::Value {
    let mut definitions = serde_json::Map::new();
    definitions.insert("d0".to_owned(), json!({"type": "string"}));
    for level in 1..=levels {
        let target = format!("#/$defs/d{}", level - 1);
        definitions.insert(format!("d{level}"), json!({keyword: [{"$ref": target}, {"$ref": target}]}));
    }
    json!({"type": "object", "properties": {"x": {"$ref": format!("#/$defs/d{levels}")}}, "$defs": definitions})
}

#[test]
fn references_that_double_at_each_level_are_refused() {
    for keyword in ["anyOf", "allOf", "oneOf", "prefixItems"] {
        assert_eq!(bounded(&doubling(26, keyword)), Err(Uncheckable::TooLarge), "{keyword}");
        assert_eq!(
            bounded(&doubling(500, keyword)),
            Err(Uncheckable::TooLarge),
            "{keyword} past any counter"
        );
        let small = bounded(&doubling(8, keyword)).unwrap();
        assert!(small.per_value < 3_000 && small.recursion.is_none(), "{keyword}: {small:?}");
    }
    assert!(bounded(&doubling(60, "title")).is_ok(), "a keyword that applies nothing costs nothing");
}

#[test]
fn an_honest_schema_costs_about_its_size() {
    let schema = json!({
        "type": "object",
        "properties": {
            "path": {"type": "string", "minLength": 1},
            "edits": {"type": "array", "items": {"type": "object", "properties": {
                "oldText": {"type": "string"}, "newText": {"type": "string"}}, "required": ["oldText", "newText"]}},
            "mode": {"enum": ["a", "b", "c"]},
        },
        "required": ["path", "edits"],
        "additionalProperties": false,
    });
    let cost = bounded(&schema).unwrap();
    assert!(cost.recursion.is_none());
    assert!((20..60).contains(&cost.per_value), "{cost:?}");
    assert!(cost.admits(100_000, 10));
}

#[test]
fn a_schema_that_refers_to_itself_for_the_same_value_is_refused() {
    for schema in [
        json!({"type": "object", "allOf": [{"$ref": "#"}]}),
        json!({"type": "object", "$ref": "#"}),
        json!({"type": "object", "anyOf": [{"$ref": "#/$defs/a"}],
               "$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"if": {"$ref": "#/$defs/a"}}}}),
        json!({"type": "object", "$dynamicAnchor": "me", "oneOf": [{"$dynamicRef": "#me"}]}),
        json!({"type": "object", "$recursiveAnchor": true, "then": {"$recursiveRef": "#"}}),
        json!({"type": "object", "$ref": "#/$defs/a%20b~1c", "$defs": {"a b/c": {"$ref": "#"}}}),
    ] {
        assert!(
            matches!(bounded(&schema), Err(Uncheckable::Endless { .. })),
            "{schema}: {:?}",
            bounded(&schema)
        );
    }
}

#[test]
fn a_tree_is_recursion_in_which_nothing_meets() {
    for schema in [
        json!({"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}),
        json!({"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}),
        json!({"type": "object", "properties": {"name": {"$ref": "#"}}, "additionalProperties": {"$ref": "#"}}),
        json!({"type": "object", "properties": {"value": {"$ref": "#/$defs/json"}}, "$defs": {"json": {"anyOf": [
            {"type": ["string", "number", "boolean", "null"]},
            {"type": "array", "items": {"$ref": "#/$defs/json"}},
            {"type": "object", "additionalProperties": {"$ref": "#/$defs/json"}}]}}}),
    ] {
        let cost = bounded(&schema).unwrap();
        assert_eq!(cost.recursion, Some(1), "{schema}");
        assert!(cost.admits(1_000, 60), "{schema}");
    }
}

#[test]
fn copies_that_meet_at_one_part_multiply_with_every_level() {
    let one_of_two_shapes = json!({"type": "object", "properties": {"filter": {"$ref": "#/$defs/f"}}, "$defs": {"f": {
    "oneOf": [
        {"properties": {"op": {"const": "and"}, "of": {"type": "array", "items": {"$ref": "#/$defs/f"}}}},
        {"properties": {"op": {"const": "or"}, "of": {"type": "array", "items": {"$ref": "#/$defs/f"}}}},
    ]}}});
    let cost = bounded(&one_of_two_shapes).unwrap();
    assert_eq!(cost.recursion, Some(2));
    assert!(cost.admits(60, 8), "what people write is checked");
    assert!(!cost.admits(200, 60), "what would take for ever is not");

    for (schema, meeting) in [
        (json!({"patternProperties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}}), 2),
        (json!({"patternProperties": {"a": {"$ref": "#"}}, "properties": {"a": {"$ref": "#"}}}), 2),
        (json!({"additionalProperties": {"$ref": "#"}, "unevaluatedProperties": {"$ref": "#"}}), 2),
        (json!({"properties": {"x": {"items": {"$ref": "#"}, "contains": {"$ref": "#"}}}}), 2),
        (json!({"properties": {"x": {"prefixItems": [{"$ref": "#"}], "items": {"$ref": "#"}}}}), 2),
        (json!({"properties": {"x": {"prefixItems": [{"$ref": "#"}, {"$ref": "#"}]}}}), 1),
        (
            json!({"allOf": [{"properties": {"x": {"$ref": "#"}}}, {"properties": {"x": {"$ref": "#"}, "y": {"$ref": "#"}}}]}),
            2,
        ),
    ] {
        let mut schema = schema;
        schema["type"] = json!("object");
        assert_eq!(bounded(&schema).unwrap().recursion, Some(meeting), "{schema}");
    }
}

#[test]
fn a_circle_that_doubles_before_it_closes_is_counted() {
    let mut schema = doubling(20, "anyOf");
    schema["$defs"]["d0"] = json!({"properties": {"again": {"$ref": "#"}}});
    schema["properties"] = json!({"x": {"anyOf": [{"$ref": "#/$defs/d20"}]}});
    assert_eq!(bounded(&schema), Err(Uncheckable::TooLarge));
}

#[test]
fn a_nested_identifier_does_not_hide_what_a_reference_means() {
    let nested = doubling(26, "anyOf");
    let schema = json!({"type": "object", "properties": {"p": {
        "$id": "http://json-schema.org/draft-07/schema", "properties": nested["properties"], "$defs": nested["$defs"]}}});
    assert_eq!(bounded(&schema), Err(Uncheckable::TooLarge));
}

#[test]
fn limits_past_two_to_the_63_are_refused_where_they_are_compared() {
    let refused =
        json!({"type": "object", "properties": {"n/m": {"maximum": 9_223_372_036_854_775_809_u64}}});
    let reason = bounded(&refused).unwrap_err();
    assert_eq!(
        reason,
        Uncheckable::Number {
            keyword: "maximum".to_owned(),
            at: "#/properties/n~1m".to_owned(),
            value: "9223372036854775809".to_owned()
        }
    );
    assert!(reason.to_string().contains("maximum at #/properties/n~1m is 9223372036854775809"));
    let text = r#"{"type":"object","properties":{"n":{"anyOf":[{"enum":[1,{"a":-1e+300}]}]}}}"#;
    assert!(matches!(bound(&ObjectSchema::read(text).unwrap()), Err(Uncheckable::Number { .. })));

    for fine in [
        json!({"properties": {"n": {"maximum": 9_223_372_036_854_775_808_u64, "minimum": i64::MIN}}}),
        json!({"properties": {"maximum": {"type": "number", "default": u64::MAX, "examples": [u64::MAX]}}}),
        json!({"default": {"maximum": u64::MAX}, "$defs": {"unused": {"maximum": u64::MAX}}}),
    ] {
        let mut fine = fine;
        fine["type"] = json!("object");
        assert!(bounded(&fine).is_ok(), "{fine}");
    }
}

#[test]
fn a_reference_to_nowhere_costs_nothing_here() {
    let schema =
        json!({"type": "object", "properties": {"x": {"$ref": "#/nowhere"}, "y": {"$ref": "#none"}}});
    assert!(bounded(&schema).is_ok());
}

#[test]
fn a_large_schema_of_recursive_parts_is_bounded_in_bounded_time() {
    let mut definitions = serde_json::Map::new();
    for index in 0..2_000 {
        let next = format!("#/$defs/d{}", (index + 1) % 2_000);
        let step = if index == 0 { "items" } else { "not" };
        definitions.insert(format!("d{index}"), json!({step: {"$ref": next}}));
    }
    let schema = json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/d1"}}, "$defs": definitions});
    assert_eq!(bounded(&schema).unwrap().recursion, Some(1));
}

#[test]
fn a_key_as_long_as_the_schema_costs_no_more_than_a_short_one() {
    let items = vec![json!({"not": true}); 9_000];
    let schema = json!({"type": "object", "properties": {"k".repeat(100_000): {"allOf": items}}});
    let cost = bounded(&schema).unwrap();
    assert!(cost.per_value < MAX_EXPANDED, "{cost:?}");
    let mut refused = schema;
    refused["properties"]["k".repeat(100_000)]["allOf"][8_999] = json!({"maximum": u64::MAX});
    assert!(matches!(bounded(&refused), Err(Uncheckable::Number { .. })));
}

#[test]
fn ambiguous_anchors_cannot_blow_the_graph_up() {
    let many = vec![json!({"$anchor": "a", "not": {"$ref": "#a"}}); 2_000];
    assert_eq!(bounded(&json!({"type": "object", "anyOf": many})), Err(Uncheckable::TooLarge));
}

#[test]
fn a_value_is_measured_from_its_text() {
    let cost = Cost { per_value: MAX_WORK / 5, recursion: None };
    assert!(cost.admits_text(r#"{"a":[1,"x"],"b":{}}"#), "five parts, itself included");
    assert!(!cost.admits_text(r#"{"a":[1,"x",true],"b":{}}"#));
    assert!(!cost.admits_text("{"));
    let doubling = Cost { per_value: 1, recursion: Some(2) };
    assert!(doubling.admits_text("[[[[1]]]]"));
    assert!(!doubling.admits_text(&format!("{}{}", "[".repeat(60), "]".repeat(60))));
}

/// Checks without ever stopping early, and counts the subschemas it applies.
fn visits(root: &Value, schema: &Value, value: &Value) -> u64 {
    let Value::Object(object) = schema else { return 1 };
    let mut sum = 1;
    let mut apply = |schema: &Value, value: &Value| sum += visits(root, schema, value);
    if let Some(target) = object.get("$ref").and_then(Value::as_str) {
        apply(root.pointer(&target[1..]).unwrap(), value);
    }
    for schema in object.get("anyOf").and_then(Value::as_array).into_iter().flatten() {
        apply(schema, value);
    }
    let properties = object.get("properties").and_then(Value::as_object);
    for (name, member) in value.as_object().into_iter().flatten() {
        let own = properties.and_then(|properties| properties.get(name));
        let others = object.get("additionalProperties").filter(|_| own.is_none());
        let patterns = object.get("patternProperties").and_then(|patterns| patterns.get("."));
        own.into_iter().chain(others).chain(patterns).for_each(|schema| apply(schema, member));
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        let own = object.get("prefixItems").and_then(|items| items.get(index));
        let any = ["items", "contains"].into_iter().filter_map(|keyword| object.get(keyword));
        own.into_iter().chain(any).for_each(|schema| apply(schema, item));
    }
    sum
}

/// Gives the parts and the depth of a value.
fn size(value: &Value) -> (u64, u32) {
    let inner: Vec<(u64, u32)> = match value {
        Value::Array(items) => items.iter().map(size).collect(),
        Value::Object(object) => object.values().map(size).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return (1, 0),
    };
    (
        1 + inner.iter().map(|(parts, _)| parts).sum::<u64>(),
        1 + inner.iter().map(|(_, depth)| *depth).max().unwrap_or(0),
    )
}

const KEYWORDS: &[&str] =
    &["anyOf", "items", "contains", "additionalProperties", "patternProperties", "prefixItems", "a", "b"];

fn subschema() -> impl Strategy<Value = Value> {
    proptest::collection::vec((proptest::sample::select(KEYWORDS), 0..5_usize, 0..5_usize), 0..4).prop_map(
        |chosen| {
            let mut schema = json!({});
            for (keyword, one, other) in chosen {
                let one = json!({"$ref": format!("#/$defs/d{one}")});
                let other = json!({"$ref": format!("#/$defs/d{other}")});
                match keyword {
                    "anyOf" | "prefixItems" => schema[keyword] = json!([one, other]),
                    "patternProperties" => schema[keyword] = json!({".": one}),
                    "a" | "b" => schema["properties"][keyword] = one,
                    _ => schema[keyword] = one,
                }
            }
            schema
        },
    )
}

fn instance() -> impl Strategy<Value = Value> {
    let leaf = Just(json!(1));
    leaf.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            (inner.clone(), inner.clone()).prop_map(|(a, c)| json!({"a": a, "c": c})),
            (inner.clone(), inner).prop_map(|(a, b)| json!({"a": a, "b": b})),
        ]
    })
}

proptest! {
    #[test]
    fn no_check_takes_more_steps_than_the_bound(
        definitions in proptest::collection::vec(subschema(), 5),
        value in instance(),
    ) {
        let definitions: serde_json::Map<String, Value> =
            definitions.into_iter().enumerate().map(|(index, schema)| (format!("d{index}"), schema)).collect();
        let schema = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}},
            "additionalProperties": {"$ref": "#/$defs/d1"}, "$defs": definitions});
        if let Ok(cost) = bounded(&schema) {
            let (parts, depth) = size(&value);
            let steps = visits(&schema, &schema, &value);
            prop_assert!(steps <= cost.work(parts, depth), "{steps} steps, {cost:?}, {parts} parts, depth {depth}");
        }
    }
}
