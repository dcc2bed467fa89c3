//! Near misses: valid arguments with one change each. Whether the schema refuses a change is asked of it afterwards.

use serde_json::{Map, Value, json};

use super::generate::{Generator, Place};

/// Every near miss of `valid` that is thought of.
pub(super) fn near_misses(made: &mut Generator<'_>, valid: &Value) -> Vec<Value> {
    let root = made.root();
    misses(made, &root, valid)
}

fn misses<'a>(made: &mut Generator<'a>, place: &Place<'a>, value: &Value) -> Vec<Value> {
    let place = made.resolve(place);
    // Each type that there is, some of which it can't be.
    let mut out = vec![json!("x"), json!(1), json!(true), Value::Null, json!([]), json!({})];
    if place.get("enum").is_some() {
        out.push(Value::String(format!("not-a-member-{}", made.random.below(1_000))));
    }
    if place.get("const").is_some() {
        out.push(json!("not-the-constant"));
    }
    match value {
        Value::String(_) => out.extend(of_string(&place)),
        Value::Number(_) => out.extend(of_number(&place)),
        Value::Array(items) => out.extend(of_array(made, &place, items)),
        Value::Object(members) => out.extend(of_object(made, &place, members)),
        Value::Null | Value::Bool(_) => {}
    }
    out
}

fn of_string(place: &Place<'_>) -> Vec<Value> {
    let longer = place.count("maxLength").map(|most| most + 1);
    let shorter = place.count("minLength").filter(|least| *least > 0).map(|least| least - 1);
    longer.into_iter().chain(shorter).map(|length| Value::String("a".repeat(length))).collect()
}

fn of_number(place: &Place<'_>) -> Vec<Value> {
    let (low, high) = place.bounds();
    let mut out = vec![json!(1.5)];
    if place.get("maximum").or_else(|| place.get("exclusiveMaximum")).is_some() {
        out.extend(high.checked_add(1).map(Value::from));
    }
    if place.get("minimum").or_else(|| place.get("exclusiveMinimum")).is_some() {
        out.extend(low.checked_sub(1).map(Value::from));
    }
    out
}

fn of_array<'a>(made: &mut Generator<'a>, place: &Place<'a>, items: &[Value]) -> Vec<Value> {
    let mut out = Vec::new();
    if let Some(most) = place.count("maxItems") {
        let filler = json!("x");
        let longer = items.iter().cycle().take(if items.is_empty() { 0 } else { most + 1 }).cloned();
        let padded = longer.chain(std::iter::repeat(filler)).take(most + 1);
        out.push(Value::Array(padded.collect()));
    }
    if let Some(least) = place.count("minItems").filter(|least| (1..=items.len()).contains(least)) {
        out.push(Value::Array(items[..least - 1].to_vec()));
    }
    if let (Some(schema), Some(first)) = (place.items(), items.first()) {
        for miss in misses(made, &schema, first) {
            let mut changed = items.to_vec();
            changed[0] = miss;
            out.push(Value::Array(changed));
        }
    }
    if place.get("uniqueItems").and_then(Value::as_bool).unwrap_or(false)
        && let Some(first) = items.first()
    {
        out.push(Value::Array(items.iter().chain([first]).cloned().collect()));
    }
    out
}

fn of_object<'a>(made: &mut Generator<'a>, place: &Place<'a>, members: &Map<String, Value>) -> Vec<Value> {
    let changed = |change: &dyn Fn(&mut Map<String, Value>)| {
        let mut members = members.clone();
        change(&mut members);
        Value::Object(members)
    };
    let mut out = Vec::new();
    for name in place.required() {
        out.push(changed(&|members| {
            members.shift_remove(name);
        }));
    }
    if place.get("additionalProperties") == Some(&Value::Bool(false)) {
        out.push(changed(&|members| {
            members.insert("unexpected".to_owned(), json!(1));
        }));
    }
    if let Some(most) = place.count("maxProperties") {
        out.push(changed(&|members| {
            for at in 0..=most {
                members.insert(format!("over_{at}"), json!(1));
            }
        }));
    }
    for (name, value) in members {
        let Some(schema) = place.properties().and_then(|all| all.get(name)) else { continue };
        for miss in misses(made, &place.child(schema, name), value) {
            let mut members = members.clone();
            members.insert(name.clone(), miss);
            out.push(Value::Object(members));
        }
    }
    out
}
