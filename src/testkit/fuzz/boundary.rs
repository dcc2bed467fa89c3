//! What the runtime refuses before it looks at a schema: six shapes of bytes that are no usable JSON.

use serde_json::{Map, Value};

/// Deeper than the 256 levels that pass.
const TOO_DEEP: usize = 300;

/// The six cases, made from `valid` where that leaves the boundary as the only thing that can refuse them.
pub(super) fn cases(schema: &Value, valid: &Value) -> Vec<Vec<u8>> {
    let nothing = Map::new();
    let members = valid.as_object().unwrap_or(&nothing);
    let text = valid.to_string();
    let deep = format!("{{\"_\":{}{}}}", "[".repeat(TOO_DEEP), "]".repeat(TOO_DEEP));
    let twice = match members.iter().next() {
        Some((name, value)) => {
            let member = format!("{}:{value}", Value::from(name.as_str()));
            format!("{{{member},{}", &text[1..])
        }
        None => r#"{"k":1,"k":1}"#.to_owned(),
    };
    // A string property carries the bad bytes where there is one, so that it is not its name that is refused.
    let name = members.keys().find(|name| is_plain_string(schema, name)).map_or("_", String::as_str);
    let key = Value::from(name).to_string();
    let rest: Map<String, Value> =
        members.iter().filter(|(other, _)| *other != name).map(|(k, v)| (k.clone(), v.clone())).collect();
    let with = |value: &[u8]| {
        let mut bytes = format!("{{{key}:").into_bytes();
        bytes.extend_from_slice(value);
        let rest = Value::Object(rest.clone()).to_string();
        if rest.len() > 2 {
            bytes.push(b',');
        }
        bytes.extend_from_slice(&rest.as_bytes()[1..]);
        bytes
    };
    let cut_off = text.as_bytes()[..text.len() - 1].to_vec();
    vec![
        deep.into_bytes(),
        twice.into_bytes(),
        with(b"\"a\xffb\""),
        with(br#""\ud800""#),
        cut_off,
        format!("{text} {{}}").into_bytes(),
    ]
}

fn is_plain_string(schema: &Value, name: &str) -> bool {
    let property = schema.get("properties").and_then(|all| all.get(name));
    property.is_some_and(|property| {
        property.get("type").and_then(Value::as_str) == Some("string")
            && property.get("enum").is_none()
            && property.get("const").is_none()
    })
}
